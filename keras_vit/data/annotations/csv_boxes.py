"""Tables of boxes: one row per object with image, class and four numbers; an image without objects has empty cells.

    PATH/train.csv, PATH/train/_annotations.csv, PATH/annotations/train_labels.csv..., or one file with a column split
    PATH/train-annotations-bbox.csv and class-descriptions-boxable.csv, or FiftyOne's PATH/train/labels/detections.csv
    PATH/train.jsonl, PATH/output.manifest                     Vertex AI, Azure, SageMaker: a JSON object for each image

box_rows.py lists the columns, box_numbers.py decides between pixels and fractions. An image may be named without its
ending, as Open Images does.
"""

import collections
import csv
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from keras_vit.data.annotations import annotation_files, box_json_lines, box_numbers, box_rows, schema
from keras_vit.data.annotations.box_rows import EMPTY, Row, Rows
from keras_vit.data.annotations.schema import AnnotatedImage, Annotations, Fault, Ignored, Layout, Region
from keras_vit.data.annotations.shared_images import count_shared
from keras_vit.data.sources.classes_file import read_class_names
from keras_vit.data.sources.image_files import ENDINGS, ending
from keras_vit.data.splits import SPLITS
from keras_vit.io.paths import read_text

_ENDINGS = (".csv", ".tsv", *box_json_lines.ENDINGS)
_PLAIN = "gt.txt"  # GTSDB's table
_DESCRIPTIONS = ("class-descriptions", "classes.csv")  # starts and ends of files of Open Images' class names
_MACHINE_ID = "/m/"


@dataclasses.dataclass(frozen=True)
class _Table:
    """A table, or the part of it that belongs to a split.

    Attributes:
        path, split: str. The file, and the split.
        load: callable. Returns the Rows of the file.
        choices: dict. The options images, units, box and classes.
        rows: list of Row. Rows of the split; None for all.
    """

    path: str
    split: str
    load: Callable[[str], Rows]
    choices: Mapping[str, str]
    rows: Sequence[Row] | None = None

    @property
    def split_rows(self) -> Sequence[Row]:
        return self.load(self.path).rows if self.rows is None else self.rows


def _is_table(path):
    end = path.lower().endswith
    if end(box_json_lines.ENDINGS):
        return box_json_lines.has_boxes(path)
    return (end(_ENDINGS) or os.path.basename(path).lower() == _PLAIN) and box_rows.has_boxes(path)


def _read(path) -> Rows:
    reader = box_json_lines.read_rows if path.lower().endswith(box_json_lines.ENDINGS) else box_rows.read_rows
    return reader(path)


def _in(folder):
    """Lists the tables in a folder, and in its folders "annotations" and "labels"."""
    folders = [folder, os.path.join(folder, "annotations"), os.path.join(folder, "labels")]
    found = (os.path.join(place, name) for place in folders for name in annotation_files.list_names(place))
    return [path for path in found if _is_table(path)]


def _tables(path):
    """Returns {split: table} in a folder.

    Raises:
        ValueError: if several contain one split.
    """
    splits = annotation_files.assign_splits(_in(path), path)
    for split, folder in annotation_files.split_folders(path).items():
        for table in _in(folder):
            if split in splits:
                raise ValueError(f'"{path}" has several tables for the split "{split}": {splits[split]}, {table}.')
            splits[split] = table
    return splits


def find(path: str, images: str = "", units: str = "", box: str = "", classes: str = "") -> Layout | None:
    """Finds tables of boxes in a folder, or opens the table `path`; None without any.

    Args:
        path: str. Folder or table, local or in a bucket.
        images: str. Folder of the images; "" to look for it.
        units: str. "fractions" or "pixels"; "" to decide by the numbers.
        box: str. A meaning of the numbers in box_numbers.MEANINGS; "" to decide by the columns and numbers.
        classes: str. A file with the name of the only class, for a table without a column of classes; else "".

    Raises:
        ValueError: if several tables contain one split.
    """
    choices = {"images": images, "units": units, "box": box, "classes": classes}
    alone = path.lower().endswith(_ENDINGS) or (path.lower().endswith(".txt") and box_rows.has_boxes(path))
    splits, load = {"train": path} if alone else _tables(path), functools.cache(_read)
    tables = [_Table(file, split, load, choices) for split, file in splits.items()]
    if len(tables) == 1:
        parts = box_rows.group_by_split(tables[0].split_rows, tables[0].path)
        tables = [dataclasses.replace(tables[0], split=split, rows=rows) for split, rows in parts.items()] or tables
    if not tables:
        return None
    readers = {table.split: functools.partial(read, table, tables) for table in tables}
    return Layout("CSV", "", readers, {table.split: _files(table) for table in tables})


