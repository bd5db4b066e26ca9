"""Early stopping, and the weights of the best evaluation, also of a run that was interrupted."""

import logging
import math
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import dense_on_images

from keras_vit.runs.loop.best import Best
from keras_vit.runs.loop.faults import Preempted
from keras_vit.runs.loop.train import train
from keras_vit.runs.saving import run_state
from keras_vit.runs.saving.rundir import RunDirectory
from keras_vit.tasks.task import Score
from keras_vit.training import Accuracy, AdamW, SoftmaxCrossEntropy

SCORES = {2: 0.5, 4: 0.7, 6: 0.6, 8: 0.7, 10: 0.5, 12: 0.9}  # by step; 4 and 8 differ by their losses


class Scores(keras.callbacks.Callback):
    """Reports these scores as the evaluations', and remembers the evaluated weights; may end the run at a step."""

    def __init__(self, losses, stop=None):
        super().__init__()
        self.losses, self.stop, self.weights = losses, stop, {}

    def on_epoch_end(self, epoch, logs=None):
        step = 2 * (epoch + 1)
        logs.update(val_accuracy=SCORES[step], val_loss=self.losses.get(step, 1.0))
        self.weights[step] = self.model.get_weights()

    def on_train_batch_begin(self, batch, logs=None):
        if self.stop is not None and int(self.model.optimizer.iterations) == self.stop:
            raise Preempted


def go(folder, patience=None, losses=(), stop=None, total=12):
    """Resumes a run of `total` steps with an evaluation every 2 and a checkpoint every 3.

    Returns (last step, model, best, {step: evaluated weights}).
    """
    rundir = RunDirectory(folder)
    pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 12, 3), dtype="uint8")
    data = tf.data.Dataset.from_tensor_slices((pixels, np.arange(4))).batch(4)
    model = dense_on_images(dropout=0.1)
    compiled = {"run_eagerly": True, "jit_compile": False}
    model.compile(
        AdamW(1e-2, use_ema=True, ema_momentum=0.9),
        SoftmaxCrossEntropy(),
        weighted_metrics=[Accuracy()],
        **compiled,
    )
    model.optimizer.build(model.trainable_variables)
    evaluation, start = data.map(lambda x, y: (x, y, tf.ones(4))), rundir.resume(model)
    score, scores = Score("top1", curve="val_accuracy"), Scores(dict(losses), stop)
    best = Best(rundir, score, keep=True, patience=patience, initial=True, start=start)
    options = {
        "total": total,
        "every": 2,
        "checkpoint_every": 3,
        "batch_size": 4,
        "start": start,
        "evaluation": evaluation,
    }
    last = train(model, lambda step: data.repeat(), rundir, callbacks=[scores], best=best, **options)
    return last, model, best, scores.weights


def assert_weights(model, expected):
    for ours, theirs in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.fixture
def infos(caplog):
    """The text of the logs so far: infos()."""
    logging.getLogger("absl").propagate = True
    with caplog.at_level("INFO", logger="absl"):
        yield lambda: caplog.text


@pytest.mark.extended
@pytest.mark.parametrize(
    ("losses", "patience", "total", "end", "step"),
    [({}, 6, 12, 10, 4), ({}, 6, 10, 10, 4), ({8: 0.9}, 4, 12, 12, 12), ({8: 0.9}, 2, 12, 6, 4)],
)
def test_a_run_ends_after_its_patience_and_delivers_the_weights_that_were_best(
    tmp_path, losses, patience, total, end, step, infos
):
    """Evaluated with averages of the weights, which take no part in training on."""
    last, model, best, evaluated = go(tmp_path, patience, losses, total=total)
    assert (last, best.best_step) == (end, step)
    assert ("the run ends at step" in infos()) == (end < total)
    assert best.deliver(model) == step
    assert_weights(model, evaluated[step])


@pytest.mark.parametrize(
    ("scores", "best", "ends"),
    [
        ([math.nan, 0.2, 0.1], 4, False),
        ([0.1, math.nan, 0.2], 6, False),
        ([0.3, math.nan, math.nan], 2, True),
        ([math.nan] * 3, None, False),
    ],
)
def test_a_score_that_is_no_number_is_never_the_best(tmp_path, scores, best, ends):
    callback = Best(RunDirectory(tmp_path), Score("miou", curve="val_miou"), keep=False, patience=4)
    callback.set_model(types.SimpleNamespace(stop_training=False))
    for step, score in zip((2, 4, 6), scores):
        callback._next = step
        callback.on_epoch_end(0, {"val_miou": score, "val_loss": math.nan})
    assert callback.best_step == best and bool(callback.model.stop_training) == ends


@pytest.mark.extended
def test_an_interrupted_run_goes_on_with_its_best_weights_and_its_patience(tmp_path):
    """Interrupted after step 6, so that two evaluations without a better one are in metrics.jsonl; and when it has
    ended early, the same command trains no further.
    """
    whole = go(tmp_path / "whole", patience=6)
    for stop in (3, 7):
        with pytest.raises(Preempted):
            go(tmp_path / "again", patience=6, stop=stop)
    for _ in range(2):
        last, model, best, _ = go(tmp_path / "again", patience=6)
        assert (last, best.best_step) == (10, 4)
        best.deliver(model)
        whole[2].deliver(whole[1])
        assert_weights(model, whole[1].get_weights())
    records = RunDirectory(tmp_path / "again").metrics()
    assert [record["step"] for record in records] == [0, 2, 4, 6, 8, 10]
    assert max(RunDirectory(tmp_path / "again").best()) == 4


def test_weights_that_a_checkpoint_does_not_cover_do_not_replace_those_it_needs(tmp_path):
    """A run that resumes at 3 is to find the best of steps 0 to 3."""
    rundir, weights = RunDirectory(tmp_path), {"model/0": np.ones(2, "float32")}
    rundir.save_best(2, weights)
    rundir.save(3, {"x": np.zeros(1)}, keep=2)
    rundir.save_best(4, weights)
    assert list(rundir.best()) == [2, 4]
    rundir.save(6, {"x": np.zeros(1)}, keep=2)
    rundir.save_best(8, weights)
    assert list(rundir.best()) == [4, 8]
    np.testing.assert_array_equal(
        rundir.load_best(4)["model/0"], run_state.from_bytes(run_state.to_bytes(weights), "")["model/0"]
    )


def test_a_run_whose_evaluations_lack_the_score_is_a_clear_error():
    with pytest.raises(ValueError, match='no "val_knn", required by --config.keep_best.*Available: loss, val_loss'):
        Score("knn", curve="val_knn").rank_record({"loss": 1.0, "val_loss": 1.0})
