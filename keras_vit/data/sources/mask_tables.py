"""Tables of mask classes from datasets and labelling tools: names, stored values, colours.

classes.txt, class_names.txt       one name per line, or "7 road"
classes.csv (keras-vit predict)    class,name,red,green,blue
_classes.csv (Roboflow)            Pixel Value, Class
class_dict.csv, labelmap.csv       name,r,g,b; also as class_dict_seg.csv, label_class_dict.csv
class_mapping.csv (V7)             class_name,class_color: "128 0 0", or a value
label_colors.txt (CamVid)          64 128 64 Animal
labelmap.txt (CVAT)                cat:128,0,0::
objectInfo150.txt (ADE20K)         Idx, ..., Name, separated by tabs
dataset_meta.json (Datumaro)       label_map, segmentation_colors
obj_class_to_machine_color.json    Supervisely's: {"cat": [1, 1, 1]}
config.json (Mapillary)            labels with readable names and colours
"""

import csv
import dataclasses
import json
import os
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_vit.io.paths import locate, read_text

# Files to look for, best first.
FILES = (
    "_classes.csv",
    "class_dict.csv",
    "class_dict_seg.csv",
    "label_class_dict.csv",
    "classes.csv",
    "labelmap.csv",
    "label_map.csv",
    "class_mapping.csv",
    "labelmap.txt",
    "label_colors.txt",
    "objectInfo150.txt",
    "dataset_meta.json",
    "obj_class_to_machine_color.json",
    "classes.txt",
    "class_names.txt",
    "labels.txt",
)
_NAME = ("name", "class", "class_name", "class name", "label", "label_name")
_VALUE = ("pixel value", "pixel_value", "value", "id", "idx", "index", "label_id", "class_id", "class")
_COLORS = ("class_color", "color", "colour", "rgb")  # red, green and blue in one column, or a grey value
_OWN = ["class", "name", "red", "green", "blue"]  # the header that keras_vit.inference.predict_masks writes
_CHANNELS = (("r", "red"), ("g", "green"), ("b", "blue"))
_COLOR = r"(\d{1,3})[\s,;]+(\d{1,3})[\s,;]+(\d{1,3})"
_COLOR_FIRST = re.compile(rf"{_COLOR}[\s,;:]+(\S.*)")
_COLOR_LAST = re.compile(rf"(\S.*?)[\s,;:]+{_COLOR}(?::.*)?")
_VALUE_FIRST = re.compile(r"(\d+)[\s,;:]+(\S.*)")
_VOID = re.compile(r"_*(void|unlabell?ed|ignored?|undefined|unknown|don'?t ?care|no ?data|out of roi)_*", re.IGNORECASE)


def is_void_name(name: str) -> bool:
    """Whether a class name means pixels without a class."""
    return _VOID.fullmatch(name.strip()) is not None


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of classes.

    Attributes:
        path: str. Path of its file; "" for a built-in table.
        names: tuple of str. Names in order, including void.
        values: tuple of int. Values in grey masks and palettes, one per name; None for 0, 1, 2...
        colors: tuple of (red, green, blue), one per name, or None.
        void: tuple of int. Stored values of pixels without a class.
        exact: bool. Whether all names are classes, even one that usually means void.
    """

    path: str
    names: tuple[str, ...]
    values: tuple[int, ...] | None = None
    colors: tuple[tuple[int, int, int], ...] | None = None
    void: tuple[int, ...] = ()
    exact: bool = False


def _column(header, words, other=None):
    """Returns the position of the first column, except `other`, named by one of `words`, or None."""
    plain = [cell.strip().lower() for cell in header]
    return next((i for word in words for i, cell in enumerate(plain) if cell == word and i != other), None)


def _in_one_column(rows, column):
    """Returns (values, colours) of a column of colours "128 0 0" or of values; the other is None."""
    numbers = [tuple(map(int, re.findall(r"\d+", row[column]))) for row in rows]
    if all(len(color) == 3 for color in numbers):
        return None, tuple(numbers)
    return tuple(number for (number,) in numbers), None


def _parse_columns(path, lines):
    """Reads a Table from a file with a header line; None without a header."""
    delimiter = next((d for d in "\t,;" if d in lines[0]), ",")
    rows = list(csv.reader(lines, delimiter=delimiter))
    header = rows[0]
    name = _column(header, _NAME)
    value, color = _column(header, _VALUE, name), _column(header, _COLORS)
    channels = [_column(header, words) for words in _CHANNELS]
    if name is None or (value is None and color is None and None in channels and len(header) > 1):
        return None
    rows = [row for row in rows[1:] if any(cell.strip() for cell in row)]
    try:
        names = tuple(row[name].strip() for row in rows)
        values = None if value is None else tuple(int(row[value]) for row in rows)
        colors = None if None in channels else tuple(tuple(int(row[c]) for c in channels) for row in rows)
        if color is not None and colors is None:
            alone, colors = _in_one_column(rows, color)
            values = alone if values is None else values
    except (IndexError, ValueError) as error:
        raise ValueError(f'"{path}" has a line that does not match its header {header}: {error}.') from None
    exact = [cell.strip() for cell in header] == _OWN
    if exact and len(set(colors)) < len(colors):  # the numbers alone define the classes
        colors = None
    return Table(path, names, values, colors, exact=exact)


def _parse_codes(colors: dict[str, Sequence[int]], path: str) -> Table:
    """Returns the Table of names with colours, of which equal channels are grey values, above a background of 0."""
    if not all(len(set(color)) == 1 for color in colors.values()):
        return Table(path, tuple(colors), None, tuple((red, green, blue) for red, green, blue in colors.values()))
    values = {name: color[0] for name, color in colors.items()}
    values = values if 0 in values.values() else {"background": 0, **values}
    return Table(path, tuple(values), tuple(values.values()))


def _parse_meta(content, path):
    """Returns the Table of Datumaro's dataset_meta.json."""
    labels = content["label_map"]
    labels = dict(enumerate(labels)) if isinstance(labels, list) else {int(key): name for key, name in labels.items()}
    colors = content.get("segmentation_colors") or []
    fits = len(colors) == len(labels) and sorted(labels) == list(range(len(labels)))
    names = tuple(str(labels[number]) for number in sorted(labels))
    return Table(path, names, tuple(sorted(labels)), tuple(map(tuple, colors)) if fits else None)


