"""ImageNet ReaL: the validation set's reassessed labels, any number per image (Beyer et al. 2020, arXiv 2006.07159)."""

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from keras_vit.data.sources.base import RandomAccess
from keras_vit.evaluation.data import open_data
from keras_vit.evaluation.features import Embedder
from keras_vit.evaluation.loss_and_metrics import check_head
from keras_vit.evaluation.registry import Evaluation, Evaluator, Setting, register
from keras_vit.io.paths import locate, read_text

CLASSES, IMAGES = 1000, 50_000
_NAME = r".*ILSVRC2012_val_(\d{8})\.[A-Za-z]+"
_EXPECTED = "a list of 50,000 lists of class numbers, real.json of github.com/google-research/reassessed-imagenet"


def real_accuracy(predicted: np.ndarray, real: Sequence[Sequence[int]]) -> float:
    """Share of images with their predicted class among their labels; images without labels are not counted.

    Args:
        predicted: (n, classes) or (n,). Logits or classes.
        real: the labels of each of the n images.

    Raises:
        ValueError: different numbers of images, or no labels.
    """
    predicted = np.asarray(predicted)
    best = predicted.argmax(-1) if predicted.ndim == 2 else predicted
    if best.shape != (len(real),):
        raise ValueError(f"Expected logits ({len(real)}, classes) or classes ({len(real)},), got {predicted.shape}.")
    hits = [int(guess) in labels for guess, labels in zip(best, real) if len(labels)]
    if not hits:
        raise ValueError(f"None of the {len(real)} images has a ReaL label.")
    return float(np.mean(hits))


def read_real(path: str | os.PathLike, data_dir: str | None = None) -> list[list[int]]:
    """ReaL labels of the 50,000 validation images, in their numerical order, from real.json.

    Args:
        path: path of real.json, absolute or relative to `data_dir`.
        data_dir: folder; None for the working directory.

    Raises:
        FileNotFoundError: no such file.
        ValueError: malformed content.
    """
    path = locate(os.fspath(path), data_dir)
    try:
        real = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise ValueError(f'"{path}" is not JSON: {error}. Expected {_EXPECTED}.') from None
    if not isinstance(real, list) or len(real) != IMAGES or not all(isinstance(labels, list) for labels in real):
        size = f" of {len(real):,}" if isinstance(real, list) else ""
        raise ValueError(f'"{path}" contains a {type(real).__name__}{size}. Expected {_EXPECTED}.')
    wrong = next(
        (label for labels in real for label in labels if not isinstance(label, int) or not 0 <= label < CLASSES), None
    )
    if wrong is not None:
        raise ValueError(f'"{path}" has the label {wrong!r}. Expected {_EXPECTED}, from 0 to {CLASSES - 1}.')
    return real


def validation_number(name: tf.Tensor) -> tf.Tensor:
    """The number, 1 to 50,000, of a validation image from its name, .../ILSVRC2012_val_000NNNNN.JPEG, in a graph."""
    good = tf.strings.regex_full_match(name, _NAME)
    what = "ReaL identifies images by name: expected ILSVRC2012_val_000NNNNN.JPEG, got"
    with tf.control_dependencies([tf.debugging.Assert(good, [what, name])]):
        number = tf.strings.to_number(tf.strings.regex_replace(name, _NAME, r"\1"), tf.int32)
    inside = (number >= 1) & (number <= IMAGES)
    with tf.control_dependencies([tf.debugging.Assert(inside, [f"Expected a number from 1 to {IMAGES} in", name])]):
        return tf.identity(number)


def with_names(source: Any) -> Any:
    """The source with file names as "id" of its examples; ValueError if it has none."""
    if isinstance(source, RandomAccess):
        if source.names is None:
            raise ValueError(
                f"{source.name} has no file names, by which ReaL identifies images: use a folder, a table, or"
                " imagenet2012."
            )
        return dataclasses.replace(source, lookup=lambda i: {**source.lookup(i), "id": source.names(i)})
    if "id" not in source.ordered().element_spec:
        raise ValueError(
            f'The examples of {source.name} have no "id", by which ReaL identifies images: name their feature,'
            ' "imagenet2012?id=file_name".'
        )
    return source


def _image_and_numbers(example):
    """(image, (2,) int32: its original label, and its number in the validation set)."""
    return example["image"], tf.stack([tf.cast(example["label"], tf.int32), validation_number(example["id"])])


@register("real")
@dataclasses.dataclass(frozen=True)
class Real(Evaluator):
    """Accuracy on ImageNet's reassessed and original labels, on all or part of the validation set.

    Attributes:
        labels: path of real.json.
        source: data source with file names: a folder or table of ILSVRC2012_val_000NNNNN.JPEG, or
            imagenet2012?id=file_name; None for the run's own.
        split: split of that source, "validation" by default.
        preprocess: preprocessing text; None for the run's, or else the model's.
    """

    score: ClassVar[str] = "real"
    title: ClassVar[str] = "ReaL"
    labels: str | None = None
    source: str | None = "imagenet2012?id=file_name"
    split: str | None = None
    preprocess: str | None = None

    def __post_init__(self):
        if not self.labels:
            raise ValueError(f"real: set labels=PATH, {_EXPECTED}.")

    def prepare(self, setting: Setting) -> Callable[[], Evaluation]:
        model = setting.model
        if model.output_shape[-1] != CLASSES:
            raise ValueError(
                f"ReaL needs a model of ImageNet's {CLASSES} classes, got one with {model.output_shape[-1]}."
            )
        real = read_real(self.labels, setting.data_dir)
        setting, opened, preprocess = open_data(self, setting, "validation")
        source = with_names(opened)
        with setting.strategy.scope():
            verbose = setting.verbose and setting.strategy.chief
            logits_of = Embedder(
                model,
                preprocess,
                setting.batch_size,
                verbose=verbose,
                output=model.output,
                select=_image_and_numbers,
                errors=setting.errors,
            )
        logits_of.check(source)

        def evaluate():
            check_head(model)
            batches = [(logits.argmax(-1), *rows.T) for logits, rows in logits_of.batches(source)]
            if not sum(len(best) for best, *_ in batches):
                raise ValueError(
                    f"None of the {source.size} examples of {source.name} can be used: the warnings say why."
                )
            best, original, number = (np.concatenate(parts) for parts in zip(*batches))
            lists = [real[i - 1] for i in number]
            measures = {
                "real": real_accuracy(best, lists),
                "top1": float((best == original).mean()),
                "examples": sum(map(bool, lists)),
            }
            return Evaluation(measures, {"images": len(best), "source": source.name, "preprocess": preprocess})

        return evaluate
