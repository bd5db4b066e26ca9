"""A folder of images: the name of the folder that an image lies in is its class.

"folder:PATH" takes any tree. Folders train, val, test at its top are splits; without them the whole is "train", in a fixed random order,
so that "train[:90%]" and "train[90%:]" hold all classes.
"""

import concurrent.futures
import os
import pathlib
import random

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.data.source import RandomAccess
from keras_vit.data.splits import split_name, split_range

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp")
_SPLITS = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


def _images(root):
    """Paths below `root`, relative to it, of files named like images."""
    found = []
    for folder, subfolders, files in os.walk(root, followlinks=True):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        place = pathlib.Path(folder).relative_to(root)
        found += [place / name for name in sorted(files) if name.lower().endswith(EXTENSIONS) and name[0] != "."]
    return found


def _split_roots(root):
    """{split: folder} if the top of `root` holds splits, else {"train": root}."""
    named = {_SPLITS[d.name.lower()]: d for d in sorted(root.iterdir()) if d.is_dir() and d.name.lower() in _SPLITS}
    return named if "train" in named else {"train": root}


def _problem(path):
    """None for an image that decodes, else the reason."""
    from keras_vit.data.ops import decode_bytes

    try:
        decode_bytes(tf.io.read_file(str(path)), 3)
    except tf.errors.OpError as error:
        # TensorFlow's message stands between the node's name in braces and the op's in brackets.
        return str(error).split("\n")[0].rsplit("}} ", 1)[-1].split(" [Op:")[0] or type(error).__name__
    return None


def _readable(paths):
    """Those of `paths` that decode; the others are named in warnings."""
    bar = keras.utils.Progbar(len(paths), unit_name="image", verbose=int(len(paths) > 2_000))
    good = []
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for i, (path, problem) in enumerate(zip(paths, pool.map(_problem, paths)), 1):
            if problem:
                logging.warning("Skipping %s, which does not decode: %s", path, problem)
            else:
                good.append(path)
            if i % 100 == 0 or i == len(paths):
                bar.update(i)
    return good


def folder(path, split="train"):
    """The source of `split` below the folder `path`.

    Every image is decoded once beforehand; one that does not decode is named in a warning and left out.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if it holds no images in class folders, or no such split.
    """
    root = pathlib.Path(path).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f'There is no folder "{path}".')
    roots, name = _split_roots(root), split_name(split)
    if name not in roots:
        raise ValueError(
            f'The folder "{path}" has no split "{name}"; it has: {", ".join(roots)}. '
            'Without folders named train, val or test, slice: "train[:90%]" and "train[90%:]".'
        )
    class_names = sorted({str(p.parent) for p in _images(roots["train"]) if p.parent.parts})
    files = [p for p in _images(roots[name]) if p.parent.parts]
    if not files:
        loose = [p for p in root.rglob("*") if p.is_file()]
        kinds = sorted({p.suffix or p.name for p in loose})
        held = f"{len(loose)} files ({', '.join(kinds[:5])})" if loose else "nothing"
        raise ValueError(
            f'The folder "{roots[name]}" has no images in class folders: it holds {held}. '
            f"Expected PATH/CLASS/IMAGE with {', '.join(EXTENSIONS)}."
        )
    unknown = sorted({str(p.parent) for p in files} - set(class_names))
    if unknown:
        raise ValueError(f'Split "{name}" of "{path}" has classes that train lacks: {", ".join(unknown[:10])}.')
    random.Random(0).shuffle(files)
    start, stop = split_range(split, len(files))
    paths = _readable([roots[name] / p for p in files[start:stop]])
    if not paths:
        raise ValueError(f'None of the {stop - start} images of "{path}", split "{split}", decodes.')
    label = {c: i for i, c in enumerate(class_names)}
    labels = np.array([label[str(p.parent.relative_to(roots[name]))] for p in paths])
    table = tf.constant([str(p) for p in paths])
    return RandomAccess(f"folder:{path}", tuple(class_names), labels, lambda i: tf.io.read_file(table[i]))
