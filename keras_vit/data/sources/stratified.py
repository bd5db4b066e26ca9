"""Stratified slices of labelled files: "train[:80%]" and "train[80%:]" both contain every class, in proportion."""

import random
from collections.abc import Sequence

import numpy as np
from absl import logging

from keras_vit.data.splits import split_range
from keras_vit.io.logs import log_once
from keras_vit.io.suggest import counted, listed


def stratified(labels: np.ndarray) -> np.ndarray:
    """Orders examples so that each class is spread evenly, at random within the class; returns positions (n,).

    Example i of a class of m is at the fraction (i + 1/2) / m of the order, except that the first example of every
    class with several comes before all others, and the last one after them.

    Args:
        labels: (n,) integers from 0. Classes.
    """
    shuffled = list(range(len(labels)))
    random.Random(0).shuffle(shuffled)
    order = np.array(shuffled, "int64")
    shuffled_labels = np.asarray(labels)[order]
    counts = np.bincount(shuffled_labels)
    rank = np.empty(len(shuffled_labels), "int64")
    rank[np.argsort(shuffled_labels, kind="stable")] = np.arange(len(shuffled_labels)) - np.repeat(
        np.cumsum(counts) - counts, counts
    )
    size = counts[shuffled_labels]
    place = (rank + 0.5) / size
    place -= (size > 1) & (rank == 0)
    place += (size > 1) & (rank == size - 1)
    return order[np.argsort(place, kind="stable")]


def stratified_slice(title: str, split: str, labels: np.ndarray, class_names: Sequence[str]) -> np.ndarray:
    """Returns the positions (m,) of a split's examples, such as "train[:80%]", in `stratified` order.

    Percent slices keep examples of every class with several on both sides of a cut, and report a change of size. Warns
    about classes that the slice lacks.

    Args:
        title: str. Name of the source in messages.
        split: str. A split, with or without a slice.
        labels: (n,) integers. Classes in the whole split.
        class_names: sequence of str, in label order.
    """
    counts = np.bincount(labels, minlength=len(class_names))
    start, stop = split_range(split, len(labels), int((counts > 1).sum()))
    chosen = stratified(labels)[start:stop]
    plain = split_range(split, len(labels), check=False)
    if stop - start != plain[1] - plain[0]:
        log_once(
            logging.INFO,
            f"{title}, {split}: {counted(stop - start, 'image')} instead of {plain[1] - plain[0]:,}, so every class"
            " with several images has some on both sides of the cut.",
        )
    lacks = (counts > 0) & (np.bincount(labels[chosen], minlength=len(class_names)) == 0)
    missing = [name for name, absent in zip(class_names, lacks) if absent]
    if missing:
        log_once(
            logging.WARNING,
            f"{title}: {split} has no images of {counted(len(missing), 'class')}: {listed(missing)}.",
        )
    return chosen
