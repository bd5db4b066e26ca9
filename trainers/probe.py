"""Measures a model's frozen features: few-shot ridge regression, k nearest neighbours, logistic and ridge regression on all examples.

    python -m trainers.probe --model=runs/x --data=cifar10 --shots=1,5,10,25 --output=runs/x

--model is what keras_vit.load takes; --methods=few_shot,knn,logistic,ridge takes several at once, for which images are embedded once.
few_shot alone embeds only the training examples that it draws. logistic and ridge choose their penalty on a fifth of the training split.
"""

import functools
import json
import pathlib

from absl import logging

from . import flags


def _top(scores, labels):
    """Top-1, and top-5 where there are more than 5 classes."""
    from keras_vit.evaluation import report

    return {name: value for name, value in report(scores, labels).items() if name in ("top1", "top5")}


def _knn(train, train_labels, test, test_labels, classes):
    from keras_vit.evaluation import knn_scores

    k = min(20, len(train))
    return {**_top(knn_scores(train, train_labels, test, classes, k), test_labels), "k": k}


def _swept(head, strengths, name, train, train_labels, test, test_labels, classes):
    """A head whose strength, which is called `name`, a fifth of the training examples chooses."""
    from keras_vit.evaluation import scores
    from keras_vit.evaluation.linear import sweep

    fitted, best, found = sweep(lambda x, y, strength: head(x, y, classes, strength), train, train_labels, strengths)
    return {**_top(scores(test, fitted), test_labels), name: best, "held_out": {f"{s:g}": share for s, share in found.items()}}


def whole_split_methods():
    """{name: (training features, labels, test features, labels, classes) -> measures}."""
    from keras_vit.evaluation import logistic_head, ridge_head
    from keras_vit.evaluation.linear import LOGISTIC_STRENGTHS, RIDGE_STRENGTHS

    return {
        "knn": _knn,
        "logistic": functools.partial(_swept, logistic_head, LOGISTIC_STRENGTHS, "C"),
        "ridge": functools.partial(_swept, ridge_head, RIDGE_STRENGTHS, "l2"),
    }


def probe(train, test, embedder, methods, shots, l2, validation=None):
    """Measures of each method.

    Args:
        train, test: sources of the same classes.
        embedder: a few_shot.Embedder.
        methods: names: few_shot, and what `whole_split_methods` has.
        shots, l2: of few_shot; several l2 need `validation`, a source.

    Returns:
        {"features": their number, "train_images", "test_images", method: measures}.

    Raises:
        ValueError: for an unknown method, or a class with too few examples.
    """
    from .few_shot import Task

    on_all = whole_split_methods()
    unknown = [name for name in methods if name not in ("few_shot", *on_all)]
    if unknown:
        raise ValueError(f'Unknown method "{unknown[0]}". Valid: few_shot, {", ".join(on_all)}.')
    if len(l2) > 1 and validation is None:
        raise ValueError(
            f"--l2 names {len(l2)} penalties: name a split to choose on, --validation=train[90%:], and leave it out of --train."
        )
    task = Task(train, test, shots) if "few_shot" in methods else None
    few_alone = set(methods) == {"few_shot"}
    features = task.embed(embedder) if few_alone else (*embedder(train), *embedder(test))
    found = {"features": features[0].shape[1], "train_images": len(features[0]), "test_images": len(features[2])}
    if task is not None:
        drawn = features if few_alone else (*task.of_all(*features[:2]), *features[2:])
        judged = embedder(validation) if len(l2) > 1 else None
        found["few_shot"] = task.evaluate(*drawn, l2=l2, validation=judged)
    for name in methods:
        if name in on_all:
            logging.info("%s on %s training images.", name, f"{len(features[0]):,}")
            found[name] = on_all[name](*features, len(train.class_names))
    return found


def _lines(found):
    """The table that is printed, line by line."""
    for shots, result in found.get("few_shot", {}).items():
        penalty = f", l2 {result['l2']:g}" if "l2" in result else ""
        yield f"{f'few-shot, {shots} a class':28}{result['mean']:7.2%} +- {result['std']:.2%} ({len(result['runs'])} draws{penalty})"
    for name, title in (("knn", "nearest neighbours"), ("logistic", "logistic regression"), ("ridge", "ridge regression")):
        if name in found:
            setting = next(f"{key} {found[name][key]:g}" for key in ("k", "C", "l2") if key in found[name])
            top5 = f", top-5 {found[name]['top5']:.2%}" if "top5" in found[name] else ""
            yield f"{title:28}{found[name]['top1']:7.2%}{top5} ({setting})"


def _write(folder, found):
    """probe.json, and few_shot.png where there is something to draw it with."""
    from keras_vit.inspection.figures import few_shot_accuracy
    from keras_vit.training.files import write_bytes

    write_bytes(folder / "probe.json", json.dumps(found, indent=2).encode())
    if "few_shot" in found:
        try:
            write_bytes(folder / "few_shot.png", few_shot_accuracy(found["few_shot"]))
        except ImportError as error:
            logging.warning("No few_shot.png: %s", error)


def main():
    import keras_vit
    from keras_vit.data import open_source

    from .few_shot import Embedder, numbers, open_pair, preprocessing

    values = flags.FLAGS
    shots, l2 = numbers(values.shots, "--shots"), numbers(values.l2, "--l2")
    train, test = open_pair(values.data, values.train, values.test, values.data_dir)
    validation = open_source(values.data, values.validation, values.data_dir) if values.validation else None
    model = keras_vit.load(values.model, image_size=values.image_size)
    preprocess = values.preprocess or preprocessing(model)
    embedder = Embedder(model, preprocess, values.batch_size, values.dtype)
    found = probe(train, test, embedder, values.methods.replace(" ", "").split(","), shots, l2, validation)
    about = {name: getattr(values, name) for name in ("model", "data", "train", "test")}
    print(
        f"{values.data}: {found['test_images']:,} images of {values.test}, {found['train_images']:,} of {values.train}; "
        f"{found['features']} features; {preprocess}"
    )
    print("\n".join(_lines(found)))
    if values.output:
        folder = pathlib.Path(values.output)
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder, {**about, "preprocess": preprocess, **found})


def run():
    flags.string("model", None, "A run directory, a checkpoint of any format, or a published name.", required=True)
    flags.string("data", "digits", "digits, folder:PATH, csv:PATH, a tensorflow-datasets name: as --config.data.source.")
    flags.string("train", "train", "The split that the classifiers are fitted on; with slices: train[:90%].")
    flags.string("test", "test", "The split that is classified.")
    flags.string("methods", "few_shot", "One or several of few_shot, knn, logistic, ridge.")
    flags.string("shots", "1,5,10,25", "few_shot: examples a class.")
    flags.string("l2", "1024", "few_shot: the penalty; of several the one best on --validation is taken.")
    flags.string("validation", None, "few_shot: the split to choose among several --l2 on.")
    flags.integer("image_size", None, "Pixels, positions resampled; none for the model's own.")
    flags.string("preprocess", None, "Preprocessing text; none for the model's own, or a resize to 8/7 of its size and a crop.")
    flags.string("dtype", "float32", "What features are kept in: float32 or float16.")
    flags.string("output", None, "A folder for probe.json and few_shot.png; none for the printed lines only.")
    flags.integer("batch_size", 64, "Images a batch.")
    flags.define_data_dir()
    flags.launch(main)


if __name__ == "__main__":
    run()
