"""Yields images at their original size, one by one, with masks if there are any."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data.batches import evaluation_batches
from keras_vit.data.errors import ExampleErrors
from keras_vit.data.sources.base import RandomAccess, Source

_READ = 4  # images to read at a time


def images_alone(source: Source) -> Source:
    """Drops a source's masks or boxes, so broken annotations lose no image; records keep theirs, checked before."""
    targets = source.void is not None or source.most_objects is not None
    if not targets or not isinstance(source, RandomAccess) or source.parse is None:
        return source

    def parse(example):
        return {"image": example["image"]}

    return dataclasses.replace(source, parse=parse, void=None, most_objects=None, outlined=False)


def _serialised(example: dict[str, Any]) -> tuple:
    """Serializes an image and its mask, or "", as scalars, so that all examples have one shape."""
    mask = tf.io.serialize_tensor(tf.cast(example["mask"][..., 0], tf.int32)) if "mask" in example else tf.constant("")
    return tf.io.serialize_tensor(example["image"]), mask


def whole_images(
    source: Source, channels: int, errors: ExampleErrors
) -> Iterator[tuple[int, np.ndarray, np.ndarray | None]]:
    """Yields (position, pixels (h, w, c) uint8, mask (h, w) int32 or None) of the readable examples, in order.

    Args:
        source: Source of images, with or without masks.
        channels: int. Channels of the pixels.
        errors: ExampleErrors. Receives the unreadable examples.
    """
    batches = evaluation_batches(source, f"decode({channels}, whole=True)", _READ, errors=errors, select=_serialised)
    positions = iter(range(source.size))
    for images, masks, weights in batches:
        for image, mask, weight, position in zip(images.numpy(), masks.numpy(), weights.numpy(), positions):
            if weight > 0:
                pixels = tf.io.parse_tensor(image, tf.uint8).numpy()
                yield position, pixels, tf.io.parse_tensor(mask, tf.int32).numpy() if mask else None