def _files(table):
    """Lists the files that give a table's class names."""
    descriptions = _descriptions(table.path)
    return [table.path, descriptions] if descriptions else [table.path]


def _names(rows, path):
    """Returns {image's name: its rows}.

    Raises:
        ValueError: for a row without an image.
    """
    found: dict[str, list[Row]] = collections.defaultdict(list)
    for row in rows:
        if not row.cells["image"]:
            raise ValueError(f'"{path}", line {row.line}: the cell of the image is empty.')
        found[box_rows.image_name(row.cells["image"])].append(row)
    return found


class _Stems(annotation_files.FileIndex):
    """The image files that exist, by their names without ending."""

    def names(self, folder):
        names = (os.path.splitext(name) for name in super().names(folder) if ending(name) in ENDINGS)
        return frozenset(stem for stem, _ in names)


def _by_stem(folder, existing):
    found = collections.defaultdict(list)
    for name in sorted(existing.names(folder)):
        if ending(name) in ENDINGS:
            found[os.path.splitext(name)[0]].append(name)
    return found


def _image_paths(table, names, existing):
    """Returns the path of each named image.

    Raises:
        FileNotFoundError: if no image in a sample is found.
        ValueError: if a name stands for several files.
    """
    find_in = functools.partial(annotation_files.image_paths, table.path, table.split, table.choices["images"], names)
    if any(ending(name) in ENDINGS for name in names):
        return find_in(existing)
    stems = find_in(_Stems())
    by_folder = {folder: _by_stem(folder, existing) for folder in {os.path.dirname(stem) for stem in stems}}
    return [_with_ending(stem, by_folder[os.path.dirname(stem)]) for stem in stems]


def _with_ending(stem, by_stem):
    """Completes the path of an image without its ending; {stem: names} of its folder.

    Raises:
        ValueError: if several images have this name.
    """
    folder, name = os.path.split(stem)
    found = by_stem.get(name, ())
    if len(found) > 1:
        raise ValueError(f'"{stem}" may be any of {", ".join(found)}. Keep one.')
    return os.path.join(folder, found[0]) if found else stem


def _descriptions(path):
    """Returns Open Images' table of class names near a table, or ""."""
    folder = os.path.dirname(path)
    above = os.path.dirname(folder)
    places = [folder, above, os.path.join(folder, "metadata"), os.path.join(above, "metadata"), os.path.dirname(above)]
    found = (os.path.join(place, name) for place in places for name in annotation_files.list_names(place))
    return next((file for file in found if any(word in os.path.basename(file).lower() for word in _DESCRIPTIONS)), "")


def _class_names(table):
    """Returns {label in the table: class name}: Open Images' names of ids such as /m/01g317, or that of the only class.

    Raises:
        ValueError: for a table without labels, unless the option classes= names one class.
    """
    labels = {row.cells["label"] for row in table.split_rows if "label" in row.cells}
    if not any("label" in row.cells for row in table.split_rows):
        names = read_class_names(os.path.dirname(table.path), table.choices["classes"])
        if names is None or len(names) != 1:
            raise ValueError(
                f'"{table.path}": expected column names in the first line, which lacks label:'
                f" {' or '.join(box_rows.COLUMNS['label'])}. If all objects are of one class, write its name into a"
                " file and pass ?classes=FILE."
            )
        return {"": names[0]}
    file = _descriptions(table.path) if any(label.startswith(_MACHINE_ID) for label in labels) else ""
    cells = csv.reader(read_text(file).splitlines()) if file else ()
    return {row[0]: row[1].strip() for row in cells if len(row) == 2 and row[0].startswith(_MACHINE_ID)}