def _parse_json(path: str, text: str) -> Table | None:
    """Reads a Table from a JSON file; None for other content."""
    try:
        content: Any = json.loads(text)
        if not isinstance(content, dict) or not content:
            return None
        if "label_map" in content:
            return _parse_meta(content, path)
        if isinstance(content.get("labels"), list):
            rows = content["labels"]
            short, names = (tuple(str(row[key]) for row in rows) for key in ("readable", "name"))
            colors = tuple((row["color"][0], row["color"][1], row["color"][2]) for row in rows)
            names = short if len(set(short)) == len(short) else names
            return Table(path, names, None, colors if len(set(colors)) == len(colors) else None)
        if all(isinstance(color, list) and len(color) == 3 for color in content.values()):
            return _parse_codes(content, path)
        if all(key.isdecimal() and isinstance(name, str) for key, name in content.items()):
            return Table(path, tuple(content.values()), tuple(map(int, content)))
    except (json.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f'"{path}" is not a table of classes: {error!r}.') from None
    return None


def _parse_lines(path, lines):
    """Reads a Table from a file without a header."""
    lines = [line.strip() for line in lines if not re.match(r"#(?![0-9a-fA-F]{6}\b)", line.strip())]
    for pattern, name in ((_COLOR_FIRST, 4), (_COLOR_LAST, 1)):
        matches = [pattern.fullmatch(line) for line in lines]
        if lines and all(matches):
            start = 1 if name == 4 else 2
            colors = tuple(tuple(int(match[i]) for i in range(start, start + 3)) for match in matches)
            return Table(path, tuple(match[name].strip() for match in matches), None, colors)
    matches = [_VALUE_FIRST.fullmatch(line) for line in lines]
    if lines and all(matches):
        return Table(path, tuple(match[2].strip() for match in matches), tuple(int(match[1]) for match in matches))
    # LabelMe's first line means -1, stored as 255.
    return Table(path, tuple(line for line in lines if line != "__ignore__"))


def _checked(table):
    """Checks the names, values and colours of a table and returns it."""
    what = {"name": table.names, "value": table.values or (), "colour": table.colors or ()}
    for noun, items in what.items():
        twice = sorted({item for item in items if items.count(item) > 1})
        if twice:
            raise ValueError(f'"{table.path}" has a {noun} twice: {twice[:3]}. Give each class a different {noun}.')
    wrong = [color for color in table.colors or () if max(color) > 255]
    if wrong:
        raise ValueError(f'"{table.path}": expected red, green and blue from 0 to 255, got {wrong[0]}.')
    if not table.names or not all(table.names):
        raise ValueError(
            f'"{table.path}" has {"an empty name" if table.names else "no names"}. Give each class a name.'
        )
    return table


def read_table(path: str) -> Table:
    """Reads a Table from a file in one of the formats above.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is empty, or repeats a name, value or colour.
    """
    found = _recognized(path)
    if found is None:
        raise ValueError(f'"{path}" is not a table of classes. Expected lines such as "road" or "road,128,64,128".')
    return found


def _recognized(path):
    """`read_table`, or None for a CSV or JSON file of something else."""
    text = unicodedata.normalize("NFC", read_text(path))
    if path.lower().endswith(".json"):
        table = _parse_json(path, text)
        return None if table is None else _checked(table)
    lines = [line for line in text.splitlines() if line.strip()]
    table = _parse_columns(path, lines) if lines else None
    if table is None and path.lower().endswith(".csv") and lines:
        table = _parse_lines(path, lines)
        return _checked(table) if table.colors or table.values or not any("," in name for name in table.names) else None
    table = table or _parse_lines(path, lines)
    if os.path.basename(path) == "objectInfo150.txt":  # synonyms: "building, edifice"
        first = tuple(name.partition(",")[0] for name in table.names)
        table = dataclasses.replace(table, names=first) if len(set(first)) == len(first) else table
    return _checked(table)


