"""Next-pixel prediction as a run: it learns, resumes, is shared out, planned, reported, drawn, and fine-tuned from; on
JAX as on TensorFlow.
"""

import contextlib
import json
import unittest.mock

import keras
import numpy as np
import pytest
import short_runs
from interpreters import Interpreter
from ml_collections import ConfigDict

import keras_vit
from keras_vit.data import fit_palette, open_source, sample_pixels
from keras_vit.distribution import Strategy, strategy
from keras_vit.evaluation import NearestNeighbours, Samples, Setting, make_evaluator
from keras_vit.planning import dry_run
from keras_vit.runs import run, training_run
from keras_vit.tasks import autoregressive, find_task
from trainers import config_files

COLORS = 6


@pytest.fixture
def config():
    return small()


def small():
    """The digits in grey at 4x4 pixels, 6 colours; a model of one block."""
    config = config_files.load_config("igpt")
    config.update(total="4 steps", evaluate="2 steps", checkpoint="2 steps", batch_size=16, dtype="float32")
    config.evals = ConfigDict()
    config.model.update(image_size=4, channels=1, palette=COLORS, depth=1, width=16, heads=2, mlp_dim=16, dropout=0.1)
    text = "decode(1)|resize(4, 4, method='area')"
    config.data.update(
        source="digits", train="train[:64]", evaluation="test[:32]", train_preprocess=text, eval_preprocess=text
    )
    return config


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Where another palette is found for the resumed run, as on another machine."""
    config, found = small(), []
    config.optimizer.learning_rate = 1e-2
    config.schedule.warmup = 0
    config.evals.samples = {"every": "4 steps", "count": 3, "images": 2, "completions": 2, "rows": 1}

    def fit(*arguments):
        found.append(fit_palette(*arguments))
        return found[-1] if len(found) == 1 else found[-1][::-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(autoregressive, "fit_palette", fit)
        done = short_runs.whole_and_resumed(config, tmp_path_factory.mktemp("runs"))
    assert len(found) == 2
    return done


@pytest.mark.extended
def test_it_learns_and_says_how_much_in_bits(done):
    first, last = done.records
    assert last["loss"] < first["loss"] and last["val_loss"] < first["val_loss"]
    measures, model = done.measures, done.model
    assert measures["loss"] == pytest.approx(last["val_loss"], rel=1e-5) and measures["examples"] == 32
    images = np.stack(
        [example["image"] for example in open_source("digits", "test[:32]").ordered().as_numpy_iterator()]
    )
    images = model.preprocess(images)
    logits, colors = model.predict(images, verbose=0).astype("float64"), model.colors(images)
    log_softmax = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = -np.take_along_axis(log_softmax, colors[..., None], axis=-1).mean()
    assert measures["loss"] == pytest.approx(expected, rel=1e-4)
    text = find_task("autoregressive")(done.config).summary(measures)
    assert f"{expected / np.log(2):.3f}" in text and "bits) per pixel, 32 examples" in text
    assert "nats per pixel" in done.page and (done.folder / "model.keras").exists()


@pytest.mark.extended
def test_pictures_of_samples_are_drawn_while_it_trains(done):
    names = sorted(path.name for path in (done.folder / "pictures").iterdir())
    assert names == ["samples_completions_00000004.png", "samples_drawn_00000004.png"]
    assert json.loads((done.folder / "samples.json").read_text())["samples"] == 3 and "samples" in done.page


@pytest.mark.extended
def test_a_stopped_run_ends_bit_for_bit_where_an_uninterrupted_one_does(done):
    """The colours are the checkpoint's, not those that were found the second time."""
    assert done.state == done.resumed


@pytest.mark.extended
def test_a_classifier_is_fine_tuned_from_the_run_and_evaluated(done, tmp_path, eagerly):
    tuned = config_files.load_config("igpt_finetune")
    tuned.update(init=str(done.folder), total="1 steps", evaluate="1 steps", checkpoint="1 steps", batch_size=8)
    tuned.update(dtype="float32", mixup=None)
    tuned.model.update(image_size=4, channels=1)
    tuned.data.update(done.config.data.to_dict())
    tuned.freeze = ("patch_encoder", "block_*")
    model = short_runs.ended(tuned, tmp_path)
    assert type(model) is keras_vit.ViT and model.spec.causal and model.classes == 10
    for name in ("patch_encoder", "block_00"):
        for a, b in zip(model.get_layer(name).get_weights(), done.model.get_layer(name).get_weights()):
            np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match="needs a keras_vit.ImageGPT, got a ViT"):
        find_task("autoregressive")(done.config).check_model(model, None)


@pytest.mark.extended
def test_the_palette_is_k_means_of_the_training_images_or_a_grid(config):
    train = open_source("digits", "train[:64]")
    task = find_task("autoregressive")(config)
    pixels = sample_pixels(train, config.data.eval_preprocess, 128 * COLORS, seed=0)
    np.testing.assert_array_equal(task.model(train).palette, fit_palette(pixels, COLORS, seed=0))
    config.objective.palette = "grid"
    np.testing.assert_allclose(find_task("autoregressive")(config).model(train).palette[:, 0], np.arange(6) * 51)
    config.objective.palette = "k-means"
    with pytest.raises(ValueError, match='objective.palette="k-means". Did you mean "kmeans"'):
        find_task("autoregressive")(config)


