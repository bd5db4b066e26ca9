"""Exports of annotation tools as YOLO, tables and records, each with exactly the objects that the tool wrote.

A function of EXPORTS writes the files as the tool does and returns what they hold. All images are 80 x 100 pixels.
"""

import dataclasses
import json
import os

import numpy as np
import pytest
import tensorflow as tf
from annotation_files import picture, text

from keras_vit.data.open import open_source

HEIGHT, WIDTH = SIZE = 80, 100
HEADER = "filename,class,xmin,ymin,xmax,ymax"
CAT, DOG = (20, 10, 60, 40), (0, 50, 40, 100)  # top, left, bottom, right
YOLO_CAT, YOLO_DOG = "0 .25 .5 .3 .5", "1 .75 .25 .5 .5"
ONE_CAT, ONE_DOG, NONE = [("cat", *CAT)], [("dog", *DOG)], []


@dataclasses.dataclass
class Holds:
    """What an export holds: {split: {image: [(class, top, left, bottom, right)]}}, and the options to open it."""

    splits: dict
    names: tuple = ("cat", "dog")
    options: str = ""
    kind: str = "boxes"
    crowds: tuple = ()  # images whose objects are crowds


def pictures(folder, *names):
    for name in names:
        picture(folder / name, SIZE)


def lines(path, *content):
    text(path, "\n".join(content) + "\n")


def yolo_pairs(folder, images, labels, **objects):
    """Writes images and their text files: {name without ending: lines}."""
    for name, content in objects.items():
        picture(folder / images / f"{name}.jpg", SIZE)
        if content is not None:
            lines(folder / labels / f"{name}.txt", *content.split("; "))


def ultralytics(folder):
    yolo_pairs(folder, "images/train", "labels/train", a=f"{YOLO_CAT}; {YOLO_DOG}", b=None)
    yolo_pairs(folder, "images/val", "labels/val", a=YOLO_DOG)
    lines(folder / "data.yaml", "path: .", "train: images/train", "val: images/val", "names: {0: cat, 1: dog}")
    train = {"images/train/a.jpg": ONE_CAT + ONE_DOG, "images/train/b.jpg": NONE}
    return Holds({"train": train, "val": {"images/val/a.jpg": ONE_DOG}})


def names_that_yaml_converts(folder):
    yolo_pairs(folder, "images/train", "labels/train", a=f"{YOLO_CAT}; {YOLO_DOG}")
    lines(folder / "data.yaml", "train: images/train", "test: null", "names: [yes, 007, off, null, 1e3]")
    objects = [("yes", *CAT), ("007", *DOG)]
    return Holds({"train": {"images/train/a.jpg": objects}}, ("yes", "007", "off", "null", "1e3"))


def roboflow_yolo(folder):
    for split, content in {"train": YOLO_CAT, "valid": YOLO_DOG}.items():
        yolo_pairs(folder, f"{split}/images", f"{split}/labels", a=content)
    rows = ("train: ../train/images", "val: ../valid/images", "test: ../test/images", "nc: 2", "names: ['cat', 'dog']")
    lines(folder / "data.yaml", *rows)
    return Holds({"train": {"train/images/a.jpg": ONE_CAT}, "val": {"valid/images/a.jpg": ONE_DOG}})


def roboflow_folders(folder):
    holds = roboflow_yolo(folder)
    (folder / "data.yaml").unlink()
    lines(folder / "classes.txt", "cat", "dog")
    return holds


def cvat_yolo(folder, train="train", val="valid", lists=True):
    for split, content in {train: YOLO_CAT, val: YOLO_DOG}.items():
        place = f"obj_{split}_data"
        yolo_pairs(folder, place, place, a=content)
        if lists:
            lines(folder / f"{split}.txt", f"data/{place}/a.jpg")
    lines(folder / "obj.names", "cat", "dog")
    listed = [f"{split} = data/{split}.txt" for split in (train, val)]
    lines(folder / "obj.data", "classes = 2", *listed, "names = data/obj.names", "backup = backup/")
    return Holds({"train": {f"obj_{train}_data/a.jpg": ONE_CAT}, "val": {f"obj_{val}_data/a.jpg": ONE_DOG}})


def cvat_ultralytics(folder):
    yolo_pairs(folder, "images/train", "labels/train", a=YOLO_CAT)
    yolo_pairs(folder, "images/Validation", "labels/Validation", a=YOLO_DOG)
    lines(folder / "train.txt", "data/images/train/a.jpg")
    lines(folder / "Validation.txt", "data/images/Validation/a.jpg")
    lines(folder / "data.yaml", "path: ./", "train: train.txt", "val: Validation.txt", "names:", "  0: cat", "  1: dog")
    return Holds({"train": {"images/train/a.jpg": ONE_CAT}, "val": {"images/Validation/a.jpg": ONE_DOG}})


