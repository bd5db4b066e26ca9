"""COCO's annotations as masks: layouts, order, run lengths, and ways in which they may be broken."""

import re

import numpy as np
import pytest
from annotation_files import (
    INNER,
    NAN,
    SIZE,
    SQUARE,
    annotation,
    coco_content,
    coco_folder,
    expected,
    masks,
    opened,
    picture,
    text,
)

from keras_vit.data import open_source
from keras_vit.data.annotations import coco


def test_coco_of_roboflow_has_a_file_for_each_split(tmp_path, logged):
    categories = [{"id": 0, "name": "pets", "supercategory": "none"}]
    categories += [{"id": i, "name": name, "supercategory": "pets"} for i, name in ((1, "cat"), (2, "dog"))]
    for split, category in (("train", 1), ("valid", 2)):
        content = coco_content([annotation(category=category)]) | {"categories": categories}
        picture(tmp_path / split / "a.jpg")
        text(tmp_path / split / "_annotations.coco.json", content)
    train, val = opened(tmp_path), opened(tmp_path, "val")
    assert train.class_names == val.class_names == ("background", "cat", "dog") and train.void == 255
    np.testing.assert_array_equal(masks(train)["a.jpg"], expected((1, 2, 4, 5, 1)))
    np.testing.assert_array_equal(masks(val)["a.jpg"], expected((1, 2, 4, 5, 2)))
    assert "1 image with COCO annotations of 3 classes" in logged[0]
    assert "1 category that only groups the others (pets)" in logged[0]


@pytest.mark.parametrize("images", ["images/train2017", "train2017", "images", "."])
def test_coco_finds_its_images(tmp_path, images):
    picture(tmp_path / images / "a.jpg")
    text(tmp_path / "annotations" / "instances_train2017.json", coco_content([annotation()]))
    text(tmp_path / "annotations" / "captions_train2017.json", {"images": [], "annotations": []})
    assert masks(opened(tmp_path))["a.jpg"].sum() == 9


def test_coco_finds_its_images_where_the_option_says(tmp_path):
    picture(tmp_path / "photos" / "a.jpg")
    text(tmp_path / "x" / "instances_default.json", coco_content([annotation()]))
    path = f"{tmp_path}/x/instances_default.json"
    assert masks(opened(path, options="?images=../photos"))["a.jpg"].sum() == 9


def test_coco_draws_crowds_below_and_small_regions_above(tmp_path):
    everything = {"size": list(SIZE), "counts": [0, 80]}
    regions = [
        annotation(1, segmentation=(INNER,), category=3),
        annotation(2),
        annotation(3, segmentation={"size": list(SIZE), "counts": [0, 4, 76]}, category=3, iscrowd=1),
        annotation(4, segmentation=everything, category=1, iscrowd=1),
    ]
    mask = masks(opened(coco_folder(tmp_path, regions)))["a.jpg"]
    np.testing.assert_array_equal(mask, expected((0, 0, 8, 10, 1), (0, 0, 4, 1, 2), (1, 2, 4, 5, 1), (2, 3, 3, 4, 2)))


@pytest.mark.parametrize("flag, crowd", [("0", 0), ("1", 1), (False, 0), (None, 0), (1, 1)])
def test_iscrowd_may_be_written_as_text(tmp_path, flag, crowd):
    folder = coco_folder(tmp_path, [annotation(bbox=[2, 1, 3, 3], iscrowd=flag)])
    [example] = open_source(f"boxes:{folder}", "train").ordered()
    assert example["crowd"].numpy().tolist() == [crowd]


def test_compressed_run_lengths_equal_plain_ones(tmp_path):
    # pycocotools 2.0.11: encode of a mask of 8 x 10 whose rows 1 to 3 and columns 2 to 4 are set
    packed = {"size": list(SIZE), "counts": "a035000W1"}
    plain = {"size": list(SIZE), "counts": [17, 3, 5, 3, 5, 3, 44]}
    for folder, segmentation in (("packed", packed), ("plain", plain)):
        source = opened(coco_folder(tmp_path / folder, [annotation(segmentation=segmentation)]))
        np.testing.assert_array_equal(masks(source)["a.jpg"], expected((1, 2, 4, 5, 1)))