def run_on_two(workdir):
    """{"one": the losses of a run on one device, "two": of the same on two}; pictures too."""
    config, weights, losses = small(), {}, {}
    config.model.dropout = 0.0
    config.evals.samples = {"every": "4 steps", "count": 2, "images": 1}
    for name, chosen in (("one", Strategy()), ("two", strategy("mirrored"))):
        with (
            unittest.mock.patch.object(training_run, "write_report", lambda *_: None),
            short_runs.eager() if name == "one" else contextlib.nullcontext(),
        ):
            model, measures = run(config, f"{workdir}/{name}", strategy=chosen)
        # Biases of keys have no effect: their gradients are rounding, which the optimizer enlarges.
        weights[name] = [np.asarray(v) for v in model.weights if not v.path.endswith("key/bias")]
        losses[name] = measures["loss"]
    assert chosen.replicas == 2
    for a, b in zip(weights["one"], weights["two"]):
        np.testing.assert_allclose(a, b, atol=2e-5)
    return losses


@pytest.mark.processes
def test_two_replicas_end_where_one_device_does(tmp_path):
    with Interpreter("tensorflow", devices=2) as interpreter:
        losses = interpreter.run(run_on_two, str(tmp_path))
    assert losses["two"] == pytest.approx(losses["one"], rel=1e-4)
    assert len(list((tmp_path / "two" / "pictures").iterdir())) == 2


def test_its_plan_reads_no_images(config):
    text = dry_run.plan(config, config_files.packaged("lib.datasets").DATASETS)
    assert "17 tokens" in text and "SparseCategoricalCrossentropy" in text


@pytest.mark.extended
def test_a_picture_shows_the_originals_what_is_kept_and_completions(config, eagerly):
    config.objective.palette = "grid"
    source = open_source("digits", "test[:32]")
    model = find_task("autoregressive")(config).model(source)
    setting = Setting(model, source=source, preprocess=config.data.eval_preprocess)
    pictures = Samples(count=9, images=2, completions=3, rows=1).prepare(setting)().pictures
    assert pictures["drawn"].shape == (2 * 64 + 2, 8 * 66 - 2, 3) and pictures["completions"].shape == (
        2 * 64 + 2,
        5 * 66 - 2,
        3,
    )
    original, kept, made = (pictures["completions"][8:64:16, x : x + 64 : 16, 0] for x in (8, 66 + 8, 132 + 8))
    np.testing.assert_array_equal(kept[:1], made[:1])
    assert (kept[1:] == 255).all() and np.abs(original[:1].astype(int) - kept[:1]).max() <= 26
    with pytest.raises(ValueError, match='"samples" needs a keras_vit.ImageGPT, got a ViT'):
        make_evaluator("samples", {}).prepare(
            Setting(keras_vit.ViT("Ti/4", image_size=8, depth=1, width=16, heads=2, mlp_dim=16))
        )


@pytest.mark.extended
def test_a_middle_blocks_mean_is_what_an_evaluator_measures(config, eagerly):
    source = open_source("digits", "test[:32]")
    model = find_task("autoregressive")(config).model(source)
    options = {
        "source": "digits",
        "train": "train[:40]",
        "test": "test[:32]",
        "preprocess": config.data.eval_preprocess,
        "k": 3,
    }
    evaluation = NearestNeighbours(**options, block=0).prepare(Setting(model))()
    assert evaluation.details["block"] == 0 and evaluation.details["features"] == 16
    from keras_vit.evaluation.features import Embedder, mean_of_block

    embedder = Embedder(model, config.data.eval_preprocess, 16, output=mean_of_block(model.get_encoder(), 0))
    features, _ = embedder(source)
    images = model.preprocess(np.stack([e["image"] for e in source.ordered().as_numpy_iterator()]))
    tokens = keras.Model(model.input, model.get_encoder().get_layer("block_00").output).predict(images, verbose=0)
    np.testing.assert_allclose(features, tokens[:, 1:].mean(axis=1), atol=1e-5)
    with pytest.raises(ValueError, match="model has blocks 0 to 0"):
        NearestNeighbours(**options, block=1).prepare(Setting(model))


def run_on_jax(workdir):
    """The loss of a run; saves samples and their logits."""
    config = small()
    config.update(total="2 steps")
    with unittest.mock.patch.object(training_run, "write_report", lambda *_: None):
        model, measures = run(config, f"{workdir}/run")
    drawn = model.sample(3)
    np.savez(f"{workdir}/samples.npz", drawn=drawn, logits=model.predict(drawn, verbose=0))
    return measures["loss"]


@pytest.mark.processes
def test_what_jax_trained_draws_the_same_on_tensorflow(tmp_path, eagerly):
    with Interpreter("jax") as jax:
        loss = jax.run(run_on_jax, str(tmp_path))
    assert 0 < loss < 3
    model = keras_vit.load(tmp_path / "run" / "model.keras")
    with np.load(tmp_path / "samples.npz") as theirs:
        np.testing.assert_array_equal(model.sample(3), theirs["drawn"])
        np.testing.assert_allclose(model.predict(theirs["drawn"], verbose=0), theirs["logits"], atol=1e-4)