def darknet(folder):
    yolo_pairs(folder, "obj", "obj", a=YOLO_CAT, b=YOLO_DOG)
    lines(folder / "train.txt", "build/darknet/x64/data/obj/a.jpg", "build/darknet/x64/data/obj/a.jpg")
    lines(folder / "test.txt", "build\\darknet\\x64\\data\\obj\\b.jpg")
    lines(folder / "obj.names", "cat", "dog")
    lines(folder / "obj.data", "classes = 2", "train = data/train.txt", "valid=data/test.txt", "names = data/obj.names")
    return Holds({"train": {"obj/a.jpg": ONE_CAT}, "val": {"obj/b.jpg": ONE_DOG}})


def roboflow_darknet(folder):
    for split, content in {"train": YOLO_CAT, "valid": YOLO_DOG}.items():
        yolo_pairs(folder, split, split, a=content)
        lines(folder / split / "_darknet.labels", "cat", "dog")
    return Holds({"train": {"train/a.jpg": ONE_CAT}, "val": {"valid/a.jpg": ONE_DOG}})


def labelimg(folder):
    yolo_pairs(folder, "", "", a=YOLO_CAT, b=YOLO_DOG)
    lines(folder / "classes.txt", "cat", "dog")
    return Holds({"train": {"a.jpg": ONE_CAT, "b.jpg": ONE_DOG}})


def label_studio_yolo(folder, content=YOLO_DOG):
    yolo_pairs(folder, "images", "labels", a=content)
    lines(folder / "classes.txt", "cat", "dog")
    text(folder / "notes.json", {"categories": [{"id": 0, "name": "cat"}], "info": {"contributor": "Label Studio"}})
    return Holds({"train": {"images/a.jpg": ONE_DOG}})


def makesense_yolo(folder):
    yolo_pairs(folder, "", "", a=YOLO_CAT, b="")
    return Holds({"train": {"a.jpg": [("0", *CAT)], "b.jpg": NONE}}, ("0", "1"), "?classes=2")


def nameless_with_splits(folder):
    yolo_pairs(folder, "train", "train", a=YOLO_CAT)
    yolo_pairs(folder, "valid", "valid", a=YOLO_DOG)
    lines(folder / "names.txt", "cat", "dog")
    return Holds({"train": {"train/a.jpg": ONE_CAT}, "val": {"valid/a.jpg": ONE_DOG}}, options="?classes=names.txt")


def yolo_lines(content, *more):
    """An export of data.yaml whose file has these lines for a cat."""

    def write(folder):
        yolo_pairs(folder, "train/images", "train/labels", a=content)
        lines(folder / "data.yaml", "train: train/images", "names: [cat, dog]", *more)
        return Holds({"train": {"train/images/a.jpg": ONE_CAT}})

    return write


def texts_among_images(folder):
    yolo_pairs(folder, "images/train", "images/train", a=YOLO_CAT)
    yolo_pairs(folder, "images/test", "images/test", a=YOLO_DOG)
    lines(folder / "classes.txt", "cat", "dog")
    return Holds({"train": {"images/train/a.jpg": ONE_CAT}, "test": {"images/test/a.jpg": ONE_DOG}})


def table(*rows, name="train.csv", images=("a.jpg",), holds=None, **others):
    """A table with a cat in a.jpg, unless `holds` says otherwise."""

    def write(folder):
        pictures(folder, *images)
        lines(folder / name, *rows)
        return Holds({"train": {"a.jpg": ONE_CAT} if holds is None else holds}, **{"names": ("cat",), **others})

    return write


def roboflow_csv(folder):
    header = "filename,width,height,class,xmin,ymin,xmax,ymax"
    for split, row in {"train": "cat,10,20,40,60", "valid": "dog,50,0,100,40"}.items():
        pictures(folder, f"{split}/a.jpg")
        lines(folder / split / "_annotations.csv", header, f"a.jpg,100,80,{row}")
    lines(folder / "train" / "_annotations.csv", header, "a.jpg,100,80,cat,10,20,40,60", "a.jpg,100,80,dog,50,0,100,40")
    return Holds({"train": {"train/a.jpg": ONE_CAT + ONE_DOG}, "val": {"valid/a.jpg": ONE_DOG}})