def test_void_takes_the_place_of_the_background(tmp_path):
    content = coco_content([annotation()], images=("a.jpg", "b.jpg"))
    coco_folder(tmp_path, [])
    picture(tmp_path / "b.jpg")
    text(tmp_path / "_annotations.coco.json", content)
    source = opened(tmp_path, options="?background=void")
    assert source.class_names == ("cat", "dog") and list(masks(source)) == ["a.jpg"]
    np.testing.assert_array_equal(masks(source)["a.jpg"], expected((1, 2, 4, 5, 0), background=255))


def test_a_class_named_background_or_ignored(tmp_path):
    categories = ((1, "cat"), (2, "Background"), (3, "ignore"))
    regions = [annotation(1), annotation(2, category=2, segmentation=(INNER,))]
    regions.append(annotation(3, category=3, segmentation=([8, 0, 10, 0, 10, 8, 8, 8],)))
    source = opened(coco_folder(tmp_path, regions, categories=categories))
    assert source.class_names == ("background", "cat")
    mask = expected((1, 2, 4, 5, 1), (2, 3, 3, 4, 0), (0, 8, 8, 10, 255))
    np.testing.assert_array_equal(masks(source)["a.jpg"], mask)
    assert opened(tmp_path, options="?ignore=none").class_names == ("background", "cat", "ignore")


def test_many_classes_have_masks_of_integers(tmp_path):
    categories = [(i, f"c{i}") for i in range(1, 301)]
    source = opened(coco_folder(tmp_path, [annotation(category=300)], categories=categories))
    assert source.void == 65535 and masks(source)["a.jpg"].max() == 300


def test_boxes_stay_in_the_common_form(tmp_path):
    folder = coco_folder(tmp_path, [annotation(bbox=[2, 1, 3, 3])])
    (found,) = coco.find(str(folder), boxes=True).splits["train"]().images
    assert found.regions[0].box == (1, 2, 4, 5) and found.size == SIZE


def test_open_and_closed_polygons_are_the_same(tmp_path):
    closed = opened(coco_folder(tmp_path, [annotation(segmentation=([*SQUARE, *SQUARE[:2]],))]))
    np.testing.assert_array_equal(masks(closed)["a.jpg"], expected((1, 2, 4, 5, 1)))


def refused(tmp_path, content):
    picture(tmp_path / "a.jpg")
    text(tmp_path / "_annotations.coco.json", content)
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        opened(tmp_path)
    return str(error.value)


WHOLE = coco_content([annotation()])
TWO = coco_content([annotation()], images=("a.jpg", "b.jpg"))
REFUSED = {
    "cut short": ('{"images": [],\n"annotations": [', "line 2: not JSON"),
    "list": ("[]", "expected an object of annotations, got a list"),
    "no categories": (WHOLE | {"categories": []}, "there are none"),
    "no images": (WHOLE | {"images": []}, "lists no images"),
    "no annotations": (WHOLE | {"annotations": []}, "has no annotations"),
    "panoptic": ({"images": WHOLE["images"], "segments_info": 0}, 'has no list "annotations".*panoptic masks are PNGs'),
    "boxes": (coco_content([annotation(segmentation=[], bbox=[1, 1, 2, 2])]), "boxes are for object detection"),
    "captions": (
        coco_content([{"id": 1, "image_id": 1, "category_id": 1, "caption": "cat"}]),
        "captions of whole images",
    ),
    "unknown category": (coco_content([annotation(category=2)]), "category_id 2. Valid: 1 .cat., 3 .dog."),
    "no category": (coco_content([annotation(category=None)]), "category_id None"),
    "list as category": (coco_content([annotation(category=[1])]), r"category_id \[1\]"),
    "category twice": (coco_content([annotation()], categories=((1, "cat"), (1, "dog"))), '"1" occurs twice'),
    "name twice": (coco_content([annotation()], categories=((1, "cat"), (2, "cat"))), '"cat" occurs twice'),
    "null as name": (coco_content([annotation()], categories=((1, None),)), "a name is missing"),
    "no name": (coco_content([annotation()], categories=((1, ""),)), "a name is missing"),
    "image twice": (WHOLE | {"images": 2 * WHOLE["images"]}, "two images have the id 1"),
    "file twice": (coco_content([annotation()], images=("a.jpg", "a.jpg")), "two images have the file 'a.jpg'"),
    "no file name": (WHOLE | {"images": [{"id": 1}]}, "image 1 has no file_name"),
    "no id": (WHOLE | {"images": [{"file_name": "a.jpg"}]}, "as objects with a number as id"),
    "no image is there": (coco_content([annotation()], images=("A.jpg",)), 'no images, such as "A.jpg", found in'),
}


