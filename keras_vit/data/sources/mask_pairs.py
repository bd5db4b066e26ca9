"""Pairs a folder's images with masks, and finds their splits, by the names of folders and files.

Parts of a path mark images ("images", "JPEGImages", "leftImg8bit"), masks ("masks", "labels", "annotations", "gtFine",
"SegmentationClass", "trainannot") or a split ("train", "training", "val2017"). The rest of the path is the same for an
image and its mask, except for a mark in the name, as in a_L.png or a_leftImg8bit.png. Without a folder of masks, they
are next to the images and recognized by the mark: a.jpg, a_mask.png. Lists of names (mask_lists.py) may give the split.
"""

import collections
import dataclasses
import os
import re
import unicodedata

import tensorflow as tf

from keras_vit.data.sources.mask_lists import by_lists, find_lists
from keras_vit.data.sources.tree import Tree, walk
from keras_vit.data.splits import SPLITS, canonical
from keras_vit.io.paths import locate
from keras_vit.io.progress import Stage
from keras_vit.io.suggest import counted, listed

_SPLIT = r"(?:train|training|val|valid|validation|test|testing)(?:[_\-]?(?:19|20)\d\d)?"
_IMAGES = r"images?|imgs?|pictures|photos|jpegimages|leftimg8bit|rgb|frames|image_2|original_?images"
_MASKS = (
    r"masks?|labels?|annot|annots|annotations?|gt|gtfine|gtcoarse|ground_?truth|segmentations?|segmentation_?masks?|"
    r"segmentationclass(?:png|aug|context)?|label_?maps?|trimaps|masks_machine|semantic(?:_rgb)?|stuffthingmaps\w*|"
    r"label_images_semantic"
)
# Neither: masks of objects, and pictures of masks.
_OTHERS = (
    r"segmentationobject\w*|segmentationclass(?:npy|visualization)|masks_human|masks?_instances?|instances?|panoptic|"
    r"polygons"
)
# Several renderings of one set of masks: the first folder there is counts.
_RENDERINGS = (
    ("segmentationclass", "segmentationclasspng", "segmentationclassaug", "segmentationclasscontext"),
    ("gtfine", "gtcoarse"),
    ("semantic", "semantic_rgb"),
)
_ROLE = rf"(?:(?P<images>{_IMAGES})|(?P<masks>{_MASKS})|(?P<others>{_OTHERS}))"
_PART = (
    re.compile(rf"(?:(?P<split>{_SPLIT})[_\-. ]?)?{_ROLE}", re.IGNORECASE),
    re.compile(rf"{_ROLE}[_\-. ](?P<split>{_SPLIT})", re.IGNORECASE),
    re.compile(rf"(?P<split>{_SPLIT})", re.IGNORECASE),
)
# Other renderings of masks by Cityscapes and Segments.ai.
_NO_MASK = re.compile(r"_(?:color|colored|instanceids|instancetrainids)$", re.IGNORECASE)
# (prefix, suffix) around the name that an image and its mask share.
_IMAGE_MARKS = [("", mark) for mark in ("_leftImg8bit", "_image", "_img", "_rgb", "_sat")] + [
    (mark, "") for mark in ("image_", "img_", "image-", "img-", "image", "img")
]
_MASK_MARKS = [
    ("", mark)
    for mark in (
        *("_gtFine_labelIds", "_gtFine_labelTrainIds", "_gtCoarse_labelIds", "_labelIds", "_labelTrainIds", "_L"),
        *("_label_ground-truth_semantic", "_mask", "-mask", ".mask"),
        *("_masks", "_label", "_labels", "_gt", "_GT", "_seg", "_segmentation", "_annotation", "_manual1"),
    )
] + [(mark, "") for mark in ("mask_", "label_", "gt_", "seg_", "mask-", "label-", "mask", "label")]
_WHOLE_NAME = ("", None)  # the mask of a.jpg is a.jpg.png
_BRUSH = re.compile(r"task-\d+-annotation-.*-tag-(.+)-\d+")  # names by Label Studio
_ONE_EACH = " If each is one class or object, draw them into one mask of class numbers."
_NAMED = 3


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Result of `find_pairs`.

    Attributes:
        splits: dict. Sorted (image path, mask path) of each split.
        without_mask: dict. Image paths of each split.
        without_image: dict. Mask paths of each split.
        outside: list of str. Paths in none of the splits.
        parts: frozenset of str. Lower-case names of the folders that marked masks.
    """

    splits: dict[str, list[tuple[str, str]]]
    without_mask: dict[str, list[str]]
    without_image: dict[str, list[str]]
    outside: list[str]
    parts: frozenset[str]

    def report_lines(self, split: str) -> list[str]:
        """Describes the files without a partner."""
        rows = [
            (self.without_mask[split], "image", "without a mask"),
            (self.without_image[split], "mask", "of no image"),
        ]
        texts = [
            f"{counted(len(paths), noun)} {what} ({listed([os.path.basename(path) for path in paths], _NAMED)})"
            for paths, noun, what in rows
            if paths
        ]
        if self.outside:
            names = listed([os.path.basename(path) for path in self.outside], _NAMED)
            texts.append(f"{counted(len(self.outside), 'file')} outside the splits with masks ({names})")
        return texts


@dataclasses.dataclass(frozen=True)
class _File:
    """An image or mask: path, split ("" for none), role marked by its folders, and the rest of its name.

    `real` is the path of the file itself, to which links lead.
    """

    path: str
    split: str
    role: str
    place: tuple[str, ...]
    stem: str
    parts: tuple[str, ...]
    real: str


class NoPairs(ValueError):
    """A folder without an image and its mask."""


def _split_named(text):
    """Returns a split's standard name: "testing" is "test", "val2017" is "val"."""
    text = re.sub(r"[_\-]?\d{4}$", "", text) if re.fullmatch(_SPLIT, text, re.IGNORECASE) else text
    return canonical(re.sub(r"(?i)^testing$", "test", text))


