"""Measures a model's frozen features: few-shot ridge regression, k nearest neighbours, logistic or ridge regression.

    keras-vit probe --model=runs/x --data=cifar10 --shots=1,5,10,25 --output=runs/x

--model is anything keras_vit.load accepts. --methods=few_shot,knn,logistic,ridge runs all on the same features, so that
images are embedded once. few_shot alone embeds only its sampled training examples. logistic and ridge use all
examples, and choose their penalty on a fifth of the training split.
"""

import dataclasses
import json
import pathlib

from absl import logging

from . import flags, loading, shared_flags

METHODS = ("few_shot", "knn", "logistic", "ridge")


def probe(splits, evaluators):
    """{method: measures and details}, all on the same features.

    Args:
        splits: a FeatureSplits.
        evaluators: {method: evaluator}.
    """
    for evaluator in evaluators.values():
        evaluator.check(splits)
    results = {}
    for name, evaluator in evaluators.items():
        logging.info("%s", name)
        evaluation = evaluator.evaluate(splits)
        results[name] = {**evaluation.measures, **evaluation.details}
    return results


def _ties(result):
    """How many penalties are as good on the held-out fifth as the chosen one, if any."""
    shares = list(result.get("held_out", {}).values())
    count = sum(share == max(shares) for share in shares)
    return f", the middle of {count} that tie" if count > 1 else ""


def _lines(results):
    """The printed table, line by line."""
    for shots, result in results.get("few_shot", {}).get("few_shot", {}).items():
        penalty = f", l2 {result['l2']:g}" if "l2" in result else ""
        title = f"few-shot, {shots} per class"
        yield f"{title:28}{result['mean']:7.2%} +- {result['std']:.2%} ({len(result['runs'])} draws{penalty})"
    for name, title in (
        ("knn", "nearest neighbours"),
        ("logistic", "logistic regression"),
        ("ridge", "ridge regression"),
    ):
        if name in results:
            result = results[name]
            setting = next(f"{key} {result[key]:g}" for key in ("k", "C", "l2") if key in result) + _ties(result)
            top5 = f", top-5 {result['top5']:.2%}" if "top5" in result else ""
            yield f"{title:28}{result['top1']:7.2%}{top5} ({setting})"


def _write(folder, content, few_shot):
    """Writes probe.json and, with matplotlib, few_shot.png."""
    from keras_vit.inspection.figures import few_shot_accuracy
    from keras_vit.io.atomic import write_bytes

    write_bytes(folder / "probe.json", json.dumps(content, indent=2).encode())
    if few_shot:
        try:
            write_bytes(folder / "few_shot.png", few_shot_accuracy(few_shot))
        except ImportError as error:
            logging.warning("No few_shot.png: %s", error)


def _data(values):
    """(source, training split, test split) from the flags, or those of the model's run."""
    from keras_vit.data.usual_splits import usual_splits
    from keras_vit.runs.evaluate import own_data

    own = own_data(values.model)
    if not values.data and own is None:
        raise ValueError(
            f"{values.model} is not a run directory, so its data are unknown: give --data, such as --data=PHOTOS."
        )
    data = values.data or own.data["source"]
    if values.train or values.test:
        return data, values.train or "train", values.test or "test"
    if own and own.is_source(data, values.data_dir):
        return data, *own.splits
    return data, *usual_splits(data, values.data_dir)


def _evaluators(values, methods, data, train, test):
    """{method: evaluator} from the flags."""
    from keras_vit.evaluation import make_evaluator
    from keras_vit.io.suggest import did_you_mean

    unknown = [name for name in methods if name not in METHODS]
    if unknown:
        raise ValueError(
            f'Unknown method "{unknown[0]}".{did_you_mean(unknown[0], METHODS)} Valid: {", ".join(METHODS)}.'
        )
    shared = {"source": data, "train": train, "test": test, "dtype": values.dtype}
    l2 = tuple(float(penalty) for penalty in values.l2.split(","))
    if len(l2) > 1 and not values.validation:
        raise ValueError(
            f"--l2 names {len(l2)} penalties: name a split to choose among them, --validation='train[90%:]', and leave"
            " it out of --train."
        )
    shots = {} if values.shots is None else {"shots": values.shots}
    specific = {"few_shot": {**shots, "l2": l2, "validation": values.validation}}
    return {name: make_evaluator(name, {**shared, **specific.get(name, {})}) for name in methods}


def _with_shots_that_fit(evaluators, source):
    """The evaluators, of which few_shot takes no more examples per class than the smallest class has."""
    import numpy as np

    from keras_vit.data.sources.selection import read_labels
    from keras_vit.io.suggest import counted

    if "few_shot" not in evaluators:
        return evaluators
    counts = np.bincount(read_labels(source), minlength=len(source.class_names))
    few_shot, least = evaluators["few_shot"], int(counts.min())
    shots = [count for count in few_shot.shots if count <= least]
    if not shots or len(shots) == len(few_shot.shots):
        return evaluators
    logging.info(
        "Few-shot with %s per class: %s has %s.",
        *(" and ".join(map(str, shots)), source.class_names[counts.argmin()], counted(least, "training image")),
    )
    return {**evaluators, "few_shot": dataclasses.replace(few_shot, shots=tuple(shots))}


