"""Pseudo labels: a trained teacher's predictions for unlabelled images, as labels for a student.

Noisy student (arXiv 1911.04252, section 3): drops images with a confidence below .3, and balances the classes with
their most confident images, repeated where there are too few.
"""

import collections
import dataclasses
import json
import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_vit.answers import check_answers
from keras_vit.classification.classify import probability_function
from keras_vit.data import ExampleErrors, evaluation_batches
from keras_vit.data.sources.selection import read_labels
from keras_vit.data.sources.written_table import check_table_folder, image_files, names_for_table, write_table
from keras_vit.evaluation.loss_and_metrics import check_preprocessing
from keras_vit.io.atomic import write_bytes
from keras_vit.io.progress import stage
from keras_vit.prediction.preprocessing import preprocessing_text


@dataclasses.dataclass(frozen=True)
class PseudoLabels:
    """Labels of a source's readable images.

    Attributes:
        numbers: (n,) int64. Ascending positions in the source.
        labels: (n,) int64. Most probable classes.
        confidence: (n,) float32. Probabilities of the labels.
        broken: {name: reason} of unreadable images.
    """

    numbers: np.ndarray
    labels: np.ndarray
    confidence: np.ndarray
    broken: dict[str, str]


def _image(example):
    """(image, 0), ignoring any label."""
    return example["image"], tf.constant(0)


def check_teacher(model: Any) -> None:
    """Raises ValueError for a model that is not a classifier."""
    check_answers(
        model, "classes", "Use a model that was trained to classify; keras-vit predict writes this model's answers."
    )
    if model.classes < 2:
        raise ValueError("The model has one class and would give every image the same label: use one with two or more.")
    if model.image_size is None:
        raise ValueError(f'"{model.name}" needs a fixed image size, but its input is {model.input_shape}.')
    if model.has_zero_head():
        raise ValueError(
            "The model's head is all zeros, as before training, so its labels would be meaningless. Train it first."
        )


def pseudo_labels(model: Any, source: Any, batch_size: int = 64, broken_limit: int | None = None) -> PseudoLabels:
    """Predicts the most probable class of each image, with the model's own preprocessing, as `model.classify` does.

    Keeps only a position, a label and a probability per image in memory.

    Args:
        model: classifier from `keras_vit.load`.
        source: data source; its labels are ignored.
        batch_size: images per batch.
        broken_limit: largest number of unreadable images; None for no limit.

    Raises:
        ValueError: a model that cannot label (see `check_teacher`) or returns NaN, or too many unreadable images.
    """
    check_teacher(model)
    probabilities, text = probability_function(model), preprocessing_text(model)
    check_preprocessing(text, source, model, _image)
    errors = ExampleErrors(source.size if broken_limit is None else broken_limit)
    batches = evaluation_batches(source, text, batch_size, errors=errors, select=_image)
    numbers, labels, confidence = [], [], []
    with errors.raised(), stage(f"Labelling {source.name}", source.size, "images") as work:
        for first, (images, _, weights) in enumerate(batches):
            good = np.flatnonzero(np.asarray(weights) > 0)
            outputs = np.asarray(model.predict_on_batch(np.asarray(images)), "float32")
            rows = np.asarray(keras.ops.convert_to_numpy(probabilities(outputs)))[good]  # (b, c)
            if not np.isfinite(rows).all():
                raise ValueError(
                    "The model's outputs are not finite for some images: it has diverged and cannot label them. Use an"
                    " earlier checkpoint."
                )
            numbers.append(first * batch_size + good)
            labels.append(rows.argmax(-1))
            confidence.append(rows.max(-1))
            work.advance(len(good))
    joined = [np.concatenate(parts) for parts in (numbers, labels, confidence)]
    return PseudoLabels(joined[0], joined[1].astype("int64"), joined[2].astype("float32"), dict(errors.names))


