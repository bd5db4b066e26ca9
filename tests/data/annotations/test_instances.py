"""Sources of instances: outlines of COCO, LabelMe and YOLO as numbers at each pixel, drawn as masks of one region."""

import numpy as np
import pytest
import tensorflow as tf
from annotation_files import (
    INNER,
    SIZE,
    SQUARE,
    annotation,
    coco_content,
    coco_folder,
    fractions,
    labelme_folder,
    picture,
    shape,
    text,
    yolo_folder,
)
from PIL import Image

from keras_vit.data.annotations import run_lengths, schema
from keras_vit.data.errors import why
from keras_vit.data.open import open_source
from keras_vit.data.source_names import match_kind

SHIFTED = [4, 2, 8, 2, 8, 6, 4, 6]  # rows 2 to 5, columns 4 to 7; the square has rows 1 to 3, columns 2 to 4
LEFT = {"size": list(SIZE), "counts": [0, 40, 40]}  # columns 0 to 4


def rectangle(top, left, bottom, right):
    mask = np.zeros(SIZE, bool)
    mask[top:bottom, left:right] = True
    return mask


MASKS = {"square": rectangle(1, 2, 4, 5), "shifted": rectangle(2, 4, 6, 8), "left": rectangle(0, 0, 8, 5)}
MASKS["inner"] = rectangle(2, 3, 3, 4)


def read(folder, options=""):
    source = open_source(f"instances:{folder}{options}", "train")
    example = {key: np.asarray(value) for key, value in source.read(tf.constant(0, tf.int64)).items()}
    assert set(example) == {"image", "boxes", "labels", "crowd", "area", "size", "segments"}
    assert example["segments"].dtype == np.int32 and example["segments"].shape == (*SIZE, 2)
    return source, example


def segments(*drawn):
    """(h, w, 2) of (number, mask), the lowest first."""
    top, low = np.zeros(SIZE, int), np.zeros(SIZE, int)
    for number, mask in drawn:
        top[mask] = number
        low[mask & (low == 0)] = number
    return np.stack([top, low], -1)


def test_coco_has_crowds_lowest_and_larger_objects_below_smaller_ones(tmp_path, logged):
    regions = [
        annotation(1, area=9.5, bbox=[2, 1, 3, 3]),
        annotation(2, category=3, segmentation=(SHIFTED,)),
        annotation(3, segmentation=(INNER,)),
        annotation(4, segmentation=LEFT, iscrowd=1, bbox=[0, 0, 5, 8]),
    ]
    source, example = read(coco_folder(tmp_path, regions))
    assert (source.class_names, source.most_objects, source.outlined, source.stuff) == (("cat", "dog"), 4, True, ())
    assert example["labels"].tolist() == [0, 1, 0, 0] and example["crowd"].tolist() == [0, 0, 0, 1]
    assert example["area"].tolist() == [9.5, 16, 1, 40] and example["size"].tolist() == list(SIZE)
    pixels = example["boxes"] * [8, 10, 8, 10]
    np.testing.assert_allclose(pixels, [[1, 2, 4, 5], [2, 4, 6, 8], [2, 3, 3, 4], [0, 0, 8, 5]], atol=1e-6)
    drawn = [(4, MASKS["left"]), (2, MASKS["shifted"]), (1, MASKS["square"]), (3, MASKS["inner"])]
    np.testing.assert_array_equal(example["segments"], segments(*drawn))
    assert "4 objects of 2 classes: cat 3 (median side 3 px), dog 1" in logged[0] and "1 crowd" in logged[0]


def test_both_of_two_overlapping_objects_are_kept(tmp_path):
    _, example = read(coco_folder(tmp_path, [annotation(), annotation(2, segmentation=(SHIFTED,))]))
    for number, name in ((1, "square"), (2, "shifted")):
        np.testing.assert_array_equal((example["segments"] == number).any(-1), MASKS[name])


def test_rows_that_are_left_out_do_not_shift_the_others(tmp_path, logged):
    regions = [
        annotation(1, bbox=[2, 1, 0, 3]),  # without an area
        annotation(2, category=3, segmentation=(SHIFTED,)),
        annotation(3, category=3, segmentation=(SHIFTED,)),  # repeated
        annotation(4, bbox=[1, 1, 2, 2], segmentation=[]),  # only a box
        annotation(5, segmentation=(INNER,)),
    ]
    _, example = read(coco_folder(tmp_path, regions))
    np.testing.assert_array_equal(example["segments"], segments((1, MASKS["shifted"]), (2, MASKS["inner"])))
    assert example["labels"].tolist() == [1, 0]
    for reason in ("1 box without an area", "1 box that repeats one", "1 object without an outline, only a box"):
        assert reason in logged[0]


def test_labelme_has_later_shapes_above_and_groups_as_one_object(tmp_path):
    far = ((8, 6), (10, 6), (10, 8), (8, 8))
    pairs = [SHIFTED[i : i + 2] for i in range(0, 8, 2)]
    shapes = [shape(INNER_PAIRS, "dog"), shape(group_id=1), shape(pairs, "dog"), shape(far, group_id=1)]
    _, example = read(labelme_folder(tmp_path, shapes))
    both = MASKS["square"] | rectangle(6, 8, 8, 10)
    drawn = segments((1, MASKS["inner"]), (2, both), (3, MASKS["shifted"]))
    np.testing.assert_array_equal(example["segments"], drawn)
    assert example["labels"].tolist() == [1, 0, 1]
    np.testing.assert_allclose(example["boxes"][1], [1 / 8, 2 / 10, 1, 1], rtol=1e-6)


