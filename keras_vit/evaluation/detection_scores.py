"""Evaluation of detectors: average precision, curves, confusion, and pictures of examples with true and found boxes."""

import dataclasses
import functools
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import tensorflow as tf

from keras_vit.data import ExampleErrors, evaluation_batches
from keras_vit.data.objects import pack
from keras_vit.data.whole_images import whole_examples
from keras_vit.detection.detect import Finder
from keras_vit.detection.tiles import Tiling
from keras_vit.evaluation.average_precision import AveragePrecision
from keras_vit.evaluation.data import OnSource, open_data
from keras_vit.evaluation.loss_and_metrics import check_preprocessing
from keras_vit.evaluation.matched_boxes import objects_found
from keras_vit.evaluation.matched_classes import matched_objects
from keras_vit.evaluation.registry import Evaluation, Setting, register
from keras_vit.inspection.box_comparison import match_marks, sheet
from keras_vit.io.progress import stage
from keras_vit.segmentation.segment import resized_image

_KEYS = {"boxes": tf.float32, "labels": tf.int32, "crowd": tf.int32, "area": tf.float32}
_SHOWN = 1024  # pixels of the longer side, at most, of pictures of large images


@functools.cache
def _selecting(limit):
    """A function of an example -> (image (h, w, c), {"objects": (limit, 7), "size": (2,)})."""

    def select(example):
        return example["image"], {"objects": pack(example, limit), "size": example["size"]}

    return select


def _in_batches(model, batches, limit):
    """(position, image (h, w, c), size (2,), objects (m, 7), boxes (d, 4), scores (d,), labels (d,)) of each readable
    example. Each process reads all, and the replicas share a batch.
    """
    number = 0
    for images, truth, weights in batches.as_numpy_iterator():
        found = model.detections(images, limit=limit)
        for i in np.flatnonzero(weights > 0):
            yield number + i, images[i], truth["size"][i], truth["objects"][i], *(np.asarray(part)[i] for part in found)
        number += len(images)


def _by_tiles(finder, source, errors):
    """The same of whole images by tiles; the images returned are for pictures, resized."""
    pending, size = [], finder.model.image_size
    shown = [side * max(1, _SHOWN // max(size)) for side in size]

    def images():
        for position, example in whole_examples(source, finder.model.channels, errors, **_KEYS):
            boxes = example["boxes"]
            objects = np.column_stack([boxes, *(example[key] for key in _KEYS if key != "boxes")])  # (m, 7)
            pending.append((position, objects[(boxes[:, 2:] > boxes[:, :2]).all(-1)]))
            yield example["image"]

    for found in finder.of_pixels(images()):
        (position, objects), own = pending.pop(0), found.image.shape[:2]
        boxes = found.boxes / np.tile(own, 2)
        yield position, resized_image(found.image, shown), own, objects, boxes, found.scores, found.labels


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
        tiles, tile_overlap: as in `DetectionModel.detect`, at the images' original size; None for the model's size.
    """

    score: ClassVar[str] = "ap"
    caption: ClassVar[str] = (
        "Green boxes are found objects, with the score; yellow, dashed: missed; magenta: taken for another class, or,"
        " dotted, where no object is. Grey boxes do not count: crowds and difficult objects."
    )

    pictures: int = 4
    threshold: float | None = None
    limit: int = 100
    tiles: int | tuple[int, int] | None = None
    tile_overlap: float = 0.2

    def __post_init__(self):
        if not isinstance(self.pictures, int) or self.pictures < 0:
            raise ValueError(f"detection: pictures={self.pictures!r}: expected a whole number, 0 or more.")
        if not isinstance(self.limit, int) or not 1 <= self.limit <= 100:
            raise ValueError(f"detection: limit={self.limit!r}: expected a whole number from 1 to 100.")
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise ValueError(f"detection: threshold={self.threshold!r}: expected a score from 0 to 1, or None.")
        if self.tiles is not None:
            Tiling(self.tiles, self.tile_overlap)  # refuses sizes out of range
            if self.preprocess is not None:
                raise ValueError("detection: preprocess has no effect with tiles: leave out one of them.")

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
        way = self._whole if self.tiles is None else self._tiled
        found = way(setting, source, preprocess)

        def evaluate():
            errors = setting.errors or ExampleErrors()
            with errors.raised(), setting.strategy.scope():
                collected, examples = self._collect(source, numbers, found(errors), setting)
            return self._evaluation(source, collected, examples)

        return evaluate

    def _whole(self, setting, source, preprocess):
        """A function of ExampleErrors -> what is found in images of the model's size, as of `_in_batches`."""
        model, select = setting.model, _selecting(max(source.most_objects, 1))
        check_preprocessing(preprocess, source, model, select)

        def found(errors):
            batches = evaluation_batches(source, preprocess, setting.batch_size, errors=errors, select=select)
            return _in_batches(model, batches, self.limit)

        return found

    def _tiled(self, setting, source, preprocess):
        """The same in whole images by tiles."""
        if setting.strategy.hosts > 1:
            raise ValueError("detection: tiles work only in a single process: leave them out.")
        options = {"threshold": 0.0, "limit": self.limit, "tiles": self.tiles, "tile_overlap": self.tile_overlap}
        with setting.strategy.scope():
            finder = Finder.of(setting.model, setting.batch_size, **options)
        return lambda errors: _by_tiles(finder, source, errors)

    def _collect(self, source, numbers, found, setting):
        """(AveragePrecision, [_Example]) of what is found in all examples.

        `numbers` are of `matched_objects`: from the model's classes to the source's.
        """
        collected, examples = AveragePrecision(source.class_names), []
        shown = np.linspace(0, source.size - 1, min(self.pictures, source.size)).astype(int)
        verbose = setting.verbose and setting.strategy.chief
        with stage(f"Detecting objects in {source.name}", source.size, "images", verbose) as work:
            for position, image, size, objects, boxes, scores, labels in found:
                labels = np.where(labels < 0, -1, numbers[labels])
                collected.add(size, objects, boxes, scores, labels)
                if position in shown:
                    examples.append(_Example(image, objects, boxes, scores, labels))
                work.advance(1)
        if not collected.images:
            raise ValueError(f"None of the {source.size} examples of {source.name} can be used: the warnings say why.")
        return collected, examples

    def _evaluation(self, source, collected, examples):
        measures, details = collected.result(self.threshold)
        if "ap" not in measures:
            raise ValueError(f"The {collected.images} images of {source.name} have no objects to find.")
        marks = [example.marks(source.class_names, details["score_threshold"]) for example in examples]
        pictures = {"examples": sheet([example.image for example in examples], marks)} if examples else {}
        if self.tiles is not None:
            details |= {"tiles": self.tiles, "tile_overlap": self.tile_overlap}
        return Evaluation({**measures, "examples": collected.images}, details, pictures=pictures)
