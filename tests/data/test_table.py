"""Tables of images: columns, splits, classes, paths, and errors that name the line."""

import json
import logging
import os
import re

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


@pytest.mark.extended
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
    with pytest.raises(ValueError, match="numbers such as 0.333, not classes.*docs/tasks.md"):
        open_source(text, "train")
    (photos / "labels.txt").write_text("0.0\n0.333\n1\n")
    assert open_source(text, "train").class_names == ("0.0", "0.333", "1")


@pytest.mark.extended
def test_columns_by_option_and_slices_in_a_fixed_random_order(photos):
    rows = ["photo;x,breed"] + [f"{photos}/{name}.png,{i % 2}" for i, name in enumerate("abcdef")]
    text = write(photos / "t.csv", "\n".join(rows)) + "?image=photo;x&label=breed&classes=3"
    parts = [open_source(text, split) for split in ("train[:4]", "train[4:]")]
    assert [part.size for part in parts] == [4, 2] and parts[0].class_names == ("0", "1", "2")
    assert examples(parts[0]).keys() | examples(parts[1]).keys() == {f"{name}.png" for name in "abcdef"}
    assert all(label == "abcdef".index(name[0]) % 2 for part in parts for name, (_, label) in examples(part).items())


@pytest.mark.parametrize("labels, other", [("01 1", "01"), ("1 2 1.0", None), ("+3 3", "+3")])
def test_one_number_written_in_two_ways_is_not_silently_one_class(photos, labels, other):
    rows = "".join(f"{name}.png,{label}\n" for name, label in zip("abc", labels.split()))
    text = write(photos / "t.csv", "image,label\n" + rows)
    if other is None:
        assert open_source(text, "train").class_names == ("0", "1", "2")
        return
    with pytest.raises(
        ValueError, match=f'line 3: the labels "{labels.split()[1]}" and "{re.escape(other)}" are one number'
    ):
        open_source(text, "train")
    (photos / "labels.txt").write_text("\n".join(labels.split()))
    assert open_source(text, "train").class_names == tuple(labels.split())


@pytest.mark.parametrize(
    "rows, message",
    [
        ('a.png,cat\nb.png,"dog\nc.png,cat\nd.png,dog\n', "line 3: a quote is opened and not closed"),
        ('a.png,cat\nb.png,"dog\nc.png,"cat\nd.png,dog\n', "line 4: the label has several lines, from 'dog'"),
    ],
)
def test_an_open_quote_does_not_swallow_rows(photos, rows, message):
    with pytest.raises(ValueError, match=message):
        open_source(write(photos / "t.csv", "image,label\n" + rows), "train")


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


@pytest.mark.parametrize(
    "rows",
    ["image,split\na.png,train\nb.png,train\nc.png,test\n", "image;split\na.png;train\nb.png;train\nc.png;test\n"],
)
def test_images_without_classes(photos, rows):
    source = open_source(write(photos / "list.csv", rows) + "?labels=none", "train")
    assert source.labels is None and source.class_names == () and source.size == 2
    assert sorted(name.rpartition("/")[2] for name in example_names(source)) == ["a.png", "b.png"]
    assert all(example.keys() == {"image"} for example in source.ordered())


def test_without_classes_nothing_says_what_they_are(photos):
    text = write(photos / "list.csv", "image\na.png\n")
    assert open_source(text + "?labels=none", "train").size == 1
    with pytest.raises(
        ValueError, match=r'column for the label, label or class.*Images without classes are "\?labels=none"'
    ):
        open_source(text, "train")
    with pytest.raises(ValueError, match="labels=none, for no classes, contradicts classes=3"):
        open_source(text + "?labels=none&classes=3", "train")
    with pytest.raises(ValueError, match="labels=no: expected labels=none"):
        open_source(text + "?labels=no", "train")


def test_a_table_in_another_file_system(photos):
    tf.io.gfile.makedirs("ram://table/images")
    tf.io.write_file("ram://table/images/a.png", (photos / "a.png").read_bytes())
    tf.io.write_file("ram://table/t.csv", "image,label\nimages/a.png,0\n")
    assert examples(open_source("csv:t.csv", "train", "ram://table"))["a.png"] == ((photos / "a.png").read_bytes(), 0)


