"""Annotations of COCO, LabelMe and YOLO as masks: what each tool exports, and forty ways in which it may be broken."""

import base64
import io
import json
import os
import re

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit.data.annotations import coco, yolo
from keras_vit.data.batches import evaluation_batches
from keras_vit.data.errors import ExampleErrors, TooManyErrors
from keras_vit.data.open import open_source
from keras_vit.data.source_names import with_kind
from keras_vit.data.splits import MissingSplit

SIZE = 8, 10  # height, width
SQUARE = [2, 1, 5, 1, 5, 4, 2, 4]  # 3 x 3 pixels
INNER = [3, 2, 4, 2, 4, 3, 3, 3]  # 1 pixel of it
NAN = float("nan")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(autouse=True)
def logged(monkeypatch):
    """The lines that opening a source logs."""
    lines = []
    monkeypatch.setattr("keras_vit.data.annotations.source.log_once", lambda level, text: lines.append(text))
    return lines


@pytest.fixture(autouse=True)
def quick(request, monkeypatch):
    """Leaves out the share of each class, which takes a second, unless the test asks for `shares`."""
    if "shares" not in request.fixturenames:
        none = lambda source: (0, np.zeros(len(source.class_names) + 1, "int64"))  # noqa: E731
        monkeypatch.setattr("keras_vit.data.annotations.source._shares", none)


@pytest.fixture
def shares():
    pass


def picture(path, size=SIZE, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((*size, 3), 90, "uint8")).save(path, **options)


