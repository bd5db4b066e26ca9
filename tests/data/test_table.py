"""Tables of images: columns, splits, classes, paths, and errors that name the line."""

import json

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import open_source
from keras_vit.data.sources.selection import example_names


@pytest.fixture
def photos(tmp_path):
    """a.png to f.png, each of one grey level."""
    for i, name in enumerate("abcdef"):
        (tmp_path / f"{name}.png").write_bytes(tf.io.encode_png(np.full((4, 4, 3), 10 * i, "uint8")).numpy())
    return tmp_path


def examples(source):
    """{file's name: (bytes, label)}."""
    names = [name.rpartition("/")[2] for name in example_names(source)]
    return dict(zip(names, ((e["image"], e["label"]) for e in source.ordered().as_numpy_iterator())))


def write(path, text):
    path.write_text(text)
    return f"{path.suffix[1:]}:{path}"


def test_text_labels_are_sorted_into_classes_over_all_splits(photos):
    rows = "path,class,split\na.png,dog,train\nb.png,cat,train\nc.png,emu,test\nd.png,cat,validation\n"
    text = write(photos / "pets.csv", rows)
    train, test, val = (open_source(text, split) for split in ("train", "test", "val"))
    assert train.class_names == test.class_names == ("cat", "dog", "emu")
    train_examples = examples(train)
    assert {name: label for name, (_, label) in train_examples.items()} == {"a.png": 1, "b.png": 0}
    assert train_examples["a.png"][0] == (photos / "a.png").read_bytes()
    assert examples(test).keys() == {"c.png"} and test.labels.tolist() == [2] and examples(val).keys() == {"d.png"}


def test_labels_with_fractions_are_no_classes_unless_they_are_listed(photos):
    text = write(photos / "t.csv", "image,label\na.png,0.0\nb.png,0.333\nc.png,1\n")
    with pytest.raises(ValueError, match="numbers such as 0.0, not classes.*docs/tasks.md"):
        open_source(text, "train")
    (photos / "labels.txt").write_text("0.0\n0.333\n1\n")
    assert open_source(text, "train").class_names == ("0.0", "0.333", "1")


def test_columns_by_option_and_slices_in_a_fixed_random_order(photos):
    rows = ["photo;x,breed"] + [f"{photos}/{name}.png,{i % 2}" for i, name in enumerate("abcdef")]
    text = write(photos / "t.csv", "\n".join(rows)) + "?image=photo;x&label=breed&classes=3"
    parts = [open_source(text, split) for split in ("train[:4]", "train[4:]")]
    assert [part.size for part in parts] == [4, 2] and parts[0].class_names == ("0", "1", "2")
    assert examples(parts[0]).keys() | examples(parts[1]).keys() == {f"{name}.png" for name in "abcdef"}
    assert all(label == "abcdef".index(name[0]) % 2 for part in parts for name, (_, label) in examples(part).items())


def test_jsonl_tsv_and_a_file_of_class_names(photos):
    rows = [{"image": f"{name}.png", "label": label} for name, label in zip("abc", (1, 0, 1))]
    lines = "\n".join(json.dumps(row) for row in rows) + "\n\n"
    (photos / "labels.txt").write_text("no\nyes\n")
    source = open_source(write(photos / "t.jsonl", lines), "train")
    assert source.class_names == ("no", "yes")
    assert {name: label for name, (_, label) in examples(source).items()} == {"a.png": 1, "b.png": 0, "c.png": 1}
    (photos / "own.txt").write_text("yes\nmaybe\nno\n")
    (photos / "t.tsv").write_bytes("\ufefffile\tlabel\na.png\tno\nb.png\tyes\n".encode())
    source = open_source(f"csv:{photos}/t.tsv?classes=own.txt", "train")
    assert {name: label for name, (_, label) in examples(source).items()} == {"a.png": 2, "b.png": 0}


def test_a_table_in_another_file_system(photos):
    tf.io.gfile.makedirs("ram://table/images")
    tf.io.write_file("ram://table/images/a.png", (photos / "a.png").read_bytes())
    tf.io.write_file("ram://table/t.csv", "image,label\nimages/a.png,0\n")
    assert examples(open_source("csv:t.csv", "train", "ram://table"))["a.png"] == ((photos / "a.png").read_bytes(), 0)


def test_the_imagenet_sample_has_its_hundred_classes(shared_data):
    source = open_source("csv:imagenet_sample/labels.csv?classes=1000", "train", str(shared_data))
    assert source.size == 100 and len(source.class_names) == 1000 and (source.class_counts()[::10] == 1).all()
    assert examples(source)["n01530575_brambling.JPEG"][1] == 10


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("t.csv", "photo,label\na.png,1\n", r"columns \['photo', 'label'\]; none is the image's, image or path or file"),
        ("t.csv", "", "has no rows"),
        ("t.csv", "image,label\n", "has no rows"),
        ("t.csv", "image,label\na.png,cat\nb.png,\n", "line 3: column \"label\" should hold the label, got ''"),
        ("t.csv", "image,label\na.png,cat\nb.png\n", 'line 3: column "label" should hold the label, got None'),
        ("t.csv", "image,label\na.png,5000000\n", "labels range up to 5000000"),
        ("t.csv", "image,label\nz.png,0\n", 'line 2: there is no file ".*z.png"; paths are relative to'),
        ("t.jsonl", '{"image": "a.png", "label": 0}\n{"image": \n', "line 2: not JSON"),
        ("t.jsonl", "[1, 2]\n", "line 1: expected an object"),
        ("t.jsonl", '{"image": "a.png", "label": [1, 2]}\n', r'line 1: column "label" should hold the label, got \[1, 2\]'),
    ],
)
def test_mistakes_name_the_line(photos, name, rows, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        open_source(write(photos / name, rows), "train")


def test_other_mistakes(photos):
    text = write(photos / "t.csv", "image,label\na.png,cat\nb.png,dog\n")
    with pytest.raises(ValueError, match='no split "test"; it has: train'):
        open_source(text, "test")
    with pytest.raises(FileNotFoundError, match="Cannot read"):
        open_source("csv:none.csv", "train")
    with pytest.raises(ValueError, match='label "dog" is not one of the 1 classes'):
        (photos / "labels.txt").write_text("cat\n")
        open_source(text, "train")
    (photos / "latin.csv").write_bytes("image,label\na.png,caf\xe9\n".encode("latin-1"))
    with pytest.raises(ValueError, match="is not UTF-8"):
        open_source(f"csv:{photos}/latin.csv", "train")