def test_the_imagenet_sample_has_its_hundred_classes(shared_data):
    source = open_source("csv:imagenet_sample/labels.csv?classes=1000", "train", str(shared_data))
    assert source.size == 100 and len(source.class_names) == 1000 and (source.class_counts()[::10] == 1).all()
    assert examples(source)["n01530575_brambling.JPEG"][1] == 10


REFUSED = {  # a table's text, .jsonl if it begins with "{": what is said
    "photo,label\na.png,1\n": r"column for the image, image or path or file .*, got \['photo', 'label'\]",
    "a.png,cat\nb.png,dog\n": r"in the first line, got \['a.png', 'cat'\]",
    "image,label,label\na.png,cat,dog\n": 'more than one column "label"',
    "": "has no rows",
    "image,label\na.png,cat\nb.png,\n": "line 3: expected the label in column \"label\", got ''",
    "image,label\na.png,cat\nb.png,  \n": "line 3: expected the label in column \"label\", got '  '",
    'image,label\n"a.png,cat\nb.png,dog\n': "a quote is opened and not closed",
    "image,label\na\0.png,cat\n": 'line 2: expected the image in column "image", got \'a',
    "image,label\na, b.png,cat\nc.png,dog\n": "line 2: expected 2 cells, as in the header, got 3",
    "image,label\na.png,5000000\n": "class numbers, got up to 5000000",
    "image,label\na.png,0\nb.png,-1\n": "line 3: expected a label from 0, got -1. Remove rows without a class",
    "image,label\na.png,cat\nb.png,nan\n": r'line 3: the label is missing \("nan"\)',
    "image,label\na.png,1\nb.png,cat\n": (
        r'some labels are numbers \("1" in line 2\) and some are names \("cat" in line 3\).*labels.txt'
    ),
    "image,label\na.png,1e-3\nb.png,2\n": "numbers such as 1e-3, not classes",
    "image,label\na.png,cat\nb.png,dog\na.png,dog\n": (
        'line 4: the image "a.png" has the class "dog" here but "cat" in line 2'
    ),
    "image,label\nz.png,0\n": 'line 2: there is no file ".*z.png". Paths are relative to',
    "image,label\nA.png,cat\n": 'line 2: there is no file .*Did you mean "a.png".*case-sensitive',
    '{"image": "a.png", "label": 0}\n{"image": \n': "line 2: not JSON",
    '{"image": "a.png", "label": 0}\n{"image": "b.png", "label": 1, "split": "test"}\n': (
        'line 1: expected the split in column "split", got None'
    ),
    '{"image": "a.png", "label": [1, 2]}\n': r'line 1: expected the label in column "label", got \[1, 2\]',
}


@pytest.mark.parametrize("text", REFUSED)
def test_mistakes_name_the_line(photos, text):
    with pytest.raises((ValueError, FileNotFoundError), match=REFUSED[text]):
        open_source(write(photos / ("t.jsonl" if text.startswith("{") else "t.csv"), text), "train")


def test_other_mistakes(photos):
    text = write(photos / "t.csv", "image,label\na.png,cat\nb.png,dog\n")
    with pytest.raises(ValueError, match='no split "test". Valid: train'):
        open_source(text, "test")
    with pytest.raises(FileNotFoundError, match="Cannot read"):
        open_source("csv:none.csv", "train")
    with pytest.raises(ValueError, match='label "dog" is not one of the 1 classes'):
        (photos / "labels.txt").write_text("cat\n")
        open_source(text, "train")
    (photos / "latin.csv").write_bytes("image,label\na.png,caf\xe9\n".encode("latin-1"))
    with pytest.raises(ValueError, match="is not UTF-8"):
        open_source(f"csv:{photos}/latin.csv", "train")


def read_labels(photos, rows, name="t.csv", options=""):
    """({file's name: label}, class names) of a table with these lines."""
    source = open_source(write(photos / name, "\n".join(rows) + "\n") + options, "train")
    return {name: int(label) for name, (_, label) in examples(source).items()}, source.class_names


@pytest.fixture
def warned(caplog):
    """A function: the text of the warnings since the last call."""
    logging.getLogger("absl").propagate = True
    caplog.set_level("WARNING")

    def text():
        texts = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return "\n".join(texts)

    return text