def text(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def annotation(number=1, image=1, category=1, segmentation=(SQUARE,), **others):
    segmentation = list(segmentation) if isinstance(segmentation, tuple) else segmentation
    return {"id": number, "image_id": image, "category_id": category, "segmentation": segmentation, **others}


def coco_content(annotations, images=("a.jpg",), categories=((1, "cat"), (3, "dog")), size=SIZE):
    entries = [{"id": i, "file_name": name, "height": size[0], "width": size[1]} for i, name in enumerate(images, 1)]
    return {
        "images": entries,
        "annotations": annotations,
        "categories": [{"id": number, "name": name} for number, name in categories],
    }


def coco_folder(folder, annotations, **options):
    picture(folder / "a.jpg")
    text(folder / "_annotations.coco.json", coco_content(annotations, **options))
    return folder


def shape(points=((2, 1), (5, 1), (5, 4), (2, 4)), label="cat", kind="polygon", **others):
    return {"label": label, "points": [list(point) for point in points], "shape_type": kind, **others}


def labelme_content(shapes, image="a.jpg", size=SIZE, **others):
    sizes = {"imageHeight": size[0], "imageWidth": size[1]}
    return {"version": "5.5.0", "flags": {}, "shapes": shapes, "imagePath": image, "imageData": None, **sizes, **others}


def labelme_folder(folder, shapes, **options):
    picture(folder / "a.jpg")
    text(folder / "a.json", labelme_content(shapes, **options))
    return folder


def yolo_folder(folder, lines, names="[cat, dog]"):
    picture(folder / "train" / "images" / "a.jpg")
    text(folder / "train" / "labels" / "a.txt", lines)
    text(folder / "data.yaml", f"train: ../train/images\nnc: 2\nnames: {names}\n")
    return folder


def fractions(points, size=SIZE):
    return " ".join(str(value / size[1 - i % 2]) for i, value in enumerate(points))


def opened(folder, split="train", options=""):
    return open_source(f"masks:{folder}{options}", split)


def masks(source):
    """{file name: mask (h, w)}."""
    found = {
        os.path.basename(source.example_name(i)): source.read(tf.constant(i, tf.int64)) for i in range(source.size)
    }
    assert all(example["mask"].dtype == example["void"].dtype for example in found.values())
    return {name: example["mask"].numpy()[..., 0] for name, example in found.items()}


def batches(source, size, **options):
    """Evaluation batches (images, masks, weights), cropped to 8 x 8."""
    select = lambda example: (example["image"], example["mask"])  # noqa: E731
    found = evaluation_batches(source, "decode|central_crop(8)", size, select=select, **options)
    return list(found.as_numpy_iterator())


def expected(*boxes, size=SIZE, background=0):
    """A mask of rectangles (top, left, bottom, right, value), later ones on top."""
    mask = np.full(size, background)
    for top, left, bottom, right, value in boxes:
        mask[top:bottom, left:right] = value
    return mask


# What tools export.


def test_coco_of_roboflow_has_a_file_for_each_split(tmp_path, logged, shares):
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
    assert "1 image with COCO annotations of 3 classes" in logged[0] and "background 88.8%, cat 11.2%" in logged[0]
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


def test_a_turned_jpeg_has_a_mask_of_the_upright_image(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    coco_folder(tmp_path, [annotation()])
    picture(tmp_path / "a.jpg", SIZE[::-1], exif=exif)
    np.testing.assert_array_equal(masks(opened(tmp_path))["a.jpg"], expected((1, 2, 4, 5, 1)))


@pytest.mark.parametrize("end", ["png", "bmp", "gif", "webp", "tiff"])
def test_images_of_other_formats_have_masks_of_their_size(tmp_path, end):
    picture(tmp_path / f"a.{end}")
    text(tmp_path / "_annotations.coco.json", coco_content([annotation()], images=(f"a.{end}",)))
    np.testing.assert_array_equal(masks(opened(tmp_path))[f"a.{end}"], expected((1, 2, 4, 5, 1)))


def test_other_yaml_files_are_not_read(tmp_path):
    coco_folder(tmp_path, [annotation()])
    text(tmp_path / "environment.yaml", "name: x: y: [")
    assert opened(tmp_path).size == 1


def test_boxes_stay_in_the_common_form(tmp_path):
    folder = coco_folder(tmp_path, [annotation(bbox=[2, 1, 3, 3])])
    (found,) = coco.find(str(folder)).splits["train"]().pictures
    assert found.regions[0].box == (1, 2, 4, 5) and found.size == SIZE


def test_slices_are_disjoint_and_masks_stay_with_their_images(tmp_path):
    names = [f"{i}.png" for i in range(10)]
    for name in names:
        picture(tmp_path / name)
    regions = [annotation(i, i, segmentation=([0, 0, i, 0, i, 8, 0, 8],)) for i in range(1, 11)]
    text(tmp_path / "_annotations.coco.json", coco_content(regions, images=names))
    parts = [masks(opened(tmp_path, split)) for split in ("train[:70%]", "train[70%:]")]
    assert [len(part) for part in parts] == [7, 3]
    found = {name: int(mask.sum()) for part in parts for name, mask in part.items()}
    assert found == {f"{i}.png": 8 * (i + 1) for i in range(10)}


def test_batches_of_a_cached_source_hold_its_masks(tmp_path):
    source = opened(yolo_folder(tmp_path, f"0 {fractions(SQUARE)}")).cached()
    picture(tmp_path / "train" / "images" / "a.jpg", (20, 20))  # no longer read
    ((_, mask, _),) = batches(source, 1)
    np.testing.assert_array_equal(mask[0, ..., 0], expected((1, 2, 4, 5, 1))[:, 1:9])


def test_masks_are_drawn_without_python_as_a_data_service_needs(tmp_path):
    source = opened(
        coco_folder(tmp_path, [annotation(), annotation(2, segmentation={"size": [8, 10], "counts": [80]})])
    )
    draw = tf.function(lambda i: source.parse({"image": tf.io.read_file(source.names(i)), "number": i})["mask"])
    graph = draw.get_concrete_function(tf.TensorSpec((), tf.int64)).graph.as_graph_def()
    kinds = {
        node.op for part in (graph, *graph.library.function) for node in getattr(part, "node_def", None) or part.node
    }
    assert "ScatterNd" in kinds and not any("PyFunc" in kind for kind in kinds)


def test_a_path_with_annotations_needs_no_kind(tmp_path):
    for folder in (coco_folder(tmp_path / "coco", []), yolo_folder(tmp_path / "yolo", "")):
        assert with_kind(str(folder)) == f"masks:{folder}"


# Broken annotations: refused at once; or their image fails by name when it is read; or they are left out and reported.


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
    "captions": (coco_content([{"id": 1, "image_id": 1, "category_id": 1, "caption": "cat"}]), "has no segmentation"),
    "unknown category": (coco_content([annotation(category=2)]), "category_id 2; categories are 1 .cat., 3 .dog."),
    "no category": (coco_content([annotation(category=None)]), "category_id None"),
    "list as category": (coco_content([annotation(category=[1])]), r"category_id \[1\]"),
    "category twice": (coco_content([annotation()], categories=((1, "cat"), (1, "dog"))), '"1" is there twice'),
    "name twice": (coco_content([annotation()], categories=((1, "cat"), (2, "cat"))), '"cat" is there twice'),
    "no name": (coco_content([annotation()], categories=((1, ""),)), "a name is missing"),
    "image twice": (WHOLE | {"images": 2 * WHOLE["images"]}, "two images have the id 1"),
    "file twice": (coco_content([annotation()], images=("a.jpg", "a.jpg")), "two images have the file 'a.jpg'"),
    "no file name": (WHOLE | {"images": [{"id": 1}]}, "image 1 has no file_name"),
    "no id": (WHOLE | {"images": [{"file_name": "a.jpg"}]}, "should be objects with a number as id"),
    "no image is there": (coco_content([annotation()], images=("A.jpg",)), 'its images, such as "A.jpg", are in none'),
}


@pytest.mark.parametrize("case", REFUSED)
def test_broken_coco_files_are_refused(tmp_path, case):
    content, message = REFUSED[case]
    found = refused(tmp_path, content)
    assert re.search(message, found, re.DOTALL), found


FAULTY = {
    "odd": ([SQUARE[:7]], "annotation 1: a polygon has 7 coordinates; expected pairs x, y"),
    "nan": ([[NAN, *SQUARE[1:]]], "annotation 1: a polygon has the coordinate nan"),
    "infinite": ([[float("inf"), *SQUARE[1:]]], "the coordinate inf"),
    "huge": ([[1e12, *SQUARE[1:]]], r"the coordinate 1e\+12"),
    "text": ([["2", "a", *SQUARE[2:]]], "expected a polygon as numbers"),
    "nested": ([[SQUARE]], "one list x, y, x, y"),
    "word": ("polygon", "expected polygons or run lengths, got polygon"),
    "no box either": ([], "boxes are for object detection"),
    "too short": ({"size": list(SIZE), "counts": [17, 3]}, "the run lengths cover 20 pixels"),
    "negative": ({"size": list(SIZE), "counts": [90, -10]}, "the run lengths cover 80 pixels"),
    "other size": ({"size": [4, 20], "counts": [0, 80]}, r"run lengths of \(4, 20\) pixels"),
    "no size": ({"counts": [0, 80]}, "expected run lengths as"),
    "damaged text": ({"size": list(SIZE), "counts": "a0 3"}, "does not occur in compressed run lengths"),
}


@pytest.mark.parametrize("case", FAULTY)
def test_broken_annotations_are_a_fault_of_their_image(tmp_path, case):
    segmentation, message = FAULTY[case]
    coco_folder(tmp_path, [annotation(1, 1, segmentation=segmentation), annotation(2, 2)], images=("a.jpg", "b.jpg"))
    picture(tmp_path / "b.jpg")
    broken, sound = coco.find(str(tmp_path)).splits["train"]().pictures
    assert not sound.fault and re.search(message, broken.fault), broken.fault


def test_an_image_with_broken_annotations_fails_by_name(tmp_path, logged):
    coco_folder(tmp_path, [annotation(segmentation=(SQUARE[:7],)), annotation(2, 2)], images=("a.jpg", "b.jpg"))
    picture(tmp_path / "b.jpg")
    source = opened(tmp_path)
    assert any("the annotations of 1 image of 2 cannot be used" in line for line in logged)
    errors = ExampleErrors(limit=1)
    (batch,) = batches(source, 2, errors=errors)
    assert batch[2].sum() == 1  # b.jpg alone counts
    ((name, why),) = errors.names.items()
    assert name.endswith("a.jpg") and "Its annotations cannot be used: annotation 1: a polygon has 7" in why


def test_images_of_another_size_than_stated_fail_by_name(tmp_path):
    coco_folder(tmp_path, [annotation()], size=(16, 20))
    with pytest.raises(tf.errors.InvalidArgumentError, match="another size"):
        opened(tmp_path).read(tf.constant(0, tf.int64))


def test_too_many_broken_annotations_stop_a_run(tmp_path):
    names = [f"{i}.png" for i in range(4)]
    for name in names:
        picture(tmp_path / name)
    regions = [annotation(i, i, segmentation=([1, 2, 3],) if i < 4 else (SQUARE,)) for i in range(1, 5)]
    text(tmp_path / "_annotations.coco.json", coco_content(regions, images=names))
    errors = ExampleErrors(limit=2)
    with pytest.raises(TooManyErrors), errors.raised():
        batches(opened(tmp_path), 4, errors=errors)


REPORTED = {
    "few points": ([annotation(), annotation(2, segmentation=([1, 1, 2, 2],))], "1 polygon with fewer than 3 points"),
    "outside": ([annotation(), annotation(2, segmentation=([20, 1, 30, 1, 25, 9],))], "1 region outside of its image"),
    "reaches beyond": (
        [annotation(), annotation(2, segmentation=([8, 1, 15, 1, 9, 2],))],
        "used: 1 region that reaches",
    ),
    "of no image": ([annotation(), annotation(2, image=9)], "1 annotation of an image that is not listed"),
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
    assert "1 image whose file is missing" in logged[0] and "gone.jpg" in logged[0]
    assert "1 image without an entry in the annotations" in logged[0] and "more.jpg" in logged[0]


def test_images_without_regions_are_background_and_reported(tmp_path, logged):
    coco_folder(tmp_path, [annotation()], images=("a.jpg", "b.jpg"))
    picture(tmp_path / "b.jpg")
    assert not masks(opened(tmp_path))["b.jpg"].any()
    assert "1 image without regions, all background" in logged[0]


def test_open_and_closed_polygons_are_the_same(tmp_path):
    closed = opened(coco_folder(tmp_path, [annotation(segmentation=([*SQUARE, *SQUARE[:2]],))]))
    np.testing.assert_array_equal(masks(closed)["a.jpg"], expected((1, 2, 4, 5, 1)))


LABELMES = {
    "odd points": ([shape(((2, 1), (5, 1), (5,)))], "expected points as pairs"),
    "no label": ([shape(label="")], "shape 1 has no label"),
    "unknown shape": ([shape(kind="spiral")], 'shape_type "spiral"; expected polygon, rectangle, circle or mask'),
    "rectangle of 3": ([shape(((1, 1), (2, 2), (3, 3)), kind="rectangle")], "a rectangle has 2 or 4 points, not 3"),
    "circle of 1": ([shape(((1, 1),), kind="circle")], "a circle has 2 points, not 1"),
    "no mask": ([shape(((1, 1), (2, 2)), kind="mask", mask="AAAA")], "should be a PNG in base64"),
    "nan": ([shape(((NAN, 1), (5, 1), (5, 4)))], "the coordinate nan"),
    "no shapes": ("shapes", 'has no list "shapes"'),
    "not a shape": ([3], "shape 1 should be an object"),
}


@pytest.mark.parametrize("case", LABELMES)
def test_broken_labelme_files_are_named(tmp_path, case):
    shapes, message = LABELMES[case]
    with pytest.raises(ValueError, match=message):
        opened(labelme_folder(tmp_path, shapes))


def test_labelme_says_that_an_image_is_only_inside_of_the_json(tmp_path):
    text(tmp_path / "a.json", labelme_content([shape()], imageData="AAAA"))
    with pytest.raises(FileNotFoundError, match="only inside of the JSON"):
        opened(tmp_path)


def test_labelme_refuses_unknown_classes(tmp_path):
    labelme_folder(tmp_path / "train", [shape(), shape(label="dog")])
    labelme_folder(tmp_path / "val", [shape(label="dgo")])
    with pytest.raises(ValueError, match='"dgo", which is not one of the 3.*Did you mean "dog"'):
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


YOLOS = {
    "unknown class": ("7 0 0 1 0 1 1", 'line 1: the class is "7"; there are 2 classes'),
    "name": ("cat 0 0 1 0 1 1", 'the class is "cat"'),
    "boxes": ("0 .5 .5 .2 .2\n1 .5 .5 .1 .1", "all 2 lines of train are boxes: they are for object detection"),
    "a box": (f"0 {fractions(SQUARE)}\n0 .5 .5 .2 .2", "line 2 is a box of 4 numbers; boxes are for object detection"),
    "odd": ("0 0 0 1 0 1 1 .5", "a polygon has 7 coordinates"),
    "pixels": ("0 20 30 40 30 40 60", "the coordinate 60; expected fractions"),
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
    "no folder": ("names: [cat, dog]\ntrain: photos\n", 'train is "photos", and there is no such folder'),
    "no splits": ("names: [cat, dog]\n", "names no folder of images"),
    "names twice": ("names: [cat, cat]\ntrain: train/images\n", "class names must be unique"),
    "gaps": ("names: {0: cat, 2: dog}\ntrain: train/images\n", "should be numbered 0, 1, 2"),
    "another nc": ("nc: 3\nnames: [cat, dog]\ntrain: train/images\n", "nc is 3, and there are 2 names"),
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
    text(tmp_path / "labels" / "a.txt", "0 0 0 1 0 1 1")
    with pytest.raises(ValueError, match="no data.yaml, which names the classes"):
        yolo.find(str(tmp_path))


def test_splits_and_options_that_do_not_exist_are_refused(tmp_path):
    folder = coco_folder(tmp_path, [annotation()])
    with pytest.raises(MissingSplit, match="annotations have: train"):
        opened(folder, "val")
    with pytest.raises(ValueError, match="background=black: expected void"):
        opened(folder, options="?background=black")
    with pytest.raises(ValueError, match="names the classes already"):
        opened(folder, options="?classes=labels.txt")
    with pytest.raises(ValueError, match='cta is not a class.*Did you mean "cat"'):
        opened(folder, options="?ignore=cta")


def test_a_single_class_needs_the_background(tmp_path):
    folder = coco_folder(tmp_path, [annotation()], categories=((1, "cat"),))
    assert opened(folder).class_names == ("background", "cat")
    with pytest.raises(ValueError, match="nothing to tell apart"):
        opened(folder, options="?background=void")


def test_two_files_of_one_split_are_refused(tmp_path):
    coco_folder(tmp_path, [annotation()])
    text(tmp_path / "more.coco.json", WHOLE)
    with pytest.raises(ValueError, match='several files for the split "train"'):
        opened(tmp_path)
