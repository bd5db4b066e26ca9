"""Yields images at their original size, one by one, with masks or objects if there are any."""

import dataclasses
import functools
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


@functools.cache
def _serialising(keys):
    """A function that serializes an example's image and `keys`, "" where missing, as scalars of one shape."""

    def select(example):
        image = tf.io.serialize_tensor(example["image"])
        missing = tf.constant("")
        return image, {
            key: tf.io.serialize_tensor(tf.cast(example[key], kind)) if key in example else missing
            for key, kind in keys
        }

    return select


def whole_examples(
    source: Source, channels: int, errors: ExampleErrors, **keys: Any
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Yields (position, {"image": pixels (h, w, c) uint8, key: value ...}) of the readable examples, in order.

    Args:
        source: Source of images.
        channels: int. Channels of the pixels.
        errors: ExampleErrors. Receives the unreadable examples.
        **keys: dtype of each further key of an example to yield; examples without it have none.
    """
    select = _serialising(tuple(keys.items()))
    batches = evaluation_batches(source, f"decode({channels}, whole=True)", _READ, errors=errors, select=select)
    positions = iter(range(source.size))
    for images, others, weights in batches:
        for i, (weight, position) in enumerate(zip(weights.numpy(), positions)):
            if weight > 0:
                example = {"image": tf.io.parse_tensor(images[i], tf.uint8).numpy()}
                for key, kind in keys.items():
                    if others[key][i] != b"":
                        example[key] = tf.io.parse_tensor(others[key][i], kind).numpy()
                yield position, example


def whole_images(
    source: Source, channels: int, errors: ExampleErrors
) -> Iterator[tuple[int, np.ndarray, np.ndarray | None]]:
    """Yields (position, pixels (h, w, c) uint8, mask (h, w) int32 or None) of the readable examples, in order.

    Arguments as of `whole_examples`.
    """
    for position, example in whole_examples(source, channels, errors, mask=tf.int32):
        yield position, example["image"], example["mask"][..., 0] if "mask" in example else None
