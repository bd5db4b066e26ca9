"""Sources of boxes: every format gives the same example; layouts, splits, turned photographs, and the report."""

import os

import numpy as np
import pytest
import tensorflow as tf
from annotation_files import SIZE, annotation, coco_folder, picture, text
from box_files import FORMATS, ROW, coco_boxes, csv_folder, table, voc_folder, voc_object, voc_xml, yolo_boxes
from PIL import Image

from keras_vit.data.annotations.box_table import upright_boxes
from keras_vit.data.errors import why
from keras_vit.data.objects import pack
from keras_vit.data.open import open_source
from keras_vit.data.source_names import match_kind, with_kind
from keras_vit.data.splits import MissingSplit

LINE = "0 .35 .3125 .3 .375"
BOX = np.float32([[1 / 8, 2 / 10, 4 / 8, 5 / 10]])


def opened(folder, split="train", options=""):
    return open_source(f"boxes:{folder}{options}", split)


def first(source):
    return {key: np.asarray(value) for key, value in source.read(tf.constant(0, tf.int64)).items()}


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_gives_the_same_box(format, tmp_path):
    found, reported = table(FORMATS[format](tmp_path))
    assert found.starts.tolist() == [0, 1] and found.crowd.tolist() == [0] and not reported
    np.testing.assert_allclose(found.boxes, BOX, rtol=1e-6)


@pytest.mark.parametrize("format", ["voc", "coco", "yolo", "csv of fractions"])
def test_every_format_gives_the_same_example(format, tmp_path):
    source = opened(FORMATS[format](tmp_path))
    example = first(source)
    assert set(example) == {"image", "boxes", "labels", "crowd", "area", "size"}
    np.testing.assert_allclose(example["boxes"], BOX, rtol=1e-6)
    assert example["labels"].tolist() == example["crowd"].tolist() == [0]
    np.testing.assert_allclose(example["area"], [9], rtol=1e-6)
    assert example["size"].tolist() == list(SIZE) and example["size"].dtype == "int32"
    assert (source.class_names[0], source.most_objects, source.labels) == ("cat", 1, None)


def test_coco_states_areas_and_crowds(tmp_path):
    crowd = {"bbox": [2, 1, 3, 3], "area": 7.5, "iscrowd": 1}
    found, _ = table(coco_boxes(tmp_path, crowd, {"bbox": [0, 0, 4, 4], "area": 0}))
    assert found.crowd.tolist() == [1, 0] and found.area.tolist() == [7.5, 16]


def test_voc_marks_difficult_objects(tmp_path):
    flags = [f"<difficult>{flag}</difficult>" for flag in ("1", "True", "0", "false", "")]
    names = ("cat", "cow", "dog", "emu", "hen")
    content = voc_xml(*(voc_object(name, more=flag) for name, flag in zip(names, flags)), voc_object("yak"))
    assert table(voc_folder(tmp_path, content))[0].crowd.tolist() == [2, 2, 0, 0, 0, 0]


def test_pixels_of_voc_itself_are_numbered_from_1(tmp_path):
    whole = voc_object(xmin=1, ymin=1, xmax=10, ymax=8)
    content = voc_xml(whole, more="<source><database>The VOC2007 Database</database></source>")
    np.testing.assert_array_equal(table(voc_folder(tmp_path, content))[0].boxes, [[0, 0, 1, 1]])


@pytest.mark.parametrize("year", ["", "VOC2007"])
def test_image_sets_give_the_splits_of_voc(tmp_path, year):
    for name in "abc":
        picture(tmp_path / year / "JPEGImages" / f"{name}.JPG")
        text(tmp_path / year / "Annotations" / f"{name}.xml", voc_xml(voc_object(), image="other.png"))
    sets = {"train": "a\nb\nlost\n", "valid": "c.jpg 1\n", "cat_train": "a -1\n"}
    for name, lines in sets.items():
        text(tmp_path / year / "ImageSets" / "Main" / f"{name}.txt", lines)
    found, reported = table(tmp_path)
    assert [os.path.basename(path) for path in found.paths] == ["a.JPG", "b.JPG"]
    assert reported == {"in ImageSets without an XML file": 1}
    assert len(table(tmp_path, "val")[0].paths) == 1
    with pytest.raises(MissingSplit, match="VOC annotations. Valid: train, val"):
        opened(tmp_path, "test")


def test_folders_of_splits_of_voc_have_the_classes_of_train(tmp_path):
    voc_folder(tmp_path / "train", voc_xml(voc_object("dog"), voc_object("cat", 0, 0, 9, 8)))
    voc_folder(tmp_path / "valid", voc_xml(voc_object("dog")))
    assert first(opened(tmp_path, "val"))["labels"].tolist() == [1]
    text(tmp_path / "valid" / "a.xml", voc_xml(voc_object("Dog")))
    with pytest.raises(ValueError, match='unknown class "Dog". Did you mean "dog"'):
        opened(tmp_path, "val")


