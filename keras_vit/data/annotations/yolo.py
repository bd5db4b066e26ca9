"""YOLO text files, as written by Ultralytics, Roboflow, CVAT, Label Studio and LabelImg.

    PATH/data.yaml: names, and for train, val and test a folder, a list of folders, or a text file of image paths
    PATH/classes.txt or PATH/obj.names: names, a line for each, in exports without data.yaml
    .../images/a.jpg and .../labels/a.txt: on each line a class number and x y x y..., fractions of width and height;
                                                for boxes also centre x, centre y, width, height

An image with an empty or no text file has no regions. YOLO does not order lines: smaller regions are above larger
ones, as Ultralytics draws overlapping masks.
"""

import collections
import dataclasses
import functools
import os
import re
from collections.abc import Iterator

import numpy as np
import tensorflow as tf
import yaml

from keras_vit.data.annotations import files, form
from keras_vit.data.annotations.form import Annotations, Fault, Ignored, Layout, Picture, Region
from keras_vit.data.sources.class_names import class_names
from keras_vit.data.sources.image_files import ENDINGS, ending
from keras_vit.data.splits import SPLITS, canonical
from keras_vit.io.paths import in_threads, read_text
from keras_vit.io.suggest import counted, listed

OVERLAPS = "larger regions below smaller ones"
_BOX = 5  # numbers on a line for detection: class, centre x and y, width, height
_MOST = 2.0  # larger coordinates are pixels, not fractions
_NAMES = re.compile(r"^\s*names\s*:", re.MULTILINE)  # other YAML files are not read
_ABSOLUTE = re.compile(r"/|[A-Za-z]:/")
_KEYS = ("train", "val", "valid", "validation", "test")
_LISTS = ("obj.names", "classes.txt", "labels/classes.txt")  # of class names, without a data.yaml


def _yaml(path):
    """Reads the mapping in a YAML file.

    Raises:
        ValueError: if it is not YAML, with the line, or not a mapping.
    """
    try:
        content = yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise ValueError(f'"{path}"{where}: not YAML: {getattr(error, "problem", None) or error}.') from None
    if not isinstance(content, dict):
        raise ValueError(f'"{path}": expected a mapping with names, train and val, got {str(content)[:60]}.')
    return content


def _names(content, path):
    """Returns the class names, in order.

    Raises:
        ValueError: if they are missing, repeated, not numbered from 0, or contradict nc.
    """
    names = content.get("names")
    if isinstance(names, dict):
        if sorted(names, key=str) != sorted(range(len(names)), key=str):
            raise ValueError(f'"{path}": expected names numbered 0, 1, 2..., got {listed(list(map(str, names)))}.')
        names = [names[number] for number in range(len(names))]
    if not isinstance(names, list) or not names:
        raise ValueError(f'"{path}": expected names, a list of classes, got {str(names)[:60]}.')
    names = [str(name).strip() for name in names]
    if len(set(names)) < len(names) or not all(names):
        raise ValueError(f'"{path}": class names must be unique: {listed(names)}.')
    if content.get("nc", len(names)) != len(names):
        raise ValueError(f'"{path}": nc is {content["nc"]}, but there are {counted(len(names), "name")}.')
    return tuple(names)


def _place(root, base, text):
    """Resolves a path in data.yaml, or returns "". Roboflow's start with "../" but are relative to its folder.

    Of an absolute path on another machine, the longest end of two parts or more that exists below `root` counts.
    """
    text = str(text).replace("\\", "/")
    if text == ".":
        return base
    plain = text
    while plain.startswith(("../", "./")):
        plain = plain.partition("/")[2]
    short = plain.partition("/")[2]  # CVAT's list "data/images/train/a.jpg", and "datasets/NAME/images"
    choices = [os.path.join(base, text), os.path.join(root, text), os.path.join(root, plain)]
    choices += [os.path.join(root, short)] if short else []
    parts = text.split("/") if _ABSOLUTE.match(text) else []
    choices += [os.path.join(root, *parts[i:]) for i in range(1, len(parts) - 1)]
    return next((choice for choice in choices if tf.io.gfile.exists(choice)), "")


@dataclasses.dataclass(frozen=True)
class _Described:
    """A data.yaml: its folder, the base of its paths, its path, class names, and whether key points follow boxes."""

    root: str
    base: str
    path: str
    names: tuple[str, ...]
    poses: bool