def automl_csv(folder):
    pictures(folder, "a.jpg", "b.jpg", "c.jpg")
    rows = (
        "TRAIN,gs://bucket/photos/a.jpg,cat,0.1,0.25,,,0.4,0.75,,",
        "TRAINING,gs://bucket/photos/a.jpg,dog,0.5,0,1,0,1,0.5,0.5,0.5",
        "VALIDATE,gs://bucket/photos/b.jpg,dog,0.5,0,,,1,0.5,,",
        "TEST,gs://bucket/photos/c.jpg,,,,,,,,,",
        "TEST,gs://bucket/photos/c.jpg,cat,0.1,0.25,,,0.4,0.75,,",
    )
    lines(folder / "labels.csv", *rows)
    return Holds({"train": {"a.jpg": ONE_CAT + ONE_DOG}, "val": {"b.jpg": ONE_DOG}, "test": {"c.jpg": ONE_CAT}})


def vertex_jsonl(folder):
    def row(name, use, *entries):
        labels = {"aiplatform.googleapis.com/ml_use": use}
        uri = f"gs://bucket/{name}"
        return json.dumps({"imageGcsUri": uri, "boundingBoxAnnotations": entries, "dataItemResourceLabels": labels})

    pictures(folder, "a.jpg", "b.jpg")
    cat = {"displayName": "cat", "xMin": 0.1, "yMin": 0.25, "xMax": 0.4, "yMax": 0.75}
    dog = {"displayName": "dog", "xMin": 0.5, "xMax": 1.0, "yMax": 0.5}
    lines(folder / "data.jsonl", row("a.jpg", "training", cat, dog), row("b.jpg", "validation", dog))
    return Holds({"train": {"a.jpg": ONE_CAT + ONE_DOG}, "val": {"b.jpg": ONE_DOG}})


def azure_jsonl(folder):
    pictures(folder, "a.jpg", "b.jpg")
    cat = {"label": "cat", "topX": 0.1, "topY": 0.25, "bottomX": 0.4, "bottomY": 0.75, "isCrowd": True}
    rows = [
        {"image_url": f"azureml://x/paths/{name}", "label": label} for name, label in (("a.jpg", [cat]), ("b.jpg", []))
    ]
    lines(folder / "annotations.jsonl", *map(json.dumps, rows))
    return Holds({"train": {"a.jpg": ONE_CAT, "b.jpg": NONE}}, ("cat",), crowds=("a.jpg",))


def sagemaker(folder):
    pictures(folder, "a.jpg")
    cat = {"class_id": 0, "left": 10, "top": 20, "width": 30, "height": 40}
    row = {
        "source-ref": "s3://bucket/a.jpg",
        "cells": {"image_size": [{"width": 100, "height": 80, "depth": 3}], "annotations": [cat]},
        "cells-metadata": {"class-map": {"0": "cat"}, "type": "groundtruth/object-detection"},
    }
    lines(folder / "output.manifest", json.dumps(row))
    return Holds({"train": {"a.jpg": ONE_CAT}}, ("cat",))


OPEN_IMAGES = (
    "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf,IsDepiction,IsInside"
)


def open_images(folder):
    pictures(folder, "train/000a1249af2bc5f0.jpg", "validation/0001eeaf4aed83f9.jpg")
    rows = ("000a1249af2bc5f0,xclick,/m/01yrx,1,0.1,0.4,0.25,0.75,0,0,1,0,0",)
    lines(folder / "oidv6-train-annotations-bbox.csv", OPEN_IMAGES, *rows)
    row = "0001eeaf4aed83f9,xclick,/m/01yrx,1,0.5,1,0,0.5,0,0,0,0,0"
    lines(folder / "validation-annotations-bbox.csv", OPEN_IMAGES, row)
    lines(folder / "class-descriptions-boxable.csv", "/m/01yrx,cat", "/m/0bt9lr,dog")
    train = {"train/000a1249af2bc5f0.jpg": ONE_CAT}
    val = {"validation/0001eeaf4aed83f9.jpg": [("cat", *DOG)]}
    return Holds({"train": train, "val": val}, ("cat",), crowds=("train/000a1249af2bc5f0.jpg",))


