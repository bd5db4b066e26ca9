"""Evaluates one or more trained models, and writes their measures and report.html.

    keras-vit evaluate --model=runs/digits_finetune --data=digits --split=test --output=runs/digits_finetune
    keras-vit evaluate --model=runs/x --evals="few_shot(source='cifar10', shots=(1, 5))|knn(source='cifar10')"
    keras-vit evaluate --model=runs/a,runs/b,runs/c \\
        --evals="few_shot(source='cifar10')|calibration(source='cifar10')" --output=out

--model accepts a run directory, a file of any format or a published name. A run directory is evaluated as its task
says, any other model as a classifier. --preprocess overrides the model's preprocessing, except in evaluators with a
preprocess= of their own. --evals names evaluators with options, joined by "|"; the default is the task's. --strategy
evaluates on several devices. A segmentation model is measured at its image size, and with --window at each image's own.

--engines prints a table of the model in ONNX Runtime, OpenVINO and LiteRT instead, in floats and int8.

Several models, joined by commas, are evaluated in turn. A table of their scores is printed, sorted by the first
evaluator's, or by --sort=EVALUATOR/MEASURE; --output gets a folder per model, models.json and models.png.
"""

import contextlib
import dataclasses
import json
import os

from absl import logging
from etils import epath

from . import flags, loading, shared_flags


def main():
    from keras_vit.distribution import strategy as find_strategy
    from keras_vit.io.atomic import check_folder
    from keras_vit.io.progress import shown

    values = flags.FLAGS
    strategy = find_strategy(values.strategy, tpu=values.tpu, model_parallel=values.model_parallel)
    models = [name.strip() for name in values.model.split(",") if name.strip()]
    with shown(strategy.chief):
        if values.output:
            check_folder(values.output)
        if len(models) == 1:
            evaluate(values, models[0], strategy, values.output)
        else:
            evaluate_all(values, models, strategy)


def _without_source(named):
    """The names in --evals of the evaluators that read the run's own data, or those of --data."""
    found = named or {}
    return [key for key, one in found.items() if hasattr(one, "split") and getattr(one, "source", "") is None]


def _open(values, own, name, named=None):
    """(source or None, its name, split) to evaluate on: from the flags, or `own`, the OwnData of the model's run.

    `named` are the evaluators of --evals, which may all have their own sources.
    """
    from keras_vit.data import open_source
    from keras_vit.data.source_names import match_kind
    from keras_vit.data.usual_splits import usual_splits
    from keras_vit.io.suggest import listed
    from keras_vit.runs.own_data import check_held_out

    data, split = values.data, values.split
    if not data and named is not None and not _without_source(named):
        return None, None, "test"
    if not data and own is None:
        needed = f", which {listed(_without_source(named))} would read," if named else ""
        raise ValueError(
            f"{name} is not a run directory, so its data{needed} are unknown: give --data, such as --data=PHOTOS."
        )
    data = match_kind(data, own.data["source"], values.data_dir) if data and own else data or own.data["source"]
    is_own = own is not None and own.is_source(data, values.data_dir)
    if not split:
        split = own.splits[1] if is_own else usual_splits(data, values.data_dir)[1]
        if not is_own and split != "test":
            logging.info("%s has no split test: evaluating on %s. --split=SPLIT takes another.", data, split)
    source = open_source(data, split, values.data_dir)
    if is_own:
        check_held_out(own, data, split, source, values.data_dir, bool(values.split))
    return source, data, split


