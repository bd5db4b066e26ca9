"""Images at their own size, one by one, for models that see images of any size; with masks where there are some."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data.batches import evaluation_batches
from keras_vit.data.errors import ExampleErrors
from keras_vit.data.sources.base import RandomAccess, Source

_READ = 4  # images read together


def without_masks(source: Source) -> Source:
    """The images of a source of masks, so that a broken mask costs none; records keep their masks, checked before."""
    if source.void is None or not isinstance(source, RandomAccess) or source.parse is None:
        return source
    return dataclasses.replace(source, parse=lambda example: {"image": example["image"]}, void=None)


def _serialised(example: dict[str, Any]) -> tuple:
    """An image and its mask, or "", as scalars, whose shape is known whatever their size."""
    mask = tf.io.serialize_tensor(tf.cast(example["mask"][..., 0], tf.int32)) if "mask" in example else tf.constant("")
    return tf.io.serialize_tensor(example["image"]), mask


def whole_images(
    source: Source, channels: int, errors: ExampleErrors
) -> Iterator[tuple[int, np.ndarray, np.ndarray | None]]:
    """(position, pixels (h, w, c) uint8, mask (h, w) int32 or None) of the readable examples, in order.

    Args:
        source: of images, with or without masks.
        channels: of the pixels.
        errors: gets the others.
    """
    batches = evaluation_batches(source, f"decode({channels})", _READ, errors=errors, select=_serialised)
    positions = iter(range(source.size))
    for images, masks, weights in batches:
        for image, mask, weight, position in zip(images.numpy(), masks.numpy(), weights.numpy(), positions):
            if weight > 0:
                pixels = tf.io.parse_tensor(image, tf.uint8).numpy()
                yield position, pixels, tf.io.parse_tensor(mask, tf.int32).numpy() if mask else None
