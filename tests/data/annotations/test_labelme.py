"""LabelMe's annotations as masks: shapes, images, classes, and ways in which they may be broken."""

import base64
import io

import numpy as np
import pytest
from annotation_files import NAN, expected, labelme_content, labelme_folder, masks, opened, picture, shape, text
from box_files import annotations as box_annotations
from PIL import Image

from keras_vit.data.annotations import schema


def test_labelme_draws_later_shapes_above_earlier_ones(tmp_path):
    shapes = [
        shape(kind="rectangle", points=((5, 4), (2, 1))),
        shape(((3, 2), (4, 2), (4, 3), (3, 3)), label="dog"),
        shape(((8, 0), (10, 8)), label="__ignore__", kind="rectangle"),
        shape(((0, 0), (3, 3)), kind="line", label="dog"),
    ]
    source = opened(labelme_folder(tmp_path, shapes))
    assert source.class_names == ("background", "cat", "dog")
    mask = expected((1, 2, 4, 5, 1), (2, 3, 3, 4, 2), (0, 8, 8, 10, 255))
    np.testing.assert_array_equal(masks(source)["a.jpg"], mask)


def test_labelme_circles_have_the_area_of_circles(tmp_path):
    picture(tmp_path / "a.jpg", (200, 200))
    text(tmp_path / "a.json", labelme_content([shape(((100, 100), (160, 180)), kind="circle")], size=(200, 200)))
    mask = masks(opened(tmp_path))["a.jpg"]
    y, x = np.mgrid[:200, :200] + 0.5
    inside = np.hypot(x - 100, y - 100)
    assert mask[inside < 99.5].all() and not mask[inside > 100.5].any()


def test_labelme_masks_lie_at_their_points(tmp_path):
    file = io.BytesIO()
    Image.fromarray(np.array([[True, False], [True, True]])).save(file, "PNG")
    drawn = base64.b64encode(file.getvalue()).decode()
    mask = masks(opened(labelme_folder(tmp_path, [shape(((3, 2), (4, 3)), kind="mask", mask=drawn)])))["a.jpg"]
    np.testing.assert_array_equal(mask, expected((2, 3, 4, 4, 1), (3, 4, 4, 5, 1)))


@pytest.mark.parametrize("stated", ["..\\photos\\a.jpg", "C:\\Users\\me\\a.jpg", "/home/me/a.png", ""])
def test_labelme_finds_its_image(tmp_path, stated):
    labelme_folder(tmp_path, [shape()], image=stated, imageData="AAAA")
    assert masks(opened(tmp_path))["a.jpg"].sum() == 9


def test_labelme_has_the_classes_of_train_or_of_a_file(tmp_path):
    labelme_folder(tmp_path / "train", [shape(), shape(label="dog")])
    labelme_folder(tmp_path / "val", [shape(label="dog")])
    assert masks(opened(tmp_path, "val"))["a.jpg"].max() == 2
    text(tmp_path / "labels.txt", "__ignore__\n_background_\ndog\ncat\n")
    source = opened(tmp_path, "val")
    assert source.class_names == ("background", "dog", "cat") and masks(source)["a.jpg"].max() == 1


LABELMES = {
    "odd points": ([shape(((2, 1), (5, 1), (5,)))], "expected points as pairs"),
    "no label": ([shape(label="")], "shape 1 has no label"),
    "unknown shape": ([shape(kind="spiral")], 'shape_type "spiral"; expected polygon, rectangle, circle or mask'),
    "rectangle of 3": (
        [shape(((1, 1), (2, 2), (3, 3)), kind="rectangle")],
        "expected 2 or 4 points for a rectangle, got 3",
    ),
    "circle of 1": ([shape(((1, 1),), kind="circle")], "expected 2 points for a circle, got 1"),
    "no mask": ([shape(((1, 1), (2, 2)), kind="mask", mask="AAAA")], "as a base64 PNG"),
    "nan": ([shape(((NAN, 1), (5, 1), (5, 4)))], "the coordinate nan"),
    "no shapes": ("shapes", 'has no list "shapes"'),
    "not a shape": ([3], "shape 1: expected an object"),
}


