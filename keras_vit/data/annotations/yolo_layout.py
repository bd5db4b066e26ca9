"""Finds the splits and class names of a YOLO export: in a YAML file, in Darknet's files, or in names of folders."""

import collections
import dataclasses
import os
import re
from collections.abc import Iterable

import yaml

from keras_vit.data.annotations import annotation_files
from keras_vit.data.sources.classes_file import read_class_names
from keras_vit.data.sources.image_files import ENDINGS, ending
from keras_vit.data.splits import SPLITS, canonical
from keras_vit.io.paths import read_text
from keras_vit.io.suggest import counted, listed

_YAML = (".yaml", ".yml")
_KEYS = ("train", "val", "valid", "validation", "test")
_NAMES_KEY = re.compile(r"^names\s*:", re.MULTILINE)  # other YAML files are not read
_SPLITS_KEY = re.compile(rf"^(?:{'|'.join(_KEYS)})\s*:", re.MULTILINE)
_NOTHING = ("", "~", "null", "none")
_LISTS = ("obj.names", "classes.txt", "_darknet.labels", "classes.names")  # of class names
_SUBSET = re.compile(r"obj_(.+)_data", re.IGNORECASE)  # CVAT's folders
_LINE = re.compile(r"\d+(?:\s+-?[\d.]+(?:e-?\d+)?){4,}\s*", re.IGNORECASE)
_TRIED = 5  # text files to look into


@dataclasses.dataclass(frozen=True)
class Export:
    """A YOLO export.

    Attributes:
        root: str. Its folder.
        base: str. The folder that paths in it start from.
        path: str. The file that describes it.
        names: tuple of str. Class names.
        splits: dict. Folders of images, or text files of their paths, of each split.
        key_points: bool. Whether key points follow boxes; None if nothing says so.
        inferred: bool. Whether all images are "train" because nothing lists splits.
    """

    root: str
    base: str
    path: str
    names: tuple[str, ...]
    splits: dict[str, list[str]]
    key_points: bool | None = None
    inferred: bool = False


class _Texts(yaml.BaseLoader):
    """Reads scalars as text: a class may be called yes, null or 007."""

    def construct_mapping(self, node, deep=False):
        keys = [str(key.value) for key, _ in node.value]
        again = next((key for key in keys if keys.count(key) > 1), None)
        if again is not None:
            raise yaml.constructor.ConstructorError(None, None, f'"{again}" occurs twice', node.start_mark)
        return super().construct_mapping(node, deep)


def _yaml(path):
    """Reads the mapping in a YAML file.

    Raises:
        ValueError: if it is not YAML, with the line, or not a mapping.
    """
    try:
        content = yaml.load(read_text(path), _Texts)
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
        numbered = {int(number): name for number, name in names.items() if number.isdecimal()}
        if len(numbered) < len(names) or sorted(numbered) != list(range(len(names))):
            raise ValueError(f'"{path}": expected names numbered 0, 1, 2..., got {listed(list(names))}.')
        names = [numbered[number] for number in range(len(names))]
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f'"{path}": expected names, a list of classes, got {str(names)[:60]}.')
    names = [name.strip() for name in names]
    if len(set(names)) < len(names) or not all(names):
        raise ValueError(f'"{path}": class names must be unique: {listed(names)}.')
    if (content.get("nc") or str(len(names))).strip() != str(len(names)):
        raise ValueError(f'"{path}": nc is {content["nc"]}, but there are {counted(len(names), "name")}.')
    return tuple(names)


def _yaml_splits(content, path):
    """Returns {split: folders or lists} of a YAML file.

    Raises:
        ValueError: for two entries of one split.
    """
    splits: dict[str, list[str]] = {}
    for key in _KEYS:
        value = content.get(key) or []
        values = [text for text in ([value] if isinstance(value, str) else value) if text.lower() not in _NOTHING]
        if values and splits.get(canonical(key), values) != values:
            raise ValueError(f'"{path}" has two entries for the split "{canonical(key)}". Remove {key}.')
        splits |= {canonical(key): values} if values else {}
    return splits


def _read_yaml_export(path, names=None):
    """Makes the Export of a YAML file; `names`, if given, replace the class names in it.

    Raises:
        ValueError: without names or splits.
    """
    root, content = os.path.dirname(path), _yaml(path)
    base = content.get("path") or ""
    whole = base.startswith("/") and bool(annotation_files.list_names(base))
    splits = _yaml_splits(content, path)
    if not splits:
        raise ValueError(f'"{path}" names no folder of images for {", ".join(SPLITS)}.')
    base = base if whole else os.path.join(root, base.lstrip("/"))
    names = _names(content, path) if names is None else names
    return Export(root, base, path, names, splits, "kpt_shape" in content or None)