def fiftyone_open_images(folder):
    for split, row in {"train": "cat,0.1,0.4,0.25,0.75", "validation": "cat,0.5,1,0,0.5"}.items():
        pictures(folder, f"{split}/data/000a.jpg")
        label, *sides = row.split(",")
        content = f"000a,xclick,/m/01yrx,1,{','.join(sides)},0,0,0,0,0"
        lines(folder / split / "labels" / "detections.csv", OPEN_IMAGES, content)
        lines(folder / split / "metadata" / "classes.csv", "/m/01yrx,cat")
    return Holds(
        {"train": {"train/data/000a.jpg": ONE_CAT}, "val": {"validation/data/000a.jpg": [("cat", *DOG)]}}, ("cat",)
    )


def excel(folder):
    pictures(folder, "a.jpg")
    (folder / "train.csv").write_bytes(
        b'\xef\xbb\xbfFilename;Label;XMin;YMin;XMax;YMax\r\n"a.jpg";"cat";10,0;20,0;40,0;60,0\r\n'
    )
    return Holds({"train": {"a.jpg": ONE_CAT}}, ("cat",))


def cameras(folder):
    pictures(folder, "cam1/a.jpg", "cam2/a.jpg")
    header = "filename,class,xmin,ymin,xmax,ymax"
    lines(folder / "train.csv", header, "cam1\\a.jpg,cat,10,20,40,60", "./cam2/a.jpg,dog,50,0,100,40")
    return Holds({"train": {"cam1/a.jpg": ONE_CAT, "cam2/a.jpg": ONE_DOG}})


def one_class(folder):
    pictures(folder, "train/b6ab77fd7.jpg")
    lines(folder / "name.txt", "wheat")
    rows = (
        'b6ab77fd7,100,80,"[10.0, 20.0, 30.0, 40.0]",usask_1',
        'b6ab77fd7,100,80,"[90.0, 70.0, 10.0, 10.0]",usask_1',
    )
    lines(folder / "train.csv", "image_id,width,height,bbox,source", *rows)
    objects = [("wheat", *CAT), ("wheat", 70, 90, 80, 100)]
    return Holds({"train": {"train/b6ab77fd7.jpg": objects}}, ("wheat",), "?classes=name.txt")


def record(name, labels, names, boxes):
    encoded = tf.io.encode_jpeg(np.full((*SIZE, 3), 90, "uint8")).numpy()
    sides = dict(
        zip(("ymin", "xmin", "ymax", "xmax"), np.float32(boxes).reshape(-1, 4).T / np.float32([80, 100] * 2)[:, None])
    )
    floats = {f"image/object/bbox/{side}": values for side, values in sides.items()}
    features = {key: tf.train.Feature(float_list=tf.train.FloatList(value=values)) for key, values in floats.items()}
    texts = {"image/encoded": [encoded], "image/filename": [name.encode()], "image/object/class/text": names}
    features |= {key: tf.train.Feature(bytes_list=tf.train.BytesList(value=values)) for key, values in texts.items()}
    numbers = tf.train.Feature(int64_list=tf.train.Int64List(value=labels))
    features["image/object/class/label"] = numbers
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def roboflow_tfrecord(folder):
    for split, (labels, names, boxes) in {"train": ([2], [b"dog"], [DOG]), "valid": ([1], [b"cat"], [CAT])}.items():
        (folder / split).mkdir(parents=True)
        with tf.io.TFRecordWriter(str(folder / split / "Train-cells.tfrecord")) as file:
            file.write(record("a.jpg", labels, names, boxes))
        items = [
            f'item {{\n  name: "{name}",\n  id: {i},\n display_name: "{name}"\n}}'
            for i, name in ((1, "cat"), (2, "dog"))
        ]
        lines(folder / split / "Train-cells_label_map.pbtxt", *items)
    return Holds({"train": {"a.jpg": ONE_DOG}, "val": {"a.jpg": ONE_CAT}}, kind="tfrecord")


