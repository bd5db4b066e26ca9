"""Folders of images. In "folder:PATH" an image's folder is its class; "images:PATH" has no classes.

A folder is any tree, local or in a bucket. Top-level folders train, val and test of "folder:" are splits; without them,
everything is "train", with stratified slices "train[:90%]" and "train[90%:]" (stratified.py). Opening a folder only
lists names, and opens images without an extension. data/sources/examine.py reads the files.
"""

import collections
import contextlib
import contextvars
import os
import re
import unicodedata
from collections.abc import Iterator

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.data.sources.base import RandomAccess
from keras_vit.data.sources.classes_file import warn_about_names
from keras_vit.data.sources.image_files import source_of_files
from keras_vit.data.sources.stratified import stratified_slice
from keras_vit.data.sources.tree import BESIDE, NO_IMAGES, OUTSIDE, describe_ignored, each_once, top, walk
from keras_vit.data.splits import SPLITS, canonical, find_split, fixed_shuffle, merged_splits, split_name, take_slice
from keras_vit.io.logs import log_once
from keras_vit.io.paths import locate
from keras_vit.io.progress import stage
from keras_vit.io.suggest import counted, did_you_mean, listed

# Folders of images and of their masks; the names of classes seldom have such words.
_IMAGE_FOLDERS = re.compile(r"images?(?:[^a-z]|$)|(?:^|[^a-z])(?:imgs?|input)(?:[^a-z]|$)", re.IGNORECASE)
_MASK_FOLDERS = re.compile(
    r"(?:^|[^a-z])(?:masks?|pedmasks|trimaps?|annot(?:ation)?s?|labels?|ground_?truth|1st_manual)(?:[^a-z]|$)",
    re.IGNORECASE,
)


def _class_files(tree):
    """Lists (folder, name) of the images in class folders."""
    return [(place, name) for place, name in tree.files() if place]


def check_folder(root):
    """Raises FileNotFoundError if a path is not a folder."""
    if tf.io.gfile.isdir(root):
        return
    if tf.io.gfile.exists(root):
        raise FileNotFoundError(f'Expected a folder of images, but "{root}" is a file. Unpack archives first.')
    above, name = os.path.split(root.rstrip("/"))
    beside = tf.io.gfile.listdir(above or ".") if tf.io.gfile.isdir(above or ".") else []
    near = did_you_mean(name, [other.rstrip("/") for other in beside])
    raise FileNotFoundError(f'There is no folder "{root}".{near}')


def _split_trees(root, work):
    """Returns ({split: Tree}, top level Tree) if `root` contains splits, else ({"train": whole Tree}, None).

    A folder train, val or test with images but no class folders is an ordinary class, not a split.

    Raises:
        ValueError: if splits and classes are ambiguous.
    """
    whole = top(root, work)
    named = {name: canonical(name) for name in whole.folders[""] if canonical(name) in SPLITS}
    trees = {name: walk(os.path.join(root, name), work) for name in named}
    if not any(_class_files(tree) for tree in trees.values()):
        return {"train": walk(root, work)}, None
    splits = {named[name]: tree for name, tree in trees.items()}
    if len(splits) < len(named):
        raise ValueError(f'The folder "{root}" has several folders for one split: {", ".join(named)}. Merge them.')
    if "train" not in splits:
        first = next(iter(named))
        raise ValueError(
            f'The folder "{root}" has {", ".join(named)} but no train, which defines the classes. Add it, or open one'
            f' folder as a whole: "folder:{os.path.join(root, first)}", split "train".'
        )
    if list(splits) == ["train"]:
        others = [name for name in whole.folders[""] if name not in named]
        classes = [name for name in others if any(walk(os.path.join(root, name), work).files())]
        if classes:
            raise ValueError(
                f'The folder "{root}" has train, the name of a split, and other folders of images next to it:'
                f" {listed(classes)}. If these are classes, move the folders in train next to them; to use only train,"
                f' write "folder:{root}/train".'
            )
    return splits, whole


def _class_name(place):
    """Returns a folder's class in normal form: macOS and others encode accents differently."""
    return unicodedata.normalize("NFC", os.fsencode(place).decode(errors="replace"))


