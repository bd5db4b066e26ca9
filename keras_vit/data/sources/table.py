"""A table of images and their classes: "csv:PATH" (commas; tabs in a .tsv) with a header line, or "jsonl:PATH" with one object per line.

Columns: the image's path (image, path, file or filename), its class (label or class), and, if there are splits, the row's split (split).
"csv:PATH?image=photo&label=breed&split=fold" names others. A relative image path is relative to the table's folder.
"""

import csv
import io
import json
import os
import random
import re

import numpy as np
import tensorflow as tf

from keras_vit.data.sources.base import RandomAccess
from keras_vit.data.sources.class_names import class_names
from keras_vit.data.splits import canonical, split_name, split_range
from keras_vit.io.paths import locate, read_text, split_options

_COLUMNS = {"image": ("image", "path", "file", "filename"), "label": ("label", "class"), "split": ("split",)}
_MOST_CLASSES = 1_000_000
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE | re.ASCII)


def _csv_rows(path):
    """(line number, {column: text}) of each row."""
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""), delimiter="\t" if path.endswith(".tsv") else ",")
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise ValueError(f'"{path}", line {reader.line_num}: {error}.') from None


def _jsonl_rows(path):
    """(line number, {column: value}) of each line that is not empty."""
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f'"{path}", line {number}: not JSON: {error}.') from None
        if not isinstance(row, dict):
            expected = '{"image": "a.jpg", "label": "cat"}'
            raise ValueError(f'"{path}", line {number}: expected an object such as {expected}, got {row!r}.')
        yield number, row


def _column(path, chosen, kind, columns):
    """The column for `kind`; None for a split column that is not there."""
    valid = (chosen[kind],) if chosen[kind] else _COLUMNS[kind]
    matches = [name for name in valid if name in columns]
    if not matches and (kind != "split" or chosen[kind]):
        named = [name for name in columns if isinstance(name, str)]
        raise ValueError(
            f'"{path}" has the columns {named}; none is the {kind}\'s, {" or ".join(valid)}. Name it: "{path}?{kind}=COLUMN".'
        )
    return matches[0] if matches else None


def _read(kind, path, chosen):
    """(image, label, split, line number) of each row; all but the number as text."""
    rows = list((_csv_rows if kind == "csv" else _jsonl_rows)(path))
    if not rows:
        raise ValueError(f'"{path}" has no rows.')
    names = {which: _column(path, chosen, which, list(rows[0][1])) for which in _COLUMNS}
    for number, row in rows:
        image, label = row.get(names["image"]), row.get(names["label"])
        split = row.get(names["split"]) if names["split"] else "train"
        for which, value in (("image", image), ("label", label), ("split", split)):
            if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
                raise ValueError(f'"{path}", line {number}: column "{names[which]}" should hold the {which}, got {value!r}.')
        yield str(image).strip(), str(label).strip(), canonical(str(split).strip()), number


def _check_no_measures(path, texts):
    """Refuses labels that are all numbers with fractions: they are measures, not names of classes.

    Raises:
        ValueError: pointing to regression.
    """
    fractions = [text for text in texts if "." in text]
    if fractions and all(_NUMBER.fullmatch(text) for text in texts):
        raise ValueError(
            f'"{path}": the labels are numbers such as {fractions[0]}, not classes. A model that predicts numbers (regression) needs a task '
            "of your own: docs/tasks.md. If they are classes all the same, list them in labels.txt beside the table, or with ?classes=FILE."
        )


def _numbered(path, rows, names):
    """(integer labels of `rows`, class names). Text labels are sorted into classes; integer labels are the classes' numbers."""
    texts = [label for _, label, _, _ in rows]
    if all(text.isdecimal() and text.isascii() for text in texts):
        labels = [int(text) for text in texts]
        top = max(labels)
        if names is None and top >= _MOST_CLASSES:
            raise ValueError(
                f'"{path}": the labels range up to {top}, and integers number the classes. Write names, or 0, 1, 2...'
            )
        names = tuple(str(i) for i in range(top + 1)) if names is None else names
        unknown = next(((label, row[3]) for label, row in zip(labels, rows) if label >= len(names)), None)
    else:
        if names is None:
            _check_no_measures(path, texts)
        names = tuple(sorted(set(texts))) if names is None else names
        label_of = {name: i for i, name in enumerate(names)}
        labels = [label_of.get(text, -1) for text in texts]
        unknown = next(((text, row[3]) for label, text, row in zip(labels, texts, rows) if label < 0), None)
    if unknown:
        raise ValueError(
            f'"{path}", line {unknown[1]}: label "{unknown[0]}" is not one of the {len(names)} classes: {names[:5]}...'
        )
    return np.array(labels), names


def table(kind: str, text: str, split: str = "train", data_dir: str | None = None) -> RandomAccess:
    """The source of the rows of `split`; without a split column all rows are "train".

    The rows are in a fixed random order, so that slices hold all classes. Labels are class names, or numbers from 0; the classes are the
    same for every split. A file labels.txt next to the table, or the option classes= (a number of classes, or another such file), fixes
    the classes and their order.

    Args:
        kind: "csv" or "jsonl".
        text: the table's path and options; a relative path is relative to `data_dir`, if that is given.

    Raises:
        FileNotFoundError: if there is no such table, or the first row's image is missing.
        ValueError: naming the line, for rows without an image or a label; for splits and columns that do not exist.
    """
    path, chosen = split_options(text, image="", label="", split="", classes="")
    path, name = locate(path, data_dir), canonical(split_name(split))
    folder = os.path.dirname(path)
    rows = list(_read(kind, path, chosen))
    labels, names = _numbered(path, rows, class_names(folder, chosen["classes"]))
    valid = list(dict.fromkeys(row[2] for row in rows))
    if name not in valid:
        raise ValueError(f'"{path}" has no split "{name}"; it has: {", ".join(valid[:10])}.')
    order = [i for i, row in enumerate(rows) if row[2] == name]
    images = [os.path.join(folder, row[0]) if "://" not in row[0] else row[0] for row in rows]
    if not tf.io.gfile.exists(images[order[0]]):
        number = rows[order[0]][3]
        raise FileNotFoundError(
            f'"{path}", line {number}: there is no file "{images[order[0]]}"; paths are relative to the folder of the table.'
        )
    random.Random(0).shuffle(order)
    order = order[slice(*split_range(split, len(order)))]
    paths = tf.constant([images[i] for i in order])

    def lookup(i):
        return {"image": tf.io.read_file(paths[i])}

    def name_of(i):
        return paths[i]

    return RandomAccess(f"{kind}:{path}", names, labels[order], lookup, name_of)