def test_integral_numbers_are_integers_however_they_are_written(photos):
    expected = {"a.png": 1, "b.png": 0, "c.png": 2}, ("0", "1", "2")
    assert read_labels(photos, ["image,label", "a.png,1.0", "b.png,0.0", "c.png,2.00"]) == expected
    assert read_labels(photos, ["image,label", 'a.png,"1"', "b.png, 0 ", "c.png,+2"]) == expected
    rows = ['{"image": "a.png", "label": 1.0}', '{"image": "b.png", "label": "0"}', '{"image": "c.png", "label": 2}']
    assert read_labels(photos, rows, "t.jsonl") == expected


@pytest.mark.parametrize("value", ["NaN", "null", "true"])
def test_json_values_that_are_no_labels(photos, value):
    with pytest.raises(ValueError, match="the label is missing|expected the label|some labels are numbers"):
        read_labels(photos, [f'{{"image": "a.png", "label": {value}}}', '{"image": "b.png", "label": 1}'], "t.jsonl")


def test_listed_classes_may_have_any_name(photos):
    (photos / "labels.txt").write_text("10\n1\nNA\n-1\n")
    found = read_labels(photos, ["image,label", "a.png,1", "b.png,NA", "c.png,10", "d.png,-1"])
    assert found == ({"a.png": 1, "b.png": 2, "c.png": 0, "d.png": 3}, ("10", "1", "NA", "-1"))
    assert read_labels(photos, ["image,label", "a.png,1", "b.png,10"])[0] == {"a.png": 1, "b.png": 0}


def test_labels_from_one(photos, warned):
    rows = ["image,label", "a.png,1", "b.png,2", "c.png,3"]
    assert read_labels(photos, rows)[1] == ("0", "1", "2", "3")
    assert "no row has the label 0" in warned()
    assert read_labels(photos, rows, options="?first_label=1") == (
        {"a.png": 0, "b.png": 1, "c.png": 2},
        ("1", "2", "3"),
    )
    (photos / "labels.txt").write_text("cat\ndog\nemu\n")
    with pytest.raises(ValueError, match='line 4: label "3" is not one of the 3 classes.*add "[?]first_label=1"'):
        read_labels(photos, rows)
    assert read_labels(photos, rows, options="?first_label=1")[0] == {"a.png": 0, "b.png": 1, "c.png": 2}
    with pytest.raises(ValueError, match="line 2: expected a label from 2, got 1"):
        read_labels(photos, rows, options="?first_label=2")
    with pytest.raises(ValueError, match="first_label=x: expected an integer"):
        read_labels(photos, rows, options="?first_label=x")


def test_a_mistyped_class_is_named_with_the_nearest(photos):
    (photos / "labels.txt").write_text("tabby cat\ndog\n")
    with pytest.raises(ValueError, match='label "taby cat" is not one of the 2 classes: .*Did you mean "tabby cat"'):
        read_labels(photos, ["image,label", "a.png,taby cat"])


def test_spaces_accents_and_classes_that_look_alike(photos, warned):
    rows = ["image,label", "a.png, caf\u00e9 ", "b.png,cafe\u0301", "c.png,tea", "d.png,Tea"]
    assert read_labels(photos, rows) == ({"a.png": 1, "b.png": 1, "c.png": 2, "d.png": 0}, ("Tea", "caf\u00e9", "tea"))
    assert "these classes differ only in case or spaces: 'Tea', 'tea'" in warned()


@pytest.mark.parametrize(("delimiter", "end"), [(",", "\r\n"), (";", "\r"), ("\t", "\n"), ("|", "\n")])
def test_any_delimiter_and_line_end(photos, delimiter, end):
    rows = [[" Filename ", "LABEL", "note"], ["a.png", "cat", ""], ['"b.png"', '"dog"', '"x, y; z"'], ["", "", ""]]
    (photos / "t.csv").write_bytes(("\ufeff" + end.join(delimiter.join(row) for row in rows)).encode())
    source = open_source(f"csv:{photos}/t.csv", "train")
    assert source.class_names == ("cat", "dog") and examples(source).keys() == {"a.png", "b.png"}


