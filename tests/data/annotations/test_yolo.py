"""YOLO's annotations as masks: order, lists of images, and ways in which they may be broken."""

import numpy as np
import pytest
from annotation_files import INNER, SQUARE, expected, fractions, masks, opened, picture, text, yolo_folder

from keras_vit.data.annotations import yolo


def test_yolo_draws_small_regions_above_large_ones(tmp_path):
    folder = yolo_folder(tmp_path, f"1 {fractions(INNER)}\n0 {fractions(SQUARE)}\n")
    picture(folder / "train" / "images" / "empty.png", (3, 3))
    found = masks(opened(folder))
    np.testing.assert_array_equal(found["a.jpg"], expected((1, 2, 4, 5, 1), (2, 3, 3, 4, 2)))
    assert found["empty.png"].shape == (3, 3) and not found["empty.png"].any()


def test_yolo_reads_lists_of_images_as_cvat_writes_them(tmp_path):
    picture(tmp_path / "images" / "train" / "a.jpg")
    text(tmp_path / "labels" / "train" / "a.txt", f"0 {fractions(SQUARE)}")
    text(tmp_path / "train.txt", "data/images/train/a.jpg\n")
    text(tmp_path / "data.yaml", "path: ./\ntrain: train.txt\nnames:\n  0: cat\n  1: dog\n")
    assert masks(opened(tmp_path))["a.jpg"].sum() == 9


YOLOS = {
    "unknown class": ("7 0 0 1 0 1 1", 'line 1: expected a class from 0 to 1, got "7"'),
    "name": ("cat 0 0 1 0 1 1", 'expected a class .* got "cat"'),
    "boxes": ("0 .5 .5 .2 .2\n1 .5 .5 .1 .1", "all 2 lines of train are boxes, which are for object detection"),
    "a box": (f"0 {fractions(SQUARE)}\n0 .5 .5 .2 .2", "line 2 is a box of 4 numbers; boxes are for object detection"),
    "odd": ("0 0 0 1 0 1 1 .5", "pairs x, y, got 7 coordinates"),
    "pixels": ("0 20 30 40 30 40 60", "0 to 1, got 60"),
    "text": ("0 a b c d e f", "expected numbers"),
    "nan": ("0 nan 0 1 0 1 1", "the coordinate nan"),
    "empty": ("\n", "have no annotations"),
}


@pytest.mark.parametrize("case", YOLOS)
def test_broken_yolo_files_are_named(tmp_path, case):
    lines, message = YOLOS[case]
    with pytest.raises(ValueError, match=message):
        opened(yolo_folder(tmp_path, lines))


DESCRIPTIONS = {
    "not yaml": ("names: [cat, dog\ntrain: x: y\n", "line 2: not YAML"),
    "no folder": ("names: [cat, dog]\ntrain: photos\n", 'train is "photos", but .* has no such folder'),
    "no splits": ("names: [cat, dog]\n", "names no folder of images"),
    "names twice": ("names: [cat, cat]\ntrain: train/images\n", "class names must be unique"),
    "gaps": ("names: {0: cat, 2: dog}\ntrain: train/images\n", "expected names numbered 0, 1, 2"),
    "another nc": ("nc: 3\nnames: [cat, dog]\ntrain: train/images\n", "nc is 3, but there are 2 names"),
}


@pytest.mark.parametrize("case", DESCRIPTIONS)
def test_broken_descriptions_of_yolo_are_refused(tmp_path, case):
    content, message = DESCRIPTIONS[case]
    folder = yolo_folder(tmp_path, f"0 {fractions(SQUARE)}")
    text(folder / "data.yaml", content)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        opened(folder)


def test_yolo_without_a_description_is_refused(tmp_path):
    picture(tmp_path / "images" / "a.jpg")
    text(tmp_path / "labels" / "a.txt", "0 0 0 1 0 1 1\n4 0 0 1 0 1 1\n")
    with pytest.raises(ValueError, match=r"no data.yaml with the class names.* number of classes, \?classes=5\."):
        yolo.find_nameless(str(tmp_path))