TWO_POINTS = ".2 .3 2 .3 .6 1"
EXPORTS = {
    "yolo: ultralytics": ultralytics,
    "yolo: names that YAML converts": names_that_yaml_converts,
    "yolo: roboflow": roboflow_yolo,
    "yolo: cvat": cvat_yolo,
    "yolo: cvat, subsets in other case": lambda folder: cvat_yolo(folder, "Train", "Validation"),
    "yolo: cvat, without lists": lambda folder: cvat_yolo(folder, "Train", "Validation", lists=False),
    "yolo: cvat's ultralytics export": cvat_ultralytics,
    "yolo: darknet": darknet,
    "yolo: roboflow's darknet": roboflow_darknet,
    "yolo: labelimg": labelimg,
    "yolo: label studio": label_studio_yolo,
    "yolo: makesense": makesense_yolo,
    "yolo: splits without names": nameless_with_splits,
    "yolo: roboflow's folders without data.yaml": roboflow_folders,
    "yolo: texts among images": texts_among_images,
    "yolo: oriented boxes": yolo_lines("0 .1 .25 .4 .25 .4 .75 .1 .75"),
    "yolo: outlines": yolo_lines("0 .25 .25 .4 .5 .25 .75 .1 .5"),
    "yolo: poses": yolo_lines(f"{YOLO_CAT} .2 .3 .3 .6", "kpt_shape: [2, 2]"),
    "yolo: poses of label studio": lambda folder: label_studio_yolo(folder, f"{YOLO_DOG} .7 .2 2 .6 .3 0"),
    "csv: tensorflow": table("filename,width,height,class,xmin,ymin,xmax,ymax", "a.jpg,100,80,cat,10,20,40,60"),
    "csv: roboflow": roboflow_csv,
    "csv: vott": table('"image","xmin","ymin","xmax","ymax","label"', '"a.jpg",10.0,20.0,40.0,60.0,"cat"'),
    "csv: automl": automl_csv,
    "csv: retinanet": table(
        "imgs/a.jpg,10,20,40,60,cat",
        "imgs/b.jpg,,,,,",
        images=("imgs/a.jpg", "imgs/b.jpg"),
        holds={"imgs/a.jpg": ONE_CAT, "imgs/b.jpg": NONE},
    ),
    "csv: makesense": table("cat,10,20,30,40,a.jpg,100,80", name="labels_my-project.csv"),
    "csv: makesense with a header": table(
        "label_name,bbox_x,bbox_y,bbox_width,bbox_height,image_name,image_width,image_height",
        "cat,10,20,30,40,a.jpg,100,80",
    ),
    "csv: wheat": table(
        "image_id,width,height,bbox,class",
        'b6ab77fd7,100,80,"[10.0, 20.0, 30.0, 40.0]",cat',
        'b6ab77fd7,100,80,"[90.0, 70.0, 10.0, 10.0]",cat',
        images=("train/b6ab77fd7.jpg",),
        holds={"train/b6ab77fd7.jpg": [*ONE_CAT, ("cat", 70, 90, 80, 100)]},
    ),
    "csv: wheat, as kaggle has it": one_class,
    "csv: corners in a cell": table(
        "image,width,height,box,label", 'a.jpg,100,80,"(50, 0, 100, 40)",dog', names=("dog",), holds={"a.jpg": ONE_DOG}
    ),
    "csv: gtsrb": table(
        "Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId",
        "a.png;100;80;10;20;40;60;3",
        images=("a.png",),
        names=("3",),
        holds={"a.png": [("3", *CAT)]},
    ),
    "csv: spaces after commas": table("filename, class, xmin, ymin, xmax, ymax", "a.jpg, cat, 10, 20, 40, 60"),
    "csv: gtsdb": table(
        "a.png;10;20;40;60;11", name="gt.txt", images=("a.png",), names=("11",), holds={"a.png": [("11", *CAT)]}
    ),
    "csv: open images": open_images,
    "csv: fiftyone's open images": fiftyone_open_images,
    "csv: excel": excel,
    "csv: tabs and centres": table(
        "image\tlabel\tx_center\ty_center\twidth\theight", "a.jpg\tcat\t25\t40\t30\t40", name="train.tsv"
    ),
    "csv: x, y, width, height": table(
        "image,label,x,y,w,h",
        "a.jpg,cat,10,20,30,40",
        "a.jpg,cat,0,0,10,10",
        holds={"a.jpg": [*ONE_CAT, ("cat", 0, 0, 10, 10)]},
    ),
    "csv: x, y as centres": table(
        "image,label,x,y,width,height,image_width,image_height",
        "a.jpg,cat,95,40,10,80,100,80",
        holds={"a.jpg": [("cat", 0, 90, 80, 100)]},
    ),
    "csv: x, y by option": table("image,label,x,y,w,h", "a.jpg,cat,25,40,30,40", options="?box=centre"),
    "csv: fractions beyond 1": table(
        "image,label,x1,y1,x2,y2",
        "a.jpg,cat,.1,.25,.4,.75",
        "a.jpg,cat,0,0,1,1.0000001",
        holds={"a.jpg": [*ONE_CAT, ("cat", 0, 0, 80, 100)]},
    ),
    "csv: fractions by option": table(
        "image,label,x1,y1,x2,y2",
        "a.jpg,cat,0,0,1,1",
        options="?units=fractions",
        holds={"a.jpg": [("cat", 0, 0, 80, 100)]},
    ),
    "csv: paths with one base name": cameras,
    "csv: a row twice": table("image,label,x1,y1,x2,y2", *["a.jpg,cat,10,20,40,60"] * 2),
    "jsonl: vertex": vertex_jsonl,
    "jsonl: azure": azure_jsonl,
    "jsonl: sagemaker": sagemaker,
    "tfrecord: roboflow": roboflow_tfrecord,
}


