"""Slices of a folder or table hold every class in proportion."""

import logging

import numpy as np
import pytest

from keras_vit.data import open_source
from keras_vit.data.sources.stratified import stratified, stratified_slice
from keras_vit.data.splits import split_range


def parts(labels, *splits):
    """The stratified_slice of each split's examples."""
    names = [f"class{i}" for i in range(max(labels) + 1)]
    return [stratified_slice("folder:photos", split, np.array(labels), names) for split in splits]


@pytest.mark.parametrize("percent", [1, 20, 50, 80, 90, 99])
def test_every_class_with_two_images_is_on_both_sides(percent):
    rng = np.random.default_rng(percent)
    for most in (2, 5, 60):
        counts = rng.integers(2, most + 1, 20)
        labels = rng.permutation(np.repeat(np.arange(20), counts))
        first, second = parts(labels, f"train[:{percent}%]", f"train[{percent}%:]")
        assert sorted([*first, *second]) == list(range(len(labels)))
        there, rest = np.bincount(labels[first], minlength=20), np.bincount(labels[second], minlength=20)
        assert there.min() >= 1 and rest.min() >= 1
        whole = round(len(labels) * percent / 100)
        assert len(first) == min(max(whole, 20), len(labels) - 20)


def test_the_shares_of_the_classes_stay():
    """scikit-learn's StratifiedShuffleSplit gives the same numbers."""
    labels = np.repeat([0, 1, 2], [50, 30, 20])
    for split, share in (("train[:80%]", 0.8), ("train[10%:]", 0.9), ("train[20%:50%]", 0.3), ("train[:50]", 0.5)):
        [part] = parts(labels, split)
        assert np.bincount(labels[part]).tolist() == [round(50 * share), round(30 * share), round(20 * share)]
    first, second, both = parts(labels, "train[:60%]", "train[60%:90%]", "train[:90%]")
    assert [*first, *second] == [*both]  # nested


def test_the_order_is_random_within_a_class_and_always_the_same():
    labels = np.repeat([0, 1], [6, 4])
    assert stratified(labels).tolist() == [1, 7, 5, 8, 3, 4, 9, 2, 6, 0]
    assert stratified(np.zeros(0, int)).tolist() == []


def test_a_size_that_changes_and_a_class_on_one_side_are_reported(caplog):
    logging.getLogger("absl").propagate = True
    caplog.set_level("INFO", logger="absl")
    labels = [0, 0, 1, 1, 2, 2, 3]
    first, second = parts(labels, "train[:90%]", "train[90%:]")
    assert len(first) == 4 and len(second) == 3
    texts = [record.getMessage() for record in caplog.records]
    assert (
        "folder:photos, train[90%:]: 3 images instead of 1, so every class with several images has some on both"
        " sides of the cut." in texts
    )
    assert "folder:photos: train[90%:] has no images of 1 class: class3." in texts
    assert split_range("train[:1]", 7, 3) == (0, 1)  # a number means that number


def test_tables_are_split_alike(tmp_path):
    rows = [f"{i}.jpg,{'rare' if i < 2 else 'common'}" for i in range(20)]
    (tmp_path / "t.csv").write_text("\n".join(["image,label", *rows]))
    for i in range(20):
        (tmp_path / f"{i}.jpg").touch()
    counts = [open_source(f"csv:{tmp_path}/t.csv", split).class_counts() for split in ("train[:80%]", "train[80%:]")]
    assert [count.tolist() for count in counts] == [[15, 1], [3, 1]]
