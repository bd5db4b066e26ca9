"""Splits of images and masks from lists of names, one a line.

ImageSets/Segmentation/train.txt    VOC, and CVAT's "Segmentation mask", whose list default.txt is train
train.txt, val.txt in the root      "images/a.jpg labels/a.png", where folders do not give the split
annotations/trainval.txt, test.txt  Oxford-IIIT Pet: "Abyssinian_1 1 1 1"

A line is the name of an image, or its path, perhaps followed by the path of its mask.
"""

import collections
import os

import tensorflow as tf

from keras_vit.data.sources.image_files import ENDINGS, ending
from keras_vit.data.splits import SPLITS, canonical
from keras_vit.io.paths import read_text

_FOLDERS = ("ImageSets/Segmentation", "ImageSets/SegmentationAug", "ImageSets/SegmentationContext")
_OF_PETS = "annotations"
_ALL = "trainval"

Pair = tuple[str, str]


def find_lists(root: str, have_splits: bool) -> dict[str, list[str]]:
    """Reads the lists of a folder: {split: lines}; {} without any.

    A single list with another name than a split's is train, as is trainval.txt without a train.txt.

    Args:
        root: str. The folder.
        have_splits: bool. Whether folders give the splits, so lists in the root are not needed.
    """
    folder = next((path for path in (os.path.join(root, name) for name in _FOLDERS) if tf.io.gfile.isdir(path)), "")
    if not folder and have_splits:
        return {}

    def named_in(place):
        names = sorted(name for name in tf.io.gfile.listdir(place) if name.endswith(".txt"))
        return [name for name in names if folder or canonical(name.removesuffix(".txt")) in (*SPLITS, _ALL)]

    pets = os.path.join(root, _OF_PETS)
    known = named_in(folder or root)
    if not known and tf.io.gfile.isdir(pets):
        folder, known = pets, named_in(pets)
    lists = {}
    for name in known:
        lines = [line.strip() for line in read_text(os.path.join(folder or root, name)).splitlines() if line.strip()]
        lists[canonical(name.removesuffix(".txt"))] = list(dict.fromkeys(lines))
    if "train" not in lists:
        other = (
            _ALL if _ALL in lists else next(iter(lists), "") if len(lists) == 1 and not lists.keys() & {*SPLITS} else ""
        )
        lists = {"train" if name == other else name: lines for name, lines in lists.items()}
    return lists


def _plain(path):
    """Returns a path's parts, without the extension of an image."""
    path = path.replace("\\", "/").strip("/")
    return (path[: -len(ending(path))] if ending(path) in ENDINGS else path).split("/")


def _ends_alike(one, other):
    size = min(len(one), len(other))
    return one[-size:] == other[-size:]


def _find(root, line, by_name, file):
    """Returns the pair of a line of a list; None without one.

    Raises:
        ValueError: if the line fits several images.
    """
    named = [(_plain(text), by_name.get(_plain(text)[-1], ())) for text in dict.fromkeys((line, line.split()[0]))]
    whole = [
        [pair for pair in pairs if _ends_alike(parts, _plain(os.path.relpath(pair[0], root)))] for parts, pairs in named
    ]
    fitting = next((pairs for pairs in [*whole, *(pairs for _, pairs in named)] if pairs), ())
    if len(fitting) > 1:
        shown = " and ".join(os.path.relpath(pair[0], root) for pair in fitting[:2])
        raise ValueError(f'"{file}" lists "{line}", which fits {shown}. List the paths of images below "{root}".')
    return fitting[0] if fitting else None


def _check_apart(root, splits):
    """Raises ValueError if an image of train is also in val or test."""
    train = set(splits.get("train", ()))
    for name in ("val", "test"):
        both = [pair for pair in splits.get(name, ()) if pair in train]
        if both:
            image = os.path.relpath(both[0][0], root)
            raise ValueError(
                f'The lists of "{root}" put {len(both):,} images into train and {name}, such as {image}: a model would'
                " be measured on what it has learned. Remove them from one list."
            )


def by_lists(
    root: str, lists: dict[str, list[str]], pairs: list[Pair], images: dict[str, str], masks: dict[str, str]
) -> tuple[dict[str, list[Pair]], dict[str, list[str]], dict[str, list[str]], list[str]]:
    """Returns (splits, images without a mask, masks without an image, files of pairs in no list).

    Args:
        root: str. The folder.
        lists: dict. Lines of each split's list.
        pairs: list of (image path, mask path).
        images, masks: dict. Paths by name without extension.

    Raises:
        ValueError: if a line fits several images, or an image of train is also in val or test.
    """
    by_name = collections.defaultdict(list)
    for pair in pairs:
        by_name[_plain(pair[0])[-1]].append(pair)
    splits, without_mask, without_image = {}, {}, {}
    for split, lines in lists.items():
        found = {line: _find(root, line, by_name, f"{split}.txt") for line in lines}
        lost = [_plain(line.split()[0])[-1] for line, pair in found.items() if pair is None]
        splits[split] = list(dict.fromkeys(pair for pair in found.values() if pair is not None))
        without_mask[split] = [images.get(name, name) for name in lost if name not in masks]
        without_image[split] = [masks[name] for name in lost if name in masks]
    _check_apart(root, splits)
    listed = {pair for found in splits.values() for pair in found}
    return splits, without_mask, without_image, [path for pair in pairs if pair not in listed for path in pair]