def _meaning(part, options):
    """Returns the (role, split) that a part of a path marks, "" for none; roles in `options` are marked otherwise."""
    for pattern in _PART:
        match = pattern.fullmatch(part)
        if match:
            groups = match.groupdict()
            role = next((role for role in ("images", "masks", "others") if groups.get(role)), "")
            return "" if role in options else role, _split_named(groups.get("split") or "")
    return "", ""


def _meanings(parts, folders, subsets):
    """Returns the (role, split) of each part of a path.

    Args:
        parts: list of str. The folders of a path.
        folders: dict. {role: parts} of the folders that options name.
        subsets: set of (folder, name). Folders next to one with "annot" after their name, as CVAT's CamVid has them.
    """
    meanings = [_meaning(part, folders) for part in parts]
    for i, part in enumerate(parts):
        above = "/".join(parts[:i])
        if (above, part.removesuffix("annot")) in subsets:
            meanings[i] = "masks" if part.endswith("annot") else "images", _split_named(part.removesuffix("annot"))
    for role, folder in folders.items():
        for i in range(len(parts) - len(folder) + 1):
            if parts[i : i + len(folder)] == folder:
                splits = [_meaning(part, folders)[1] for part in folder]
                meanings[i : i + len(folder)] = [(role, split) for split in splits]
    return meanings


def _subsets(tree):
    """Finds folders next to one with "annot" after their name: {(folder above, name)}."""
    return {
        (above, name)
        for above, names in tree.folders.items()
        for name in map(os.path.basename, names)
        if f"{name}annot" in map(os.path.basename, names)
    }


def _without_doubles(files):
    """Drops further renderings of masks: Cityscapes' training ids beside label ids, VOC's augmented masks."""
    if any(file.stem.endswith("_labelIds") for file in files):
        files = [file for file in files if not file.stem.endswith("_labelTrainIds")]
    for names in _RENDERINGS:
        present = {part for file in files for part in file.parts} & set(names)
        unused = present - {min(present, key=names.index)} if present else set()
        files = [file for file in files if not unused & set(file.parts)]
    return files


