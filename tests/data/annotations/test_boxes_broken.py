"""Broken annotations of boxes, one fault each: refused, a fault of their image, or left out, changed and counted."""

import re

import pytest
from annotation_files import NAN, coco_content, labelme_folder, picture, shape, text
from box_files import (
    HEADER,
    ROW,
    annotations,
    coco_boxes,
    csv_folder,
    fault,
    table,
    voc_folder,
    voc_object,
    voc_xml,
    yolo_boxes,
)

from keras_vit.data.open import open_source

BOX = [2, 1, 3, 3]
LINE = "0 .35 .3125 .3 .375"
BOMB = '<?xml version="1.0"?>\n<!DOCTYPE a [<!ENTITY b "bbbbbbbb">]>\n<annotation>&b;</annotation>'


def category(number):
    return {"bbox": BOX, "category_id": number}


REFUSED = {
    "voc: cut short": (voc_folder, "<annotation>\n<object>", r'a.xml", line 2: not XML'),
    "voc: two roots": (voc_folder, "<annotation></annotation>\n<annotation/>", r'a.xml", line 2: not XML: junk'),
    "voc: entities": (voc_folder, BOMB, r'a.xml", line 2: <!DOCTYPE is not supported'),
    "voc: only an entity": (
        voc_folder,
        "<annotation>\n\n<!ENTITY b 'b'></annotation>",
        "line 3: <!ENT",
    ),
    "voc: no objects": (voc_folder, voc_xml(), "train: no image has a box"),
    "coco: not json": (coco_boxes, '{"images": [],\n}', r'json", line 2: not JSON'),
    "coco: no annotations": (coco_boxes, coco_content([]), "has no annotations with a bbox or a segmentation"),
    "coco: unknown category": (coco_boxes, category(2), r"category_id 2. Valid: 1 \(cat\), 3 \(dog\)"),
    "coco: no category": (coco_boxes, {"bbox": BOX, "category_id": None}, "has the unknown category_id None"),
    "yolo: unknown class": (yolo_boxes, "2 .5 .5 .1 .1", 'line 1: expected a class from 0 to 1, got "2"'),
    "yolo: a name": (yolo_boxes, f"{LINE}\ncat .5 .5 .1 .1", 'a.txt", line 2: expected a class .* got "cat"'),
    "yolo: negative": (yolo_boxes, "-1 .5 .5 .1 .1", 'expected a class .* got "-1"'),
    "yolo: a float": (yolo_boxes, "0.0 .5 .5 .1 .1", 'expected a class .* got "0.0"'),
    "yolo: no lines": (yolo_boxes, "", "train: no image has a box"),
    "labelme: not json": (labelme_folder, '{"shapes": [\n', r'b.json", line 2: not JSON'),
    "csv: no coordinate": (csv_folder, [], r"a row for each box"),
    "csv: no class": (
        csv_folder,
        ["filename,xmin,ymin,xmax,ymax", "a.jpg,2,1,5,4"],
        "which lacks label: label or class",
    ),
    "csv: no rows": (csv_folder, [HEADER], "has no rows"),
    "csv: more cells": (csv_folder, [HEADER, f"{ROW},7"], r"line 2: expected 8 cells, as in the header, got 9"),
    "csv: no image": (csv_folder, [HEADER, ",10,8,cat,2,1,5,4"], "line 2: the cell of the image is empty"),
    "csv: image gone": (csv_folder, [HEADER, "b.jpg,10,8,cat,2,1,5,4"], r'no images, such as "b.jpg", found in'),
}


def write(folder, files, content):
    """Writes the files of a format with this content."""
    if files is csv_folder:
        return csv_folder(folder, *content[1:], header=content[0] if content else "filename,class")
    if files is coco_boxes:
        coco_boxes(folder, *([content] if isinstance(content, dict) and "images" not in content else []))
        if isinstance(content, str) or "images" in content:
            text(folder / "_annotations.coco.json", content)
        return folder
    if files is labelme_folder:
        labelme_folder(folder, [shape()])
        text(folder / "b.json", content)
        return folder
    return files(folder, content)


@pytest.mark.parametrize("case", REFUSED)
def test_broken_annotations_are_refused(tmp_path, case):
    files, content, message = REFUSED[case]
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        open_source(f"boxes:{write(tmp_path, files, content)}", "train")