def _yaml_file(path, pattern):
    """Returns the YAML file at `path`, or in that folder, whose start matches; "" without one.

    Raises:
        ValueError: for several without a data.yaml.
    """
    root, name = os.path.split(path) if path.lower().endswith(_YAML) else (path, "")
    names = [name] if name else [name for name in annotation_files.list_names(root) if name.lower().endswith(_YAML)]
    starts = {name: annotation_files.read_start(os.path.join(root, name)).lstrip("\ufeff") for name in names}
    names = [name for name, start in starts.items() if pattern.search(start)]
    if len(names) > 1 and "data.yaml" not in names:
        raise ValueError(f'"{root}" has several YAML files of class names: {listed(names)}. Open one of them.')
    return os.path.join(root, "data.yaml" if "data.yaml" in names else names[0]) if names else ""


def _split(word):
    """Returns the split that a word means, in any case; the word itself for others."""
    return canonical(word) if canonical(word) in SPLITS else word


def _lists_images(path):
    """Whether a text file lists images."""
    first = annotation_files.read_start(path).lstrip("\ufeff").split("\n", 1)[0].strip()
    return ending(first) in ENDINGS


def _read_darknet_data(root, entries):
    """Returns ({split: list}, file of class names) of Darknet's file obj.data, which has lines such as train = PATH."""
    path = next((os.path.join(root, name) for name in entries if name.lower().endswith(".data")), "")
    pairs = [line.split("=", 1) for line in annotation_files.read_start(path).splitlines() if "=" in line]
    values = {key.strip(): value.strip() for key, value in pairs}
    names = os.path.basename(values.get("names", "").replace("\\", "/"))
    return {_split(key): value for key, value in values.items() if _split(key) in SPLITS}, names


def _chosen(root, kinds):
    """Returns {split: [folder or list]} from kinds of places, {split: names}, the preferred kind first.

    Raises:
        ValueError: for several of one kind.
    """
    splits: dict[str, list[str]] = {}
    for kind in kinds:
        for split, names in kind.items():
            if len(names) > 1:
                raise ValueError(f'"{root}" has several lists or folders of one split: {listed(names)}. Merge them.')
            splits.setdefault(split, names)
    return splits


def _places(root, entries):
    """Returns {split: [folder or list of images]} in an export without a YAML file; {} if nothing names splits."""
    lists, subsets, folders, inner = (collections.defaultdict(list) for _ in range(4))
    for name in entries:
        stem, end = os.path.splitext(name)
        subset = _SUBSET.fullmatch(name)
        if subset:
            listing = f"{subset[1]}.txt"
            subsets[_split(subset[1])].append(listing if listing in entries else name)
        elif end.lower() == ".txt" and _split(stem) in SPLITS and _lists_images(os.path.join(root, name)):
            lists[_split(stem)].append(name)
        elif not end and _split(name) in SPLITS:
            folders[_split(name)].append(name)
    for images in (name for name in entries if name.lower() == "images"):
        for name in annotation_files.list_names(os.path.join(root, images)):
            if _split(name) in SPLITS:
                inner[_split(name)].append(f"{images}/{name}")
    splits = _chosen(root, (lists, subsets, inner or folders))
    return {"train": next(iter(splits.values()))} if len(splits) == 1 and not splits.keys() & set(SPLITS) else splits


def _folders(root, splits):
    """Lists the folders that may have images and text files side by side."""
    named = [name for names in splits.values() for name in names if not name.lower().endswith(".txt")]
    return [root, *(os.path.join(root, name) for name in named)]


def _labels_beside_images(folder):
    """Lists the text files in a folder that have the name of an image."""
    names = annotation_files.list_names(folder)
    annotated_images = {os.path.splitext(name)[0] for name in names if ending(name) in ENDINGS}
    return [os.path.join(folder, name) for name in names if name.endswith(".txt") and name[:-4] in annotated_images]


def _labels_in_folder(root):
    """Lists the text files in the folder "labels", or its subfolders, next to a folder "images"."""
    by_name = {name.lower(): name for name in annotation_files.list_names(root)}
    if "images" not in by_name or "labels" not in by_name:
        return []
    return [
        path
        for path in annotation_files.find_files(os.path.join(root, by_name["labels"]), ".txt")
        if not is_name_list(path)
    ]


def is_name_list(path: str) -> bool:
    """Whether a file lists class names, judged by its name."""
    return os.path.basename(path).lower() in (*_LISTS, "labels.txt")