def _image_files(described, texts, split):
    """Lists the image files of a split.

    Raises:
        FileNotFoundError: if a folder or list does not exist.
    """
    root, base, path, found = described.root, described.base, described.path, []
    for text in texts if isinstance(texts, list) else [texts]:
        place = _place(root, base, text)
        if not place:
            raise FileNotFoundError(
                f'"{path}": {split} is "{text}", but "{root}" has no such folder or file.'
                f" Write it relative to that folder, such as {split}: {split}/images."
            )
        if place.lower().endswith(".txt"):
            lines = [line.strip() for line in read_text(place).splitlines() if line.strip()]
            found += [_place(root, base, line) or os.path.join(root, line) for line in lines]
        else:
            walked = tf.io.gfile.walk(place)
            found += [os.path.join(folder, n) for folder, _, names in walked for n in names if ending(n) in ENDINGS]
    return sorted(dict.fromkeys(file for file in found if not os.path.basename(file).startswith(".")))


def _label_file(image):
    """Returns the text file of an image: in the folder "labels" next to "images", or next to the image."""
    before, images, after = image.rpartition("/images/")
    return os.path.splitext(f"{before}/labels/{after}" if images else image)[0] + ".txt"


def _below(root, name):
    """Yields the names in a folder and its subfolders."""
    for entry in files.names_in(os.path.join(root, name)):
        yield entry
        yield from files.names_in(os.path.join(root, name, entry)) if "." not in entry else ()


def _has_texts(root):
    """Whether the folder "labels" has text files of regions, rather than masks."""
    return any(name.endswith(".txt") and name != "classes.txt" for name in _below(root, "labels"))


def _from_list(root, names):
    """Describes an export with a list of class names instead of data.yaml: {that list: a mapping like data.yaml's}.

    CVAT writes obj.names and lists of images; Label Studio and LabelImg write classes.txt. {} for other folders.
    """
    lists = [name for name in _LISTS if tf.io.gfile.exists(os.path.join(root, name))]
    pictures = {os.path.splitext(name)[0] for name in names if ending(name) in ENDINGS}
    beside = any(name.endswith(".txt") and name[:-4] in pictures for name in names)
    apart = "images" in names and _has_texts(root)
    if not lists or not (beside or "obj.names" in names or apart):
        return {}
    if lists[0] == "obj.names":
        splits = {key: f"{key}.txt" for key in _KEYS if f"{key}.txt" in names}
    else:
        images = "." if beside else "images"
        inside = files.names_in(os.path.join(root, images))
        splits = {key: f"{images}/{key}" for key in _KEYS if key in inside} or {"train": images}
    return {lists[0]: {"names": list(class_names(root, lists[0]) or ()), **(splits or {"train": "."})}}


def find(path: str, boxes: bool = False) -> Layout | None:
    """Finds the annotations described by a folder's data.yaml or list of classes, or the YAML file `path`.

    Args:
        path: str. Folder or file, local or in a bucket.
        boxes: bool. Whether to read boxes instead of outlined regions.

    Returns:
        Layout, or None for other folders and files.

    Raises:
        ValueError: for folders "images" and "labels" without names of classes.
    """
    root = os.path.dirname(path) if path.lower().endswith((".yaml", ".yml")) else path
    names = files.names_in(root)
    found = [os.path.basename(path)] if root != path else [n for n in names if n.lower().endswith((".yaml", ".yml"))]
    found = [name for name in found if _NAMES.search(files.start_of(os.path.join(root, name)))]
    contents = {name: _yaml(os.path.join(root, name)) for name in found}
    contents = {name: content for name, content in contents.items() if "names" in content}
    contents = contents or _from_list(root, names)
    if not contents:
        if "images" in names and _has_texts(root):
            raise ValueError(
                f'"{root}" has YOLO images and labels, but no data.yaml with the class names. Add one: "names:'
                ' [cat, dog]", "train: images/train", "val: images/val".'
            )
        return None
    name = "data.yaml" if "data.yaml" in contents else next(iter(contents))
    content, file = contents[name], os.path.join(root, name)
    base = str(content.get("path") or "")
    base = base if base.startswith("/") and tf.io.gfile.isdir(base) else os.path.join(root, base.lstrip("/"))
    splits = {canonical(key): content[key] for key in _KEYS if content.get(key)}
    if not splits:
        raise ValueError(f'"{file}" names no folder of images for {", ".join(SPLITS)}.')
    classes = _names(content, file)
    described = _Described(root, base, file, classes, "kpt_shape" in content)
    readers = {split: functools.partial(read, described, texts, split, boxes) for split, texts in splits.items()}
    return Layout("YOLO", OVERLAPS, readers, dict.fromkeys(splits, [file]), classes)


def _centred(values, name):
    """Converts centre x, centre y, width, height to a Box."""
    x, y, width, height = values
    return form.box((x - width / 2, y - height / 2, x + width / 2, y + height / 2), name)