def _with_colors(names, table):
    """Returns the Table `names` with the colours of `table`; None if a name has no colour."""
    numbers = {name.lower(): i for i, name in enumerate(table.names)}
    if not {name.lower() for name in names.names} <= numbers.keys():
        return None
    return dataclasses.replace(names, colors=tuple(table.colors[numbers[name.lower()]] for name in names.names))


def find_table(root: str, classes: str, colors: str, search: bool = True, near: Sequence[str] = ()) -> Table | None:
    """Finds the Table of the options, or of a file in the folder; None without one.

    Args:
        root: str. The folder.
        classes: str. A file, or a number of classes; "" to look for a file.
        colors: str. A file with colours; "" to look for one.
        search: bool. Whether to look for files that the options do not name.
        near: sequence of str. Folders to search before the root, such as that of the masks.

    Raises:
        FileNotFoundError, ValueError: as read_table; also if names and colours belong to different classes.
    """
    if classes.isdecimal():
        named = Table("", tuple(str(i) for i in range(int(classes))))
    else:
        named = read_table(locate(classes, root)) if classes else None
    colored = read_table(locate(colors, root)) if colors else None
    if colored is not None and colored.colors is None:
        raise ValueError(f'"{colored.path}" has no colours. Expected lines such as "road,128,64,128".')
    places = [root, *(os.path.join(root, part) for part in ("train", "SegmentationClass"))]
    paths = [os.path.join(place, name) for place in near for name in FILES]
    paths += [os.path.join(place, name) for name in FILES for place in places]
    existing = [path for path in dict.fromkeys(paths) if search and tf.io.gfile.exists(path)]
    found = [_recognized(path) for path in existing if (named is None or colored is None)]
    found = [table for table in found if table is not None]
    if named is None:
        named = next((table for table in found if table.colors is None or colored is None), None)
    if named is None or named.colors is not None:
        plain = next((table for table in found if table.colors is None), None) if named is not None else None
        ordered = _with_colors(plain, named) if plain is not None and not classes else None
        return ordered or named or colored
    if colored is None:
        fitting = (_with_colors(named, table) for table in found if table.colors is not None)
        return next((table for table in fitting if table is not None), named)
    table = _with_colors(named, colored)
    if table is None:
        missing = [name for name in named.names if name.lower() not in {other.lower() for other in colored.names}]
        raise ValueError(f'"{colored.path}" has no colours for {missing[:5]} of "{named.path}": add them.')
    return table


# Cityscapes' classes: (name, stored label id, colour); all other ids are void.
_CITYSCAPES = (
    ("road", 7, (128, 64, 128)),
    ("sidewalk", 8, (244, 35, 232)),
    ("building", 11, (70, 70, 70)),
    ("wall", 12, (102, 102, 156)),
    ("fence", 13, (190, 153, 153)),
    ("pole", 17, (153, 153, 153)),
    ("traffic light", 19, (250, 170, 30)),
    ("traffic sign", 20, (220, 220, 0)),
    ("vegetation", 21, (107, 142, 35)),
    ("terrain", 22, (152, 251, 152)),
    ("sky", 23, (70, 130, 180)),
    ("person", 24, (220, 20, 60)),
    ("rider", 25, (255, 0, 0)),
    ("car", 26, (0, 0, 142)),
    ("truck", 27, (0, 0, 70)),
    ("bus", 28, (0, 60, 100)),
    ("train", 31, (0, 80, 100)),
    ("motorcycle", 32, (0, 0, 230)),
    ("bicycle", 33, (119, 11, 32)),
)


def cityscapes(train_ids: bool) -> Table:
    """Returns Cityscapes' 19 classes by label id, or by training id 0..18."""
    names, values, colors = zip(*_CITYSCAPES)
    if train_ids:
        return Table("", names, None, colors)
    return Table("", names, values, colors, tuple(sorted(set(range(34)) - set(values))))


_VOC = (
    "background aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike person"
    " pottedplant sheep sofa train tvmonitor"
)


def _voc_color(number):
    """Returns VOC's colour of a class: the bits of its number, dealt to the three channels from the top."""
    channels = [0, 0, 0]
    for bit in range(8):
        for c in range(3):
            channels[c] |= (number >> 3 * bit + c & 1) << 7 - bit
    return tuple(channels)


def palette_of_voc(count: int) -> tuple[tuple[int, int, int], ...]:
    """Returns the first colours of VOC's palette, which labelling tools use for any classes."""
    return tuple(map(_voc_color, range(count)))


def voc() -> Table:
    """Returns VOC's 21 classes."""
    names = tuple(_VOC.split())
    return Table("", names, None, palette_of_voc(len(names)))
