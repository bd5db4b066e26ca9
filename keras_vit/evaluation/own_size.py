"""Scores of `SegmentationModel.segment`: masks at the images' original size, resized or from windows."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from keras import ops

from keras_vit.data import ExampleErrors
from keras_vit.data.sources.base import Source
from keras_vit.data.whole_images import whole_images
from keras_vit.evaluation.boundaries import boundary_counts
from keras_vit.io.progress import stage
from keras_vit.segmentation.scores import confusion
from keras_vit.segmentation.segment import Segmenter, resized_image


@dataclasses.dataclass(frozen=True)
class Counts:
    """Sums over the images of a source.

    Attributes:
        images: number of images.
        confusion: (k, k) int64. Pixels by true class (rows) and predicted class.
        boundaries: (k, 4) int64. Sums of `boundary_counts`; None without a tolerance.
        examples: [(image (h, w, c) uint8, mask (h, w), predicted (h, w))] to draw, at the model's size.
    """

    images: int
    confusion: np.ndarray
    boundaries: np.ndarray | None
    examples: list[tuple[np.ndarray, np.ndarray, np.ndarray]]


def nearest(mask: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resizes a mask (h, w, ...) to (height, width, ...) by nearest-neighbour interpolation."""
    rows, columns = (((np.arange(new) + 0.5) * old / new).astype(int) for new, old in zip(size, mask.shape[:2]))
    return mask[rows][:, columns]


def _segmented(segmenter, source, errors):
    """(position, pixels, mask, predicted classes) of each readable example."""
    pending = []

    def images():
        for position, image, mask in whole_images(source, segmenter.model.channels, errors):
            pending.append((position, image, mask))
            yield image, f"Example {position}"

    for found in segmenter.of_pixels(images()):
        position, image, mask = pending.pop(0)
        yield position, image, mask, found.classes.astype("int32")


def count(
    segmenter: Segmenter,
    source: Source,
    void: int,
    tolerance: float | None,
    shown: Sequence[int],
    errors: ExampleErrors,
) -> Counts:
    """Segments a source's images and counts pixels against its masks.

    Args:
        segmenter: Segmenter of the model to measure.
        source: data source of images and masks.
        void: value of pixels without a class.
        tolerance: boundary tolerance as a share of each image's diagonal; None to leave boundaries out.
        shown: positions of the examples to return.
        errors: collects unreadable examples.
    """
    classes, size = len(source.class_names), segmenter.model.image_size
    matrix, edges, examples = np.zeros((classes, classes), "int64"), np.zeros((classes, 4), "int64"), []
    done = 0
    with stage(f"Segmenting {source.name}", source.size, "images") as work:
        for position, image, mask, predicted in _segmented(segmenter, source, errors):
            pair = ops.convert_to_tensor(mask[None]), ops.convert_to_tensor(predicted[None])  # (1, h, w)
            matrix += ops.convert_to_numpy(confusion(*pair, classes, void))
            if tolerance is not None:
                pixels = tolerance * math.hypot(*mask.shape) + 1e-6  # keeps rounding from turning 6 pixels into 5
                edges += ops.convert_to_numpy(boundary_counts(*pair, classes, void, pixels))
            if position in shown:
                examples.append((resized_image(image, size), nearest(mask, size), nearest(predicted, size)))
            done += 1
            work.advance()
    return Counts(done, matrix, None if tolerance is None else edges, examples)