def _files(tree: Tree, folders: dict[str, list[str]], role: str = "") -> list[_File]:
    """Lists a tree's files with the meaning of their paths; `role`, if given, is the role of all."""
    found, subsets = [], _subsets(tree)
    root = tree.root if "://" in tree.root else os.path.realpath(tree.root)
    for folder, name in tree.files():
        parts = folder.split("/") if folder else []
        meanings = _meanings(parts, folders, subsets)
        rest = tuple(unicodedata.normalize("NFC", part) for part, meaning in zip(parts, meanings) if not any(meaning))
        stem = unicodedata.normalize("NFC", os.path.splitext(name)[0])
        roles = [which for which, _ in meanings if which]
        splits = [split for _, split in meanings if split]
        own_role = role or next((which for which in roles if which in folders), roles[0] if roles else "")
        if own_role == "masks" and _NO_MASK.search(stem):
            continue
        words = tuple(part.lower() for part, meaning in zip(parts, meanings) if meaning[0] == "masks")
        path = os.path.join(tree.root, folder, name)
        real = tree.linked.get(os.path.join(folder, name), os.path.join(root, folder, name))
        found.append(_File(path, splits[0] if splits else "", own_role, rest, stem, words, real))
    return found


def _unmarked(stem, mark):
    """Removes the mark from a name; None if the name lacks it."""
    before, after = mark
    if len(stem) > len(before) + len(after) and stem.startswith(before) and stem.endswith(after):
        return stem[len(before) : len(stem) - len(after)]
    return None


def _frequent(files, marks):
    """Returns no mark, and the marks that at least half of the files have."""
    common = [mark for mark in marks if 2 * sum(_unmarked(f.stem, mark) is not None for f in files) >= len(files)]
    return [("", ""), *common]


def _name(file, mark):
    """Returns a file's name without the mark, or all of it for _WHOLE_NAME; None if it lacks the mark."""
    return os.path.basename(file.path) if mark == _WHOLE_NAME else _unmarked(file.stem, mark)


def _keys(files, mark, whole):
    """Groups files as {(split, place, name without the mark): files}; ignores the place unless `whole`."""
    found = collections.defaultdict(list)
    for file in files:
        name = _name(file, mark)
        if name is not None:
            found[file.split, file.place if whole else (), name].append(file)
    return found


def _matched(images, masks, suffix):
    """Returns (image keys, mask keys) for the marks that make the most pairs."""
    best = None
    mask_marks = [("", suffix)] if suffix else _frequent(masks, _MASK_MARKS)
    for whole in (True, False):
        for image_mark in (*_frequent(images, _IMAGE_MARKS), _WHOLE_NAME):
            for mask_mark in mask_marks:
                keys = _keys(images, image_mark, whole), _keys(masks, mask_mark, whole)
                score = len(keys[0].keys() & keys[1].keys())
                if best is None or score > best[0]:
                    best = score, *keys
        if best[0]:
            break
    return best[1:]


def _beside(files, suffix):
    """Separates files in the same folders into (images, masks) by the mask's mark."""
    names = set()
    for mark in [("", ""), *_IMAGE_MARKS]:
        names |= {(file.split, file.place, _unmarked(file.stem, mark)) for file in files}
    masks = []
    for mark in [("", suffix)] if suffix else _MASK_MARKS:
        marked = [(file, _unmarked(file.stem, mark)) for file in files]
        found = [file for file, name in marked if name is not None and (file.split, file.place, name) in names]
        masks = max(masks, found, key=len)
    taken = {file.path for file in masks}
    return [file for file in files if file.path not in taken], masks


def _check_one_each(keys, what, root):
    """Raises ValueError if two files are candidates for one image or mask."""
    twice = next((files for files in keys.values() if len(files) > 1), None)
    if twice:
        names = " and ".join(os.path.relpath(file.path, root) for file in twice[:2])
        raise ValueError(
            f'The folder "{root}" has two {what} with one name: {names}. Remove one, or name the folders:'
            f' "?images=FOLDER&masks=FOLDER".{_ONE_EACH if what == "masks" else ""}'
        )


