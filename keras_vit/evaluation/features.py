"""Features of a frozen model: which examples to embed, and the embedding, batch by batch."""

import dataclasses
import time

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.data.rows import Rows
from keras_vit.data.source import RandomAccess, Records

_ALL = Rows(1)
_TOLD_EVERY = 10.0  # seconds between two lines of progress


def labels_of(source):
    """The labels (size,) int64 of a data source, in its order. Records are read once for it; their images are not decoded."""
    if isinstance(source, RandomAccess):
        return np.asarray(source.labels, "int64")
    labels = source.ordered().map(lambda image, label: label).batch(4096)
    return np.concatenate(list(labels.as_numpy_iterator())).astype("int64")


@dataclasses.dataclass(frozen=True)
class _Some(Records):
    """Records whose `ordered` and `keys` give the examples `numbers` alone."""

    numbers: np.ndarray = ()

    @property
    def size(self):
        return len(self.numbers)

    def keys(self, rows=_ALL):
        wanted = np.zeros(sum(self.counts), bool)
        wanted[self.numbers] = True
        wanted = tf.constant(wanted)
        numbered = super().keys().enumerate().filter(lambda i, key: wanted[i])
        return rows.cut(numbered.map(lambda i, key: key).take(self.size))


def subset(source, numbers):
    """The examples of `numbers`, ascending positions in the source's order, as a source for evaluation_batches.

    With random access only they are read. Records are read up to the last of them, and only they are decoded.
    """
    numbers = np.asarray(numbers, "int64")
    if not isinstance(source, RandomAccess):
        return _Some(**vars(source), numbers=numbers)
    places = tf.constant(numbers)
    called = source.names or (lambda i: tf.strings.join([source.name, ", example ", tf.strings.as_string(i)]))
    return dataclasses.replace(
        source, labels=source.labels[numbers], lookup=lambda i: source.lookup(places[i]), names=lambda i: called(places[i])
    )


def extract(extractor, dataset, dtype="float32"):
    """Features and labels of every example of weight above 0. One batch of images is in memory at a time; progress is logged.

    Args:
        extractor: images (b, h, w, c) -> features (b, d), through Keras' predict_on_batch: a model without head, or
            `keras_vit.Model(model.input, model.features)`.
        dataset: batches (images, labels (b,), weights (b,)) of a known number, as data.evaluation_batches makes.
        dtype: what the features are kept in: float32, or float16 for half of the memory.

    Returns:
        features (n, d) of `dtype` and labels (n,) int64.

    Raises:
        ValueError: for another dtype, if the extractor does not give rows of features, or the dataset is empty.
    """
    if dtype not in ("float32", "float16"):
        raise ValueError(f'Features are kept in "{dtype}". Valid: float32, float16.')
    features, labels, n, began = None, [], 0, time.monotonic()
    told = began
    for images, truth, weights in dataset:
        counted = np.asarray(weights) > 0
        batch = np.asarray(extractor.predict_on_batch(np.asarray(images)))
        if batch.ndim != 2:
            raise ValueError(f"The extractor gives {batch.shape}; expected features (b, d), such as a model's `features`.")
        if features is None:  # room for all: a list of batches, joined at the end, would take twice as much
            features = np.empty((len(dataset) * len(batch), batch.shape[1]), dtype)
        labels.append(np.asarray(truth)[counted])
        features[n : n + len(labels[-1])] = batch[counted]
        n += len(labels[-1])
        if time.monotonic() - told > _TOLD_EVERY:
            told = time.monotonic()
            logging.info("Features: %s of %s images, %.0f a second.", f"{n:,}", f"{len(features):,}", n / (told - began))
    if features is None:
        raise ValueError("There are no images to take features of.")
    return features[:n], np.concatenate(labels).astype("int64")
