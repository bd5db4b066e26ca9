"""Evaluation of detectors: average precision, curves, confusion, and pictures of examples with true and found boxes."""

import dataclasses
import functools
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from keras_vit.data import ExampleErrors, evaluation_batches
from keras_vit.data.objects import pack
from keras_vit.evaluation.average_precision import AveragePrecision
from keras_vit.evaluation.data import OnSource, open_data
from keras_vit.evaluation.loss_and_metrics import check_preprocessing
from keras_vit.evaluation.matched_boxes import objects_found
from keras_vit.evaluation.matched_classes import matched_objects
from keras_vit.evaluation.registry import Evaluation, Setting, register
from keras_vit.inspection.box_comparison import match_marks, sheet
from keras_vit.io.progress import stage


@functools.cache
def _selecting(limit):
    """A function of an example -> (image (h, w, c), {"objects": (limit, 7), "size": (2,)})."""

    def select(example):
        return example["image"], {"objects": pack(example, limit), "size": example["size"]}

    return select


@dataclasses.dataclass(frozen=True)
class _Example:
    """An image to draw, its objects (m, 7), and its detections, best score first."""

    image: np.ndarray
    objects: np.ndarray
    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray

    def marks(self, names, threshold):
        kept = (self.labels >= 0) & (self.scores >= threshold)
        boxes, scores, labels = self.boxes[kept], self.scores[kept], self.labels[kept]
        objects = self.objects[self.objects[:, 4] >= 0]
        return match_marks(objects, boxes, scores, labels, objects_found(objects, boxes, labels), names)


@register("detection")
@dataclasses.dataclass(frozen=True)
class Detection(OnSource):
    """AP of COCO and Pascal VOC, AR, precision-recall curves and a confusion matrix of a DetectionModel.

    Classes are matched by name (matched_classes.py).

    Attributes:
        source, split, preprocess: as in OnSource; the source has boxes.
        pictures: number of examples to draw, spread over the source.
        threshold: score from which detections count in the confusion matrix, precision, recall and pictures; None for
            the one with the highest F1 on this data.
        limit: detections per image, those with the highest scores.
    """

    score: ClassVar[str] = "ap"
    caption: ClassVar[str] = (
        "Green boxes are found objects, with the score; yellow, dashed: missed; magenta: taken for another class, or,"
        " dotted, where no object is. Grey boxes do not count: crowds and difficult objects."
    )

    pictures: int = 4
    threshold: float | None = None
    limit: int = 100

    def __post_init__(self):
        if not isinstance(self.pictures, int) or self.pictures < 0:
            raise ValueError(f"detection: pictures={self.pictures!r}: expected a whole number, 0 or more.")
        if not isinstance(self.limit, int) or not 1 <= self.limit <= 100:
            raise ValueError(f"detection: limit={self.limit!r}: expected a whole number from 1 to 100.")
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise ValueError(f"detection: threshold={self.threshold!r}: expected a score from 0 to 1, or None.")

    def prepare(self, setting: Setting) -> Callable[[], Evaluation]:
        setting, source, preprocess = open_data(self, setting)
        model = setting.model
        if not hasattr(model, "detections"):
            raise ValueError(
                f'The evaluator "detection" needs a keras_vit.DetectionModel, got a {type(model).__name__}.'
            )
        if source.most_objects is None:
            raise ValueError(
                f"{source.name} has no boxes: give a source of images and boxes, such as boxes:FOLDER (docs/data.md)."
            )
        source, numbers = matched_objects(model, source)
        select = _selecting(max(source.most_objects, 1))
        check_preprocessing(preprocess, source, model, select)

        def evaluate():
            errors = setting.errors or ExampleErrors()
            batches = evaluation_batches(source, preprocess, setting.batch_size, errors=errors, select=select)
            with errors.raised():
                collected, examples = self._collect(model, source, numbers, batches, setting)
            return self._evaluation(source, collected, examples)

        return evaluate

    def _collect(self, model, source, numbers, batches, setting):
        """(AveragePrecision, [_Example]) of all batches. Each process reads all, and the replicas share a batch.

        `numbers` are of `matched_objects`: from the model's classes to the source's.
        """
        collected, examples, number = AveragePrecision(source.class_names), [], 0
        shown = np.linspace(0, source.size - 1, min(self.pictures, source.size)).astype(int)
        verbose = setting.verbose and setting.strategy.chief
        with stage(f"Detecting objects in {source.name}", source.size, "images", verbose) as work:
            for images, truth, weights in batches.as_numpy_iterator():
                with setting.strategy.scope():
                    found = model.detections(images, limit=self.limit)
                for i in np.flatnonzero(weights > 0):
                    boxes, scores, labels = (np.asarray(part)[i] for part in found)
                    labels = np.where(labels < 0, -1, numbers[labels])
                    collected.add(truth["size"][i], truth["objects"][i], boxes, scores, labels)
                    if number + i in shown:
                        examples.append(_Example(images[i], truth["objects"][i], boxes, scores, labels))
                number += len(images)
                work.advance(int((weights > 0).sum()))
        if not collected.images:
            raise ValueError(f"None of the {source.size} examples of {source.name} can be used: the warnings say why.")
        return collected, examples

    def _evaluation(self, source, collected, examples):
        measures, details = collected.result(self.threshold)
        if "ap" not in measures:
            raise ValueError(f"The {collected.images} images of {source.name} have no objects to find.")
        marks = [example.marks(source.class_names, details["score_threshold"]) for example in examples]
        pictures = {"examples": sheet([example.image for example in examples], marks)} if examples else {}
        return Evaluation({**measures, "examples": collected.images}, details, pictures=pictures)
