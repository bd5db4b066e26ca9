"""Small files of images and masks of three classes."""

import io

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import open_source
from keras_vit.data.ops.op_registry import parse
from keras_vit.data.sources.selection import example_names

pil = pytest.importorskip("PIL.Image")
ROOMS = np.array([[0, 0, 0, 1], [0, 1, 2, 2], [1, 1, 2, 2]], "uint8")  # a mask of three classes
NAMES = "sky\nroad\ntree\n"
COLORS = {0: (10, 20, 30), 1: (40, 50, 60), 2: (70, 80, 90)}
TABLE = "name,r,g,b\nsky,10,20,30\nroad,40,50,60\ntree,70,80,90\n"
LABELMAP = "# label:color_rgb:parts:actions\nsky:10,20,30::\nroad:40,50,60::\ntree:70,80,90::\n"


def save(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png(values, **options):
    return save(pil.fromarray(np.asarray(values)), **options)


def photo(size=ROOMS.shape, **options):
    return save(pil.fromarray(np.full((*size, 3), 100, "uint8")), "JPEG", **options)


def palette(values, colors, **options):
    image = pil.fromarray(np.asarray(values, "uint8"))
    image.putpalette([channel for color in colors for channel in color])
    return save(image, **options)


def painted(values=ROOMS, alpha=None):
    pixels = np.array([COLORS[i] for i in range(3)], "uint8")[values]
    layers = pixels if alpha is None else np.concatenate([pixels, np.full((*values.shape, 1), alpha, "uint8")], -1)
    return png(layers)


def wide_colors():
    return tf.io.encode_png(np.zeros((*ROOMS.shape, 3), "uint16")).numpy()


def tiff(values, **options):
    return save(pil.fromarray(values), "TIFF", **options)


def write(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def rooms(first=None, suffix=".png", names=NAMES, others=None, count=3, size=ROOMS.shape, **further):
    """The files of images and masks: `first` is the first mask, `others` are the further ones."""
    first = png(ROOMS) if first is None else first
    others = png(ROOMS) if others is None else others
    files = {f"images/{i}.jpg": photo(size if i == 0 else ROOMS.shape) for i in range(count)}
    files |= {f"masks/{i}{suffix}": first if i == 0 else others for i in range(count)}
    return files | ({"classes.txt": names} if names else {}) | further


def everywhere(mask, **options):
    return rooms(mask, others=mask, **options)


def opened(root, options="", split="train"):
    return open_source(f"masks:{root}{options}", split)


def read(source, name="0.jpg"):
    """The mask (h, w) of the example whose image has that name, after `decode`."""
    number = next(i for i, path in enumerate(example_names(source)) if path.endswith(name))
    return parse("decode")(source.read(tf.constant(number, tf.int64)), None)["mask"].numpy()[..., 0]
