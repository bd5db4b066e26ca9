"""Runs `model.fit` from any step of a run to its last, and updates the run directory."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import keras
from absl import logging

from keras_vit.io.progress import FirstStep
from keras_vit.optim.wrappers import EvaluateAverage, averaging
from keras_vit.runs.loop.best import Best
from keras_vit.runs.loop.callbacks import MetricsLog, StepBar, StepLog, TensorBoard
from keras_vit.runs.loop.faults import RESTART, CoordinatedStop, Interrupted, Preempted, Preemption
from keras_vit.runs.loop.periodic import Periodic
from keras_vit.runs.loop.running_metrics import (
    KeepRunningMetrics,
    build_metrics,
    evaluation_is_missing,
    repeat_evaluation,
)
from keras_vit.runs.saving.checkpointing import Checkpoints
from keras_vit.runs.saving.rundir import RunDirectory

_A_LINE_PER_EPOCH = 2  # Keras' `verbose`


def fix_order_of_sums() -> None:
    """Makes TensorFlow on a CPU add gradients in the same order at every step; no effect on a GPU, TPU or other
    backend.

    Applies to the whole process; call it before the first step. In steps that use much memory, TensorFlow's graph
    optimizer turns sums of three or more gradients into in-place additions, ordered by when threads finish. The last
    bits of float32 results then vary between runs, for any seeds and even with `enable_op_determinism`. XLA's
    autoclustering, which clusters nothing on a CPU, disables this rewrite.
    """
    if keras.backend.backend() != "tensorflow":
        return
    import tensorflow as tf

    if all(device.device_type == "CPU" for device in tf.config.list_physical_devices()):
        tf.config.optimizer.set_jit("autoclustering")


def fit_calls(start: int, total: int, every: int) -> list[tuple[int, int, int]]:
    """Calls of fit from step `start` to `total`: a list of (first step, last step, steps per epoch).

    One call, in epochs of `every` steps, suffices unless the run starts or ends within an epoch.
    """
    calls = []
    while start < total:
        inside = start % every
        if inside or total - start < every:
            stop = min(start - inside + every, total)
            calls.append((start, stop, stop - start))
        else:
            stop = total // every * every
            calls.append((start, stop, every))
        start = stop
    return calls


def _fit(model, batches, evaluation, callbacks, start, total, every, verbose, best):
    for first, last, steps in fit_calls(start, total, every):
        if best is not None and best.exhausted:
            break
        model.fit(
            batches(first),
            validation_data=evaluation,
            initial_epoch=first // every,
            epochs=-(-last // every),
            steps_per_epoch=steps,
            callbacks=callbacks,
            shuffle=False,
            verbose=verbose,
        )


def _evaluate_start(model, evaluation, callbacks, evaluators, logs, verbose):
    """Evaluates the initial weights as `fit` does at an epoch's end, with every Periodic of `evaluators`."""
    if verbose:
        logging.info("Evaluating the initial weights.")
    measures = model.evaluate(evaluation, callbacks=callbacks, return_dict=True, verbose=verbose)
    measures = {f"val_{name}": value for name, value in measures.items()}
    for evaluator in evaluators:
        evaluator.set_model(model)
        measures |= evaluator.measures()
    for callback in logs:
        callback.set_model(model)
        callback.on_epoch_end(-1, dict(measures))


def _save_early(checkpoints, ending):
    """Saves the state after a signal, unless no step was taken, and logs how to continue."""
    checkpoints.save()
    code = f" Exit code {RESTART}: run" if isinstance(ending, Preempted) else " Run"
    if checkpoints.step:
        logging.warning("Step %d is saved.%s the same command again to continue.", checkpoints.step, code)
    else:
        logging.warning("Stopped before the first step, without a checkpoint.%s the same command again to start.", code)


def train(
    model: keras.Model,
    batches: Callable[[int], Any],
    rundir: RunDirectory,
    total: int,
    every: int,
    batch_size: int,
    evaluation: Any = None,
    checkpoint_every: int = 1000,
    keep: int = 2,
    start: int = 0,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    best: Best | None = None,
) -> int:
    """Trains a compiled model to step `total` and leaves its state in the run directory; returns its last step.

    With several workers, each calls this; all stop after the same execution. metrics.jsonl is as without interruption:
    an epoch's metrics continue from the checkpoint, and an interrupted evaluation is repeated.

    Args:
        model: a compiled model in the state of step `start`.
        batches: step -> the training dataset from that step on.
        rundir: the run's directory.
        total: int. The last step.
        every: int. Steps between evaluations, Keras' epoch.
        batch_size: int. The global batch, for the logged images per second.
        evaluation: a dataset of (images, labels, weights), or None.
        checkpoint_every, keep: see checkpointing.Checkpoints.
        start: int. The model's step.
        callbacks: further Keras callbacks.
        best: follows the evaluations, and may end the run before `total`; None for neither.

    Raises:
        Preempted: SystemExit with code 75, after SIGTERM: the state is saved.
        Interrupted: KeyboardInterrupt, after Ctrl-C: the state is saved.
        Diverged: when loss or weights are not finite; all checkpoints are from before.
        NotSaved: if the last state cannot be written, at the end or after a signal.
    """
    verbose = (1 if sys.stdout.isatty() else _A_LINE_PER_EPOCH) if rundir.strategy.chief else 0
    running = KeepRunningMetrics(rundir.running, every, start)
    saving = Checkpoints(rundir, checkpoint_every, keep, start, running=running.current)
    with Preemption() as preemption, saving as checkpoints:
        stop, averages, first = CoordinatedStop(rundir, preemption, checkpoints, start), EvaluateAverage(), FirstStep()
        # The order matters: running metrics are restored before checkpoints save them, checkpoints count the step at
        # which `stop` ends the run, and the caller's callbacks add to the logs.
        logs = [*([best] if best else []), MetricsLog(rundir, batch_size, start), TensorBoard(rundir, start)]
        lines = [StepLog(total, start, verbose == _A_LINE_PER_EPOCH)] if verbose else []
        averaged = [averages] if averaging(model.optimizer) else []
        all_callbacks = [running, checkpoints, stop, *callbacks, *logs, first, *lines, *averaged]
        try:
            if rundir.running is not None:
                build_metrics(model, batches(start))
            if evaluation is not None and evaluation_is_missing(rundir, start, total, every):
                repeat_evaluation(model, evaluation, all_callbacks, rundir.running, (start - 1) // every, verbose)
            if best is not None and best.starts:
                evaluators = [callback for callback in callbacks if isinstance(callback, Periodic)]
                _evaluate_start(model, evaluation, [stop, first], evaluators, logs, verbose)
            bar = [StepBar(total, start)] if verbose else []
            _fit(model, batches, evaluation, [*all_callbacks, *bar], start, total, every, verbose, best)
        except (Preempted, Interrupted) as ending:
            if averaged:
                averages.undo()
            _save_early(checkpoints, ending)
            raise
        finally:
            first.end()
            rundir.flush_metrics()
        checkpoints.save()
    if best is not None and best.exhausted and best.step < total:
        logging.info("No evaluation since step %d was better: the run ends at step %d.", best.best_step, best.step)
    return checkpoints.step