def found_in(folder, holds, split):
    """(class names, {image: objects}, images with crowds) of a split, as they are read."""
    source = open_source(f"{holds.kind}:{folder}{holds.options}", split)
    objects, crowds = {}, []
    if holds.kind == "tfrecord":
        examples = {"a.jpg": next(source.ordered().as_numpy_iterator())}
    else:
        names = [os.path.relpath(source.example_name(i), folder) for i in range(source.size)]
        examples = {name: source.read(tf.constant(i, tf.int64)) for i, name in enumerate(names)}
    for name, example in examples.items():
        example = {key: np.asarray(value) for key, value in example.items() if key != "image"}
        boxes = (example["boxes"] * [HEIGHT, WIDTH, HEIGHT, WIDTH]).round(3).tolist()
        objects[name] = [(source.class_names[label], *box) for label, box in zip(example["labels"], boxes)]
        crowds += [name] if example["crowd"].any() else []
    return source.class_names, objects, tuple(crowds)


SLOW = {"tfrecord: roboflow": pytest.mark.extended}


@pytest.mark.parametrize("export", [pytest.param(name, marks=SLOW.get(name, ())) for name in EXPORTS])
def test_an_export_has_exactly_its_objects(tmp_path, export):
    holds = EXPORTS[export](tmp_path)
    for split, images in holds.splits.items():
        crowds = tuple(name for name in holds.crowds if name in images)
        assert found_in(tmp_path, holds, split) == (holds.names, images, crowds)


def said(folder, logged, split="train", kind="boxes"):
    """What opening a split reports."""
    open_source(f"{kind}:{folder}", split)
    return next(line for line in logged if f", {split}: " in line)


def one_folder(folder):
    yolo_pairs(folder, "images", "labels", a=YOLO_CAT, b=YOLO_DOG)
    lines(folder / "data.yaml", "train: images", "val: images", "names: [cat, dog]")
    return 2


def overlapping_lists(folder):
    yolo_pairs(folder, "images", "labels", a=YOLO_CAT, b=YOLO_DOG, c=YOLO_DOG)
    lines(folder / "train.txt", "./images/a.jpg", "./images/b.jpg")
    lines(folder / "val.txt", "images/b.jpg", "images/c.jpg")
    lines(folder / "data.yaml", "train: train.txt", "val: val.txt", "names: [cat, dog]")
    return 1


def links(folder):
    yolo_pairs(folder, "images/train", "labels/train", a=YOLO_CAT, b=YOLO_DOG)
    for place, end in (("images", "jpg"), ("labels", "txt")):
        (folder / place / "val").mkdir()
        (folder / place / "val" / f"c.{end}").symlink_to(folder / place / "train" / f"a.{end}")
    lines(folder / "classes.txt", "cat", "dog")
    return 1


def linked_folders(folder):
    yolo_pairs(folder, "train/images", "train/labels", a=YOLO_CAT, b=YOLO_DOG)
    (folder / "valid").symlink_to(folder / "train")
    lines(folder / "data.yaml", "train: train/images", "val: valid/images", "names: [cat, dog]")
    return 2


def inner_folder(folder):
    yolo_pairs(folder, "images", "labels", a=YOLO_CAT)
    yolo_pairs(folder, "images/val", "labels/val", b=YOLO_DOG)
    lines(folder / "data.yaml", "train: images", "val: images/val", "names: [cat, dog]")
    return 1


def same_tables(folder):
    pictures(folder, "a.jpg")
    for name in ("train", "val"):
        lines(folder / f"{name}.csv", HEADER, "a.jpg,cat,10,20,40,60")
    return 1


def rows_of_two_splits(folder):
    pictures(folder, "a.jpg", "b.jpg")
    rows = ("a.jpg,cat,10,20,40,60,train", "a.jpg,dog,10,20,40,60,val", "b.jpg,dog,10,20,40,60,val")
    lines(folder / "labels.csv", f"{HEADER},split", *rows)
    return 1


SHARING = (one_folder, overlapping_lists, links, linked_folders, inner_folder, same_tables, rows_of_two_splits)


