"""Periodic measures within fit, costlier than an evaluation: those of a config's evaluators."""

import functools
from collections.abc import Callable

import keras
from absl import logging

from keras_vit.evaluation.registry import Evaluator, Setting
from keras_vit.io.json_files import read_json
from keras_vit.io.progress import stage
from keras_vit.optim.wrappers import averaged, averaging
from keras_vit.runs.loop.callbacks import StepCounter
from keras_vit.runs.picture_files import write_charts, write_pixels
from keras_vit.runs.prepare import naming_evaluator
from keras_vit.runs.saving.rundir import RunDirectory


class Periodic(StepCounter):
    """Adds measures to the logs of some evaluations, and thereby to metrics.jsonl and TensorBoard.

    Measures after the evaluation (the end of Keras' epoch) at multiples of `every` steps and at the end, with averaged
    weights if there are any, and at the same steps in a resumed run. Logging callbacks must come later in the list;
    `train` ensures this.

    Args:
        measure: step -> {name: number}. Every worker calls it, at the same steps.
        every: int. A multiple of the steps between two evaluations.
        total: int. The run's last step.
        start: int. The step at which fit begins.
    """

    def __init__(self, measure: Callable[[int], dict[str, float]], every: int, total: int, start: int = 0):
        super().__init__(start)
        self._measure, self._every, self._total = measure, every, total

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        if self.step % self._every == 0 or self.step == self._total:
            logs.update(self.measures())

    def measures(self) -> dict[str, float]:
        """The current model's measures; those of its averaged weights once there are any, after the first step."""
        if self.step and averaging(self.model.optimizer):
            with averaged(self.model):
                return self._measure(self.step)
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()
        return self._measure(self.step)


def _evaluate(evaluate, name, rundir, step):
    """Evaluates, writes NAME.json with all details and the charts, and returns {"few_shot/5": ...}."""
    with stage(f"Measuring {name} at step {step:,}"):
        evaluation = evaluate()
    try:
        rundir.write_json(f"{name}.json", {"step": step, **evaluation.measures, **evaluation.details})
        write_charts(rundir.path, name, evaluation.charts, rundir.strategy)
        write_pixels(rundir.pictures, name, evaluation.pictures, rundir.strategy, f"{step:08d}")
    except OSError as error:
        logging.warning("%s. Its measures are in metrics.jsonl, and training continues.", error)
    text = ", ".join(f"{key} {value:.4g}" for key, value in evaluation.measures.items())
    logging.info("%s at step %d: %s.", name, step, text)
    return {f"{name}/{key}": value for key, value in evaluation.measures.items()}


def periodics(
    evaluators: dict[str, Evaluator], resolved: dict, setting: Setting, rundir: RunDirectory, start: int
) -> dict[str, Periodic]:
    """{name: Periodic} of a run's evaluators. Opens their data, so that mistakes are reported before training.

    Args:
        evaluators: {name: evaluator}.
        resolved: the config with every duration in steps.
        setting: the Setting to evaluate in.
        rundir: the RunDirectory.
        start: int. The step at which training begins.

    Raises:
        ValueError: if an evaluator refuses its options or data.
    """
    result = {}
    for name, evaluator in evaluators.items():
        with naming_evaluator(name):
            prepared = evaluator.prepare(setting)
        measure = functools.partial(_evaluate, prepared, name, rundir)
        result[name] = Periodic(measure, resolved["evals"][name]["every"], resolved["total"], start)
    return result


def _measured_at(rundir, name, step):
    """Whether an evaluator has left its measures of that step."""
    try:
        return read_json(rundir.path / f"{name}.json").get("step") == step
    except (OSError, ValueError):  # missing or broken
        return False


def measure_added(periodics: dict[str, Periodic], model: keras.Model, rundir: RunDirectory, step: int) -> None:
    """Measures a finished run with evaluators that were added since.

    Args:
        periodics: as returned by `periodics`.
        model: the trained model.
        rundir: the RunDirectory.
        step: int. The run's last step.
    """
    for name, periodic in periodics.items():
        if rundir.strategy.any(not _measured_at(rundir, name, step)):
            periodic.set_model(model)
            periodic.step = step
            rundir.add_measures(step, periodic.measures())