FAULTY = {
    "voc: nan": (voc_xml(voc_object(xmin="nan")), r"object 1 \(cat\): its box has the coordinate nan"),
    "voc: infinite": (voc_xml(voc_object(ymax="1e400")), "has the coordinate inf"),
    "voc: absurd": (voc_xml(voc_object(ymax="1e9")), r"has the coordinate 1e\+09"),
    "voc: text": (voc_xml(voc_object(xmin="left")), "expected a box of four numbers, got"),
    "voc: no xmin": (voc_xml(voc_object(xmin=None)), "expected a box of four numbers"),
    "voc: no box": (voc_xml("<object><name>cat</name></object>"), r"object 1 \(cat\) has no bndbox"),
    "voc: no name": (voc_xml(voc_object(""), voc_object()), "object 1 has no name"),
    "voc: size": (voc_xml(voc_object(), size=("eight", 10)), "got height 'eight' and width '10'"),
    "voc: absurd size": (voc_xml(voc_object(), size=(10**20, 10)), "got height '100000000000000000000'"),
    "coco: nan": ([NAN, 1, 3, 3], "annotation 1: its box has the coordinate nan"),
    "coco: absurd": ([2, 1, 1e12, 3], r"the coordinate 1e\+12"),
    "coco: three": ([2, 1, 3], r"expected a box of four numbers, got \[2, 1, 3\]"),
    "coco: text": (["a", 1, 3, 3], "expected a box of four numbers"),
    "coco: an object": ({"bbox": {"x": 1}}, "expected a box of four numbers"),
    "coco: nothing": ({"bbox": []}, r"annotation 1 \(cat\) has neither bbox nor segmentation"),
    "coco: runs": ({"segmentation": {"size": [8, 10], "counts": [3]}}, "expected run lengths for 8 x 10 pixels, got 3"),
    "yolo: pixels": ("0 20 30 10 10", "0 to 1, got 30"),
    "yolo: three": ("0 .5 .5 .1", "expected the 4 numbers of a box, or pairs x y of a polygon, got 3"),
    "yolo: confidence": ("0 .5 .5 .1 .1 .9", "or pairs x y of a polygon, got 5; leave out a confidence"),
    "yolo: nan": ("0 nan .5 .1 .1", "the coordinate nan"),
    "yolo: text": ("0 a .5 .1 .1", "expected numbers"),
    "yolo: commas": ("0 .5, .5, .1, .1", "expected numbers"),
    "labelme: one corner": (shape(((5, 4),), kind="rectangle"), "expected 2 or 4 points for a rectangle, got 1"),
    "labelme: nan": (shape(((NAN, 1), (5, 4)), kind="rectangle"), "the coordinate nan"),
    "labelme: no label": (shape(label=""), "shape 1 has no label"),
    "labelme: unknown shape": (shape(kind="spiral"), 'shape_type "spiral"'),
    "labelme: a circle's centre": (shape(((5, 4),), kind="circle"), "expected 2 points for a circle, got 1"),
    "labelme: odd points": (shape(((2, 1), (5,)), kind="rectangle"), r"expected points as pairs \[x, y\]"),
    "labelme: no mask": (shape(((1, 1), (2, 2)), kind="mask", mask="AAAA"), "as a base64 PNG"),
    "labelme: a number": (3, "shape 1: expected an object, got 3"),
    "csv: text": ("a.jpg,10,8,cat,left,1,5,4", "line 2: expected a box of four numbers"),
    "csv: a cell": ("a.jpg,10,8,cat,,1,5,4", "line 2: a coordinate is empty, but other cells are not"),
    "csv: no class": ("a.jpg,10,8,,2,1,5,4", "line 2: the label is empty, but other cells are not"),
    "csv: absurd": ("a.jpg,10,8,cat,2,1,5e8,4", r"the coordinate 5e\+08"),
    "csv: size": ("a.jpg,ten,8,cat,2,1,5,4", "got height '8' and width 'ten'"),
}
FOLDERS = {
    "voc": voc_folder,
    "coco": lambda folder, box: coco_boxes(folder, box, BOX, images=("a.jpg", "b.jpg")),
    "yolo": lambda folder, line: yolo_boxes(folder, line),
    "labelme": lambda folder, drawn: labelme_folder(folder, [drawn]),
    "csv": csv_folder,
}


@pytest.mark.parametrize("case", FAULTY)
def test_broken_boxes_are_a_fault_of_their_image(tmp_path, case):
    content, message = FAULTY[case]
    found = fault(FOLDERS[case.partition(":")[0]](tmp_path, content))
    assert re.search(message, found), found


COUNTED = {
    "no width": ([2, 1, 0, 3], [BOX], "without an area"),
    "outside": ([20, 1, 3, 3], [BOX], "outside the image"),
    "beside": ([10, 1, 3, 3], [BOX], "outside the image"),
    "before": ([-5, 1, 5, 3], [BOX], "outside the image"),
    "beyond": ([5, 1, 50, 3], [BOX, [5, 1, 5, 3]], "clipped at the image's border"),
    "around": ([-9, -9, 50, 50], [BOX, [0, 0, 10, 8]], "clipped at the image's border"),
    "swapped": ([8, 7, -3, -3], [BOX, [5, 4, 3, 3]], "with swapped corners, corrected"),
    "repeated": (BOX, [BOX], "that repeats one of its class"),
    "repeated by another class": ({"bbox": BOX, "category_id": 3}, [BOX, BOX], None),
    "beyond by a pixel": ([5, 1, 6, 3], [BOX, [5, 1, 5, 3]], None),
    "id of another": ({"bbox": [5, 1, 3, 3], "id": 1}, [BOX, [5, 1, 3, 3]], "with the id of another"),
    "of no image": ({"bbox": BOX, "image_id": 9}, [BOX], "of an unlisted image"),
    "image_id of another kind": ({"bbox": BOX, "image_id": {}}, [BOX], "of an unlisted image"),
    "2 points": ({"segmentation": [[1, 1, 2, 2]]}, [BOX], "with fewer than 3 points"),
    "no pixel": ({"segmentation": {"size": [8, 10], "counts": [80]}}, [BOX], None),
}