def _check_once(keys, root):
    """Raises ValueError if two folders have the same images, in two formats."""
    names = collections.defaultdict(set)  # {(split, place, ending): names}
    for split, place, name in keys:
        (file, *_) = keys[split, place, name]
        names[split, place, os.path.splitext(file.path)[1].lower()].add(name)
    seen = {}
    for (split, place, end), found in names.items():
        other, first = seen.setdefault((split, frozenset(found)), (end, place))
        if other != end and len(found) > 1:
            shown = " and ".join("/".join(folder) for folder in (first, place))
            raise ValueError(
                f'"{root}" has each image twice, as {other[1:]} and as {end[1:]}, in {shown}. Open one of them.'
            )


def _left(files, split, paired):
    """Sorts the paths of a split's files that are not in `paired`."""
    return sorted(file.path for file in files if file.split == split and file.path not in paired)


def _by_parts(pairs, images, masks):
    """Returns (splits, without mask, without image, outside) by the splits in paths; `pairs` is a dict by key."""
    paired = {path for pair in pairs.values() for path in pair}
    names = list(dict.fromkeys(key[0] for key in sorted(pairs) if key[0])) or [""]
    splits, without_mask, without_image = {}, {}, {}
    for split in names:
        name = split if split in SPLITS or len(names) > 1 else "train"  # CVAT's only subset is "default"
        splits[name] = [pairs[key] for key in sorted(pairs) if key[0] == split]
        without_mask[name], without_image[name] = (_left(group, split, paired) for group in (images, masks))
    paired = {path for found in splits.values() for pair in found for path in pair}
    outside = [file.path for file in [*images, *masks] if file.split not in names and file.path not in paired]
    return splits, without_mask, without_image, sorted(outside)


def _below(path, folder):
    return os.path.normpath(path).startswith(os.path.join(os.path.normpath(folder), ""))


def _all_files(root, options, work):
    """Lists the files below the root, and in the folders named by the options."""
    given = {role: options[role] for role in ("images", "masks") if options[role]}
    if len(given) == 2 and options["images"] == options["masks"]:
        raise ValueError('Expected two different folders for images and masks: "?images=FOLDER&masks=FOLDER".')
    folders = {role: locate(folder, root) for role, folder in given.items()}
    whole = {role: folder for role, folder in folders.items() if tf.io.gfile.isdir(folder)}
    if len(whole) == 2:
        return [file for role, folder in folders.items() for file in _files(walk(folder, work), {}, role)]
    away = {role: folder for role, folder in whole.items() if not _below(folder, root)}
    inside = {role: os.path.normpath(given[role]).split("/") for role in given.keys() - away.keys()}
    inside |= {role: os.path.relpath(whole[role], root).split("/") for role in inside.keys() & whole.keys()}
    files = _files(walk(root, work), inside)
    files = [file for file in files if file.role not in away]
    files += [file for role, folder in away.items() for file in _files(walk(folder, work), {}, role)]
    for role, folder in given.items():
        if not any(file.role == role for file in files):
            raise ValueError(f'"{root}" has no folder "{folder}" ({role}=) with images.')
    return files


def _one_per_object(images, masks):
    """Returns a hint if the masks' folders, or names, show that a mask has one object or one class, else ""."""
    by_place = collections.Counter((file.split, file.place) for file in masks)
    brush = next((match for file in masks + images if (match := _BRUSH.fullmatch(file.stem))), None)
    if brush:
        return (
            f' They are brush masks of Label Studio, one for each region, such as one of "{brush[1]}", without a class'
            ' for every pixel: export the project as "Brush labels to COCO", and open that with its images.'
        )
    several = [place for place, count in by_place.items() if count > 1]
    alone = collections.Counter((file.split, file.place) for file in images)
    if several and all(alone[place] == 1 for place in several):
        return " Several masks are beside each image: draw them into one mask of class numbers."
    return ""