def _region(row: Row, label, meaning):
    """Makes a Region from a row; None for an image without objects.

    Raises:
        Fault: if a cell is missing or malformed.
    """
    name = f"line {row.line}"
    if row.numbers is None:
        raise Fault(f"{name}: expected a cell of four numbers")
    empty = [number.lower() in EMPTY for number in row.numbers]
    if all(empty):
        return None
    if any(empty) or label.lower() in EMPTY:
        what = "the label is" if not any(empty) else "a coordinate is"
        raise Fault(f"{name}: {what} empty, but other cells are not")
    crowd, difficult = (schema.is_set(row.cells.get(kind)) for kind in ("crowd", "difficult"))
    box = box_numbers.to_box(row.numbers, meaning, name)
    return Region(label, name, box=box, crowd=crowd, difficult=difficult)


def _read_image(image, rows: Sequence[Row], names, meaning, ignored):
    stated = {tuple(row.cells.get(side, "") for side in ("height", "width")) for row in rows}
    regions = []
    try:
        sizes = {schema.parse_size(*("" if side.lower() in EMPTY else side for side in sides)) for sides in stated}
        if len(sizes) > 1:
            raise Fault(f"its rows state several sizes (height, width): {sorted(sizes, key=str)}")
        size = sizes.pop()
        for row in rows:
            label = names.get(row.cells.get("label", ""), row.cells.get("label", ""))
            region = _region(row, label, meaning)
            if region is not None:
                regions.append(region)
            elif row.cells.get("label", "").lower() not in EMPTY:
                ignored[schema.NO_BOX].append(f"line {row.line} ({label})")
    except Fault as fault:
        return AnnotatedImage(image, None, [], str(fault))
    return AnnotatedImage(image, size, regions)


def _read_images(
    rows_by_image: Mapping[str, Sequence[Row]], names, meaning, existing, ignored
) -> Iterator[AnnotatedImage]:
    """Yields the AnnotatedImage of each image, {path: rows}, with an existing file."""
    for image, rows in rows_by_image.items():
        if image in existing:
            yield _read_image(image, rows, names, meaning, ignored)
        else:
            ignored[schema.MISSING].append(image)


def _images(table, existing, owner):
    """Returns {image file: its rows} of a table.

    Raises:
        ValueError: if two names, also of other tables in `owner`, {file: name}, stand for one file.
    """
    by_name = _names(table.split_rows, table.path)
    paths = _image_paths(table, list(by_name), existing)
    for name, path in zip(by_name, paths):
        annotation_files.check_owner(owner, path, name, table.path)
    return dict(zip(paths, by_name.values()))


def _images_of_other_splits(table, tables, existing, owner):
    """Returns {split: image files} of the other tables, but "train", the largest, is not read for the others."""
    found = {}
    for other in tables:
        if other.split == table.split or (other.split == SPLITS[0] and other.rows is None):
            continue
        try:
            found[other.split] = list(_images(other, existing, owner))
        except FileNotFoundError:  # reported when that split is opened
            continue
    return found


def read(table: _Table, tables: Sequence[_Table]) -> Annotations:
    """Reads the annotations in a table; its rows define the class names.

    Args:
        table: _Table. The split to read.
        tables: sequence of _Table. All splits.

    Raises:
        FileNotFoundError: if the table or all images are missing.
        ValueError: for missing columns, malformed lines, and numbers of unclear meaning.
    """
    existing, choices = annotation_files.FileIndex(), table.choices
    meaning, fractions = box_numbers.decide_meaning(
        table.load(table.path), table.path, choices["units"], choices["box"]
    )
    ignored: Ignored = collections.defaultdict(list)
    owner: dict[str, str] = {}
    names, rows = _class_names(table), _images(table, existing, owner)
    existing.add(os.path.dirname(file) for file in rows)
    count_shared(
        table.split, {table.split: list(rows), **_images_of_other_splits(table, tables, existing, owner)}, ignored
    )
    ignored[schema.NOT_LISTED] += annotation_files.unlisted_images(rows, existing) if len(tables) == 1 else []
    read = _read_images(rows, names, meaning, existing, ignored)
    return Annotations(read, None, fractions, table.path, ignored, read_as=box_numbers.describe(meaning, fractions))
