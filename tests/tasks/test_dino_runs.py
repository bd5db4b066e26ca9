"""Runs of DINO: crops are an example's own, runs resume bit for bit and leave the teacher's encoder, which fine-tuning
starts from.
"""

import logging

import numpy as np
import pytest
import safetensors.numpy
import short_runs
import tensorflow as tf

import keras_vit
from keras_vit.data import open_source
from keras_vit.planning import dry_run
from keras_vit.tasks import SelfDistillation, classification, find_task
from trainers import config_files


@pytest.fixture
def config():
    config = small()
    config.total = "6 steps"
    return config


def small():
    """DINO of a few steps on the digits, enlarged to 16 pixels, with crops of 16 and 8."""
    config = short_runs.small("dino", **{"model.image_size": 16, "model.drop_path": 0.1})
    for name in ("train_preprocess", "eval_preprocess"):
        config.data[name] = "decode(1)|resize(16, 16)"
    config.objective.update(outputs=16, hidden=16, bottleneck=8, local_size=8, local_crops=2, frozen="2 steps")
    for name in ("first_crop", "second_crop", "local_crop"):
        config.objective[name] = "random_crop({size}, padding=4)"
    return config


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return short_runs.whole_and_resumed(small(), tmp_path_factory.mktemp("runs"))


def task_of(config):
    return find_task("dino")(config)


def example(value=0):
    image = np.random.default_rng(value).integers(0, 256, (20, 20, 1), dtype="uint8")
    return {"image": tf.constant(image), "seed": tf.constant([value, 1], tf.int64)}


def test_crops_are_drawn_by_the_examples_own_seed(config):
    task = task_of(config)
    (x, y), (again, _), (other, _) = (
        task.select(example()),
        task.select(example()),
        task.select({**example(), "seed": example(1)["seed"]}),
    )
    assert x["global"].shape == (2, 16, 16, 1) and x["local"].shape == (2, 8, 8, 1) and int(y) == 0
    for name in x:
        np.testing.assert_array_equal(x[name], again[name])
        assert np.any(x[name] != other[name]) and np.any(x[name][0] != x[name][1])


@pytest.mark.extended
def test_it_leaves_an_encoder_with_a_report(done):
    assert [record["step"] for record in done.records] == [2, 4]
    assert done.measures["loss"] == pytest.approx(done.records[1]["val_loss"], rel=1e-5)
    assert done.measures["examples"] == 32 and done.evaluation["teacher_entropy"] > 0
    encoder = keras_vit.load(done.folder)
    assert type(encoder) is keras_vit.ViT is type(done.model) and encoder.classes is None and encoder.preprocessing
    assert "entropy of the teacher" in done.page and "Attention" in done.page


@pytest.mark.extended
def test_a_stopped_run_ends_bit_for_bit_where_an_uninterrupted_one_does(done):
    assert done.state == done.resumed
    state = safetensors.numpy.load(done.resumed)
    assert [int(value) for name, value in state.items() if "sharpening" in name and name.endswith("step")] == [4]


@pytest.mark.extended
def test_its_durations_become_steps_and_it_starts_from_a_trained_model(config, tmp_path):
    source = open_source("digits", "train[:64]")
    config.objective.update(temperature_warmup="50%", frozen="1 epochs")
    made = task_of(config).model(source).get_config()
    assert (made["steps"], made["temperature_steps"], made["frozen_steps"]) == (6, 3, 4)
    trained = keras_vit.ViT("Ti/4", image_size=16, channels=1, classes=10, pool="gap", **short_runs.SMALL)
    trained.save(tmp_path / "m.keras")
    config.init = str(tmp_path / "m.keras")
    model = task_of(config).model(source)
    for ours, theirs in zip(model.student.get_weights(), trained.get_weights()):
        np.testing.assert_array_equal(ours, theirs)


def test_a_temperature_that_rises_for_longer_than_the_run_is_told(config, caplog):
    config.objective.temperature_warmup = "3 epochs"
    logging.getLogger("absl").propagate = True
    with caplog.at_level("WARNING"):
        task_of(config).model(open_source("digits", "train[:64]"))
    assert 'temperature_warmup="3 epochs" is longer than the run of 6 steps' in caplog.text


def test_its_plan_counts_what_trains(config):
    config.optimizer.weight_decay_final = 0.4
    text = dry_run.plan(config, config_files.packaged("lib.datasets").DATASETS)
    assert "16 x 16 px" in text and "DINOLoss" in text and "weight decay 0.05 to 0.4" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"local_crop": "random_crop(4)|nois(3)"},
            'config.objective.first_crop, second_crop or local_crop: Unknown preprocessing op "nois"',
        ),
        (
            {"first_crop": "random_resized_crop(12)"},
            r"expected crops of \(16, 16\) pixels, got \(12, 12\): use {size} in",
        ),
        ({"local_size": 7}, "local_size|divisible"),
        (
            {"frozen": "100%"},
            (
                'config.objective.frozen="100%" is 6 steps, but the run has 6: the last layer of the head would never'
                " learn"
            ),
        ),
        ({"frozen": "0.5 steps"}, '--config.objective.frozen: "0.5 steps" is not a whole number of steps.*write "50%"'),
        ({"momentun": 0.9}, 'no option "momentun".*Did you mean "momentum"'),
    ],
)
def test_options_that_make_no_sense_are_clear_errors(config, options, message):
    config.objective.update(options)
    with pytest.raises(ValueError, match=message):
        task = task_of(config)
        task.check_config()
        task.select(example())
        task.model(open_source("digits", "train[:64]"))


def test_the_encoder_of_a_run_has_no_loss_to_evaluate(config):
    with pytest.raises(ValueError, match="delivers an encoder.*--evals"):
        task_of(config).evaluator().prepare(None)


def test_positions_are_resampled_as_the_config_says(config, monkeypatch, tiny):
    given = {}
    monkeypatch.setattr(classification, "load", lambda path, **arguments: given.update(arguments) or tiny(classes=None))
    monkeypatch.setattr(SelfDistillation, "_around", lambda self, encoder, source: encoder)
    config.update(init="m.keras", resample="timm")
    task = task_of(config)
    task.check_config()
    task.load(None)
    assert given["resample"] == "timm" and given["head"] == "drop" and given["depth"] == 1
    config.resample = "nearest"
    with pytest.raises(ValueError, match="nearest"):
        task_of(config).check_config()
    config.update(task="masked_patches", resample="timm")
    config.objective = {}
    with pytest.raises(
        ValueError, match="MaskedPatches does not use some options of the config. Set --config.resample=None"
    ):
        find_task("masked_patches")(config).check_config()
