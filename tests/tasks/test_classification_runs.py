"""The binaries do their work; that every shipped config trains is in test_configs.py."""

import concurrent.futures
import json
import logging
import math
import shutil
import threading

import numpy as np
import pytest
import tensorflow as tf
from interrupted import ended, ended_and_resumed

import keras_vit
from keras_vit.runs import RunDirectory, training_run
from keras_vit.tasks import Classification
from keras_vit.training import Cutmix, Mixup, MixupOrCutmix
from trainers import config_files, flags

SMALL = {"depth": 1, "width": 16, "heads": 2, "mlp_dim": 16}


def shrink(name, **data):
    """A shipped config made to take a few steps of a tiny model."""
    config = config_files.load_config(name)
    config.update(total="3 steps", evaluate="2 steps", checkpoint="2 steps", batch_size=8, jit_compile=False)
    config.data.update(data)
    return config


def check(workdir, measures):
    assert math.isfinite(measures["loss"]) and 0 <= measures["top1"] <= 1
    for name in ("config.json", "metrics.jsonl", "model.keras", "evaluation.json", "checkpoints", "tensorboard"):
        assert (workdir / name).exists(), name
    records = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records] == [2, 3] and all(math.isfinite(r["val_loss"]) for r in records)


def test_a_run_does_not_go_on_with_another_config(tmp_path, eagerly):
    config = shrink("digits_pretrain", train="train[:64]", evaluation="test[:16]")
    config.model.update(SMALL)
    ended(config, tmp_path)
    config.seed, config.optimizer.learning_rate = 1, 0.5
    with pytest.raises(
        ValueError, match="seed was 0, is 1; optimizer.learning_rate was 0.002, is 0.5. Use a new --workdir"
    ):
        training_run.run(config, tmp_path)


def test_a_run_beyond_its_end_is_refused(tmp_path):
    training_run.check_length(RunDirectory(tmp_path), 6, 6)
    with pytest.raises(ValueError, match="holds a run at step 7, beyond the 6 steps"):
        training_run.check_length(RunDirectory(tmp_path), 7, 6)


def test_finetuning_changes_resolution_head_and_frozen_layers(tmp_path, eagerly):
    first = shrink("digits_pretrain", train="train[:64]", evaluation="test[:16]")
    first.model.update(SMALL)
    trained, _ = training_run.run(first, tmp_path / "first")
    config = shrink("digits_finetune", train="train[:64]", evaluation="test[:16]")
    config.update(init=str(tmp_path / "first"), head="reset", linear_probe=True)
    model = ended(config, tmp_path / "second")
    assert model.image_size == (16, 16) and model.grid == (4, 4)
    np.testing.assert_array_equal(
        model.get_layer("block_00").get_weights()[0], trained.get_layer("block_00").get_weights()[0]
    )
    assert np.abs(model.get_layer("head").kernel.numpy()).max() > 0
    config = shrink("digits_finetune", train="train[:64]", evaluation="test[:16]")
    config.update(init=str(tmp_path / "first"), freeze=("patch_*", "block_00"))
    config.optimizer.layer_decay = 0.5
    model = ended(config, tmp_path / "third")
    assert {w.path.split("/")[0] for w in model.trainable_weights} == {"position_embedding", "encoder_norm", "head"}