def test_paths_of_windows(photos):
    (photos / "sub").mkdir()
    (photos / "a.png").rename(photos / "sub" / "a.png")
    assert read_labels(photos, ["image,label", "sub\\a.png,cat", ".\\b.png,dog"])[0] == {"a.png": 0, "b.png": 1}
    (photos / "c\\d.png").write_bytes((photos / "c.png").read_bytes())
    assert read_labels(photos, ["image,label", "c\\d.png,cat", "b.png,dog"])[0].keys() == {"c\\d.png", "b.png"}


def test_missing_files_are_told_and_ignored(photos, warned):
    rows = ["image,label", "a.png,cat", "y.png,dog", "b.png,dog", "B.png,cat"]
    assert read_labels(photos, rows)[0] == {"a.png": 0, "b.png": 1}
    text = warned()
    assert "ignored 2 rows of 4 with missing files, such as" in text and 'y.png" in line 3' in text


def test_repeated_rows_are_told(photos, warned):
    rows = ["image,label,split", "a.png,cat,train", "b.png,dog,train", "a.png,cat,train", "b.png,dog,test"]
    text = write(photos / "t.csv", "\n".join(rows))
    assert open_source(text, "train").size == 2 and open_source(text, "test").size == 1
    told = warned()
    assert "1 row with an image of an earlier row, in the same split; each row counts, and a slice has all rows" in told
    assert "The first is line 4: a.png." in told
    assert 'ignored 1 row with an image that is evaluated too, such as "b.png" in line 3, of train: another' in told


def test_repeated_rows_in_splits_of_other_names_are_told(photos, warned):
    rows = ["image,label,split", "a.png,cat,part", "a.png,cat,all", "b.png,dog,all"]
    assert open_source(write(photos / "t.csv", "\n".join(rows)), "all").size == 2
    assert "1 row with an image of an earlier row, in another split. The first is line 3: a.png." in warned()


def repeated_rows(folder, column, value):
    """A table of 10 images, each in 4 rows of different spellings of its path, a link among them."""
    for i in range(10):
        (folder / f"{i}.png").write_bytes(b"")
        (folder / f"link{i}.png").symlink_to(folder / f"{i}.png")
    names = [name for i in range(10) for name in (f"{i}.png", f"./{i}.png", f"{folder}/{i}.png", f"link{i}.png")]
    rows = [{"image": name, column: value(n)} for n, name in enumerate(names)]
    (folder / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return f"jsonl:{folder / 't.jsonl'}"


@pytest.mark.parametrize(
    ("column", "value"),
    [("text", lambda n: f"caption {n}"), ("label", lambda n: "cat" if n < 20 else "dog"), ("mask", lambda n: "m.png")],
)
@pytest.mark.parametrize(("first", "second"), [("train[:50%]", "train[50%:]"), ("train[:3]", "train[3:]")])
def test_no_image_is_on_both_sides_of_a_cut(tmp_path, monkeypatch, column, value, first, second):
    text = repeated_rows(tmp_path, column, value)
    if column == "mask":
        (tmp_path / "m.png").write_bytes(tf.io.encode_png(np.arange(16, dtype="uint8").reshape(4, 4, 1) % 2).numpy())
    sides = [example_names(open_source(text, split)) for split in (first, second)]
    files = [{os.path.realpath(name) for name in names} for names in sides]
    assert not files[0] & files[1] and len(files[0] | files[1]) == 10
    assert [len(names) for names in sides] == [4 * len(side) for side in files]


def test_rows_and_images_are_counted(tmp_path, caplog):
    logging.getLogger("absl").propagate = True
    caplog.set_level("INFO", "absl")
    open_source(repeated_rows(tmp_path, "text", lambda n: f"caption {n}"), "train")
    assert "train: 10 images in 40 rows." in caplog.text


def test_images_of_all_kinds_in_a_table(photos):
    pil = pytest.importorskip("PIL.Image")
    pil.fromarray(np.full((4, 4, 3), 90, "uint8")).save(photos / "scan", "TIFF")
    source = open_source(write(photos / "t.csv", "image,label\nscan,cat\na.png,dog\n"), "train")
    assert tf.io.decode_image(examples(source)["scan"][0]).numpy().max() == 90