def _region(line, number, names, path, ignored, boxes):
    """Makes a Region from a line.

    Raises:
        ValueError: for an unknown class.
        Fault: if the rest is malformed.
    """
    first, *rest = line.split()
    name = f"line {number}"
    if not first.isdecimal() or int(first) >= len(names):
        raise ValueError(
            f'"{path}", line {number}: expected a class from 0 to {len(names) - 1}, got "{first[:20]}". The classes'
            f" are {listed(names)}, numbered from 0."
        )
    if len(rest) + 1 == _BOX and not boxes:
        raise Fault(f"{name} is a box of 4 numbers; boxes are for object detection (boxes:PATH)")
    try:
        values = [float(value) for value in rest]
    except ValueError:
        raise Fault(f"{name}: expected numbers x y x y..., got {line[:60]!r}") from None
    is_box = len(values) + 1 == _BOX
    if boxes and len(values) % 2:
        raise Fault(
            f"{name}: expected the 4 numbers of a box, or pairs x y of a polygon, got {len(values)}; leave out a"
            " confidence, and for key points state kpt_shape in data.yaml"
        )
    points = form.polygon(values, name)
    if len(points) and np.abs(points).max() > _MOST:
        raise Fault(f"{name}: expected fractions of width and height, 0 to 1, got {np.abs(points).max():g}")
    if is_box:
        return Region(names[int(first)], name, box=_centred(values, name))
    polygons = form.with_area([points], f'{name} of "{path}"', ignored)
    return Region(names[int(first)], name, polygons)


def _picture(image, path, text, names, ignored, boxes):
    """Makes the Picture of an image, with regions in the order of OVERLAPS, and boxes in that of the file."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    try:
        regions = [_region(line, number, names, path, ignored, boxes) for number, line in lines]
    except Fault as fault:
        return Picture(image, None, [], f'"{path}", {fault}')
    if boxes:
        return Picture(image, None, regions)
    regions.sort(key=lambda region: -region.area)
    return form.checked(Picture(image, None, regions), ignored, fractions=True)


def _pictures(images, names, ignored, texts, boxes) -> Iterator[Picture]:
    for image in images:
        path = _label_file(image)
        yield _picture(image, path, texts.pop(path, ""), names, ignored, boxes)


def _without_points(text):
    """The boxes of a text file of poses, without the key points that follow them."""
    return "\n".join(" ".join(line.split()[:_BOX]) for line in text.splitlines())


def _check_texts(texts, path, split, boxes):
    """Raises ValueError if all lines are boxes and `boxes` is false, or if nothing is annotated.

    For `boxes`, empty files are those of images without objects.
    """
    lines = (line.split() for text in texts.values() for line in text.splitlines() if line.strip())
    lengths = [len(line) for line in lines]
    if lengths and set(lengths) == {_BOX} and not boxes:
        raise form.OnlyBoxes(
            f'"{path}": all {counted(len(lengths), "line")} of {split} are boxes, which are for object detection'
            " (boxes:PATH). Export the data with polygons (YOLO segmentation)."
        )
    if not lengths and not (boxes and texts):
        raise ValueError(
            f'"{path}": the images of {split} have no annotations. Expected text files in a folder "labels" next to'
            ' "images", or next to the images.'
        )


def read(described: _Described, texts: str | list[str], split: str, boxes: bool = False) -> Annotations:
    """Reads the annotations of a split.

    Args:
        described: _Described. The data.yaml.
        texts: str or list of str. Folders or lists of images, as named there.
        split: str. Name in messages.
        boxes: bool. Whether to read boxes instead of outlined regions.

    Raises:
        FileNotFoundError: if no image is found.
        ValueError: without annotations or outlines, and, later, for unknown classes.
    """
    path, names, existing = described.path, described.names, files.Existing()
    ignored: Ignored = collections.defaultdict(list)
    images = _image_files(described, texts, split)
    labels = {image: _label_file(image) for image in images}
    existing.list(os.path.dirname(file) for pair in labels.items() for file in pair)
    ignored[form.MISSING] += [image for image in images if image not in existing]
    images = [image for image in images if image in existing]
    if not images:
        raise FileNotFoundError(f'"{path}": no images of {split} were found.')
    wanted = [labels[image] for image in images if labels[image] in existing]
    contents = dict(zip(wanted, in_threads(read_text, wanted)))
    if described.poses:
        contents = {file: _without_points(text) for file, text in contents.items()}
    _check_texts(contents, path, split, boxes)
    for folder in sorted({os.path.dirname(file) for file in wanted}):
        mine = {os.path.basename(file) for file in wanted}
        others = [name for name in sorted(existing.names(folder) - mine) if name.endswith(".txt")]
        ignored[form.NO_IMAGE] += [os.path.join(folder, name) for name in others if name not in ("classes.txt",)]
    return Annotations(_pictures(images, names, ignored, contents, boxes), names, True, path, ignored)
