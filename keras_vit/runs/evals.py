"""The evaluators of a config, which run while it trains and at its end: `config.evals.NAME = {"every": ..., options}`.

NAME is the name of an evaluator, or any other name if the key "evaluator" names the evaluator. `every` is a duration;
None evaluates at the end only.
"""

import functools

from absl import logging

from keras_vit.evaluation import Setting, make_evaluator
from keras_vit.io.json_files import read_json
from keras_vit.io.progress import stage
from keras_vit.runs.loop.periodic import Periodic
from keras_vit.runs.picture_files import write_charts, write_pixels


def _evaluate(evaluate, name, rundir, step):
    """Evaluates; returns the measures as {"few_shot/5": ...}, and writes them with all details to NAME.json, its charts
    beside it.
    """
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


def evaluators(evals):
    """The evaluators of a resolved config's `evals`, as {name: evaluator}.

    Raises:
        ValueError: for an unknown evaluator or option, or anything but a section.
    """
    result = {}
    for name, options in evals.items():
        if not hasattr(options, "items"):
            raise ValueError(f"config.evals.{name} is an evaluator, a section of its options, got {options!r}.")
        fields = {key: value for key, value in options.items() if key not in ("every", "evaluator")}
        result[name] = make_evaluator(options.get("evaluator", name), fields)
    return result


def periodics(resolved, model, rundir, data_dir, start, **setting):
    """{name: a Periodic} of each evaluator of a resolved config. Their data is opened here, so that mistakes are
    reported before training.

    Args:
        resolved: the config.
        model: the run's model, created in the scope of `rundir.strategy`.
        rundir: the RunDirectory.
        data_dir: the folder of tensorflow-datasets' prepared data.
        start: the step at which training begins.
        **setting: other fields of evaluation.Setting, such as source, preprocess and select.

    Raises:
        ValueError: if an evaluator refuses its options or data.
    """
    setting = Setting(
        model=model, strategy=rundir.strategy, batch_size=resolved["batch_size"], data_dir=data_dir, **setting
    )
    result = {}
    for name, evaluator in evaluators(resolved["evals"]).items():
        try:
            prepared = evaluator.prepare(setting)
        except ValueError as error:
            raise ValueError(
                f"config.evals.{name}: {error} (Without this evaluator: --config.evals.{name}=None.)"
            ) from error
        measure = functools.partial(_evaluate, prepared, name, rundir)
        result[name] = Periodic(measure, resolved["evals"][name]["every"], resolved["total"], start)
    return result


def _measured_at(rundir, name, step):
    """Whether an evaluator has left its measures of that step."""
    try:
        return read_json(rundir.path / f"{name}.json").get("step") == step
    except (OSError, ValueError):  # there is none, or it is broken
        return False


def measure_added(periodics, model, rundir, step):
    """At the end of a run that had nothing left to train: the evaluators that have not measured there, having been
    added since.

    Args:
        periodics: what `periodics` returned.
        model: the trained model.
        rundir: the RunDirectory.
        step: the run's last one.
    """
    for name, periodic in periodics.items():
        if rundir.strategy.any(not _measured_at(rundir, name, step)):
            periodic.set_model(model)
            periodic.step = step
            rundir.add_measures(step, periodic.measures())
