"""Reads tables of boxes, with or without a header, as rows that say what their four numbers may mean.

With a header, COLUMNS and BOXES list the accepted names. Without one, HEADERLESS lists known orders of the cells.
"""

import csv
import dataclasses
import io
import os
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from keras_vit.data.annotations import annotation_files
from keras_vit.data.sources.image_files import ENDINGS, ending
from keras_vit.data.sources.table_rows import DELIMITERS, columns, csv_rows
from keras_vit.data.splits import canonical
from keras_vit.io.paths import read_text
from keras_vit.io.suggest import listed

CORNERS, SIZE, CENTRE = "corners", "size", "centre"  # x1 y1 x2 y2; left top width height; centre x, y, width, height
COLUMNS = {
    "image": (
        *("image", "filename", "file_name", "image_name", "path", "image_path", "filepath", "file_path", "file", "img"),
        *("img_path", "img_name", "imagename", "image_filename", "image_url", "url", "filenames"),
        *("imageid", "image_id", "img_id", "patientid"),
    ),
    "label": (
        *("label", "class", "class_name", "classname", "labelname", "label_name", "name", "category", "category_name"),
        *("labels", "tag", "target", "class_id", "classid", "category_id", "label_id"),
    ),
}
_LEFT = ("xmin", "x_min", "x1", "left", "bbox_xmin", "roi.x1", "bbox_x1")
_TOP = ("ymin", "y_min", "y1", "top", "bbox_ymin", "roi.y1", "bbox_y1")
_RIGHT = ("xmax", "x_max", "x2", "right", "bbox_xmax", "roi.x2", "bbox_x2")
_BOTTOM = ("ymax", "y_max", "y2", "bottom", "bbox_ymax", "roi.y2", "bbox_y2")
_WIDTH = ("w", "bbox_width", "box_width", "bbox_w", "box_w", "width")
_HEIGHT = ("h", "bbox_height", "box_height", "bbox_h", "box_h", "height")
BOXES: tuple[tuple[tuple[str, ...], tuple[tuple[str, ...], ...]], ...] = (  # (possible meanings, names of columns)
    ((CORNERS,), (_LEFT, _TOP, _RIGHT, _BOTTOM)),
    ((SIZE,), ((*_LEFT, "bbox_x", "bbox_left", "box_x"), (*_TOP, "bbox_y", "bbox_top", "box_y"), _WIDTH, _HEIGHT)),
    (
        (CENTRE,),
        (
            ("x_center", "xcenter", "center_x", "x_centre", "centre_x", "cx", "xc"),
            ("y_center", "ycenter", "center_y", "y_centre", "centre_y", "cy", "yc"),
            _WIDTH,
            _HEIGHT,
        ),
    ),
    ((SIZE, CENTRE), (("x",), ("y",), _WIDTH, _HEIGHT)),
    ((SIZE, CORNERS), (("bbox", "box", "bounding_box", "bndbox", "bboxes"),)),  # four numbers in a cell
)
_FURTHER = {
    "height": ("image_height", "img_height", "imageheight", "height"),
    "width": ("image_width", "img_width", "imagewidth", "width"),
    "crowd": ("crowd", "iscrowd", "is_crowd", "isgroupof"),
    "difficult": ("difficult", "is_difficult"),
    "split": ("split", "set", "subset"),
}
_N, _SKIP = "number", ""
HEADERLESS: tuple[tuple[tuple[str, ...], bool | None, tuple[str, ...]], ...] = (  # (meanings, fractions, cells)
    ((CORNERS,), None, ("image", _N, _N, _N, _N, "label")),  # RetinaNet, GTSDB
    ((CORNERS, SIZE), None, ("image", "label", _N, _N, _N, _N)),
    ((SIZE,), False, ("label", _N, _N, _N, _N, "image", "width", "height")),  # makesense
    ((CORNERS,), True, ("split", "image", "label", _N, _N, _SKIP, _SKIP, _N, _N, _SKIP, _SKIP)),  # AutoML, Vertex
    ((CORNERS,), True, ("image", "label", _N, _N, _SKIP, _SKIP, _N, _N, _SKIP, _SKIP)),
)
EMPTY = ("", "nan", "na", "null", "none")
_USES = {"train": "train", "training": "train", "validate": "val", "validation": "val", "test": "test"}  # of AutoML
_UNASSIGNED = ("unassigned", "")
_TRIED = 20  # rows that show the order of cells
_DECIMAL_COMMA = re.compile(r"-?\d+,(\d+)")


