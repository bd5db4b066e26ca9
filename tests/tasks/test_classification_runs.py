"""Runs of classification and its binaries; that every shipped config trains is in runs/test_configs.py."""

import concurrent.futures
import logging
import math
import shutil
import threading

import numpy as np
import pytest
import short_runs

import keras_vit
from keras_vit.data import from_arrays, open_source
from keras_vit.evaluation import Embedder
from keras_vit.evaluation.linear_probe import probe_head
from keras_vit.io.json_files import read_json
from keras_vit.models.finetuning.quantization_aware import learned_ranges, without_fake_quantization
from keras_vit.planning.model_counts import forward_flops
from keras_vit.runs import RunDirectory, training_run
from keras_vit.runs.prepare import check
from keras_vit.tasks import Classification
from keras_vit.training import Cutmix, Mixup, MixupOrCutmix
from trainers import config_files, export

SMALL = short_runs.SMALL


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """With positions in the attention, which a resumed run must restore too."""
    options = {"model.positions": "relative2d", "model.position_std": None, "model.dropout": 0.1, "mixup": 0.2}
    return short_runs.whole_and_resumed(short_runs.small(**options), tmp_path_factory.mktemp("runs"))


@pytest.mark.extended
def test_a_run_leaves_its_files_and_finite_measures(done):
    assert math.isfinite(done.measures["loss"]) and 0 <= done.measures["top1"] <= 1
    for name in ("config.json", "model.keras", "tensorboard"):
        assert (done.folder / name).exists(), name
    assert [r["step"] for r in done.records] == [2, 4] and all(math.isfinite(r["val_loss"]) for r in done.records)
    assert done.page.count("data:image/png") > 16 and done.page.count("<svg") >= 3


@pytest.mark.extended
def test_a_stopped_run_ends_bit_for_bit_where_an_uninterrupted_one_does(done):
    assert done.state == done.resumed


@pytest.mark.extended
def test_a_run_does_not_go_on_with_another_config(done):
    config = done.config.copy_and_resolve_references()
    config.seed, config.optimizer.learning_rate = 1, 0.5
    with pytest.raises(
        ValueError, match="seed was 0, is 1; optimizer.learning_rate was 0.002, is 0.5. Use a new --workdir"
    ):
        training_run.run(config, done.folder)


def finetuned(done, **options):
    config = config_files.load_config("digits_finetune")
    config.update(init=str(done.folder), total="1 steps", evaluate="1 steps", checkpoint="1 steps", batch_size=8)
    config.update(jit_compile=False, head="reset", **options)
    config.data.update(train="train[:64]", evaluation="test[:16]")
    return config


@pytest.mark.extended
def test_finetuning_changes_the_resolution_and_the_head_alone(done, tmp_path, eagerly):
    model = short_runs.ended(finetuned(done, linear_probe=True), tmp_path)
    assert model.image_size == (16, 16) and model.grid == (4, 4)
    for name in ("patch_encoder", "block_00"):
        ours, theirs = (m.get_layer(name).get_weights()[0] for m in (model, done.model))
        np.testing.assert_array_equal(ours, theirs)
    assert np.abs(model.get_layer("head").kernel.numpy()).max() > 0


@pytest.mark.extended
def test_a_head_begins_as_a_probe_and_the_best_weights_are_delivered(done, tmp_path, eagerly, monkeypatch):
    """The learning rate ruins the model, so that the best evaluation is the first, of the probe. A further evaluator
    measures the delivered weights.
    """
    monkeypatch.setattr(training_run, "write_report", lambda *_: None)
    config = finetuned(done)
    config.update(head="probe", keep_best=True, early_stopping="2 steps", total="9 steps")
    config.update_from_flattened_dict({"optimizer.learning_rate": 10.0, "optimizer.clip_norm": None})
    config.evals.again = {"evaluator": "classification"}
    model, measures = training_run.run(config, tmp_path)
    records = RunDirectory(tmp_path).metrics()
    assert measures["steps"] == 2 and [record["step"] for record in records] == [0, 1, 2]
    assert measures["top1"] == pytest.approx(records[0]["val_accuracy"]) and measures["top1"] > 0.2
    assert records[0]["again/top1"] == measures["top1"]
    (kernel, bias), _ = probe_head(
        *Embedder(model, config.data.eval_preprocess, 8)(open_source("digits", "train[:64]")), 10
    )
    np.testing.assert_allclose(model.get_layer("head").kernel, kernel, atol=1e-3)
    assert "the best of 3 evaluations by top-1 on test[:16]" in read_json(tmp_path / "evaluation.json")["choice"]


