"""Folders of images with class masks: "masks:PATH". A mask has a class number, or void, for every pixel.

Folder and file names pair images with masks (mask_pairs.py); a file of classes, or the values found, define the
meaning of stored values (mask_values.py). "masks:PATH?images=photos&masks=drawn" names the folders; further options:

    suffix   suffix of mask names, such as _mask
    classes  a file of class names, or their number
    colors   a file of colours and names, for RGB masks
    values   stored values of the classes in order, such as 0,7,8,11
    ignore   stored values, colours (#000000) or names that mean void; or "none"

COCO, LabelMe and YOLO annotations in the folder are drawn as masks (data/annotations), unless masks= names a folder.
The resulting masks contain class numbers from 0, in the order of `class_names`, and `void` (io/void.py).
"""

import os
import random

from keras_vit.data.annotations import source as annotations
from keras_vit.data.annotations.advice import advice
from keras_vit.data.sources.base import RandomAccess
from keras_vit.data.sources.folder import check_folder
from keras_vit.data.sources.mask_files import source_of_masks
from keras_vit.data.sources.mask_pairs import find_pairs
from keras_vit.data.sources.mask_sample import MEANINGS, look, report, understood
from keras_vit.data.sources.mask_tables import cityscapes, find_table, voc
from keras_vit.data.splits import SPLITS, MissingSplit, canonical, split_name, split_range
from keras_vit.io.paths import locate, split_options
from keras_vit.io.progress import stage

_OPTIONS = ("images", "masks", "suffix", *MEANINGS)


def _built_in(parts, masks):
    """Returns the Table of a well-known dataset, recognized by folder and file names; None for others."""
    stems = [os.path.splitext(os.path.basename(path))[0] for path in masks]
    if "gtfine" in parts or any(stem.endswith(("_gtFine_labelIds", "_gtFine_labelTrainIds")) for stem in stems[:1]):
        return cityscapes(stems[0].endswith("TrainIds"))
    is_voc = "segmentationclass" in parts and all(stem[:4].isdecimal() and stem[4:5] == "_" for stem in stems[:10])
    return voc() if is_voc else None


def _ignored_by_layout(parts, table, ignore):
    """Returns (ignore, whether 0 is void), from the option or the dataset's layout."""
    if ignore or table is None:
        return ignore, False
    if os.path.basename(table.path) == "objectInfo150.txt":
        return "", True
    # SegNet's copies of CamVid number void after the classes.
    return (str(len(table.names)), False) if any(part.endswith("annot") for part in parts) else ("", False)


def masks(path: str, split: str = "train", data_dir: str | None = None) -> RandomAccess:
    """Opens a split of a folder of images and masks, relative to `data_dir` if given.

    Reads a sample of the masks, or up to 2,000 masks if no file names the classes, and logs one line about them.

    Args:
        path: str. The folder, with options.
        split: str. A split named by the folders, else "train". Slices use a fixed random order.
        data_dir: str. Base of a relative path.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if nothing matches, the split is missing, or the meaning of values is unclear.
    """
    folder, chosen = split_options(path, **dict.fromkeys((*_OPTIONS, *annotations.OPTIONS), ""))
    root, title = locate(folder, data_dir), f"masks:{folder}"
    layout = None if chosen["masks"] else annotations.find(root, chosen["images"], chosen["classes"])
    if layout is not None:
        return annotations.annotated(layout, path, split, data_dir)
    folder, chosen = split_options(path, **dict.fromkeys(_OPTIONS, ""))
    check_folder(root)
    with stage(f"Reading the folder {root}", unit="files") as work:
        try:
            pairs = find_pairs(root, chosen, work)
        except ValueError as error:
            raise ValueError(f"{error} {advice(root, annotations.find)}".rstrip()) from None
    asked = canonical(split_name(split))
    if not pairs.splits.get(asked):
        raise MissingSplit(
            f'The folder "{root}" has no split "{asked}" with masks. Valid: {", ".join(pairs.splits)}, and slices such'
            f' as "{next(iter(pairs.splits))}[80%:]".',
            [name for name in pairs.splits if pairs.splits[name]],
        )
    # All splits use the classes of train.
    known_by = next(name for name in (*SPLITS, asked) if pairs.splits.get(name))
    files = [mask for _, mask in pairs.splits[known_by]]
    table = find_table(root, chosen["classes"], chosen["colors"]) or _built_in(pairs.parts, files)
    found = look(pairs.splits[known_by], table)
    ignore, zero_is_void = _ignored_by_layout(pairs.parts, table, chosen["ignore"])
    mapping = understood(title, table, chosen["values"], ignore, found, zero_is_void)
    report(f"{title}, {asked}", len(pairs.splits[asked]), known_by, mapping, found, table, pairs.told(asked))
    chosen_pairs = list(pairs.splits[asked])
    random.Random(0).shuffle(chosen_pairs)
    return source_of_masks(title, mapping, chosen_pairs[slice(*split_range(split, len(chosen_pairs)))])
