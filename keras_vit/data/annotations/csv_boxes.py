"""CSV boxes: one row per object with image, class and corners; an image without objects has empty cells.

    PATH/train.csv, PATH/train/_annotations.csv, PATH/annotations/train_labels.csv..., or one file with a column split

TensorFlow's object detection writes filename, width, height, class, xmin, ymin, xmax, ymax; COLUMNS lists other names.
Coordinates are pixels, or fractions if all are between 0 and 1.
"""

import collections
import csv
import functools
import io
import os
from collections.abc import Iterator

from keras_vit.data.annotations import files, form
from keras_vit.data.annotations.form import Annotations, Fault, Ignored, Layout, Picture, Region
from keras_vit.data.sources.table_rows import DELIMITERS, columns, csv_rows
from keras_vit.data.splits import canonical
from keras_vit.io.paths import read_text
from keras_vit.io.suggest import listed

COLUMNS = {
    "image": ("image", "filename", "file_name", "path", "image_path", "file", "img", "imageid", "image_id"),
    "label": ("label", "class", "class_name", "labelname", "name", "category"),
    "left": ("xmin", "x_min", "x1", "left"),
    "top": ("ymin", "y_min", "y1", "top"),
    "right": ("xmax", "x_max", "x2", "right"),
    "bottom": ("ymax", "y_max", "y2", "bottom"),
}
_FURTHER = {
    "height": ("height", "image_height", "img_height"),
    "width": ("width", "image_width", "img_width"),
    "crowd": ("crowd", "iscrowd", "is_crowd", "isgroupof"),
    "difficult": ("difficult", "is_difficult"),
    "split": ("split", "set", "subset"),
}
_SIDES = ("left", "top", "right", "bottom")
_EMPTY = ("", "nan", "na", "null", "none")
_ENDINGS = (".csv", ".tsv")

_Rows = list[tuple[int, dict[str, str]]]  # (line, {kind of column: text})


def _header(path):
    """Reads {kind: column} from the first line of a file."""
    first = next(iter(files.start_of(path).lstrip("\ufeff").splitlines()), "")
    found = [
        columns({**COLUMNS, **_FURTHER}, next(csv.reader(io.StringIO(first), delimiter=d), [])) for d in DELIMITERS
    ]
    return max(found, key=len)


def _has_boxes(path):
    return set(_SIDES) <= _header(path).keys()


def _rows(path) -> _Rows:
    """Reads the rows of a table.

    Raises:
        ValueError: for missing columns and malformed lines.
    """
    found = list(csv_rows(path, read_text(path), COLUMNS))
    names = _header(path)
    missing = [kind for kind in COLUMNS if kind not in names]
    if missing:
        accepted = "; ".join(f"{kind}: {' or '.join(COLUMNS[kind])}" for kind in missing)
        raise ValueError(f'"{path}": expected column names in the first line, which lacks {accepted}.')
    if not found:
        raise ValueError(f'"{path}" has no rows.')
    return [(line, {kind: (row.get(name) or "").strip() for kind, name in names.items()}) for line, row in found]


def _tables(path):
    folders = [path, os.path.join(path, "annotations"), *files.folders_of_splits(path).values()]
    found = [os.path.join(folder, name) for folder in folders for name in files.names_in(folder)]
    return [file for file in found if file.lower().endswith(_ENDINGS) and _has_boxes(file)]


def find(path: str, images: str = "") -> Layout | None:
    """Finds tables of boxes in a folder, or opens the table `path`; None without any.

    Args:
        path: str. Folder or table, local or in a bucket.
        images: str. Folder of the images; "" to look for it.

    Raises:
        ValueError: if several tables contain one split.
    """
    alone = path.lower().endswith(_ENDINGS)
    tables = [path] if alone else _tables(path)
    if len(tables) == 1 and "split" in _header(tables[0]):
        by_split = collections.defaultdict(list)
        for line, row in _rows(tables[0]):
            by_split[canonical(row["split"] or "train")].append((line, row))
        readers = {
            split: functools.partial(read, tables[0], split, images, False, rows) for split, rows in by_split.items()
        }
        return Layout("CSV", "", readers, dict.fromkeys(readers, tables))
    splits = {"train": path} if alone else files.by_split(tables, path)
    readers = {split: functools.partial(read, file, split, images, len(splits) == 1) for split, file in splits.items()}
    return Layout("CSV", "", readers, {split: [file] for split, file in splits.items()}) if splits else None


def _number(text):
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _are_fractions(rows: _Rows):
    """Whether all coordinates are from 0 to 1, and some are strictly between."""
    numbers = [_number(row[side]) for _, row in rows for side in _SIDES]
    return any(0 < number < 1 for number in numbers) and not any(number > 1 for number in numbers)


def _region(line, row):
    """Makes a Region from a row; None for an image without objects.

    Raises:
        Fault: if a cell is missing or malformed.
    """
    empty = [kind for kind in ("label", *_SIDES) if row[kind].lower() in _EMPTY]
    if len(empty) == 1 + len(_SIDES):
        return None
    name = f"line {line}"
    if empty:
        raise Fault(f"{name}: the cells {listed(empty)} are empty, but others are not")
    yes = {kind: row.get(kind, "").lower() in ("1", "1.0", "true") for kind in ("crowd", "difficult")}
    return Region(row["label"], name, box=form.box([row[side] for side in _SIDES], name), **yes)


def _picture(image, rows: _Rows):
    sides = [rows[0][1].get(side, "") for side in ("height", "width")]
    try:
        regions = [_region(line, row) for line, row in rows]
        size = form.stated_size(*("" if side.lower() in _EMPTY else side for side in sides))
        return Picture(image, size, [region for region in regions if region is not None])
    except Fault as fault:
        return Picture(image, None, [], str(fault))


def _pictures(own: dict[str, _Rows], existing, ignored) -> Iterator[Picture]:
    """Yields the Picture of each image, {path: rows}, with an existing file."""
    for image, rows in own.items():
        if image in existing:
            yield _picture(image, rows)
        else:
            ignored[form.MISSING].append(image)


def read(path: str, split: str, images: str = "", whole: bool = True, rows: _Rows | None = None) -> Annotations:
    """Reads the annotations in a table; its rows define the class names.

    Args:
        path: str. The table.
        split: str. The split, used to look for the images.
        images: str. Folder of the images; "" to look for it.
        whole: bool. Whether the table covers all images, so that others next to them belong to no other split.
        rows: list of (line, row). Rows of the split; None for all.

    Raises:
        FileNotFoundError: if the table or all images are missing.
        ValueError: for missing columns and malformed lines.
    """
    rows = _rows(path) if rows is None else rows
    ignored: Ignored = collections.defaultdict(list)
    by_image: dict[str, _Rows] = collections.defaultdict(list)
    for line, row in rows:
        if not row["image"]:
            raise ValueError(f'"{path}", line {line}: the cell of the image is empty.')
        by_image[row["image"].replace("\\", "/")].append((line, row))
    existing = files.Existing()
    paths = files.image_paths(path, split, images, list(by_image), existing)
    existing.list(os.path.dirname(file) for file in paths)
    ignored[form.NOT_LISTED] += files.unlisted(paths, existing) if whole else []
    own = dict(zip(paths, by_image.values()))
    return Annotations(_pictures(own, existing, ignored), None, _are_fractions(rows), path, ignored)
