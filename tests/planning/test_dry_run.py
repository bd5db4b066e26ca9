"""The plan of a config: the paper's parameters and FLOPs, resolved steps, clear errors; no data, no weights."""

import json
import resource

import pytest

from keras_vit.models import freeze, freeze_all_but_head
from keras_vit.planning import dry_run
from keras_vit.planning.model_counts import forward_flops, training_flops
from keras_vit.planning.rows_of_text import rows, short, sparkline
from keras_vit.runs.prepare import check, planned_data
from keras_vit.training import AdamW, Momentum
from trainers import config_files, pretrain

DATASETS = config_files.packaged("lib.datasets").DATASETS


def planned(config):
    """The Prepared of a plan."""
    return check(config).on(*planned_data(config.data, DATASETS)).without_checkpoint()[0]


def plan(name, **arguments):
    return dry_run.plan(config_files.load_config(name), DATASETS, **arguments)


@pytest.mark.extended
def test_the_plan_of_h14_is_the_papers_and_takes_no_memory():
    """Table 6 of arXiv 2010.11929 has 4262 exaFLOPs for all 303M images; 50,000 are held out here."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    text = plan("jft_pretrain:H/14")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
    assert grown < 0.5, "GiB; the weights alone would be 2.4"
    # 632,045,800 with 1000 classes; 18,291 classes and the hidden layer of the head come on top.
    parameters = 632_045_800 + (18_291 - 1000) * 1281 + 1280 * 1281
    assert f"H/14 224 x 224 px, 257 tokens: {parameters:,} parameters, all trained" in text
    assert "335 GFLOP per image forward, 3x that in training; 4,258 EFLOP in total" in text
    assert "jft300m train[50000:] (302,950,000 examples, 18,291 classes), evaluated on train[:50000] (50,000)" in text
    assert "1,035,474 steps of 4,096 images = 14 epochs of 73,963 steps" in text
    assert (
        "linear, 10,000 steps of warm-up" in text and "0.0003 at step 10,000" in text and " at step 1,035,473\n" in text
    )
    assert "expected" in text and "88.55%" in text


@pytest.mark.parametrize(("row", "exaflops"), [("L/16-7ep", 783), ("B/32", 55)])
def test_pre_training_costs_what_table_6_says(row, exaflops):
    config = config_files.load_config(f"jft_pretrain:{row}")
    run = planned(config)
    spec = run.model_without_values().spec
    flops = 3 * forward_flops(spec, classes=None) * run.resolved["total"] * run.resolved["batch_size"]
    assert flops / 1e18 == pytest.approx(exaflops, rel=0.02)


@pytest.mark.extended
def test_a_linear_probe_trains_its_head_alone():
    text = plan("linear_probe:B/16,cifar10")
    assert "85,806,346 parameters, 7,690 trained" in text  # 768 x 10 + 10
    assert "5 points: optimizer.learning_rate=0.01,0.03,0.1,0.3,1 (with --sweep)" in text


def test_sweep_and_seeds_are_told():
    text = plan("digits_pretrain", sweep="mixup=0,0.2;batch_size=8,16,32", runs=3)
    assert "6 points: mixup=0,0.2;batch_size=8,16,32" in text and "3 seeds" in text
    with pytest.raises(ValueError, match='no "mixip" there'):
        plan("digits_pretrain", sweep="mixip=0")


def test_the_picture_is_of_the_schedule(tmp_path):
    assert f"picture        {tmp_path / 'run' / 'learning_rate.png'}" in plan(
        "digits_pretrain", workdir=tmp_path / "run"
    )
    assert (tmp_path / "run" / "learning_rate.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(NotADirectoryError, match=r'learning_rate.png" is a file'):
        plan("digits_pretrain", workdir=tmp_path / "run" / "learning_rate.png")


def test_a_run_directory_says_which_model_is_fine_tuned(tmp_path):
    import keras_vit

    model = keras_vit.ViT(
        "Ti/4", image_size=8, channels=1, classes=10, depth=2, width=32, heads=2, mlp_dim=64, pre_logits=16
    )
    (tmp_path / "config.json").write_text(json.dumps({"model_spec": model.get_config()}))
    config = config_files.load_config("digits_finetune")
    config.init, config.head = str(tmp_path), "reset"
    config.lock()  # as the command line's is
    # 2x2 tokens become 4x4, and the hidden layer of the head, 32 x 16 + 16 and a narrower head, goes.
    expected = model.count_params() + 12 * 32 - (32 * 16 + 16) + (32 - 16) * 10
    assert f"16 x 16 px, 17 tokens: {expected:,} parameters, all trained, as {tmp_path}" in " ".join(
        dry_run.plan(config, DATASETS).split()
    )


@pytest.mark.extended
def test_unknown_data_asks_for_what_is_missing():
    with pytest.raises(ValueError, match='The size of "folder:PATH" is not known.*pass --examples=N.*--classes=N.$'):
        plan("folder_finetune")
    with pytest.raises(ValueError, match="pass --examples=N"):
        plan("folder_finetune", examples=100)
    text = flat(plan("folder_finetune", examples=1000, classes=7))
    assert "(1,000 examples, 7 classes)" in text
    assert "at most 188 steps of 16 images = 3.008 epochs of 63 steps" in text
    config = config_files.load_config("cifar10_scratch")
    config.data.train = "training"
    with pytest.raises(ValueError, match='"cifar10" has no split "training"; its splits: train, test'):
        dry_run.plan(config, DATASETS)


def test_what_an_optimizer_keeps_a_weight():
    assert dry_run.copies(AdamW(1e-3)) == 2 and dry_run.copies(Momentum(1e-3)) == 1
    assert dry_run.copies(Momentum(1e-3, use_ema=True)) == 2


def test_numbers_and_curves_as_text():
    assert [short(n, "B") for n in (17, 1500, 3.52e10, 4.257e21)] == ["17 B", "1.5 kB", "35.2 GB", "4,257 EB"]
    assert sparkline([0, 1, 2, 4]) == "▁▃▅█" and sparkline([0, 0]) == "▁▁"
    told = rows([("name", "a " * 10), ("x", "b")], width=12)
    assert told.splitlines() == ["name  a a a", *["      a a a"] * 2, "      a", "x     b"]


@pytest.mark.extended
def test_images_with_texts_are_planned_without_a_label_or_a_tokenizer(tmp_path):
    for i in range(20):
        (tmp_path / f"{i}.png").touch()
    (tmp_path / "pairs.csv").write_text("image,text\n" + "".join(f"{i}.png,thing {i}\n" for i in range(20)))
    config = config_files.load_config("lit:trained")
    config.batch_size, config.data.source = 4, f"csv:{tmp_path / 'pairs.csv'}"
    config.model.update(variant="Ti/16", image_size=32, depth=1, width=16, heads=2, mlp_dim=16)
    config.data.train_preprocess = config.data.eval_preprocess = "decode|resize(32, 32)"
    config.objective.text_options = {"depth": 1, "width": 16, "heads": 2, "mlp_dim": 16, "vocabulary": 50}
    planned = flat(dry_run.plan(config, DATASETS))
    assert "train[:90%] (18 examples), evaluated on train[90%:] (2)" in planned
    assert "per image forward, 3x that in training" in planned and "activations 4 x" in planned
    config.data.train_preprocess = "decode|resize(48, 48)"
    with pytest.raises(ValueError, match=r"gives images of \(48, 48, 3\), the model takes \(32, 32, 3\)"):
        dry_run.plan(config, DATASETS)


def test_the_binary_plans_without_a_workdir(binary):
    printed = binary(pretrain, config=config_files.load_config("digits_pretrain"), dry_run=True)
    assert "digits train (1,437 examples, 10 classes), evaluated on test (360)" in printed


def flat(text):
    return " ".join(text.split())


@pytest.mark.extended
def test_a_local_folder_is_counted(photos):
    config = config_files.load_config("folder_finetune")
    config.update(batch_size=32)
    config.data.source, config.loss.class_weights = f"folder:{photos}", "balanced"
    config.model.update(depth=1, width=16, heads=2, mlp_dim=16)
    text = flat(dry_run.plan(config, DATASETS))
    assert "train[:80%] (16 examples, 2 classes), evaluated on train[80%:] (4)" in text
    assert "at most 64 steps of 32 images drawn from 16;" in text
    assert "ends after 38 steps without a better" in text
    assert "keeps the best model" in text and "all trained" in text and "for a step on one device" in text
    assert "note --batch_size=32 is more than the 16 training examples" in text


def test_only_what_trains_is_counted_backwards(tiny):
    """The gradient of the activations goes down to the lowest layer that trains."""
    model = tiny(depth=4)
    forward = forward_flops(model.spec, (8, 12), classes=5)
    block = forward - forward_flops(tiny(depth=3).spec, (8, 12), classes=5)
    head = 2 * 16 * 5
    patches = forward - 4 * block - head

    def step(*frozen):
        freeze(model, frozen) if frozen else None
        counted = training_flops(model)
        for layer in model.layers:
            layer.trainable = True
        return counted

    assert step() == 3 * forward
    assert step("patch_encoder", "class_token", "position_embedding") == 3 * forward - 2 * patches
    assert (
        step("patch_encoder", "class_token", "position_embedding", "block_00", "block_01")
        == forward + 4 * block + 2 * head
    )
    assert step("block_03") == 3 * forward - block
    freeze_all_but_head(model)
    assert training_flops(model) == forward + 2 * head


def test_a_linear_probe_costs_a_forward_pass_and_says_what_it_trains():
    text = flat(plan("linear_probe:B/16,cifar10"))
    assert "7,690 trained, in head" in text and "1x that in training (nothing below the head trains)" in text