def main():
    from keras_vit.io.atomic import check_folder
    from keras_vit.io.progress import shown

    with shown():
        if flags.FLAGS.output:
            check_folder(flags.FLAGS.output)
        run_probe(flags.FLAGS)


def run_probe(values):
    """Probes as the flags say; prints the table and writes it."""
    from keras_vit.data import ExampleErrors
    from keras_vit.data.sources.folder import folders_read_once
    from keras_vit.evaluation import Embedder, FeatureSplits
    from keras_vit.evaluation.features import open_pair
    from keras_vit.io.progress import stage
    from keras_vit.runs.evaluate import own_data
    from keras_vit.runs.own_data import check_held_out

    methods = values.methods.replace(" ", "").split(",")
    with stage(f"Opening {values.data}" if values.data else "Opening the data"), folders_read_once():
        data, train, test = _data(values)
        evaluators = _evaluators(values, methods, data, train, test)
        pair = open_pair(data, train, test, values.data_dir)
        own = own_data(values.model)
        if own and own.is_source(data, values.data_dir):
            check_held_out(own, data, test, pair[1], values.data_dir, bool(values.test))
    with stage(f"Loading {values.model}"):
        model = loading.load(values.model, image_size=values.image_size)
    errors = ExampleErrors(values.broken_limit)
    embedder = Embedder(model, values.preprocess or None, values.batch_size, values.dtype, errors=errors)
    if values.shots is None:
        evaluators = _with_shots_that_fit(evaluators, pair[0])
    splits = FeatureSplits(embedder, *pair, keep=methods != ["few_shot"], data_dir=values.data_dir)
    results = probe(splits, evaluators)
    about = {"model": values.model, "data": data, "train": train, "test": test, "preprocess": embedder.preprocess}
    _tell(results, about, pair[1].size, values.output)


def _tell(results, about, test_images, output):
    """Prints the table; writes it, with what it is about, to the folder `output`, if any."""
    names = ("features", "train_images")
    sizes = {name: max(result[name] for result in results.values() if name in result) for name in names}
    print(
        f"{about['data']}: {test_images:,} images of {about['test']}, {sizes['train_images']:,} of {about['train']};"
        f" {sizes['features']} features; {about['preprocess']}"
    )
    print("\n".join(_lines(results)))
    if output:
        folder = pathlib.Path(output)
        folder.mkdir(parents=True, exist_ok=True)
        few_shot = results.get("few_shot", {}).get("few_shot")
        content = {**results, **({"few_shot": few_shot} if few_shot else {})}
        _write(folder, {**about, **sizes, "test_images": test_images, **content}, few_shot)


def run():
    flags.string("model", None, "A run directory, a checkpoint of any format, or a published name.", required=True)
    flags.string(
        "data",
        None,
        "A folder, a table (.csv, .jsonl), TFRecords, digits, a tensorflow-datasets name. By default the run's own.",
    )
    flags.string(
        "train",
        None,
        "The split that the classifiers are fitted on; with slices: train[:90%]. By default that of the run; for other"
        " data train, or train[:80%] where nothing else is held out.",
    )
    flags.string(
        "test",
        None,
        "The split that is classified. By default that of the run; for other data test, or else val or train[80%:].",
    )
    flags.string("methods", "few_shot", "One or several of few_shot, knn, logistic, ridge.")
    flags.string(
        "shots",
        None,
        "few_shot: examples per class; by default 1,5,10,25, up to the size of the smallest class.",
    )
    flags.string("l2", "1024", "few_shot: the penalty, or several, of which the best on --validation is taken.")
    flags.string("validation", None, "few_shot: the split on which the best of several --l2 is chosen.")
    flags.integer("image_size", None, "In pixels; positions are resampled. By default the model's own.", lowest=1)
    flags.string(
        "preprocess", None, "Preprocessing text; by default the model's own, or a resize to 8/7 of its size and a crop."
    )
    flags.string("dtype", "float32", "Of the features in memory: float32 or float16.")
    flags.path("output", None, "A folder for probe.json and few_shot.png; by default the table is only printed.")
    flags.integer("batch_size", 64, "Images per batch.", lowest=1)
    shared_flags.define_broken_limit()
    for name in ("shots", "l2", "validation"):
        flags.only_with(name, "methods", lambda methods: "few_shot" in methods, "--methods=few_shot")
    shared_flags.define_data_dir()
    flags.launch(main, loads=True)


if __name__ == "__main__":
    run()