@pytest.mark.parametrize(
    "change",
    [
        {"loss.name": "sigmoid", "mixup": 0.0, "dtype": "mixed_bfloat16"},
        {"loss.class_weights": "balanced", "optimizer.name": "momentum", "schedule.decay": "linear"},
        {"loss.class_weights": "1,2,1,1,1,1,1,1,1,0.5", "dtype": "mixed_float16"},
        {"optimizer.ema": 0.9, "schedule.decay": "rsqrt", "schedule.cooldown": "10%"},
    ],
    ids=lambda change: "-".join(map(str, change.values())),
)
def test_every_training_option_trains(change, tmp_path, eagerly, monkeypatch):
    monkeypatch.setattr(training_run, "write_report", lambda *_: None)  # other tests' runs write one
    config = shrink("digits_pretrain", train="train[:64]", evaluation="test[:16]")
    config.model.update(SMALL)
    for key, value in change.items():
        place = config
        *folders, last = key.split(".")
        for folder in folders:
            place = place[folder]
        place[last] = value
    _, measures = training_run.run(config, tmp_path)
    check(tmp_path, measures)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("optimizer.name", "adam", "Valid: adamw, radam, momentum"),
        ("loss.name", "hinge", "Valid: softmax, sigmoid"),
        ("loss.class_weights", "inverse", 'expected "balanced" or 10 numbers'),
        ("loss.class_weights", "1,2", 'expected "balanced" or 10 numbers'),
        ("schedule.decay", "cosin", "Valid: cosine"),
        ("total", "3 epoch s", "is not a duration"),
        ("data.train_preprocess", "decode(1)|random_shft(1)", 'Did you mean "random_shift"'),
        ("model.variant", "Tiny/2", "Unknown variant"),
        (
            "model.image_size",
            16,
            r"images of \(8, 8, 1\), the model takes \(16, 16, 1\): change --config.data.train_preprocess or",
        ),
    ],
)
def test_wrong_values_are_clear_errors(key, value, message, tmp_path):
    config = shrink("digits_pretrain", train="train[:64]", evaluation="test[:16]")
    config.model.update(SMALL)
    place = config
    *folders, last = key.split(".")
    for folder in folders:
        place = place[folder]
    place[last] = value
    with pytest.raises(ValueError, match=message):
        training_run.run(config, tmp_path)
    assert not (tmp_path / "config.json").exists()


def test_one_class_is_refused(tmp_path, photos):
    shutil.rmtree(photos / "dark")
    config = shrink("folder_finetune", source=f"folder:{photos}", train="train", evaluation="train")
    config.model.update(SMALL)
    with pytest.raises(
        ValueError, match='has one class, "light", so that there is nothing to learn: add the images of another'
    ):
        training_run.run(config, tmp_path / "run")


def test_a_folder_of_twenty_trains_skips_the_broken_and_refuses_the_empty(tmp_path, photos, caplog, eagerly):
    (photos / "dark" / "broken.jpg").write_bytes(b"\xff\xd8\xff broken")
    config = shrink("folder_finetune", source=f"folder:{photos}", train="train", evaluation="train")
    config.model.update(SMALL)
    logging.getLogger("absl").propagate = True
    with caplog.at_level("WARNING"):
        _, measures = training_run.run(config, tmp_path / "run")
    assert measures["examples"] == 20 and "broken.jpg" in caplog.text
    (tmp_path / "texts" / "class").mkdir(parents=True)
    (tmp_path / "texts" / "class" / "notes.txt").write_text("no image")
    config.data.source = f"folder:{tmp_path / 'texts'}"
    with pytest.raises(ValueError, match="no images in class folders: it holds 1 .txt"):
        training_run.run(config, tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.processes
def test_evaluate_and_export_binaries(tmp_path):
    """In processes of their own, as a user runs them."""
    import os
    import subprocess
    import sys

    config = shrink("digits_pretrain")
    config.model.update(SMALL)
    _, measures = training_run.run(config, tmp_path / "run")
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

    def binary(name, *arguments):
        command = [sys.executable, "-m", f"trainers.{name}", f"--model={tmp_path / 'run'}", *arguments]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, env=os.environ)
        assert done.returncode == 0, done.stderr[-2000:]

    binary("evaluate", f"--output={tmp_path / 'out'}")
    evaluated = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert evaluated["top1"] == pytest.approx(measures["top1"])
    page = (tmp_path / "out" / "report.html").read_text()
    assert (
        page.count("data:image/png") > 16
        and page.count("<svg") >= 3
        and "trainers.evaluate" in page
        and "Left out" in page
    )
    binary("export", f"--output={tmp_path / 'saved'}", "--top_k=2")
    answer = tf.saved_model.load(tmp_path / "saved").signatures["serving_default"](
        tf.constant([tf.io.encode_png(np.zeros((8, 8, 1), "uint8")).numpy()])
    )
    assert answer["probabilities"].shape == (1, 2)


def test_evaluate_refuses_other_classes(tiny):
    from keras_vit.data import from_arrays, open_source

    check = Classification(None).check_model
    with pytest.raises(ValueError, match="model has 5 classes, the data 10"):
        check(tiny(), open_source("digits", "test"))
    images = np.zeros((1, 8, 12, 3), "uint8")
    with pytest.raises(ValueError, match="model's classes are"):
        check(tiny(class_names=list("vwxyz")), from_arrays(images, [0], class_names=list("abcde")))
    check(tiny(class_names=list("vwxyz")), from_arrays(images, [0], class_names=list("01234")))


