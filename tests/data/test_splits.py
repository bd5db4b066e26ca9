"""Splits: their slices, mistakes in them, and which of them share examples."""

import pytest

from keras_vit.data.splits import merged_splits, overlap, split_range


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("train", (0, 50)),
        ("train[90%:]", (45, 50)),
        ("train[10:20]", (10, 20)),
        ("train[:-50%]", (0, 25)),
    ],
)
def test_split_slices(split, expected):
    assert split_range(split, 50) == expected


@pytest.mark.parametrize("size", [35, 150])
def test_slices_in_percent_are_complements_counted_from_either_end(size):
    for percent in range(10, 91):
        first, second = split_range(f"train[:{percent}%]", size), split_range(f"train[-{100 - percent}%:]", size)
        assert (first[0], first[1], second[1]) == (0, second[0], size)
    assert split_range("train[:29%]", 150) == (0, 44)  # 43.5, as tensorflow-datasets counts: 29 * 150 / 100
    assert split_range("train[-150%:]", size) == (0, size)


@pytest.mark.parametrize(
    ("split", "message"), [("train[5]", "is not a split"), ("train[9:9]", "empty"), ("train[:0%]", "empty")]
)
def test_bad_splits(split, message):
    with pytest.raises(ValueError, match=message):
        split_range(split, 50)


@pytest.mark.parametrize(
    ("first", "second", "share"),
    [
        ("train", "test", False),
        ("training", "train[:10%]", True),
        ("train[:90%]", "train[90%:]", False),
        ("train[:91%]", "train[-10%:]", True),
        ("train[:5000]", "train[4999:6000]", True),
        ("train[-100:]", "train[:100]", False),  # of few examples they would
        ("train[:5000]", "train[98%:]", False),  # nor is that known
        ("train[:50%]+test", "val + test[:10]", True),
    ],
)
def test_splits_that_share_examples(first, second, share):
    assert overlap(first, second) is share and overlap(second, first) is share


@pytest.mark.parametrize(
    "folders, expected",
    [
        (["WIDER_train/images", "WIDER_val/images"], "WIDER_train and WIDER_val"),
        (["DET-val2017", "x/DET-testing", "x/y"], "DET-val2017 and x/DET-testing"),
        (["a_train", "b_train", "images"], ""),
        (["train_test"], ""),
        (["contest", "trains"], ""),
    ],
)
def test_folders_named_for_several_splits(folders, expected):
    assert merged_splits(folders) == (
        f"{expected} look like splits, but are read as one: open each alone" if expected else ""
    )
