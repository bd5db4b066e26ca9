"""Yields images at their original size, one by one, with masks or other targets."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
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

    return dataclasses.replace(source, parse=parse, void=None, most_objects=None)


@functools.cache
def _with_pixels(select):
    """A function of an example -> (its pixels, serialised so that all have one shape, its target)."""

    def selected(example):
        return tf.io.serialize_tensor(example["image"]), select(example)

    return selected


def whole_examples(
    source: Source, channels: int, errors: ExampleErrors, select: Callable[[dict[str, Any]], Any]
) -> Iterator[tuple[int, np.ndarray, Any]]:
    """Yields (position, pixels (h, w, c) uint8, target) of the readable examples, in order.

    Args:
        source: Source of images.
        channels: int. Channels of the pixels.
        errors: ExampleErrors. Receives the unreadable examples.
        select: callable. Maps an example, a dict, to its target, a structure of tensors of fixed shapes.
    """

    preprocess, selected = f"decode({channels}, whole=True)", _with_pixels(select)
    batches = evaluation_batches(source, preprocess, _READ, errors=errors, select=selected)
    positions = iter(range(source.size))
    for images, targets, weights in batches.as_numpy_iterator():
        for i, (image, weight, position) in enumerate(zip(images, weights, positions)):
            if weight > 0:
                pixels = tf.io.parse_tensor(image, tf.uint8).numpy()
                yield position, pixels, tf.nest.map_structure(lambda values, i=i: values[i], targets)


def _mask(example):
    """Serializes a mask, or "" without one, so that all have one shape."""
    return tf.io.serialize_tensor(tf.cast(example["mask"][..., 0], tf.int32)) if "mask" in example else tf.constant("")


def whole_images(
    source: Source, channels: int, errors: ExampleErrors
) -> Iterator[tuple[int, np.ndarray, np.ndarray | None]]:
    """Yields (position, pixels (h, w, c) uint8, mask (h, w) int32 or None) of the readable examples, in order.

    Arguments as in `whole_examples`; the source has masks or not.
    """
    for position, pixels, mask in whole_examples(source, channels, errors, _mask):
        yield position, pixels, tf.io.parse_tensor(mask, tf.int32).numpy() if mask else None