def _evaluators(values):
    """{name: evaluator} of --evals; ValueError for flags that no evaluator reads."""
    from keras_vit.evaluation import parse_evaluators

    chosen = parse_evaluators(values.evals)
    if values.split and not values.data:
        raise ValueError(
            f"--split={values.split} is a split of --data, which is missing. Of an evaluator's own source:"
            f" NAME(source='...', split='{values.split}')."
        )
    own = {key: evaluator.source for key, evaluator in chosen.items() if getattr(evaluator, "source", None) is not None}
    if values.data and len(own) == len(chosen):
        raise ValueError(
            f"--data={values.data} would be ignored:"
            f" {', '.join(f'{key} reads {source}' for key, source in own.items())}."
            " Leave out --data, or give an evaluator source=None."
        )
    takes = {
        key: values.preprocess and getattr(evaluator, "preprocess", "") is None for key, evaluator in chosen.items()
    }
    return {
        key: dataclasses.replace(evaluator, preprocess=values.preprocess) if takes[key] else evaluator
        for key, evaluator in chosen.items()
    }


def _with_windows(values, evaluator, name):
    """The task's evaluator, at the images' own size with --window; ValueError where that means nothing."""
    if values.window is None:
        return evaluator
    if not hasattr(evaluator, "window"):
        raise ValueError(f"--window={values.window} is for segmentation models, and {name} is not one.")
    return dataclasses.replace(evaluator, **shared_flags.windows(values))


def _compare_engines(values, name, setting, task, data, split):
    """Prints a table of the model in every engine, and writes it to --output as engines.md; returns {}."""
    from keras_vit.inference import engines
    from keras_vit.io.atomic import write_bytes
    from keras_vit.io.progress import stage
    from keras_vit.runs.calibration_images import calibration_images, calibration_source

    with stage("Opening the images to calibrate on"):
        source = calibration_source(name, values.calibration, values.data_dir)
    evaluator = task.evaluator()
    rows = engines.compare(evaluator, setting, calibration_images(setting.model, source), integers=values.integers)
    percent = evaluator.higher_is_better
    text = engines.table(rows, f"{evaluator.score} on {data} {split}", percent)
    print(text)
    if values.output:
        write_bytes(epath.Path(values.output) / "engines.md", f"{text}\n".encode())
    return {}


def evaluate(values, name, strategy, output):
    """Evaluates a model as the flags say; prints and writes the measures.

    Returns:
        {name: (evaluator, its measures)}; the name of the task's evaluator is "evaluation".
    """
    from keras_vit.data import ExampleErrors
    from keras_vit.data.sources.folder import folders_read_once
    from keras_vit.evaluation import Setting
    from keras_vit.io.progress import stage
    from keras_vit.prediction.preprocessing import preprocessing_text
    from keras_vit.runs.evaluate import load_task, own_data, task_for, write_evaluation

    load_task(name)  # its file may register evaluators
    named = _evaluators(values) if values.evals else None
    with stage(f"Opening {values.data}" if values.data else "Opening the data"), folders_read_once():
        source, data, split = _open(values, own_data(name), name, named)
    with strategy.scope(), stage(f"Loading {name}"):
        model = loading.load(name)
    task = task_for(model, name)
    if source and not named:  # evaluators of --evals check it: some compare classes other than the model's
        task.check_model(model, source)
    preprocess = values.preprocess or preprocessing_text(model)
    errors = ExampleErrors(values.broken_limit)
    setting = Setting(
        model, strategy, values.batch_size, values.data_dir, source, preprocess, task.select, errors, verbose=True
    )
    if values.engines:
        return _compare_engines(values, name, setting, task, data, split)
    chosen = named or {"": _with_windows(values, task.evaluator(), name)}
    with stage("Preparing the evaluation"), folders_read_once():
        prepared = {key: evaluator.prepare(setting) for key, evaluator in chosen.items()}
    found = {}
    for key, measure in prepared.items():
        evaluation = measure()
        found[key or "evaluation"] = chosen[key], evaluation.measures
        if not strategy.chief:
            continue
        print(
            f"{key}: {json.dumps({name: float(f'{value:.4g}') for name, value in evaluation.measures.items()})}"
            if key
            else f"{data} {split}: {task.summary(evaluation.measures)}"
        )
        if output:
            with stage("Writing the report"):
                write_evaluation(output, key, task, setting, evaluation, name, data, split)
    return found