def _no_images(tree):
    """Returns the error for a folder without images in class folders."""
    outside = tree.images.get("", [])
    if outside:
        contents = f"{counted(len(outside), 'image')} and no class folders"
    else:
        contents = describe_ignored(tree.ignored) or "nothing"
    return ValueError(
        f'The folder "{tree.root}" has no images in class folders; it contains {contents}. Expected PATH/CLASS/IMAGE.'
    )


def _ignored(root, trees, whole):
    """Collects {reason: paths} of everything ignored in the splits and the folder above them."""
    every = collections.defaultdict(list)
    for tree in [*trees.values(), whole] if whole else trees.values():

        def shown(path, tree=tree):
            return os.path.relpath(os.path.join(tree.root, path), root)

        for reason, paths in tree.ignored.items():
            every[reason] += map(shown, paths)
        every[OUTSIDE] += map(shown, tree.images.get("", []))
        # A folder of folders is not a class.
        empty = (place for place, images in tree.images.items() if place and not images and place not in tree.folders)
        every[NO_IMAGES] += map(shown, empty)
    if whole:
        every[BESIDE] += (name for name in whole.folders[""] if canonical(name) not in SPLITS)
    return {reason: paths for reason, paths in every.items() if paths}


def _log_found(title, found, ignored):
    """Logs one line about found and ignored files; warns if an ignored file may be wanted."""
    loud = any(not reason.expected for reason in ignored)
    text = f"{title}: {found}; ignored: {describe_ignored(ignored)}." if ignored else f"{title}: {found}."
    log_once(logging.WARNING if loud else logging.INFO, text)


def _found(files, classes):
    """Describes files: "2,310 images of 2 classes (cat, dog)", or the number in each split."""
    if len(files) == 1:
        images = counted(len(files["train"]), "image")
    else:
        images = ", ".join(f"{split} {len(files[split]):,}" for split in SPLITS if split in files) + " images"
    return f"{images} of {counted(len(classes), 'class')} ({listed(classes)})"


def _classes(files):
    """Sorts the classes of a split's (folder, name)."""
    return sorted({_class_name(place) for place in {place for place, _ in files}})


def _containers(classes):
    """Returns {class: classes in its folder} for classes that contain others."""
    inside = collections.defaultdict(list)
    for name in classes:
        parts = name.split("/")
        for i in range(1, len(parts)):
            inside["/".join(parts[:i])].append(name)
    return {name: inside[name] for name in classes if name in inside}


def _warnings(name, files, classes):
    """Yields warnings about classes that are nested, named like splits, masks, or missing in a split."""
    if len(files) == 1 and (merged := merged_splits(classes)):
        yield f"{name}: {merged}."
    drawn = [place for place in classes if _MASK_FOLDERS.search(place)]
    photos = [place for place in classes if place not in drawn and _IMAGE_FOLDERS.search(place)]
    if drawn and photos:
        yield (
            f"{name}: the classes {listed(photos)} and {listed(drawn)} look"
            f" like images and their masks. If so, open masks:{name.partition(':')[2]}."
        )
    containers = _containers(classes)
    if containers:
        outer, inner = next((outer, inside[0]) for outer, inside in containers.items())
        yield (
            f"{name}: class folders with both images and class folders: {listed(list(containers))}. {outer} and {inner}"
            f" are two classes; torchvision's ImageFolder treats them as one, {outer.partition('/')[0]}."
        )
    taken = [c for c in classes if len(files) == 1 and canonical(c) in SPLITS]
    if taken:
        yield f"{name}: {listed(taken)} has images but no class folders, so it is a class, not a split."
    for split in files:
        missing = sorted(set(classes) - set(_classes(files[split])))
        if missing and files[split]:
            yield f"{name}: {split} has no images of {counted(len(missing), 'class')}: {listed(missing)}."


def _nested_splits(classes):
    """Finds the first class folder with train and another split: (folder, its splits), or None."""
    splits = collections.defaultdict(dict)
    for name in classes:
        parts = name.split("/")
        for i, part in enumerate(parts):
            if canonical(part) in SPLITS:
                splits["/".join(parts[:i])][canonical(part)] = part
    return next(
        ((above, list(words.values())) for above, words in splits.items() if "train" in words and len(words) > 1), None
    )