def test_a_table_may_have_the_splits_and_images_without_objects(tmp_path):
    for name in ("b.jpg", "c.jpg"):
        picture(tmp_path / name)
    header = "image;label;x1;y1;x2;y2;split"
    rows = ("a.jpg;cat;2;1;5;4;train", "b.jpg;;;;;;train", "a.jpg;dog;0;0;5;4;train", "c.jpg;dog;0;0;9;4;valid")
    csv_folder(tmp_path, *rows, header=header)
    assert table(tmp_path)[0].starts.tolist() == [0, 2, 2] and table(tmp_path, "val")[0].starts.tolist() == [0, 1]


ROTATIONS = {5: (2, 1, 5, 4), 6: (2, 4, 5, 7), 7: (5, 4, 8, 7), 8: (5, 1, 8, 4)}


@pytest.mark.parametrize("orientation", ROTATIONS)
def test_boxes_of_a_stored_image_turn_as_pillow_turns_it(orientation):
    pixels = np.zeros((8, 10), "uint8")
    pixels[1:4, 2:5] = 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    transpose = {5: "TRANSPOSE", 6: "ROTATE_270", 7: "TRANSVERSE", 8: "ROTATE_90"}[orientation]
    turned = np.asarray(Image.fromarray(pixels).transpose(Image.Transpose[transpose]))
    rows, columns = np.nonzero(turned)
    box = upright_boxes(tf.constant(BOX), tf.constant(orientation)).numpy()[0] * [10, 8, 10, 8]
    np.testing.assert_allclose(box, [rows[0], columns[0], rows[-1] + 1, columns[-1] + 1], rtol=1e-6)


@pytest.mark.parametrize("size, box", [((8, 10), [2, 4, 5, 7]), ((10, 8), [1, 2, 4, 5])])
def test_the_stated_size_tells_how_a_turned_photograph_was_annotated(tmp_path, size, box):
    exif = Image.Exif()
    exif[0x0112] = 6
    voc_folder(tmp_path, voc_xml(voc_object(), size=size))
    picture(tmp_path / "a.jpg", (8, 10), exif=exif)
    example = first(opened(tmp_path))
    assert example["size"].tolist() == [10, 8]
    np.testing.assert_allclose(example["boxes"] * [10, 8, 10, 8], [box], rtol=1e-6)
    np.testing.assert_allclose(example["area"], [9])


def test_without_a_stated_size_boxes_are_of_the_image(tmp_path):
    example = first(opened(voc_folder(tmp_path, voc_xml(voc_object(xmax=99), size=(0, 0)))))
    np.testing.assert_allclose(example["boxes"], [[1 / 8, 2 / 10, 4 / 8, 1]], rtol=1e-6)
    np.testing.assert_allclose(example["area"], [24], rtol=1e-6)


def test_an_image_of_another_size_than_stated_fails_by_name(tmp_path):
    source = opened(voc_folder(tmp_path, voc_xml(voc_object(), size=(16, 20))))
    assert why(lambda: first(source)).startswith("The annotations are for another size (height, width): 16, 20")


def test_an_image_with_a_fault_fails_by_name_and_the_others_do_not(tmp_path, logged):
    voc_folder(tmp_path)
    picture(tmp_path / "b.jpg")
    text(tmp_path / "b.xml", voc_xml(voc_object(xmin="nan")))
    source = opened(tmp_path)
    assert any("the annotations of 1 image of 2 cannot be used" in line for line in logged)
    found = {
        os.path.basename(source.example_name(i)): why(lambda i=i: source.read(tf.constant(i, tf.int64))) for i in (0, 1)
    }
    assert "but a second one succeeded" in found["a.jpg"]
    assert "object 1 (cat): its box has the coordinate nan" in found["b.jpg"]


def test_one_line_reports_what_was_found(tmp_path, logged):
    coco_boxes(tmp_path, [0, 0, 4, 4], [0, 0, 5, 0], {"bbox": [1, 1, 4, 4], "iscrowd": 1}, images=("a.jpg", "b.jpg"))
    picture(tmp_path / "b.jpg")
    opened(tmp_path)
    assert logged == [
        f"boxes:{tmp_path}, train: 2 images with COCO annotations, 1 without objects; 2 boxes of 2 classes: cat 2"
        f" (median side 4 px), dog 0; at most 2 in an image; 1 crowd; images in {tmp_path}; ignored: 1 box without an"
        f" area (annotation 2 of {tmp_path}/a.jpg)."
    ]