@pytest.mark.parametrize("write", SHARING)
def test_images_in_training_and_evaluation_are_reported(tmp_path, logged, write):
    count = write(tmp_path)
    text = f"used: {count} image{'s' if count > 1 else ''} shared with another split"
    assert text in said(tmp_path, logged) and "in val" in said(tmp_path, logged)


def test_masks_report_images_in_training_and_evaluation(tmp_path, logged):
    yolo_pairs(tmp_path, "images", "labels", a="0 .1 .25 .4 .25 .4 .75")
    lines(tmp_path / "data.yaml", "train: images", "val: images", "names: [cat, dog]")
    assert "1 image shared with another split" in said(tmp_path, logged, kind="masks")


def test_an_image_listed_twice_is_one_image(tmp_path, logged):
    darknet(tmp_path)
    assert "used: 1 image listed more than once" in said(tmp_path, logged)
    assert open_source(f"boxes:{tmp_path}", "train").size == 1


def test_the_report_says_what_the_numbers_of_a_table_mean(tmp_path, logged):
    EXPORTS["csv: x, y, width, height"](tmp_path)
    assert "; boxes as left, top, width, height in pixels" in said(tmp_path, logged)


def folder_of(**contents):
    """Files with these contents, {name with _ for "." and __ for "/": lines}, and images a.jpg and b.jpg."""

    def write(folder):
        pictures(folder, "a.jpg", "b.jpg")
        for name, content in contents.items():
            text(folder / name.replace("__", "/").replace("_", "."), content)

    return write


def twins(folder):
    yolo_pairs(folder, "images", "labels", a=YOLO_CAT)
    pictures(folder, "images/a.png")
    lines(folder / "classes.txt", "cat")


def two_lists(folder):
    cvat_yolo(folder)
    lines(folder / "Train.txt", "data/obj_train_data/a.jpg")


def unlisted_splits(folder):
    yolo_pairs(folder, "", "", a=YOLO_CAT)
    yolo_pairs(folder, "more/val", "more/val", b=YOLO_CAT)
    lines(folder / "classes.txt", "cat")


def lost_folders_of_a_list(folder):
    yolo_pairs(folder, "", "", a=YOLO_CAT)
    lines(folder / "classes.txt", "cat")
    lines(folder / "train.txt", "one/a.jpg", "two/a.jpg")


def lost_folders_of_two_lists(folder):
    yolo_pairs(folder, "", "", a=YOLO_CAT)
    lines(folder / "classes.txt", "cat")
    lines(folder / "train.txt", "one/a.jpg")
    lines(folder / "val.txt", "two/a.jpg")


def lost_folders_of_splits(folder):
    yolo_pairs(folder, "images", "labels", a=YOLO_CAT)
    lines(folder / "data.yaml", "train: one/images", "val: two/images", "names: [cat]")


def two_label_lists(folder):
    roboflow_darknet(folder)
    lines(folder / "valid" / "_darknet.labels", "dog", "cat")


def ids_of_two_images(folder):
    open_images(folder)
    pictures(folder, "train/000a1249af2bc5f0.png")


