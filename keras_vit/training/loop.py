"""One way to run `model.fit` for a number of steps, from any step, with everything that a run directory holds."""

import sys

from absl import logging

from keras_vit.training.callbacks import EvaluateAverage, MetricsLog, TensorBoard
from keras_vit.training.faults import RESTART, Preempted, Preemption, Watch
from keras_vit.training.saving import Checkpoints
from keras_vit.training.wrapping import averaging


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


def _in_order(checkpoints, watch, callbacks, run, batch_size, start):
    """Checkpoints before Watch: it knows the step when Watch ends the run there. The caller's before the logs, which hold what they add."""
    return [checkpoints, watch, *callbacks, MetricsLog(run, batch_size, start), TensorBoard(run, start)]


def train(model, batches, run, total, every, batch_size, evaluation=None, checkpoint_every=1000, keep=2, start=0, callbacks=()):
    """Trains a compiled model to step `total` and leaves its state in the run directory.

    Each of several workers calls this; all stop after the same execution.

    Args:
        model: whose state is that of step `start`.
        batches: a step -> the training dataset from that step on.
        run: the RunDirectory.
        total: the last step.
        every: steps between evaluations: Keras' epoch.
        batch_size: for the throughput in the log.
        evaluation: dataset of (images, labels, weights), or None.
        checkpoint_every, keep: see saving.Checkpoints.
        start: the step that the model is at.
        callbacks: more of Keras' callbacks.

    Raises:
        Preempted: SystemExit with code 75, after SIGTERM: the state is saved; an evaluation that it broke off is not in the log.
        Diverged: once the loss or the weights are not finite; every checkpoint is from before.
        NotSaved: if the last state cannot be written, at the end or after SIGTERM.
    """
    verbose = (1 if sys.stdout.isatty() else 2) if run.strategy.chief else 0
    with Preemption() as preemption, Checkpoints(run, checkpoint_every, keep, start) as checkpoints:
        watch, averages = Watch(run, preemption, checkpoints, start), EvaluateAverage()
        own = _in_order(checkpoints, watch, callbacks, run, batch_size, start)
        own += [averages] if averaging(model.optimizer) else []
        try:
            for first, last, steps in spans(start, total, every):
                model.fit(
                    batches(first),
                    validation_data=evaluation,
                    initial_epoch=first // every,
                    epochs=-(-last // every),
                    steps_per_epoch=steps,
                    callbacks=own,
                    shuffle=False,
                    verbose=verbose,
                )
        except Preempted:
            averages.undo()
            checkpoints.save()
            logging.warning("Step %d is saved. Exit code %d: run the same command again.", checkpoints.step, RESTART)
            raise
        finally:
            run.flush_metrics()
        checkpoints.save()