def _name_files(root, entries, folders, named):
    """Lists the files of class names: the one that obj.data names, those in the export, or those of its folders."""
    names = [named] if named in entries else [name for word in _LISTS for name in entries if name.lower() == word]
    names = names or [name for name in entries if name.lower().endswith(".names")]
    if names:
        return [os.path.join(root, names[0])]
    places = [os.path.join(root, name) for name in entries if name.lower() == "labels"] + folders[1:]
    found = ((place, name) for place in places for name in annotation_files.list_names(place) if name.lower() in _LISTS)
    return [os.path.join(place, name) for place, name in found]


def _with_data(splits, data, entries):
    """Adds the lists that obj.data names to the splits by name; test.txt is "val" if it says so."""
    stated = {split: os.path.basename(text.replace("\\", "/")) for split, text in data.items()}
    stated = {split: [name] for split, name in stated.items() if name in entries}
    others = {split: names for split, names in splits.items() if names not in stated.values()}
    lost = {split: [text] for split, text in data.items() if split not in others}
    return {**lost, **others, **stated}


def _read_plain_export(root, names=None):
    """Makes the Export of a folder without a YAML file, with these class names if given; None for other folders.

    Raises:
        ValueError: if the splits have different class names.
    """
    entries = annotation_files.list_names(root)
    data, named = _read_darknet_data(root, entries)
    splits = _places(root, entries)
    folders = _folders(root, splits)
    beside = [text for folder in folders for text in _labels_beside_images(folder)]
    apart = [text for folder in folders for text in _labels_in_folder(folder)]
    lists = _name_files(root, entries, folders, named)
    darknet = bool(data) or "obj.names" in map(str.lower, entries)
    if not (beside or apart or darknet) or (names is None and not lists):
        return None
    if names is None:
        names = read_class_names("", lists[0])
        other = next((path for path in lists if read_class_names("", path) != names), None)
        if other:
            raise ValueError(f'"{lists[0]}" and "{other}" have different class names. Keep one order for all splits.')
    splits = _with_data(splits, data, entries)
    images = next((name for name in entries if name.lower() == "images"), ".")
    whole = images if apart and not beside else "."
    inferred = not splits
    return Export(root, root, lists[0] if lists else root, names, splits or {"train": [whole]}, None, inferred)


def find_export(path: str) -> Export | None:
    """Finds a YOLO export whose files name its classes, in a folder or described by the YAML file `path`.

    Raises:
        ValueError: for a malformed description.
    """
    found = _yaml_file(path, _NAMES_KEY)
    if found:
        return _read_yaml_export(found)
    return None if path.lower().endswith(_YAML) else _read_plain_export(path)


def _look_like_lines(paths: Iterable[str], boxes: bool) -> bool:
    """Whether the first text files have a class number and 4 numbers or more, without boxes 6, on each line."""
    lines = [line for path in paths for line in annotation_files.read_start(path).splitlines()[:_TRIED] if line.strip()]
    return bool(lines) and all(_LINE.fullmatch(line) and (boxes or len(line.split()) > 6) for line in lines)


def _classes_found(texts):
    """The number of classes that these label files need: the highest class number in them and 1."""
    lines = (line for path in texts for line in read_text(path).splitlines())
    return 1 + max((int(line.split()[0]) for line in lines if _LINE.fullmatch(line)), default=0)


def find_nameless_export(path: str, boxes: bool, classes: str) -> Export | None:
    """Finds a YOLO export without class names, such as makesense's; None for other folders.

    Args:
        path: str. Folder or YAML file.
        boxes: bool. Whether lines may be boxes instead of outlines.
        classes: str. A file of class names or their number; "" to ask for it.

    Raises:
        ValueError: without class names, or for a malformed description.
    """
    root = os.path.dirname(path) if path.lower().endswith(_YAML) else path
    entries = annotation_files.list_names(root)
    folders = _folders(root, _places(root, entries))
    beside, apart = (
        [text for folder in folders for text in find(folder)] for find in (_labels_beside_images, _labels_in_folder)
    )
    first = [text for folder in folders for text in _labels_beside_images(folder)[:_TRIED]]
    if not apart and not _look_like_lines(first, boxes):
        return None
    names = read_class_names(root, classes)
    if names is None:
        raise ValueError(
            f'"{root}" has YOLO images and labels, but no data.yaml with the class names. Add one: "names: [cat, dog]",'
            ' "train: images/train", "val: images/val"; or add classes.txt, one name per line; or pass'
            f" ?classes=FILE, or the number of classes, ?classes={_classes_found(apart or beside)}."
        )
    described_by = _yaml_file(path, _SPLITS_KEY)
    return _read_yaml_export(described_by, names) if described_by else _read_plain_export(root, names)
