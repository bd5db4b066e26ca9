"""Images with outlined objects at their own size, and what an InstanceModel finds in them, for evaluators."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data import ExampleErrors
from keras_vit.data.sources.base import Source
from keras_vit.data.whole_images import whole_examples
from keras_vit.evaluation.data import OnSource, open_data
from keras_vit.evaluation.matched_classes import matched_labels
from keras_vit.evaluation.own_size import nearest
from keras_vit.evaluation.registry import Setting, evaluator_name
from keras_vit.io.progress import stage
from keras_vit.io.target_values import LABEL, PADDING
from keras_vit.segmentation.segment import resized_image

_KEYS = {"segments": tf.int32, "boxes": tf.float32, "labels": tf.int32, "crowd": tf.int32, "area": tf.float32}
_PIXELS = 2**25  # of the images that are held at once: 300 MB with their segments


@dataclasses.dataclass(frozen=True)
class Scene:
    """An image with its objects.

    Attributes:
        position: of the example in its source.
        image: (h, w, c) uint8.
        segments: (h, w, 2). At each pixel the number of the topmost and of the lowest object, 1 to m; 0 for none.
        objects: (m, 7) rows as in `AveragePrecision.add`; the label is -1 for classes that are not scored, and for
            boxes without area.
    """

    position: int
    image: np.ndarray
    segments: np.ndarray
    objects: np.ndarray

    @property
    def labels(self) -> np.ndarray:
        """(m,) class numbers."""
        return self.objects[:, LABEL].astype(int)

    def resized(self, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """(image (height, width, c), segments (height, width, 2)) for pictures."""
        return resized_image(self.image, size), nearest(self.segments, size)


@dataclasses.dataclass(frozen=True)
class OutlinedScenes:
    """A source of outlined objects, with the classes that it shares with a model.

    Attributes:
        source: the data.
        setting: the environment; its model is an InstanceModel.
        class_names: classes that both have, in the model's order.
        of_data: (n,) number among these of each of the data's classes, -1 for those that are not scored.
        of_model: (k,) the same of the model's classes.
        stuff: those of class_names that are stuff in the data, or else in the model.
    """

    source: Source
    setting: Setting
    class_names: tuple[str, ...]
    of_data: np.ndarray
    of_model: np.ndarray
    stuff: tuple[str, ...]

    def shown(self, pictures: int) -> set[int]:
        """Positions of that many examples, spread over the source."""
        return set(np.linspace(0, self.source.size - 1, min(pictures, self.source.size)).astype(int).tolist())

    def found(self, title: str, answer: Callable[[list[np.ndarray]], list[Any]]) -> Iterator[tuple[Scene, Any]]:
        """(Scene, answer) of each readable example; reports progress, and errors at the end.

        Each process reads all, and the replicas share a batch.

        Args:
            title: what is done, such as "Finding objects".
            answer: from images (h, w, c) uint8 to an answer for each.

        Raises:
            ValueError: if no example can be read.
        """
        setting, errors = self.setting, self.setting.errors or ExampleErrors()
        verbose, count = setting.verbose and setting.strategy.chief, 0
        text = f"{title} in {self.source.name}"
        with errors.raised(), stage(text, self.source.size, "images", verbose) as work:
            for batch in _batches(self._scenes(errors), setting.batch_size):
                with setting.strategy.scope():
                    answers = answer([scene.image for scene in batch])
                yield from zip(batch, answers)
                count += len(batch)
                work.advance(len(batch))
        if not count:
            raise ValueError(
                f"None of the {self.source.size} examples of {self.source.name} can be used: the warnings say why."
            )

    def _scenes(self, errors):
        for position, example in whole_examples(self.source, self.setting.model.channels, errors, **_KEYS):
            boxes = example["boxes"]
            labels = np.where((boxes[:, 2:] > boxes[:, :2]).all(1), self.of_data[example["labels"]], PADDING)
            objects = np.column_stack([boxes, labels, example["crowd"], example["area"]])
            yield Scene(position, example["image"], example["segments"], objects)


def _batches(scenes, size):
    """Lists of at most `size` scenes and about _PIXELS pixels, at least one scene."""
    batch: list[Scene] = []
    for scene in scenes:
        batch.append(scene)
        if len(batch) == size or sum(one.image[..., 0].size for one in batch) > _PIXELS:
            yield batch
            batch = []
    if batch:
        yield batch


def open_scenes(evaluator: OnSource, setting: Setting) -> OutlinedScenes:
    """Opens an evaluator's data of outlined objects.

    Raises:
        ValueError: as `open_data` and `places`; for another model, data without outlines, or a preprocessing.
    """
    name = evaluator_name(evaluator)
    if evaluator.preprocess is not None:
        raise ValueError(f"{name}: it measures at the images' own size, so preprocess has no effect: leave it out.")
    model = setting.model
    if not hasattr(model, "stuff") or not hasattr(model, "detect"):
        raise ValueError(f'The evaluator "{name}" needs a keras_vit.InstanceModel, got a {type(model).__name__}.')
    setting, source, _ = open_data(evaluator, setting)
    if not source.outlined:
        raise ValueError(
            f"{source.name} has no outlines of objects: give a source of images and masks of objects, such as"
            " instances:FOLDER (docs/data.md)."
        )
    names, of_data, of_model = matched_labels(model, source)
    stuff = tuple(label for label in source.stuff or model.stuff if label in names)
    return OutlinedScenes(source, setting, names, of_data, of_model, stuff)