def evaluate_all(values, models, strategy):
    """Evaluates several models, and prints and writes their table; names those that fail, and continues.

    Raises:
        ValueError: if models are named twice, or at the end if some failed.
    """
    import keras

    from keras_vit.runs.compare import make_column, write_comparison
    from keras_vit.runs.evaluate import load_task

    twice = sorted({name for name in models if models.count(name) > 1})
    if twice:
        raise ValueError(f"--model names {', '.join(twice)} twice.")
    if values.evals:
        for name in models:
            with contextlib.suppress(ValueError, OSError):  # `evaluate` reports it below
                load_task(name)  # its file may register evaluators
        _evaluators(values)  # refuses mistakes before the first model
    results, columns, failed = {}, {}, {}
    for number, name in enumerate(models, 1):
        if strategy.chief:
            print(f"{name} ({number} of {len(models)})")
        try:
            found = evaluate(values, name, strategy, values.output and os.path.join(values.output, f"model_{number}"))
        except (ValueError, OSError) as error:
            failed[name] = str(error)
            logging.error("%s cannot be evaluated: %s", name, error)
            continue
        results[name] = {key: measures for key, (_, measures) in found.items()}
        columns |= {key: make_column(key, *pair) for key, pair in found.items() if key not in columns}
        keras.backend.clear_session()
    write_comparison(values.output, results, list(columns.values()), values.sort, failed, strategy)
    if failed:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in failed.items())
        raise ValueError(f"{len(failed)} of {len(models)} models could not be evaluated. {reasons}")


def run():
    flags.string(
        "model",
        None,
        "A run directory, a checkpoint of any format, or a published name; several joined by commas.",
        required=True,
    )
    flags.string(
        "data",
        None,
        "A folder, a table (.csv, .jsonl), TFRecords, digits, a tensorflow-datasets name. By default the run's own, and"
        " for evaluators of --evals their source.",
    )
    flags.string(
        "split",
        None,
        'With slices: "train[90%:]". By default the split that the run was evaluated on; for other data test, or else'
        " val or train[80%:].",
    )
    flags.string("preprocess", None, "Preprocessing text for evaluators without their own; by default the model's.")
    flags.string("evals", None, 'Evaluators with their options, joined by "|"; by default the task\'s own.')
    flags.path(
        "output",
        None,
        "A folder for report.html and evaluation.json, or with --evals NAME.json; by default the measures are only"
        " printed.",
    )
    flags.string(
        "sort",
        None,
        "The measure by which several models are sorted, such as few_shot/5; by default the first evaluator's score.",
    )
    flags.boolean(
        "engines",
        False,
        "Compares the installed ones of ONNX Runtime, OpenVINO and LiteRT, in floats and int8: size, speed, and"
        " the task's measure.",
    )
    flags.boolean("integers", False, "For --engines: also LiteRT files without floats, which CPUs compute slowly.")
    flags.string("calibration", None, "For --engines, images for int8; by default the training images of the run.")
    flags.integer("batch_size", 64, "Images per batch, over all devices.", lowest=1)
    shared_flags.define_broken_limit()
    flags.only_with("engines", "evals", lambda evals: evals is None, "the task's evaluator")
    flags.only_with("engines", "model", lambda models: "," not in models, "one model")
    flags.only_with("calibration", "engines", bool, "--engines")
    flags.only_with("integers", "engines", bool, "--engines")
    flags.only_with("sort", "model", lambda models: "," in models, "several models")
    shared_flags.define_windows(None)
    flags.only_with("engines", "window", lambda window: window is None, "the model's own size")
    flags.only_with("flips", "window", bool, "--window=whole or --window=slide")
    flags.only_with("window", "evals", lambda evals: evals is None, "the task's evaluator")
    flags.only_with("window", "preprocess", lambda text: text is None, "the model's own preprocessing")
    shared_flags.define_data_dir()
    shared_flags.define_strategy()
    flags.launch(main, loads=True)


if __name__ == "__main__":
    run()