@pytest.mark.extended
def test_fake_quantisation_resumes_bit_for_bit(done, tmp_path):
    config = done.config.copy_and_resolve_references()
    config.update(init=str(done.folder), head="keep", quantization="int8")
    trained = short_runs.whole_and_resumed(config, tmp_path)
    assert trained.state == trained.resumed
    assert learned_ranges(keras_vit.load(trained.folder)) == learned_ranges(trained.model) != {}
    config.update(init=str(trained.folder), quantization=None)
    again = Classification(config).model(open_source("digits", "train[:64]"))
    assert not learned_ranges(again), "--init takes the weights in floats"
    for ours, theirs in zip(again.weights, without_fake_quantization(trained.model).weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantization": "int8"}, "fine-tunes a trained model: set --config.init"),
        ({"quantization": "int4", "init": "x"}, "Valid: int8, or None"),
        ({"quantization": "int8", "init": "x", "linear_probe": True}, "leave --config.linear_probe out"),
        (
            {"quantization": "int8", "init": "x", "task": "masked_autoencoding"},
            "does not use some options.*quantization",
        ),
    ],
)
def test_configs_that_fake_quantisation_does_not_suit(options, message):
    with pytest.raises(ValueError, match=message):
        check(short_runs.small(**options))


@pytest.mark.extended
def test_what_the_config_freezes_does_not_train(done):
    config = finetuned(done, freeze=("patch_*", "block_00"))
    model = Classification(config).model(open_source("digits", "train[:64]"))
    assert {w.path.split("/")[0] for w in model.trainable_weights} == {"encoder_norm", "head"}


@pytest.mark.extended
@pytest.mark.parametrize(
    "options",
    [
        {"loss.name": "sigmoid", "loss.class_weights": "balanced", "dtype": "mixed_bfloat16"}
        | {"optimizer.name": "momentum", "schedule.decay": "linear"},
        {"loss.class_weights": "1,2,1,1,1,1,1,1,1,0.5", "dtype": "mixed_float16", "mixup": 0.2}
        | {"optimizer.ema": 0.9, "schedule.decay": "rsqrt", "schedule.cooldown": "10%"},
    ],
    ids=["sigmoid", "softmax"],
)
def test_every_training_option_trains(options, tmp_path, eagerly):
    config = short_runs.small(total="2 steps", batch_size=8, **options)
    short_runs.ended(config, tmp_path)
    [record] = RunDirectory(tmp_path).metrics()
    assert record["step"] == 2 and math.isfinite(record["loss"] + record["val_loss"])


def of_photos(photos, size=32, **options):
    """The config of a folder for a tiny model and a step."""
    config = config_files.load_config("folder_finetune")
    config.update(total="1 steps", evaluate="1 steps", checkpoint="1 steps", batch_size=4, **options)
    config.data.update(source=f"folder:{photos}", train="train", evaluation="train[:4]")
    config.data.update(train_preprocess=f"decode|random_resized_crop({size})")
    config.data.update(eval_preprocess=f"decode|resize({size}, {size})")
    config.model.image_size = size
    return config


def test_one_class_is_refused(tmp_path, photos):
    shutil.rmtree(photos / "dark")
    with pytest.raises(ValueError, match='has one class, "light", so there is nothing to learn: add images of another'):
        training_run.run(of_photos(photos), tmp_path / "run")


