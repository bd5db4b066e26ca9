"""Find image files by path, folder or pattern, and read their pixels."""

import glob
import os
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.data.sources.image_files import infer_format, to_known_format
from keras_vit.data.sources.tree import describe_ignored, walk
from keras_vit.io.logs import log_once
from keras_vit.io.progress import stage
from keras_vit.io.suggest import did_you_mean


def _in_folder(folder):
    """Image files in and below a folder."""
    with stage(f"Reading the folder {folder}", unit="files") as work:
        tree = walk(folder, work)
    wanted = {reason: paths for reason, paths in tree.ignored.items() if not reason.expected}
    if wanted:
        log_once(logging.WARNING, f"{folder}: ignored {describe_ignored(wanted)}.")
    return [os.path.join(folder, *file) for file in tree.files()]


def _matches(pattern):
    """Sorted matches of a pattern such as "photos/**/*.jpg"."""
    return sorted(tf.io.gfile.glob(pattern) if "://" in pattern else glob.glob(pattern, recursive=True))


def _found(part):
    """Image files of a path or pattern; FileNotFoundError if there are none."""
    path = part if "://" in part else os.path.expanduser(part)
    if tf.io.gfile.isdir(path):
        files = _in_folder(path)
    elif tf.io.gfile.exists(path):
        files = [path]  # of any kind: unreadable files are reported later
    else:
        matches = _matches(path)
        files = [
            f
            for match in matches
            for f in (_in_folder(match) if tf.io.gfile.isdir(match) else [match])
            if infer_format(f)
        ]
    if files:
        return files
    folder, name = os.path.split(path.rstrip("/"))
    beside = tf.io.gfile.listdir(folder or ".") if tf.io.gfile.isdir(folder or ".") else []
    kind = (
        "a folder without images"
        if tf.io.gfile.isdir(path)
        else "neither a file nor a folder, nor a pattern that matches an image"
    )
    hint = "" if tf.io.gfile.isdir(path) else did_you_mean(name, [other.rstrip("/") for other in beside])
    raise FileNotFoundError(f'"{part}" is {kind}.{hint}')


def find_images(text: str) -> list[str]:
    """Finds image files, in the order of the text and without duplicates.

    Args:
        text: files, folders (recursive) and patterns such as "photos/**/*.jpg", separated by commas; local or in a
            bucket.

    Raises:
        FileNotFoundError: a part of the text matches no image.
    """
    whole = os.path.expanduser(text)
    parts = [text] if os.path.exists(whole) else [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise FileNotFoundError("No images given: expected files, folders or patterns, separated by commas.")
    return list(dict.fromkeys(file for part in parts for file in _found(part)))


def short_names(paths: list[str]) -> list[str]:
    """Display names of files: file names, or paths relative to the common folder if two names are equal."""
    names = [os.path.basename(path) for path in paths]
    if len(set(names)) == len(names):
        return names
    above = os.path.commonprefix([os.path.dirname(path) + "/" for path in paths]).rpartition("/")[0]
    return [path[len(above) :].lstrip("/") for path in paths]


def evenly(count: int, most: int) -> np.ndarray:
    """At most `most` of the numbers 0 to count - 1, evenly spread from 0: (n,) integers."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int)) if count else np.zeros(0, int)


def read_images(
    model: keras.Model, paths: list[str], advance: Callable[[], None] | None = None
) -> tuple[np.ndarray, list[str], dict[str, str]]:
    """Reads image files with the model's own preprocessing, and skips unreadable files.

    Args:
        model: keras_vit.Model with a single image input.
        paths: image files, local or in a bucket.
        advance: function to call after each file, for progress.

    Returns:
        (pixels (b, height, width, c) uint8, paths of the files read, {path: reason} of the others).
    """
    model.preprocess([])  # refuses models without one image input
    pixels, read, failed = [], [], {}
    for path in paths:
        try:
            with tf.io.gfile.GFile(path, "rb") as file:
                encoded = to_known_format(file.read(), path)
            pixels.append(model.preprocess(encoded))
            read.append(path)
        except tf.errors.OpError as error:
            failed[path] = error.message or type(error).__name__
        except (OSError, ValueError) as error:
            failed[path] = str(error).removeprefix("The image ").removeprefix("The image: ")
        if advance:
            advance()
    height, width = model.image_size
    return np.stack(pixels) if pixels else np.zeros((0, height, width, model.channels), "uint8"), read, failed