@pytest.mark.parametrize("case", REFUSED)
def test_broken_coco_files_are_refused(tmp_path, case):
    content, message = REFUSED[case]
    found = refused(tmp_path, content)
    assert re.search(message, found, re.DOTALL), found


FAULTY = {
    "odd": ([SQUARE[:7]], "annotation 1: expected a polygon as pairs x, y, got 7"),
    "nan": ([[NAN, *SQUARE[1:]]], "annotation 1: a polygon has the coordinate nan"),
    "infinite": ([[float("inf"), *SQUARE[1:]]], "the coordinate inf"),
    "huge": ([[1e12, *SQUARE[1:]]], r"the coordinate 1e\+12"),
    "text": ([["2", "a", *SQUARE[2:]]], "expected a polygon as numbers"),
    "nested": ([[SQUARE]], "one list x, y, x, y"),
    "word": ("polygon", "expected polygons or run lengths, got polygon"),
    "no box either": ([], "boxes are for object detection"),
    "too short": ({"size": list(SIZE), "counts": [17, 3]}, "got 20 pixels"),
    "negative": ({"size": list(SIZE), "counts": [90, -10]}, "got 80 pixels"),
    "other size": ({"size": [4, 20], "counts": [0, 80]}, r"run lengths for \(4, 20\) pixels"),
    "no size": ({"counts": [0, 80]}, "expected run lengths as"),
    "damaged text": ({"size": list(SIZE), "counts": "a0 3"}, "in compressed run lengths"),
}


@pytest.mark.parametrize("case", FAULTY)
def test_broken_annotations_are_a_fault_of_their_image(tmp_path, case):
    segmentation, message = FAULTY[case]
    coco_folder(tmp_path, [annotation(1, 1, segmentation=segmentation), annotation(2, 2)], images=("a.jpg", "b.jpg"))
    picture(tmp_path / "b.jpg")
    broken, sound = coco.find(str(tmp_path)).splits["train"]().images
    assert not sound.fault and re.search(message, broken.fault), broken.fault


REPORTED = {
    "few points": ([annotation(), annotation(2, segmentation=([1, 1, 2, 2],))], "1 polygon with fewer than 3 points"),
    "outside": ([annotation(), annotation(2, segmentation=([20, 1, 30, 1, 25, 9],))], "1 region outside the image"),
    "reaches beyond": (
        [annotation(), annotation(2, segmentation=([8, 1, 15, 1, 9, 2],))],
        "used: 1 region clipped",
    ),
    "of no image": ([annotation(), annotation(2, image=9)], "1 annotation of an unlisted image"),
    "id twice": ([annotation(), annotation()], "used: 1 annotation with the id of another"),
}


@pytest.mark.parametrize("case", REPORTED)
def test_annotations_that_are_left_out_are_reported(tmp_path, case, logged):
    regions, message = REPORTED[case]
    assert masks(opened(coco_folder(tmp_path, regions)))["a.jpg"].sum() >= 9
    assert message in logged[0]


def test_missing_and_additional_images_are_reported(tmp_path, logged):
    coco_folder(tmp_path, [annotation()], images=("a.jpg", "gone.jpg"))
    picture(tmp_path / "more.jpg")
    assert opened(tmp_path).size == 1
    assert "1 image with a missing file" in logged[0] and "gone.jpg" in logged[0]
    assert "1 image without an entry in the annotations" in logged[0] and "more.jpg" in logged[0]


def test_images_without_regions_are_background_and_reported(tmp_path, logged):
    coco_folder(tmp_path, [annotation()], images=("a.jpg", "b.jpg"))
    picture(tmp_path / "b.jpg")
    assert not masks(opened(tmp_path))["b.jpg"].any()
    assert "1 image without regions, all background" in logged[0]


def test_two_files_of_one_split_are_refused(tmp_path):
    coco_folder(tmp_path, [annotation()])
    text(tmp_path / "more.coco.json", WHOLE)
    with pytest.raises(ValueError, match='several files for the split "train"'):
        opened(tmp_path)
