"""Pascal VOC XML: one file per image, with the boxes of its objects.

    PATH/Annotations/a.xml, PATH/JPEGImages/a.jpg, PATH/ImageSets/Main/train.txt...     VOC; ImageSets may be missing
    PATH/VOC2007/..., PATH/VOC2012/...                                                  VOCdevkit
    PATH/a.xml, PATH/a.jpg, or PATH/train/..., PATH/valid/...                           LabelImg, Roboflow, CVAT

A file's image has its name, or the name in <filename>. VOC's dataset numbers pixels from 1 and includes the last row
and column of a box, so 1 is subtracted from its xmin and ymin. Other tools write the corners.
"""

import collections
import functools
import os
import re
import xml.etree.ElementTree as ElementTree

from keras_vit.data.annotations import annotation_files, schema, sidecars
from keras_vit.data.annotations.schema import AnnotatedImage, Annotations, Fault, Ignored, Layout, Region
from keras_vit.data.splits import SPLITS, canonical
from keras_vit.io.paths import read_text
from keras_vit.io.suggest import listed

_ROOT = re.compile(r"<annotation[\s>]")
_VOC_DATABASE = re.compile(r"The VOC\d{4} Database", re.IGNORECASE)
_UNSAFE = re.compile(r"<!(?:DOCTYPE|ENTITY)", re.IGNORECASE)
_SETS = (*SPLITS, "trainval")
_IMAGES = ("JPEGImages", "images")  # folders next to that of the files
_SIDES = ("xmin", "ymin", "xmax", "ymax")


def read_xml(path: str) -> ElementTree.Element:
    """Reads the root of an XML file; refuses document types and entities, which could expand without bound.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not XML or has a DOCTYPE, with the line.
    """
    text = read_text(path)
    if unsafe := _UNSAFE.search(text):
        line = text.count("\n", 0, unsafe.start()) + 1
        raise ValueError(f'"{path}", line {line}: {unsafe[0]} is not supported: remove it.')
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f'"{path}", line {error.position[0]}: not XML: {error}.') from None


def _image_sets(path, found):
    """Reads [(folder, split, names without extension)] from ImageSets/Main, also of VOC2007... above the XML files.

    Lists of one class, such as cat_train.txt, are skipped.
    """
    folders = {os.path.dirname(file) for file in found}
    sets = []
    for place in sorted(
        {path, *(base for folder in folders for base in annotation_files.parent_folders(folder, path))}
    ):
        folder = os.path.join(place, "ImageSets", "Main")
        stems = {
            canonical(os.path.splitext(name)[0]): name
            for name in annotation_files.list_names(folder)
            if name.endswith(".txt")
        }
        for split in (split for split in _SETS if split in stems):
            lines = read_text(os.path.join(folder, stems[split])).splitlines()
            sets.append((place, split, [line.split()[0] for line in lines if line.strip()]))
    return sets


def _named(name, place, by_stem):
    """Returns the XML file of a name in the ImageSets of `place`, or "".

    Raises:
        ValueError: if several files have that name.
    """
    stem = os.path.basename(name)
    stem = stem if stem in by_stem else os.path.splitext(stem)[0]
    found = [file for file in by_stem.get(stem, ()) if file.startswith(os.path.join(place, ""))]
    ends = [file for file in found if f"/{os.path.splitext(file)[0]}".endswith(f"/{os.path.splitext(name)[0]}")]
    found = ends if len(found) > 1 and ends else found
    if len(found) > 1:
        raise ValueError(
            f'"{name}" in the ImageSets of "{place}" could be {listed(found)}. Give the files other names.'
        )
    return found[0] if found else ""


def _assign_image_sets(found, sets):
    """Returns ({split: XML files}, {split: names without a file})."""
    by_stem = collections.defaultdict(list)
    for file in found:
        by_stem[os.path.splitext(os.path.basename(file))[0]].append(file)
    found_by_split, lost = collections.defaultdict(list), collections.defaultdict(list)
    for place, split, names in sets:
        for name in names:
            file = _named(name, place, by_stem)
            (found_by_split if file else lost)[split].append(file or name)
    return {split: list(dict.fromkeys(paths)) for split, paths in found_by_split.items()}, {
        **dict.fromkeys(found_by_split, []),
        **lost,
    }


def find(path: str) -> Layout | None:
    """Finds VOC annotations in a folder; None if its first XML files have another format."""
    parts = annotation_files.split_folders(path)
    folders = {
        split: found for split, folder in parts.items() if (found := annotation_files.find_files(folder, ".xml"))
    }
    lost: dict[str, list[str]] = {}  # of ImageSets
    if not folders:
        every = annotation_files.find_files(path, ".xml")
        folders, lost = _assign_image_sets(every, _image_sets(path, every))
        folders = folders or {"train": every}
    if not any(_ROOT.search(annotation_files.read_start(file)) for found in folders.values() for file in found[:3]):
        return None
    readers = {
        split: functools.partial(read, parts.get(split, path), found, lost.get(split), path)
        for split, found in folders.items()
    }
    return Layout("VOC", "", readers, folders)


def _text(element, tag):
    return (element.findtext(tag) or "").strip()


def _region(element, number, first):
    """Makes a Region from an <object>.

    Raises:
        Fault: if its name or box is missing or malformed.
    """
    label = _text(element, "name")
    name = f"object {number} ({label})"
    if not label:
        raise Fault(f"object {number} has no name")
    box = element.find("bndbox")
    if box is None:
        raise Fault(f"{name} has no bndbox")
    top, left, bottom, right = schema.parse_box([_text(box, side) for side in _SIDES], name)
    return Region(
        label,
        name,
        box=(top - first, left - first, bottom, right),
        difficult=schema.is_set(_text(element, "difficult")),
    )


def _read_image(path, root, existing, ignored, opened):
    """Makes the AnnotatedImage of an XML file; None if it has another format, or its image is missing."""
    if root.tag != "annotation":
        ignored[schema.OTHER_XML].append(path)
        return None
    stated = _text(root, "filename")
    image = sidecars.find_image(path, stated, existing, _IMAGES, opened, by_name=True)
    if image not in existing:
        ignored[schema.MISSING].append(image)
        return None
    if os.path.basename(stated.replace("\\", "/")) in existing.names(os.path.dirname(image)) - {
        os.path.basename(image)
    }:
        ignored[schema.OTHER_NAME].append(f"{path}: {stated}")
    first = 1 if _VOC_DATABASE.search(_text(root, "source/database")) else 0
    try:
        size = schema.parse_size(_text(root, "size/height"), _text(root, "size/width"))
        regions = [_region(element, number, first) for number, element in enumerate(root.findall("object"), 1)]
    except Fault as fault:
        return AnnotatedImage(image, None, [], f'"{path}": {fault}')
    return AnnotatedImage(image, size, regions)


def read(folder: str, paths: list[str], lost: list[str] | None = None, opened: str = "") -> Annotations:
    """Reads the annotations in XML files; the objects define the class names.

    Args:
        folder: str. Folder of the files.
        paths: list of str. The XML files.
        lost: list of str. Names in the split's ImageSets without a file; None without ImageSets.
        opened: str. The folder that was opened, outside of which images belong to other data; "" for `folder`.
    """
    ignored: Ignored = collections.defaultdict(list)
    ignored[schema.NO_XML] += lost or []

    def read_image(path, root, existing):
        return _read_image(path, root, existing, ignored, opened or folder)

    found = sidecars.read_sidecars(paths, read_xml, read_image, ignored if lost is None else None)
    return Annotations(found, None, False, folder, ignored)
