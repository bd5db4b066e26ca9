"""Folders of images with class masks: "masks:PATH". A mask has a class number, or void, for every pixel.

Folder and file names pair images with masks (mask_pairs.py); a file of classes, or the values found, define the
meaning of stored values (mask_values.py). "masks:PATH?images=photos&masks=drawn" names the folders; further options:

    suffix   suffix of mask names, such as _mask
    classes  a file of class names, or their number
    colors   a file of colours and names, for RGB masks
    values   stored values of the classes in order, such as 0,7,8,11
    ignore   stored values, colours (#000000) or names that mean void; or "none"
    palette  "index" or "colors": what pixels of palette files mean (mask_palettes.py)

COCO, LabelMe and YOLO annotations in the folder are drawn as masks (data/annotations), unless masks= names a folder, or
they are boxes next to masks.
The resulting masks contain class numbers from 0, in the order of `class_names`, and `void` (io/target_values.py).
"""

import dataclasses
import os
import re

import tensorflow as tf

from keras_vit.data.annotations import box_source, schema
from keras_vit.data.annotations import mask_source as annotations
from keras_vit.data.annotations.advice import advice
from keras_vit.data.sources.base import RandomAccess
from keras_vit.data.sources.folder import check_folder
from keras_vit.data.sources.mask_files import source_of_masks
from keras_vit.data.sources.mask_pairs import NoPairs, find_pairs, may_have_masks
from keras_vit.data.sources.mask_sample import MEANINGS, interpret_masks, report, sample_masks
from keras_vit.data.sources.mask_tables import Table, cityscapes, find_table, is_void_name, voc
from keras_vit.data.splits import SPLITS, MissingSplit, find_split, fixed_shuffle, merged_splits, take_slice
from keras_vit.io.paths import locate, read_text, split_options
from keras_vit.io.progress import stage

_CITYSCAPES = ("_gtFine_labelIds", "_gtFine_labelTrainIds")
_ADE20K, _ADE20K_NAMES = re.compile(r"ADE_(?:train|val)_\d{8}"), "objectInfo150.txt"
_OPTIONS = ("images", "masks", "suffix", *MEANINGS)


def _built_in(parts, masks):
    """Returns the Table of a well-known dataset, recognized by folder and file names; None for others."""
    stems = [os.path.splitext(os.path.basename(path))[0] for path in masks]
    if parts & {"gtfine", "gtcoarse"} or any(stem.endswith(_CITYSCAPES) for stem in stems[:1]):
        return cityscapes(stems[0].endswith("TrainIds"))
    if all(_ADE20K.fullmatch(stem) for stem in stems[:10]):
        return Table(_ADE20K_NAMES, tuple(map(str, range(1, 151))))
    is_voc = "segmentationclass" in parts and all(stem[:4].isdecimal() and stem[4:5] == "_" for stem in stems[:10])
    return voc() if is_voc else None


def _stored_as(parts, table):
    """Returns the Table of a layout whose values differ from those in its table: COCO-Stuff's are the ids less 1."""
    is_stuff = any(part.startswith("stuffthingmaps") for part in parts)
    if is_stuff and table is not None and table.values and table.values[0] == 0 and is_void_name(table.names[0]):
        return dataclasses.replace(table, names=table.names[1:], values=tuple(id - 1 for id in table.values[1:]))
    return table


def _ignored_by_layout(parts, table, ignore, found):
    """Returns (ignore, whether 0 is void), from the option or the dataset's layout."""
    if ignore or table is None:
        return ignore, False
    if os.path.basename(table.path) == _ADE20K_NAMES:
        return "", True
    # SegNet's copies of CamVid number void after the classes.
    last = any(part.endswith("annot") for part in parts) and len(table.names) in found.values
    return (str(len(table.names)), False) if last else ("", False)


def _near(root, masks):
    """Lists the folders of the masks, from the innermost that has all to the last below the root, or one above it."""
    folder = os.path.dirname(masks[0]) if len(masks) == 1 else os.path.commonpath(map(os.path.dirname, masks))
    inside = os.path.join(os.path.normpath(root), "")
    if not os.path.normpath(folder).startswith(inside):
        return [] if os.path.normpath(folder) == os.path.normpath(root) else [folder, os.path.dirname(folder)]
    below = os.path.relpath(folder, root).split("/")
    return [os.path.join(root, *below[:i]) for i in range(len(below), 0, -1)]