@pytest.mark.parametrize("family", ["bit", "hybrid"])
def test_bit_and_hybrids_train_and_fine_tune_by_the_same_binaries(family, tmp_path, photos, eagerly, monkeypatch):
    """From random weights, exported as Google's .npz, fine-tuned from that at another resolution."""
    config = shrink("folder_finetune", source=f"folder:{photos}")
    config.data.update(train_preprocess="decode|random_resized_crop(32)", eval_preprocess="decode|resize(32, 32)")
    config.total = "2 steps"
    if family == "bit":
        config.model.update(variant="R50x1", image_size=32, units=(1, 1), width_factor=0.5)
    else:
        config.model.update(variant="R+Ti/16", image_size=32, stem_width=32, gelu="tanh", **SMALL)
    with monkeypatch.context() as patch:
        patch.setattr(training_run, "write_report", lambda *_: None)  # the second run's is enough
        model, _ = training_run.run(config, tmp_path / "first")
    keras_vit.save(model, tmp_path / "first.npz")
    second = shrink("folder_finetune", source=f"folder:{photos}")
    second.data.update(train_preprocess="decode|random_resized_crop(64)", eval_preprocess="decode|resize(64, 64)")
    second.update(init=str(tmp_path / "first.npz"), total="2 steps", linear_probe=True)
    second.model.image_size = 64
    tuned, measures = training_run.run(second, tmp_path / "second")
    assert tuned.image_size == (64, 64) and math.isfinite(measures["loss"])
    name = "stem_conv"  # the head alone trained
    np.testing.assert_array_equal(tuned.get_layer(name).kernel, model.get_layer(name).kernel)
    assert (tmp_path / "second" / "report.html").exists()


def test_export_writes_other_libraries_formats(tmp_path):
    """The binary itself, in this process: a run's model on to timm, and an .npz from it."""
    from trainers import export

    keras_vit.save(keras_vit.ViT("Ti/16", image_size=32, classes=3, **SMALL), tmp_path / "model.keras")
    for form, output in (("timm", "timm"), ("google", "m.npz"), ("huggingface", "hf")):
        values = {
            "model": str(tmp_path / "model.keras"),
            "output": str(tmp_path / output),
            "format": form,
            "top_k": 5,
            "class_names": None,
        }
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(flags, "FLAGS", type("Values", (), values))
            export.main()
        assert keras_vit.load(tmp_path / output).classes == 3


def test_benchmark_counts_the_papers_gflops():
    """Table 6 of arXiv 2010.11929's counterpart at 224 px, 2 a multiply-add: B/16 35.2, L/16 123.1, H/14 334.9."""
    from keras_vit.planning.flops import forward_flops

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


def test_a_config_chooses_the_mixing(tiny):
    def mixing(mixup, cutmix):
        config = config_files.load_config("digits_pretrain")
        config.update(mixup=mixup, cutmix=cutmix, seed=7)
        return Classification(config).mixing(tiny())

    assert mixing(None, None) is None and mixing(0.0, 0.0) is None
    assert mixing(0.2, None) == Mixup(0.2, 5, 7)
    assert mixing(None, 1.0) == Cutmix(1.0, 5, 7)
    assert mixing(0.8, 1.0) == MixupOrCutmix(0.8, 1.0, 5, 7)


@pytest.mark.parametrize("positions", ["relative2d", "rope2d"])
def test_a_stopped_run_with_positions_in_the_attention_ends_bit_for_bit_where_an_uninterrupted_one_does(
    positions, tmp_path, eagerly
):
    config = config_files.load_config("digits_pretrain")
    config.update(total="6 steps", evaluate="3 steps", checkpoint="3 steps", batch_size=16, jit_compile=False)
    config.data.update(train="train[:64]", evaluation="test[:32]")
    config.model.update(positions=positions, position_std=None, depth=1, width=16, heads=2, mlp_dim=16, dropout=0.1)
    whole, again = ended_and_resumed(config, tmp_path)
    for a, b in zip(whole.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
