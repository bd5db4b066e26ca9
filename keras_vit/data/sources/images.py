"""A folder of images without classes, "images:PATH": every image in it and in the folders in it, for what needs no
labels.
"""

import os
import random

import tensorflow as tf
from absl import logging

from keras_vit.data.sources.base import RandomAccess
from keras_vit.data.sources.examine import warnings_of
from keras_vit.data.sources.ignored import counted, told
from keras_vit.data.sources.image_files import source_of_files
from keras_vit.data.sources.tree import each_once, walk
from keras_vit.data.splits import canonical, split_name, split_range
from keras_vit.io.logs import log_once
from keras_vit.io.paths import locate
from keras_vit.io.progress import stage


def images(path: str, split: str = "train", data_dir: str | None = None) -> RandomAccess:
    """The source of all images in and below the folder `path`, each file once, in a fixed random order; its examples
    have no label.

    A relative path is relative to `data_dir`, if that is given. No image is decoded here.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if it holds no images, or for another split than "train", which is all of it, or a slice of that.
    """
    root, title = locate(path, data_dir), f"images:{path}"
    if not tf.io.gfile.isdir(root):
        raise FileNotFoundError(f'There is no folder "{root}".')
    if canonical(split_name(split)) != "train":
        raise ValueError(f'"{title}" has no split "{split}": all of it is "train". Slice that: "train[90%:]".')
    with stage(f"Reading the folder {root}", unit="files") as work:
        tree = walk(root, work)
        (once,) = each_once([(tree, list(tree.files()))])
        files = [os.path.join(root, *file) for file in once]
        warnings = warnings_of(title, files)
    if not files:
        raise ValueError(f'The folder "{root}" has no images: it holds {told(tree.ignored) or "nothing"}.')
    ignored = f"; ignored: {told(tree.ignored)}" if tree.ignored else ""
    loud = any(not reason.expected for reason in tree.ignored)
    log_once(logging.WARNING if loud else logging.INFO, f"{title}: {counted(len(files), 'image')}{ignored}.")
    for warning in warnings:
        log_once(logging.WARNING, warning)
    random.Random(0).shuffle(files)
    start, stop = split_range(split, len(files))
    return source_of_files(title, (), None, files[start:stop])
