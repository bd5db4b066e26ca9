"""A model's answers for whole images, each with its row."""

import collections
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_vit.data import ExampleErrors
from keras_vit.data.sources.base import Source
from keras_vit.data.sources.selection import subset
from keras_vit.data.whole_images import images_alone, whole_images


def answers_by_row(
    answers: Callable[[Iterator[tuple[np.ndarray, int]]], Iterable[Any]],
    source: Source,
    rows: Sequence[int],
    channels: int,
    errors: ExampleErrors,
) -> Iterator[tuple[Any, int]]:
    """(answer, row) of the readable images of these rows, in order.

    Args:
        answers: function from an iterator of (pixels (h, w, c) uint8, row) to one answer per image, in order. It may
            read images ahead.
        source: data source; its masks or boxes are ignored.
        rows: numbers of examples.
        channels: c.
        errors: receives the unreadable images.
    """
    if not rows:
        return
    waiting: collections.deque = collections.deque()

    def images():
        for position, pixels, _ in whole_images(subset(images_alone(source), rows), channels, errors):
            waiting.append(rows[position])
            yield pixels, rows[position]

    for answer in answers(images()):
        yield answer, waiting.popleft()