class Row(NamedTuple):
    """A row: an object, or an image without one.

    Attributes:
        line: int. Line in the file.
        cells: dict. Text by kind of column: image, and perhaps label, height, width, crowd, difficult, split.
        numbers: tuple of str. The four numbers of the box as text; None for a cell that has another number of them.
    """

    line: int
    cells: dict[str, str]
    numbers: tuple[str, ...] | None


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of a table.

    Attributes:
        rows: list of Row.
        meanings: tuple of str. What the four numbers may mean.
        fractions: bool. Whether they are fractions; None if the format does not say.
    """

    rows: list[Row]
    meanings: tuple[str, ...]
    fractions: bool | None = None


def _first_lines(path):
    return annotation_files.read_start(path).lstrip("\ufeff").splitlines()


def _cells(lines, delimiter):
    try:
        return [cells for cells in csv.reader(lines, delimiter=delimiter) if any(cells)]
    except csv.Error:
        return []


def _match_columns(header):
    """Returns ({kind: column}, columns of the box, possible meanings) of a header; ({}, (), ()) without boxes."""
    for meanings, wanted in BOXES:
        found = columns({str(i): names for i, names in enumerate(wanted)}, header)
        if len(found) == len(wanted):
            box = tuple(found[str(i)] for i in range(len(wanted)))
            others = [name for name in header if name not in box]
            return columns({**COLUMNS, **_FURTHER}, others), box, meanings
    return {}, (), ()


def _header(path):
    """Returns `_match_columns` the first line of a file, by the delimiter that fits best."""
    first = _first_lines(path)[:1]
    found = [_match_columns(next(iter(_cells(first, delimiter)), [])) for delimiter in DELIMITERS]
    return max(found, key=lambda columns: (len(columns[1]) > 0, len(columns[0])))


def _is_number(text):
    try:
        float(text.replace(",", "."))
    except ValueError:
        return False
    return True


def _fits(cells, kinds):
    """Whether the cells of a row may be of these kinds."""

    def one(text, kind):
        cell = text.strip()
        if kind == "image":
            return ending(cell) in ENDINGS
        if kind == "split":
            return cell.lower() in (*_USES, *_UNASSIGNED)
        if kind == "label":
            return ending(cell) not in ENDINGS
        return cell.lower() in EMPTY or _is_number(cell)

    return len(cells) == len(kinds) and all(map(one, cells, kinds))


def _headerless(path):
    """Returns (delimiter, meanings, fractions, kinds of cells) of a file without a header; None for others."""
    lines = _first_lines(path)
    lines = lines[: max(1, min(_TRIED, len(lines) - 1))]  # the last one may be cut off
    for delimiter in DELIMITERS:
        rows = _cells(lines, delimiter)
        for meanings, fractions, kinds in HEADERLESS:
            if rows and all(_fits(cells, kinds) for cells in rows):
                return delimiter, meanings, fractions, kinds
    return None


def has_boxes(path: str) -> bool:
    """Whether a table has boxes, judged by its first lines."""
    return bool(_header(path)[1]) or _headerless(path) is not None


def _with_points(numbers: Sequence[str]) -> tuple[str, ...]:
    return tuple(number.replace(",", ".") for number in numbers)


def _have_decimal_commas(path, rows):
    """Whether numbers are written 12,5.

    Raises:
        ValueError: if commas may separate thousands.
    """
    texts = (text for row in rows for text in row.numbers or () if "," in text)
    found = [match for text in texts if (match := _DECIMAL_COMMA.fullmatch(text))]
    if found and all(len(match[1]) == 3 for match in found):
        raise ValueError(f'"{path}": "{found[0][0]}" may be a decimal or thousands. Write numbers with a point.')
    return bool(found)


def _split_cell(text):
    """Splits a cell of four numbers, such as "[834.0, 222.0, 56.0, 36.0]"; None for another number of them."""
    numbers = re.split(r"[\s,;]+", text.strip("[]() \t"))
    return () if text.lower() in EMPTY else tuple(numbers) if len(numbers) == 4 else None


def _with_header(path) -> Rows:
    """Reads a table with a header.

    Raises:
        ValueError: for missing columns and malformed lines.
    """
    kinds, box, meanings = _header(path)
    if not box:
        raise ValueError(f'"{path}": expected columns of boxes, such as xmin, ymin, xmax, ymax, in the first line.')
    wanted = {**{kind: (name,) for kind, name in kinds.items()}, **{name: (name,) for name in box}}
    if "image" not in kinds:
        raise ValueError(f'"{path}": expected column names in the first line, which lacks image: {_or("image")}.')
    rows = []
    for line, row in csv_rows(path, read_text(path), wanted):
        cells = {kind: (row[name] or "").strip() for kind, name in kinds.items()}
        texts = tuple((row[name] or "").strip() for name in box)
        rows.append(Row(line, cells, _split_cell(texts[0]) if len(box) == 1 else texts))
    return Rows(rows, meanings, True if _is_open_images(kinds, box) else None)


def _or(kind):
    return " or ".join(COLUMNS[kind])


def _is_open_images(kinds, box):
    return (kinds.get("image"), kinds.get("label")) == ("ImageID", "LabelName") and box[:1] == ("XMin",)


def _without_header(path, delimiter, kinds) -> Iterator[Row]:
    """Yields the rows of a table without a header.

    Raises:
        ValueError: for a row unlike the first ones, with its line.
    """
    reader = csv.reader(io.StringIO(read_text(path), newline=""), delimiter=delimiter)
    for texts in reader:
        cells = [cell.strip() for cell in texts]
        if not any(cells):
            continue
        if not _fits(cells, kinds):
            order = ", ".join(kind or "-" for kind in kinds)
            raise ValueError(f'"{path}", line {reader.line_num}: expected the cells {order}, got {texts}.')
        named = {kind: cell for kind, cell in zip(kinds, cells) if kind not in (_N, _SKIP)}
        if "split" in named:
            named["split"] = _USES.get(named["split"].lower(), "unassigned")
        numbers = tuple(cell for kind, cell in zip(kinds, cells) if kind == _N)
        yield Row(reader.line_num, named, numbers)


def read_rows(path: str) -> Rows:
    """Reads the rows of a table.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: for missing columns, malformed lines and a table without rows.
    """
    order = None if _header(path)[1] else _headerless(path)
    if order is None:
        table = _with_header(path)
    else:
        delimiter, meanings, fractions, kinds = order
        table = Rows(list(_without_header(path, delimiter, kinds)), meanings, fractions)
    if not table.rows:
        raise ValueError(f'"{path}" has no rows.')
    if not _have_decimal_commas(path, table.rows):
        return table
    rows = [row._replace(numbers=row.numbers and _with_points(row.numbers)) for row in table.rows]
    return dataclasses.replace(table, rows=rows)


def group_by_split(rows: Sequence[Row], path: str) -> dict[str, list[Row]]:
    """Groups rows by the column split; {} without one. Rows that say nothing are "train" unless others say something.

    Raises:
        ValueError: if only some rows are assigned to a split.
    """
    if "split" not in rows[0].cells:
        return {}
    splits: dict[str, list[Row]] = {}
    for row in rows:
        splits.setdefault(canonical(row.cells["split"]), []).append(row)
    loose = [name for name in splits if name.lower() in _UNASSIGNED]
    if loose and len(splits) == len(loose):
        return {"train": list(rows)}
    if loose:
        first, others = splits[loose[0]][0], sorted({*splits} - {*loose})
        raise ValueError(
            f'"{path}", line {first.line}: the split is not stated, but other rows have {listed(others)}. Write'
            " train, val or test in each row."
        )
    return splits


def image_name(text: str) -> str:
    """Returns an image's name with "/", normalised, without the drive, the bucket or a link's query."""
    name = text.replace("\\", "/")
    if "://" in name:
        name = name.partition("://")[2].partition("/")[2].partition("?")[0]
    return os.path.normpath(re.sub(r"^[A-Za-z]:", "", name))