def test_a_folder_without_images_is_refused(tmp_path):
    (tmp_path / "texts" / "class").mkdir(parents=True)
    (tmp_path / "texts" / "class" / "notes.txt").write_text("no image")
    with pytest.raises(ValueError, match="no images in class folders; it contains 1 .txt"):
        training_run.run(of_photos(tmp_path / "texts"), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_evaluate_refuses_other_classes(tiny):
    check = Classification(None).check_model
    with pytest.raises(ValueError, match="model has 5 classes, the data 10"):
        check(tiny(), open_source("digits", "test"))
    with pytest.raises(ValueError, match="has no head, or its outputs .* Measure its features: keras-vit probe"):
        check(tiny(classes=None), open_source("digits", "test"))
    images = np.zeros((1, 8, 12, 3), "uint8")
    with pytest.raises(ValueError, match="model's classes are"):
        check(tiny(class_names=list("vwxyz")), from_arrays(images, [0], class_names=list("abcde")))
    check(tiny(class_names=list("vwxyz")), from_arrays(images, [0], class_names=list("01234")))


@pytest.mark.extended
def test_bit_fine_tunes_from_googles_files_and_reports(tmp_path, photos, monkeypatch, caplog, eagerly):
    """Random weights in Google's .npz, at another resolution. A broken photo is named, and not counted."""
    (photos / "dark" / "broken.jpg").write_bytes(b"\xff\xd8\xff broken")
    first = of_photos(photos)
    first.model.update(variant="R50x1", units=(1, 1), width_factor=0.5)
    model = Classification(first).model(open_source(f"folder:{photos}", "train"))
    keras_vit.save(model, tmp_path / "first.npz")
    second = of_photos(photos, size=64, init=str(tmp_path / "first.npz"), linear_probe=True)
    second.data.evaluation = "train"
    monkeypatch.setattr(logging.getLogger("absl"), "propagate", True)
    with caplog.at_level("WARNING"):
        tuned, measures = training_run.run(second, tmp_path / "run")
    assert math.isfinite(measures["loss"]) and (tmp_path / "run" / "report.html").exists()
    assert measures["examples"] == 20 and "broken.jpg" in caplog.text
    assert tuned.image_size == (64, 64)
    np.testing.assert_array_equal(tuned.get_layer("stem_conv").kernel, model.get_layer("stem_conv").kernel)


@pytest.mark.extended
def test_export_takes_a_run_and_writes_other_libraries_formats(done, binary, tmp_path, monkeypatch):
    keras_vit.save(keras_vit.ViT("Ti/16", image_size=32, classes=3, **SMALL), tmp_path / "model.keras")
    for form, output in (("timm", "timm"), ("google", "m.npz"), ("huggingface", "hf")):
        binary(export, model=str(tmp_path / "model.keras"), output=str(tmp_path / output), format=form)
        assert keras_vit.load(tmp_path / output).classes == 3
    given = {}
    monkeypatch.setattr(keras_vit, "export", lambda model, output, **options: given.update(options, model=model))
    binary(export, model=str(done.folder), output=str(tmp_path / "saved"), top_k=2)
    assert given["model"].spec == done.model.spec and (given["format"], given["top_k"]) == ("tf_saved_model", 2)


def test_benchmark_counts_the_papers_gflops():
    """Table 6 of arXiv 2010.11929's counterpart at 224 px, 2 a multiply-add: B/16 35.2, L/16 123.1, H/14 334.9."""
    # The hybrids': timm 1.0.31's models counted by torch 2.13, plus the attention's products, which that leaves out.
    for variant, gflop in {
        "B/16": 35.2,
        "L/16": 123.1,
        "H/14": 334.9,
        "R50+B/16": 41.64 + 1.43,
        "R26+S/32": 6.88 + 0.05,
    }.items():
        assert forward_flops(keras_vit.models.make_spec(variant), 224) / 1e9 == pytest.approx(gflop, rel=0.005)


@pytest.mark.parametrize(("steps", "same"), [((12, 12), True), ((12, 8), False), ((8, 12), False), ((0, 12), False)])
def test_processes_that_resume_from_different_steps_are_found(steps, same):
    """Each process is a thread; a collective is a barrier, which breaks if they do not ask equally often."""
    votes, barrier = [None, None], threading.Barrier(2, timeout=10)

    class Process:
        def __init__(self, number):
            self.number = number

        def any(self, flag):
            votes[self.number] = flag
            barrier.wait()
            answer = any(votes)
            barrier.wait()
            return answer

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        found = [threads.submit(training_run._agree, Process(i), step) for i, step in enumerate(steps)]
        assert [future.result() for future in found] == [same, same]


@pytest.mark.extended
def test_a_config_chooses_the_mixing(tiny):
    def mixing(mixup, cutmix):
        config = config_files.load_config("digits_pretrain")
        config.update(mixup=mixup, cutmix=cutmix, seed=7)
        return Classification(config).mixing(tiny())

    assert mixing(None, None) is None and mixing(0.0, 0.0) is None
    assert mixing(0.2, None) == Mixup(0.2, 5, 7)
    assert mixing(None, 1.0) == Cutmix(1.0, 5, 7)
    assert mixing(0.8, 1.0) == MixupOrCutmix(0.8, 1.0, 5, 7)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("data.train_preprocess", "decode(1)|random_shft(1)", 'Did you mean "random_shift"'),
        ("model.image_size", 16, r"images of \(8, 8, 1\), the model takes \(16, 16, 1\): change --config.data.train_p"),
    ],
)
def test_wrong_values_are_clear_errors(key, value, message, tmp_path):
    """Those that a plan refuses too are in runs/test_prepared.py."""
    with pytest.raises(ValueError, match=message):
        training_run.run(short_runs.small(**{key: value}), tmp_path)
    assert not (tmp_path / "config.json").exists()


def test_a_run_beyond_its_end_is_refused(tmp_path):
    training_run.check_length(RunDirectory(tmp_path), 6, 6)
    with pytest.raises(ValueError, match="contains a run at step 7, beyond the 6 steps"):
        training_run.check_length(RunDirectory(tmp_path), 7, 6)
