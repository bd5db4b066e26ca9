"""Folders of images of all formats, written and read."""

import io
import os

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import open_source
from keras_vit.data.scan import scan
from keras_vit.data.sources.selection import example_names

pil = pytest.importorskip("PIL.Image")


def pixels(seed=0, size=(20, 24)):
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype="uint8")


def encoded(kind, seed=0, **options):
    file = io.BytesIO()
    pil.fromarray(pixels(seed)).save(file, kind, **options)
    return file.getvalue()


def write(root, *names, kind="PNG"):
    """Images of different contents."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(kind, seed=sum(map(ord, str(name)))))


def names(root, split="train"):
    """The examples' paths, relative to the root."""
    return sorted(os.path.relpath(name, root) for name in example_names(open_source(f"folder:{root}", split)))


def decoded(root):
    """({file name: pixels}, {file name: the reason why it does not decode})."""
    rows = list(
        scan(open_source(f"folder:{root}", "train"), lambda example, pixels: (tf.ensure_shape(pixels, (20, 24, 3)),))
    )

    def short(name):
        return name.rpartition("/")[2]

    return {short(name): row[0] for name, row, why in rows if row}, {short(name): why for name, row, why in rows if why}