@pytest.mark.parametrize("case", LABELMES)
def test_broken_labelme_files_are_named(tmp_path, case):
    shapes, message = LABELMES[case]
    with pytest.raises(ValueError, match=message):
        opened(labelme_folder(tmp_path, shapes))


def test_labelme_says_that_an_image_is_only_inside_of_the_json(tmp_path):
    text(tmp_path / "a.json", labelme_content([shape()], imageData="AAAA"))
    with pytest.raises(FileNotFoundError, match="only inside the JSON"):
        opened(tmp_path)


def test_labelme_refuses_unknown_classes(tmp_path):
    labelme_folder(tmp_path / "train", [shape(), shape(label="dog")])
    labelme_folder(tmp_path / "val", [shape(label="dgo")])
    with pytest.raises(ValueError, match='unknown class "dgo".*Did you mean "dog"'):
        opened(tmp_path, "val")


def test_labelme_refuses_two_files_of_one_image(tmp_path):
    labelme_folder(tmp_path, [shape()])
    text(tmp_path / "b.json", labelme_content([shape()]))
    with pytest.raises(ValueError, match="annotate the same image"):
        opened(tmp_path)


def test_labelme_names_the_line_of_an_error(tmp_path):
    labelme_folder(tmp_path, [shape()])
    text(tmp_path / "b.json", '{"shapes":\n[}')
    with pytest.raises(ValueError, match='b.json", line 2: not JSON'):
        opened(tmp_path)


# {case: (shapes as (label, group_id, kind, points), boxes as (label, top, left, bottom, right))}
GROUPS = {
    "parts of one object": (
        [("x", 1, "rectangle", ((1, 1), (2, 3))), ("x", 1, "polygon", ((5, 4), (7, 4), (7, 6)))],
        [("x", 1, 1, 6, 7)],
    ),
    "two groups": (
        [("x", 1, "rectangle", ((1, 1), (2, 3))), ("x", 2, "rectangle", ((5, 4), (7, 6)))],
        [("x", 1, 1, 3, 2), ("x", 4, 5, 6, 7)],
    ),
    "two labels in a group": (
        [("x", 1, "rectangle", ((1, 1), (2, 3))), ("y", 1, "rectangle", ((5, 4), (7, 6)))],
        [("x", 1, 1, 3, 2), ("y", 4, 5, 6, 7)],
    ),
    "no group": (
        [("x", None, "rectangle", ((1, 1), (2, 3))), ("x", None, "rectangle", ((5, 4), (7, 6)))],
        [("x", 1, 1, 3, 2), ("x", 4, 5, 6, 7)],
    ),
    "group 0, and a point in it": (
        [("x", 0, "rectangle", ((1, 1), (2, 3))), ("x", 0, "point", ((9, 7),)), ("x", 0, "circle", ((5, 4), (6, 4)))],
        [("x", 1, 1, 5, 6)],
    ),
    "a turned rectangle": ([("x", None, "rotation", ((4, 1), (6, 3), (4, 5), (2, 3)))], [("x", 1, 2, 5, 6)]),
}


@pytest.mark.parametrize("case", GROUPS)
def test_shapes_of_a_group_are_one_object(tmp_path, case):
    shapes, boxes = GROUPS[case]
    drawn = [shape(points, label, kind, group_id=group) for label, group, kind, points in shapes]
    (found,) = box_annotations(labelme_folder(tmp_path, drawn)).images
    found = [(region.label, *schema.bounding_box(region, found.size)) for region in found.regions]
    assert [row[0] for row in found] == [row[0] for row in boxes]
    np.testing.assert_allclose([row[1:] for row in found], [row[1:] for row in boxes])