def _check_classes(root, split, files, classes):
    """Raises ValueError for split folders that would become classes, and for classes that train lacks."""
    nested = _nested_splits(classes)
    if nested and nested[0]:
        raise ValueError(
            f'The folder "{root}" has splits inside {nested[0]}: {", ".join(nested[1])}. Expected SPLIT/CLASS/IMAGE. If'
            f' {nested[0]} has this layout, write "folder:{os.path.join(root, nested[0])}".'
        )
    if nested or all(canonical(name) in SPLITS for name in classes):
        words = [name for name in classes if canonical(name) in SPLITS]
        raise ValueError(
            f'The folder "{root}" has no class folders in {", ".join(words)}. Expected {words[0]}/CLASS/IMAGE.'
        )
    unknown = sorted(set(_classes(files[split])) - set(classes))
    if unknown:
        near = did_you_mean(unknown[0], classes)
        raise ValueError(f'Split "{split}" of "{root}" has classes that train lacks: {listed(unknown)}.{near}')


_read: contextvars.ContextVar[dict | None] = contextvars.ContextVar("folders that were read", default=None)


@contextlib.contextmanager
def folders_read_once() -> Iterator[None]:
    """Context that reads the names in a folder once for all its splits."""
    known = _read.get()
    token = _read.set({} if known is None else known)
    try:
        yield
    finally:
        _read.reset(token)


def _once(key, read):
    """Returns read(); within `folders_read_once`, caches the result by key."""
    known = _read.get()
    if known is None:
        return read()
    if key not in known:
        known[key] = read()
    return known[key]


def _labelled(root):
    """Reads a folder of classes: ({split: Tree}, top level Tree or None, {split: (folder, name) of its images})."""
    with stage(f"Reading the folder {root}", unit="files") as work:
        trees, whole = _split_trees(root, work)
        # If a file is in several splits, test and val take precedence over train.
        in_order = sorted(trees, key=SPLITS.index, reverse=True)
        once = each_once([(trees[which], _class_files(trees[which])) for which in in_order])
        return trees, whole, {which: once[in_order.index(which)] for which in trees}


def _unlabelled(root):
    """Reads a folder of images: (Tree, (folder, name) of its images)."""
    with stage(f"Reading the folder {root}", unit="files") as work:
        tree = walk(root, work)
        (files,) = each_once([(tree, list(tree.files()))])
    return tree, files


def folder(path: str, split: str = "train", data_dir: str | None = None) -> RandomAccess:
    """Opens a split of the folder `path`, relative to `data_dir` if given.

    Logs one line about found and ignored files. Decodes no image, so damaged images fail when read.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if it has no images in class folders, lacks the split, or its classes are ambiguous.
    """
    root, title = locate(path, data_dir), f"folder:{path}"
    check_folder(root)
    trees, whole, files = _once((folder, root), lambda: _labelled(root))
    asked = find_split(f'The folder "{root}"', split, trees)
    for needed in ("train", asked):
        if not files[needed]:
            raise _no_images(trees[needed])
    class_names = _classes(files["train"])
    _check_classes(root, asked, files, class_names)
    _log_found(title, _found(files, class_names), _ignored(root, trees, whole))
    warn_about_names(title, class_names)
    for text in _warnings(title, files, class_names):
        log_once(logging.WARNING, text)

    number = {name: i for i, name in enumerate(class_names)}
    label_of = {place: number[_class_name(place)] for place in {place for place, _ in files[asked]}}
    labels = np.array([label_of[place] for place, _ in files[asked]])
    order = stratified_slice(title, split, labels, class_names)
    paths = [os.path.join(trees[asked].root, *files[asked][i]) for i in order]
    return source_of_files(title, class_names, labels[order], paths)


def images(path: str, split: str = "train", data_dir: str | None = None) -> RandomAccess:
    """Opens all images below the folder `path`, each file once, in a fixed random order, without labels.

    A relative path is relative to `data_dir`, if given.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if it has no images, or the split is not "train" or a slice of it.
    """
    root, title = locate(path, data_dir), f"images:{path}"
    check_folder(root)
    if canonical(split_name(split)) != "train":
        raise ValueError(f'"{title}" has no split "{split}": everything is "train". Use slices: "train[90%:]".')
    tree, files = _once((images, root), lambda: _unlabelled(root))
    if not files:
        raise ValueError(
            f'The folder "{root}" has no images; it contains {describe_ignored(tree.ignored) or "nothing"}.'
        )
    _log_found(title, counted(len(files), "image"), tree.ignored)
    chosen = take_slice(split, fixed_shuffle(files))
    return source_of_files(title, (), None, [os.path.join(root, *file) for file in chosen])
