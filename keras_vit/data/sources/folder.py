"""A folder of images: an image's class is the name of the folder that contains it.

"folder:PATH" takes any tree, on this machine or in a bucket. Folders train, val, test at its top are splits; without them all of it is
"train", in a fixed random order, so that "train[:90%]" and "train[90%:]" both hold all classes. Only names are read at the start.
"""

import collections
import os
import random

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.data.sources.base import RandomAccess
from keras_vit.data.splits import SPLITS, canonical, split_name, split_range
from keras_vit.io.paths import in_threads, locate

_HARMLESS = (".txt", ".md", ".csv", ".tsv", ".json", ".jsonl", ".db", ".ini")  # beside images: labels, Thumbs.db, desktop.ini
EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp")


def _entries(folder):
    """(names, names of subfolders) in a folder, both sorted, without hidden ones."""
    names = sorted(name for name in tf.io.gfile.listdir(folder) if name[0] != ".")
    others = [name for name in names if not name.lower().endswith(EXTENSIONS)]
    # A bucket marks its folders, and asking about each would take a long time.
    folders = [name.rstrip("/") for name in others if name.endswith("/") or tf.io.gfile.isdir(os.path.join(folder, name))]
    return [name for name in names if name.rstrip("/") not in folders], folders


def _tree(root):
    """{folder: its entries} for `root` ("") and everything below it, relative to it; all folders of one depth are listed at once."""
    tree, level = {}, [""]
    while level:
        tree |= zip(level, in_threads(lambda place: _entries(os.path.join(root, place)), level))
        level = [os.path.join(place, name) for place in level for name in tree[place][1]]
    return tree


def _images(tree, place=""):
    """(class, file name) of the images in class folders below `place`: each folder's files, then its subfolders'."""
    files, folders = tree[place]
    if place:
        yield from ((place, name) for name in files if name.lower().endswith(EXTENSIONS))
    for name in folders:
        yield from _images(tree, os.path.join(place, name))


def _split_roots(root):
    """{split: folder} if `root` contains splits, else {"train": root}."""
    named = {canonical(name): os.path.join(root, name) for name in _entries(root)[1] if canonical(name) in SPLITS}
    return named if "train" in named else {"train": root}


def _beside(root, roots):
    """What to say of folders beside the splits, which perhaps were meant as classes; "" if there are none."""
    splits = [os.path.basename(path) for path in roots.values()]
    others = [] if roots["train"] == root else [name for name in _entries(root)[1] if name not in splits]
    return f"folders beside the splits ({', '.join(others[:10])}): {', '.join(splits)} was taken as a split" if others else ""


def _warn_of_the_rest(root, name, roots, tree, images):
    """Warns in one line of what a split leaves out."""
    endings = [os.path.splitext(file)[1].lower() or file for files, _ in tree.values() for file in files]
    counts = collections.Counter(ending for ending in endings if ending not in (*EXTENSIONS, *_HARMLESS))
    used = {place for place, _ in images}
    # Folders of folders are no classes.
    empty = [place for place, (_, folders) in tree.items() if place and place not in used and not folders]
    parts = [f"files of other kinds ({', '.join(f'{n} {kind}' for kind, n in counts.most_common(10))})" if counts else ""]
    parts += [f"folders without images ({', '.join(empty[:10])})" if empty else "", _beside(root, roots)]
    if any(parts):
        logging.warning('"%s", %s: left out are %s.', root, name, "; ".join(part for part in parts if part))


def _no_images(root, tree):
    """The error for a folder without images in class folders; it says what the folder holds."""
    names = [name for files, _ in tree.values() for name in files]
    kinds = sorted({os.path.splitext(name)[1] or name for name in names})
    contents = f"{len(names)} files ({', '.join(kinds[:5])})" if names else "nothing"
    expected = f"Expected PATH/CLASS/IMAGE with {', '.join(EXTENSIONS)}."
    return ValueError(f'The folder "{root}" has no images in class folders: it holds {contents}. {expected}')


def folder(path: str, split: str = "train", data_dir: str | None = None) -> RandomAccess:
    """The source of `split` of the folder `path`; a relative path is relative to `data_dir`, if that is given.

    No image is opened here: one that does not decode fails when it is read.

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
        raise _no_images(roots[name], trees[name])
    unknown = sorted({place for place, _ in files} - set(class_names))
    if unknown:
        raise ValueError(f'Split "{name}" of "{root}" has classes that train does not have: {", ".join(unknown[:10])}.')
    _warn_of_the_rest(root, name, roots, trees[name], files)
    random.Random(0).shuffle(files)
    start, stop = split_range(split, len(files))
    label = {c: i for i, c in enumerate(class_names)}
    labels = np.array([label[place] for place, _ in files[start:stop]])
    paths = tf.constant([os.path.join(roots[name], *file) for file in files[start:stop]])

    def lookup(i):
        return {"image": tf.io.read_file(paths[i])}

    def name_of(i):
        return paths[i]

    return RandomAccess(f"folder:{path}", tuple(class_names), labels, lookup, name_of)