def _none_found(root, images, masks):
    """Returns the error for a folder without pairs."""
    hint = _one_per_object(images, masks)
    if images and masks:
        shown = f"{os.path.relpath(images[0].path, root)} and {os.path.relpath(masks[0].path, root)}"
        fix = hint or ' Give them the same names, or specify the masks\' suffix: "?suffix=_mask".'
        return NoPairs(
            f'In "{root}" the names of {counted(len(images), "image")} and {counted(len(masks), "mask")} do not match,'
            f" such as {shown}.{fix}"
        )
    what = f"{counted(len(images), 'image')} but no masks" if images else f"{counted(len(masks), 'mask')} but no images"
    alone = " Copy the images there, or export the masks together with the images." if masks else ""
    return NoPairs(
        f'The folder "{root}" has {what if images or masks else "no images"}. Expected folders named images and masks,'
        f' or a_mask.png next to a.jpg; name other folders with "?images=FOLDER&masks=FOLDER".{alone}{hint}'
    )


def _check_apart(root, splits, files):
    """Raises ValueError if links put one image into two splits."""
    real, seen = {file.path: file.real for file in files}, {}
    for split in SPLITS:
        for image, _ in splits.get(split, ()):
            other, path = seen.setdefault(real[image], (split, image))
            if other != split:
                shown = " and ".join(os.path.relpath(file, root) for file in (path, image))
                raise ValueError(
                    f'"{root}" has the same image in {other} and {split}, by a link: {shown}. A model would be measured'
                    " on what it has learned: remove one."
                )


def may_have_masks(root: str, work: Stage) -> bool:
    """Whether a folder has images in a folder of masks, or one named like a_mask.png; opens no file."""
    images = {folder: names for folder, names in walk(root, work).images.items() if names}
    marked = any(_meaning(part, {})[0] == "masks" for folder in images for part in folder.split("/"))
    return marked or any("_mask." in name for names in images.values() for name in names)


def find_pairs(root: str, options: dict[str, str], work: Stage) -> Pairs:
    """Pairs the images and masks below the folder `root`.

    Args:
        root: str. Path of the folder.
        options: dict. Options "images", "masks" and "suffix", "" for none.
        work: Stage. Counts the files.

    Raises:
        NoPairs: if no image has a mask.
        ValueError: for two files for one image or mask, and for lists that put an image into two splits.
    """
    files = _all_files(root, options, work)
    masks = _without_doubles([file for file in files if file.role == "masks"])
    images = [file for file in files if file.role == "images"] or [file for file in files if not file.role]
    if not masks:
        images, masks = _beside([file for file in files if not options["masks"]], options["suffix"])
    split_of = {file.path: file.split for file in [*images, *masks]}
    if any(
        "" in splits and len(splits) == 1 for splits in ({file.split for file in group} for group in (images, masks))
    ):
        images, masks = ([dataclasses.replace(file, split="") for file in group] for group in (images, masks))
    of_images, of_masks = _matched(images, masks, options["suffix"]) if images and masks else ({}, {})
    both = of_images.keys() & of_masks.keys()
    if not both:
        raise _none_found(root, images, masks)
    _check_one_each({key: of_images[key] for key in both}, "images", root)
    _check_one_each({key: of_masks[key] for key in both}, "masks", root)
    _check_once({key: of_images[key] for key in sorted(both)}, root)
    parts = frozenset(part for file in masks for part in file.parts)
    pairs = {}
    for key in both:
        image, mask = of_images[key][0].path, of_masks[key][0].path
        pairs[split_of[image] or split_of[mask], *key[1:]] = image, mask
    lists = find_lists(root, any(key[0] for key in pairs))
    if lists:
        paths = [{file.stem: file.path for file in group} for group in (images, masks)]
        found = by_lists(root, lists, sorted(pairs.values()), *paths)
        if any(found[0].values()):  # the lists may be of other images
            return Pairs(*found, parts)
    splits, without_mask, without_image, outside = _by_parts(pairs, images, masks)
    _check_apart(root, splits, images)
    return Pairs(splits, without_mask, without_image, outside, parts)
