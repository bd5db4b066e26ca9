"""A folder of images: the name of the folder that an image lies in is its class.

"folder:PATH" takes any tree, on this machine or in a bucket. Folders train, val, test at its top are splits; without them the whole is
"train", in a fixed random order, so that "train[:90%]" and "train[90%:]" hold all classes. Only names are read at the start.
"""

import os
import random

import numpy as np
import tensorflow as tf

from keras_vit.data.paths import in_threads, locate
from keras_vit.data.source import RandomAccess
from keras_vit.data.splits import SPLITS, canonical, split_name, split_range

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp")


def _entries(folder):
    """(names, names of subfolders) in a folder, both sorted, without hidden ones."""
    names = sorted(name for name in tf.io.gfile.listdir(folder) if name[0] != ".")
    others = [name for name in names if not name.lower().endswith(EXTENSIONS)]
    # A bucket marks its folders, and asking about each would take long.
    folders = [name.rstrip("/") for name in others if name.endswith("/") or tf.io.gfile.isdir(os.path.join(folder, name))]
    return [name for name in names if name.rstrip("/") not in folders], folders


def _tree(root):
    """{folder: its entries} of `root` ("") and all below it, relative to it; folders of a depth are listed at once."""
    tree, level = {}, [""]
    while level:
        tree |= zip(level, in_threads(lambda place: _entries(os.path.join(root, place)), level))
        level = [os.path.join(place, name) for place in level for name in tree[place][1]]
    return tree


def _images(tree, place=""):
    """(class, file name) of the images below `place` in class folders: each folder's files, then its subfolders'."""
    files, folders = tree[place]
    if place:
        yield from ((place, name) for name in files if name.lower().endswith(EXTENSIONS))
    for name in folders:
        yield from _images(tree, os.path.join(place, name))


def _split_roots(root):
    """{split: folder} if the top of `root` holds splits, else {"train": root}."""
    named = {canonical(name): os.path.join(root, name) for name in _entries(root)[1] if canonical(name) in SPLITS}
    return named if "train" in named else {"train": root}


def _nothing(root, tree):
    """The error of a folder without images in class folders, which says what it holds."""
    names = [name for files, _ in tree.values() for name in files]
    kinds = sorted({os.path.splitext(name)[1] or name for name in names})
    held = f"{len(names)} files ({', '.join(kinds[:5])})" if names else "nothing"
    expected = f"Expected PATH/CLASS/IMAGE with {', '.join(EXTENSIONS)}."
    return ValueError(f'The folder "{root}" has no images in class folders: it holds {held}. {expected}')


def folder(path, split="train", data_dir=None):
    """The source of `split` below the folder `path`; a relative one lies below `data_dir`, if that is given.

    No image is opened here: one that does not decode shows when its turn comes.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if it holds no images in class folders, or no such split.
    """
    root = locate(path, data_dir)
    if not tf.io.gfile.isdir(root):
        raise FileNotFoundError(f'There is no folder "{root}".')
    roots, name = _split_roots(root), canonical(split_name(split))
    if name not in roots:
        raise ValueError(
            f'The folder "{root}" has no split "{name}"; it has: {", ".join(roots)}. '
            'Without folders named train, val or test, slice: "train[:90%]" and "train[90%:]".'
        )
    trees = {which: _tree(roots[which]) for which in {"train", name}}
    images = {which: list(_images(tree)) for which, tree in trees.items()}
    class_names = sorted({place for place, _ in images["train"]})
    files = images[name]
    if not files:
        raise _nothing(roots[name], trees[name])
    unknown = sorted({place for place, _ in files} - set(class_names))
    if unknown:
        raise ValueError(f'Split "{name}" of "{root}" has classes that train lacks: {", ".join(unknown[:10])}.')
    random.Random(0).shuffle(files)
    start, stop = split_range(split, len(files))
    label = {c: i for i, c in enumerate(class_names)}
    labels = np.array([label[place] for place, _ in files[start:stop]])
    table = tf.constant([os.path.join(roots[name], *file) for file in files[start:stop]])
    return RandomAccess(f"folder:{path}", tuple(class_names), labels, lambda i: tf.io.read_file(table[i]), lambda i: table[i])