def _mapillary(root, masks):
    """Returns the name of Mapillary's file of classes for masks in a folder such as v2.0/labels, or ""."""
    version = next((part for part in masks[0].split("/")[::-1] if re.fullmatch(r"v\d\.\d", part)), "")
    places = [os.path.join(root, name) for name in (f"config_{version}.json", "config.json")]
    found = (path for path in places if tf.io.gfile.exists(path) and '"readable"' in read_text(path))
    return next(map(os.path.basename, found), "")


def _only_boxes(layout):
    """Whether annotations have no outlines to draw."""
    try:
        next(iter(layout.splits.values()))()
    except schema.OnlyBoxes:
        return True
    return False


def _boxes_there(root):
    """A sentence about the boxes in a folder, or ""."""
    try:
        layout = box_source.find(root)
    except ValueError:
        return ""
    return f'Its {layout.format} annotations are boxes, for object detection: open "boxes:{root}".' if layout else ""


def _pairs(root, options):
    """Pairs the images and masks of a folder.

    Raises:
        NoPairs: without any, with what the folder has instead.
    """
    with stage(f"Reading the folder {root}", unit="files") as work:
        try:
            return find_pairs(root, options, work)
        except NoPairs as error:
            raise NoPairs(f"{error} {_boxes_there(root) or advice(root, annotations.find)}".rstrip()) from None


def _annotated(layout, path, split, data_dir, root, options):
    """Opens annotations, or returns None if they are boxes next to masks.

    Raises:
        ValueError: as `open_masks`; MissingSplit for an unknown split.
    """
    try:
        return annotations.open_masks(layout, path, split, data_dir)
    except (schema.OnlyBoxes, MissingSplit) as error:
        with stage(f"Reading the folder {root}", unit="files") as work:
            candidates = may_have_masks(root, work)
        if not candidates or (isinstance(error, MissingSplit) and not _only_boxes(layout)):
            raise
        try:
            _pairs(root, options)
        except ValueError:
            raise error from None
    return None


def masks(path: str, split: str = "train", data_dir: str | None = None) -> RandomAccess:
    """Opens a split of a folder of images and masks, relative to `data_dir` if given.

    Reads a sample of the masks, or up to 2,000 masks if no file names the classes, and logs one line about them.

    Args:
        path: str. The folder, with options.
        split: str. A split named by the folders or lists, else "train". Slices use a fixed random order.
        data_dir: str. Base of a relative path.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if nothing matches, the split is missing, or the meaning of values is unclear.
    """
    folder, options = split_options(path, **dict.fromkeys((*_OPTIONS, *annotations.OPTIONS), ""))
    root, title = locate(folder, data_dir), f"masks:{folder}"
    layout = None if options["masks"] else annotations.find(root, options["images"], options["classes"])
    if layout is not None:
        source = _annotated(layout, path, split, data_dir, root, options)
        if source is not None:
            return source
    folder, options = split_options(path, **dict.fromkeys(_OPTIONS, ""))
    check_folder(root)
    pairs = _pairs(root, options)
    valid = [name for name in pairs.splits if pairs.splits[name]]
    asked = find_split(f'The folder "{root}"', split, valid, " with masks")
    # All splits use the classes of train.
    known_by = next(name for name in (*SPLITS, asked) if pairs.splits.get(name))
    files = [mask for _, mask in pairs.splits[known_by]]
    classes = options["classes"] or _mapillary(root, files)
    table = find_table(root, classes, options["colors"], near=_near(root, files)) or _built_in(pairs.parts, files)
    table = _stored_as(pairs.parts, table)
    found = sample_masks(pairs.splits[known_by], table)
    ignore, zero_is_void = _ignored_by_layout(pairs.parts, table, options["ignore"], found)
    meaning = interpret_masks(title, table, {**options, "ignore": ignore}, found, zero_is_void)
    apart = {os.path.relpath(os.path.dirname(image), root) for image, _ in pairs.splits[asked]}
    merged = merged_splits(apart) if len(pairs.splits) == 1 else ""
    report(f"{title}, {asked}", len(pairs.splits[asked]), known_by, meaning, pairs.report_lines(asked), merged)
    return source_of_masks(title, meaning.mapping, take_slice(split, fixed_shuffle(pairs.splits[asked])))