def confident(
    labels: np.ndarray, confidence: np.ndarray, classes: int, lowest: float = 0.3, per_class: int | None = None
) -> np.ndarray:
    """Positions (m,) int64 of the rows to learn from.

    Args:
        labels, confidence: (n,) each.
        classes: number of classes.
        lowest: smallest confidence to keep.
        per_class: rows per class: the most confident ones (earlier rows win ties), repeated if there are too few; none
            for empty classes. None keeps all rows.
    """
    kept = np.flatnonzero(confidence >= lowest)
    if per_class is None:
        return kept
    chosen = []
    for label in range(classes):
        own = kept[labels[kept] == label]
        best = own[np.argsort(-confidence[own], kind="stable")][:per_class]
        chosen.append(np.resize(best, per_class if len(best) else 0))
    return np.concatenate(chosen).astype("int64")


def _positions(source, class_names):
    """Position in `class_names` of each class of the source; ValueError if the classes differ."""
    own = tuple(source.class_names)
    if own == tuple(class_names):
        return list(range(len(own)))
    if len(set(own)) < len(own) or sorted(own) != sorted(class_names):
        raise ValueError(
            f"{source.name} has the {len(own)} classes {own[:5]}..., but the model has {len(class_names)}:"
            f" {tuple(class_names)[:5]}... Use the model that was trained on this data."
        )
    return [class_names.index(name) for name in own]


def _class_names(model, known):
    """Class names of the model, or else of the labelled data, or else numbers."""
    named = [source.class_names for source in known.values() if len(source.class_names) == model.classes]
    return tuple(model.class_names or (named[0] if named else map(str, range(model.classes))))


def _known_rows(known, class_names, names):
    """Rows of {split: labelled source}, with the table's `names` of the classes."""
    for split, source in known.items():
        places = _positions(source, class_names)
        for path, label in zip(image_files(source), read_labels(source).tolist()):
            yield {"image": path, "label": names[places[label]], "split": split}


def _report(found, chosen, new, names, rows):
    """The content of label.json: numbers of images, and of rows by split and class."""
    times = collections.Counter(chosen.tolist())
    counts = collections.Counter(names[found.labels[i]] for i in times)
    return {
        "images": len(found.numbers),
        "already_labelled": len(found.numbers) - int(new.sum()),
        "labelled": len(times),
        "rows": len(chosen),
        "known": len(rows) - len(chosen),
        "splits": dict(collections.Counter(row["split"] for row in rows)),
        "per_class": {name: counts[name] for name in names},
        "broken": found.broken,
    }


def write_labels(
    model: Any,
    source: Any,
    folder: str,
    known: dict[str, Any] | None = None,
    lowest: float = 0.3,
    per_class: int | None = None,
    batch_size: int = 64,
) -> dict[str, Any]:
    """Writes a source's pseudo labels as a table; returns the report that label.json contains.

    Args:
        model, source, batch_size: as for `pseudo_labels`.
        folder: output folder for table.jsonl, labels.txt and label.json.
        known: {"train": source, "test": source} of labelled images to add to these splits; or None.
        lowest, per_class: as for `confident`.

    Raises:
        ValueError: sources without image files, different classes, or no image above the confidence threshold.
        OSError: the folder is not writable.
    """
    check_teacher(model)
    files, known = image_files(source), known or {}
    class_names = _class_names(model, known)
    names = names_for_table(class_names)
    check_table_folder(folder, names)
    rows = list(_known_rows(known, class_names, names))
    seen = {os.path.realpath(row["image"]) for row in rows}
    found = pseudo_labels(model, source, batch_size)
    new = np.array([os.path.realpath(files[i]) not in seen for i in found.numbers], bool)
    chosen = confident(found.labels, np.where(new, found.confidence, -1.0), len(names), lowest, per_class)
    if not len(chosen):
        highest = "no image is both new and readable"
        if new.any():
            highest = f"the highest confidence is {found.confidence[new].max():.3f}"
        raise ValueError(f"No image of {source.name} is labelled with a confidence of {lowest:g} or more: {highest}.")
    for i in chosen:
        row = {"image": files[found.numbers[i]], "label": names[found.labels[i]], "split": "train"}
        rows.append({**row, "confidence": round(float(found.confidence[i]), 6)})
    write_table(folder, names, rows)
    report = _report(found, chosen, new, names, rows)
    write_bytes(os.path.join(folder, "label.json"), json.dumps(report, indent=1, ensure_ascii=False).encode())
    return report