INNER_PAIRS = [INNER[i : i + 2] for i in range(0, 8, 2)]


def test_yolo_has_larger_objects_below_and_drops_boxes(tmp_path, logged):
    lines = [f"1 {fractions(SHIFTED)}", "0 .5 .5 .2 .2", f"0 {fractions(INNER)}", f"0 {fractions(SQUARE)}"]
    _, example = read(yolo_folder(tmp_path, "\n".join(lines)))
    drawn = segments((1, MASKS["shifted"]), (3, MASKS["square"]), (2, MASKS["inner"]))
    np.testing.assert_array_equal(example["segments"], drawn)
    assert example["labels"].tolist() == [1, 0, 0] and "1 object without an outline" in logged[0]


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: coco_folder(folder, [annotation(bbox=[1, 1, 2, 2], segmentation=[])]),
        lambda folder: yolo_folder(folder, "0 .5 .5 .2 .2"),
    ],
)
def test_boxes_alone_are_refused(make, tmp_path):
    with pytest.raises(schema.OnlyBoxes, match="boxes.* are for object detection"):
        read(make(tmp_path))


def test_folders_without_outlines_are_refused(tmp_path):
    picture(tmp_path / "a.jpg")
    with pytest.raises(ValueError, match="has no outlines of objects. Expected COCO"):
        read(tmp_path)
    with pytest.raises(ValueError, match="no image has an object"):
        read(yolo_folder(tmp_path, ""))


def test_broken_outlines_fail_by_name(tmp_path):
    coco_folder(tmp_path, [annotation(segmentation=(SQUARE[:7],)), annotation(2, 2)], images=("a.jpg", "b.jpg"))
    picture(tmp_path / "b.jpg")
    source = open_source(f"instances:{tmp_path}", "train")
    found = [why(lambda i=i: source.read(tf.constant(i, tf.int64))) for i in range(2)]
    assert sum("annotation 1: expected a polygon as pairs" in (text or "") for text in found) == 1


def test_stored_pixels_are_turned_with_their_image(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    coco_folder(tmp_path, [annotation()])
    picture(tmp_path / "a.jpg", SIZE, exif=exif)
    example = open_source(f"instances:{tmp_path}", "train").read(tf.constant(0, tf.int64))
    np.testing.assert_array_equal(example["segments"][..., 0], np.rot90(MASKS["square"], -1))
    np.testing.assert_allclose(example["boxes"], [[2 / 10, 4 / 8, 5 / 10, 7 / 8]], rtol=1e-6)


def test_a_thousand_objects(tmp_path):
    """Squares of two pixels, of which each overlaps its right neighbour by a column."""
    places = [(y, x) for y in range(0, 80, 4) for x in range(50)]
    corners = [(x, y, x + 2, y, x + 2, y + 2, x, y + 2) for y, x in places]
    regions = [annotation(i, segmentation=(list(points),)) for i, points in enumerate(corners, 1)]
    picture(tmp_path / "a.png", (80, 60))
    content = coco_content(regions, images=("a.png",), size=(80, 60))
    text(tmp_path / "_annotations.coco.json", content)
    source = open_source(f"instances:{tmp_path}", "train")
    found = source.read(tf.constant(0, tf.int64))["segments"].numpy()
    assert source.most_objects == 1000
    for number, (y, x) in enumerate(places, 1):
        mask = (found == number).any(-1)
        assert mask.sum() == 4 and mask[y : y + 2, x : x + 2].all()


def test_a_path_takes_the_kind_of_its_recipe(tmp_path):
    folder = coco_folder(tmp_path, [annotation()])
    assert match_kind(str(folder), "instances:PATH") == f"instances:{folder}"


@pytest.mark.parametrize("seed", range(20))
def test_run_lengths_of_masks_and_their_union(seed):
    rng = np.random.default_rng(seed)
    masks = rng.random((3, 5, 7)) < rng.choice([0, 0.2, 0.7, 1], (3, 1, 1))
    counts = [run_lengths.of_mask(mask) for mask in masks]

    def drawn(counts):
        assert len(counts) % 2 == 0
        return np.repeat(np.arange(len(counts)) % 2 == 1, counts).reshape(7, 5).T

    for mask, found in zip(masks, counts):
        np.testing.assert_array_equal(drawn(found), mask)
        assert run_lengths.decoded(run_lengths.encoded(found)) == found.tolist()
    np.testing.assert_array_equal(drawn(run_lengths.united(counts)), masks.any(0))


def test_encoded_run_lengths_are_pycocotools():
    """Of pycocotools 2.0.11: `mask.encode` of a 7 x 9 mask, and of one of 120 x 50 with long runs."""
    assert run_lengths.encoded(np.array([5, 4, 3, 4, 3, 4, 40])) == "543000U1"
    mask = (np.random.default_rng(3).random((40, 50)) < 0.02).repeat(3, 0)
    theirs = (
        "W13l=0]B0`10k90cE0Q13i4Mn00T40eD0f:0jF0WN0a20D0_M0c10S30A0SM0X>0aC0]N0`N0]70[L0XL0l1030U20[L0]10`N0l40]N0YM0P3"
        "0k30[I0V30n30hJ0XO0T4"
    )
    assert run_lengths.encoded(run_lengths.of_mask(mask)[:-1]) == theirs  # the last count is a zero