def test_slices_are_disjoint(tmp_path):
    for i in range(10):
        picture(tmp_path / f"{i}.jpg")
    annotations = [annotation(i, i, segmentation=[], bbox=[0, 0, i, 8]) for i in range(1, 11)]
    coco_folder(tmp_path, annotations, images=[f"{i}.jpg" for i in range(10)])
    sources = [opened(tmp_path, split) for split in ("train[:70%]", "train[70%:]")]
    names = [{source.example_name(i) for i in range(source.size)} for source in sources]
    assert list(map(len, names)) == [7, 3] and len(names[0] | names[1]) == 10


def test_images_may_be_in_subfolders_like_those_of_the_annotations(tmp_path):
    picture(tmp_path / "images" / "day one" / "a.Jpg")
    text(tmp_path / "annotations" / "day one" / "a.xml", voc_xml(voc_object()))
    assert opened(tmp_path).size == 1


@pytest.mark.extended
def test_batches_hold_objects(tmp_path):
    source = opened(yolo_boxes(tmp_path, "0 .35 .3125 .3 .375", "1 .5 .5 1 1"))
    objects = next(iter(source.ordered().map(lambda example: pack(example, source.most_objects)).batch(1)))
    assert objects.shape == (1, 2, 7) and objects[0, :, 4].numpy().tolist() == [0, 1]


def test_a_path_needs_no_kind_where_its_content_tells(tmp_path):
    voc_folder(tmp_path / "voc" / "train")
    coco_boxes(tmp_path / "coco", [0, 0, 1, 1])
    assert with_kind(f"{tmp_path}/voc") == f"boxes:{tmp_path}/voc"
    assert match_kind(f"{tmp_path}/coco", "boxes:OTHER") == f"boxes:{tmp_path}/coco"


def test_classes_may_be_in_a_file(tmp_path):
    csv_folder(tmp_path, ROW)
    text(tmp_path / "names.txt", "dog\ncat\n")
    assert opened(tmp_path, options="?classes=names.txt").class_names == ("dog", "cat")


@pytest.mark.extended
def test_blood_cells_have_the_published_counts(shared_data):
    counts = {"train": (205, [209, 2381, 214], 28), "val": (87, [83, 967, 87], 30)}
    for split, (size, boxes, most) in counts.items():
        source = open_source(f"boxes:{shared_data}/bccd", split)
        assert (source.size, source.class_names) == (size, ("Platelets", "RBC", "WBC"))
        found, reported = table(shared_data / "bccd", split)
        assert np.bincount(found.labels).tolist() == boxes and reported == {"without an area": 1}
        assert source.most_objects == most


def test_yolo_opens_with_paths_of_another_machine(tmp_path):
    for at in ("/content/cells-1/train/images", "C:\\data\\cells\\train\\images"):
        text(yolo_boxes(tmp_path, LINE) / "data.yaml", f"train: {at}\nnames: [cat]\n")
        assert len(table(tmp_path)[0].boxes) == 1
    text(tmp_path / "data.yaml", "train: /content/photos\nnames: [cat]\n")
    with pytest.raises(FileNotFoundError, match="Write it relative to that folder, such as train: train/images"):
        table(tmp_path)


def test_key_points_of_yolo_poses_are_left_out(tmp_path):
    text(
        yolo_boxes(tmp_path, f"{LINE} .3 .3 2 .4 .4 1") / "data.yaml",
        "train: train/images\nnames: [cat]\nkpt_shape: [2, 3]\n",
    )
    np.testing.assert_allclose(table(tmp_path)[0].boxes, BOX, rtol=1e-6)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize(
    ("orientation", "told"), [(1, False), (2, True), (3, True), (4, True), (5, False), (6, False), (7, False)]
)
def test_images_turned_without_another_size_are_named(tmp_path, monkeypatch, kind, orientation, told):
    lines = []
    monkeypatch.setattr(
        "keras_vit.data.annotations.orientation_warnings.log_once", lambda level, text: lines.append(text)
    )
    exif = Image.Exif()
    exif[0x0112] = orientation
    voc_folder(tmp_path)
    picture(tmp_path / "a.jpg", exif=exif, format=kind)
    opened(tmp_path)
    assert [f'a.jpg" (orientation {orientation})' in line for line in lines] == [True] * told


@pytest.mark.parametrize("orientation", [5, 6])
def test_turned_images_without_a_stated_size_are_named(tmp_path, monkeypatch, orientation):
    lines = []
    monkeypatch.setattr(
        "keras_vit.data.annotations.orientation_warnings.log_once", lambda level, text: lines.append(text)
    )
    exif = Image.Exif()
    exif[0x0112] = orientation
    yolo_boxes(tmp_path, "0 .35 .3125 .3 .375")
    for path in [*tmp_path.rglob("*.jpg"), *tmp_path.rglob("*.JPG")]:
        picture(path, exif=exif)
    opened(tmp_path)
    assert len(lines) == 1 and "1 image of 1 looked at" in lines[0] and "remove the EXIF data" in lines[0]
