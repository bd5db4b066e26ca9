"""One way to run `model.fit` for a number of steps, from any step, with everything that a run directory holds."""

import sys

import keras

from keras_vit.training.callbacks import Checkpoints, EvaluateAverage, MetricsLog


def spans(start, total, every):
    """(first step, last step, steps an epoch) of the calls of fit that cover `start` to `total` in epochs of `every` steps.

    One call serves, but for a start within an epoch and an end within one.
    """
    found = []
    while start < total:
        inside = start % every
        if inside or total - start < every:
            stop = min(start - inside + every, total)
            found.append((start, stop, stop - start))
        else:
            stop = total // every * every
            found.append((start, stop, every))
        start = stop
    return found


def train(model, batches, run, total, every, batch_size, evaluation=None, checkpoint_every=1000, keep=2, start=0, callbacks=()):
    """Trains a compiled model to step `total` and leaves its state in the run directory.

    Args:
        model: whose state is that of step `start`.
        batches: a step -> the training dataset from that step on.
        run: the RunDirectory.
        total: the last step.
        every: steps between evaluations: Keras' epoch.
        batch_size: for the throughput in the log.
        evaluation: dataset of (images, labels, weights), or None.
        checkpoint_every, keep: see callbacks.Checkpoints.
        start: the step that the model is at.
        callbacks: more of Keras' callbacks.
    """
    verbose = 1 if sys.stdout.isatty() else 2
    ema = getattr(getattr(model.optimizer, "inner_optimizer", model.optimizer), "use_ema", False)
    for first, last, steps in spans(start, total, every):
        own = [
            MetricsLog(run, batch_size, first),
            Checkpoints(run, checkpoint_every, keep, first),
            keras.callbacks.TensorBoard(str(run.path / "tensorboard"), update_freq="epoch"),
        ]
        if ema:
            own.insert(0, EvaluateAverage())
        model.fit(
            batches(first),
            validation_data=evaluation,
            initial_epoch=first // every,
            epochs=-(-last // every),
            steps_per_epoch=steps,
            callbacks=own + list(callbacks),
            shuffle=False,
            verbose=verbose,
        )