@pytest.mark.parametrize("case", COUNTED)
def test_boxes_are_left_out_or_changed_and_counted(tmp_path, case):
    box, kept, reason = COUNTED[case]
    found, reported = table(coco_boxes(tmp_path, BOX, box))
    top, left, bottom, right = (found.boxes * [8, 10, 8, 10]).round(4).T
    assert list(map(list, zip(left, top, right - left, bottom - top))) == kept
    assert reported == ({} if reason is None else {reason: 1})


def test_files_that_do_not_belong_together_are_counted(tmp_path):
    voc_folder(tmp_path, voc_xml(voc_object()))
    picture(tmp_path / "more.jpg")
    text(tmp_path / "gone.xml", voc_xml(voc_object(), image="gone.jpg"))
    text(tmp_path / "other.xml", "<settings/>")
    reported = table(tmp_path)[1]
    assert reported == {"with a missing file": 1, "of another kind": 1, "without an entry in the annotations": 1}


def test_labels_without_an_image_are_counted(tmp_path):
    text(yolo_boxes(tmp_path, LINE) / "train" / "labels" / "b.txt", LINE)
    assert table(tmp_path)[1] == {"without an image": 1}


def test_two_files_of_one_image_are_refused(tmp_path):
    text(voc_folder(tmp_path) / "b.xml", voc_xml(voc_object()))
    with pytest.raises(ValueError, match='a.xml" and ".*b.xml" annotate the same image'):
        list(annotations(tmp_path).images)


def test_what_labelme_ignores_has_no_box(tmp_path):
    shapes = [shape(), shape(label="__ignore__"), shape(((1, 1), (3, 3)), kind="line")]
    found, reported = table(labelme_folder(tmp_path, shapes))
    assert len(found.boxes) == 1 and set(reported) == {"labelled __ignore__ or _background_", "without an area"}


def test_classes_that_differ_in_case_are_a_warning(tmp_path, logged):
    open_source(f"boxes:{voc_folder(tmp_path, voc_xml(voc_object(), voc_object('Cat', 0, 0, 3, 3)))}", "train")
    assert "these classes differ only in case or spaces: 'Cat', 'cat'" in logged[-1]


def test_a_folder_without_annotations_says_what_is_expected(tmp_path):
    picture(tmp_path / "a.jpg")
    with pytest.raises(ValueError, match="has no annotations of boxes. Expected VOC"):
        open_source(f"boxes:{tmp_path}", "train")
    with pytest.raises(FileNotFoundError):
        open_source(f"boxes:{tmp_path}/lost", "train")


OTHERS = {
    "annotations.xml": (
        "<annotations><image/></annotations>",
        "CVAT's own XML. In CVAT: Export task dataset, COCO 1.0",
    ),
    "project-1.json": (
        '[{"annotations": [{"result": [{"from_name": "label"}]}]}]',
        "Label Studio's own JSON. In Label Studio: Export",
    ),
    "via.json": (
        '{"a.jpg9": {"regions": [{"shape_attributes": {}}]}}',
        "a project of VGG Image Annotator. In VIA: Annotation, Export",
    ),
    "train.tfrecord": ("", "a TFRecord. Open its folder as tfrecord:FOLDER"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_files_of_other_formats_come_with_advice(tmp_path, name):
    content, message = OTHERS[name]
    text(tmp_path / name, content)
    with pytest.raises(ValueError, match=f'{name}" is {message}'):
        open_source(f"boxes:{tmp_path}", "train")


def test_a_folder_above_the_annotations_is_told_to_go_down(tmp_path):
    coco_boxes(tmp_path / "v1.coco", BOX)
    with pytest.raises(ValueError, match='Its folder "v1.coco" has COCO annotations: open "'):
        open_source(f"boxes:{tmp_path}", "train")


def test_annotations_without_images_say_where_to_put_these(tmp_path):
    text(tmp_path / "xml" / "a.xml", voc_xml(voc_object()))
    with pytest.raises(FileNotFoundError, match='missing file .*Put images beside .* or in a folder "images"'):
        open_source(f"boxes:{tmp_path}", "train")