WIDER = "0--Parade/a.jpg\n1\n449 330 122 149 0 0 0 0 0 0 \n"
REFUSED = {  # export: (its files, what is said)
    "yolo: without names": (lambda folder: yolo_pairs(folder, "", "", a=YOLO_CAT), "or pass .classes=FILE, or the num"),
    "yolo: one text file of two images": (twins, 'a.txt" may also be of "a.png": keep one of the images'),
    "yolo: two lists of a split": (two_lists, "several lists or folders of one split: Train.txt, train.txt"),
    "yolo: splits that nothing lists": (unlisted_splits, 'more/val/b.jpg", but nothing lists its splits'),
    "yolo: paths of one image": (lost_folders_of_a_list, 'one/a.jpg" and "two/a.jpg" would both be'),
    "yolo: paths of one image in two lists": (lost_folders_of_two_lists, 'one/a.jpg" and "two/a.jpg" would both be'),
    "yolo: paths of one folder": (lost_folders_of_splits, 'one/images" and "two/images" would both be'),
    "yolo: two orders of classes": (two_label_lists, "have different class names. Keep one order for all splits"),
    "yolo: a key twice": (
        folder_of(data_yaml="names: [cat]\ntrain: a\ntrain: b\n"),
        '"train" occurs twice',
    ),
    "csv: paths of one image": (
        folder_of(train_csv=f"{HEADER}\ncam1/a.jpg,x,1,2,30,40\ncam2/a.jpg,x,5,6,70,80\n"),
        'train.csv": "cam1/a.jpg" and "cam2/a.jpg" .*a.jpg"',
    ),
    "csv: paths of one image in two tables": (
        folder_of(train_csv=f"{HEADER}\ncam1/a.jpg,x,1,2,30,40\n", val_csv=f"{HEADER}\ncam2/a.jpg,x,5,6,70,80\n"),
        'cam1/a.jpg" and "cam2/a.jpg" would both be',
    ),
    "csv: pixels and fractions": (
        folder_of(train_csv=f"{HEADER}\na.jpg,x,.1,.2,.3,.4\na.jpg,x,10,20,40,60\n"),
        "line 2 looks like fractions .* and line 3 like pixels, .* Add .units=fractions or .units=pixels",
    ),
    "csv: only 0 and 1": (folder_of(train_csv=f"{HEADER}\na.jpg,x,0,0,1,1\n"), "may be fractions or pixels"),
    "csv: corners or sizes": (
        folder_of(train_csv='image,label,bbox\na.jpg,x,"[10, 20, 40, 60]"\n'),
        r"fit left, top, width, height \(.box=size\) or left, top, right, bottom \(.box=corners\)",
    ),
    "csv: corners or centres": (
        folder_of(train_csv="image,label,x,y,w,h\na.jpg,x,20,30,10,10\n"),
        r"or centre x, centre y, width, height \(.box=centre\)",
    ),
    "csv: an image of two sizes": (
        folder_of(train_csv=f"{HEADER},width,height\na.jpg,x,1,2,30,40,100,80\na.jpg,x,5,6,30,40,50,40\n"),
        r"its rows state several sizes \(height, width\)",
    ),
    "jsonl: no objects": (
        folder_of(train_jsonl='{"imageGcsUri": "gs://x/a.jpg", "boundingBoxAnnotations": []}\n'),
        "train: no image has a box",
    ),
    "csv: thousands": (
        folder_of(train_csv="image;label;x1;y1;x2;y2\na.jpg;x;1,000;2;3;4\n"),
        '"1,000" may be a decimal or thousands',
    ),
    "csv: some rows without a split": (
        folder_of(train_csv=f"{HEADER},split\na.jpg,x,1,2,30,40,val\nb.jpg,x,1,2,30,40,\n"),
        "line 3: the split is not stated, but other rows have val",
    ),
    "csv: an id of two images": (ids_of_two_images, "may be any of 000a1249af2bc5f0.jpg, 000a1249af2bc5f0.png"),
    "mot": (folder_of(gt__gt_txt="1,1,912,484,97,109,0,7,1\n"), "a table of tracks of the MOT Challenge"),
    "wider face": (folder_of(bbx_txt=WIDER), "a list of faces of WIDER FACE"),
    "keras-yolo3": (folder_of(boxes_txt="a.jpg 50,100,150,200,0 30,50,200,120,3\n"), "as for keras-yolo3"),
    "via": (
        folder_of(via_csv="filename,file_size,region_count,region_shape_attributes\n"),
        "a table of VGG Image Annotator",
    ),
    "label studio": (
        folder_of(project_csv='image,id,label\n/a.jpg,1,"[{""rectanglelabels"": []}]"\n'),
        "of Label Studio",
    ),
    "roboflow's classes": (
        folder_of(train__classes_csv="filename, cat, dog\na.jpg, 1, 0\n"),
        "Roboflow's multi-label classification. It has no boxes",
    ),
    "encord": (folder_of(export_json='[{"label_hash": "c"}]\n'), "Encord's JSON"),
    "another table": (folder_of(x_csv="picture,what,where\na.jpg,cat,here\n"), "is 'picture,what,where'"),
}


@pytest.mark.parametrize("export", REFUSED)
def test_an_export_that_leaves_a_doubt_is_refused_or_named(tmp_path, export):
    write, message = REFUSED[export]
    write(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        open_source(f"boxes:{tmp_path}", "train")


OPTIONS = {
    "?units=percent": "expected units= as fractions or pixels, got units=percent",
    "?box=xywh": "expected box= as corners or size or centre, got box=xywh",
    "?units=pixels": "remove units= and box=, which are for tables: YOLO defines them",
}


@pytest.mark.parametrize("options", OPTIONS)
def test_options_of_tables_that_do_not_fit_are_refused(tmp_path, options):
    labelimg(tmp_path)
    with pytest.raises(ValueError, match=OPTIONS[options]):
        open_source(f"boxes:{tmp_path}{options}", "train")
