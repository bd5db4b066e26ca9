"""A small InstanceModel that finds what its images say, and a source of images with outlined objects.

Each value of an image's first channel, in steps of 20 from 20, is an object that the model finds: of the class
(value / 20 - 1) % 3, with the score 1 - value / 1000.
"""

import dataclasses

import numpy as np

import keras_vit
from keras_vit.data import from_arrays

NAMES = ("cat", "dog", "sky")
SIDE, MOST = 16, 4
STEP = 20  # of pixel values


class _Written:
    """Finds the objects in pixels (b, h, w, c), with masks (b, d, h, w) or, as queries, (b, h, w, d)."""

    def __init__(self, axis, limit=MOST):
        self.axis, self.limit = axis, limit

    def predict_on_batch(self, pixels):
        values = STEP * np.arange(1, min(MOST, self.limit) + 1)
        inside = np.round(pixels[:, None, ..., 0]) == values[:, None, None]  # (b, d, h, w)
        boxes = np.zeros((*inside.shape[:2], 4), "float32")
        for i, j in np.ndindex(inside.shape[:2]):
            rows, columns = (np.flatnonzero(inside[i, j].any(1 - axis)) for axis in (0, 1))
            if len(rows):
                boxes[i, j] = rows[0], columns[0], rows[-1] + 1, columns[-1] + 1
        there = inside.any((2, 3))
        return {
            "scores": np.where(there, 1 - values / 1000, 0).astype("float32"),
            "labels": np.where(there, (values // STEP - 1) % len(NAMES), -1),
            "boxes": boxes / SIDE,
            "masks": np.moveaxis(np.where(inside, 9.0, -9.0).astype("float32"), 1, self.axis),
        }


def instance_model(**options):
    """A small InstanceModel with random weights."""
    return keras_vit.InstanceModel(
        "Ti/8",
        classes=len(NAMES),
        class_names=NAMES,
        image_size=SIDE,
        depth=2,
        width=16,
        heads=2,
        mlp_dim=16,
        head_options={"queries": 5, "blocks": 1},
        **options,
    )


def written_model(**options):
    """The same, which finds what its images say."""
    model = instance_model(preprocessing=f"decode(3)|resize({SIDE}, {SIDE}, 'nearest', False)", **options)
    model.__dict__.update(finder=lambda limit=100: _Written(1, limit), queries=lambda: _Written(-1))
    return model


def written(examples, names=NAMES, stuff=()):
    """A source of examples (found, true), both lists of (mask (h, w) bool, label, crowd).

    The image says what is found, the last of it on top; its objects' labels must be 0, 1, 2 and 0, in this order. The
    true objects cover one another two deep at most.
    """
    images = np.zeros((len(examples), SIDE, SIDE, 3), "uint8")
    segments = np.zeros((len(examples), SIDE, SIDE, 2), "int32")
    most = max(len(true) for _, true in examples)
    boxes, others = np.zeros((len(examples), most, 4), "float32"), np.zeros((3, len(examples), most), "int32")
    for n, (found, true) in enumerate(examples):
        for i, (mask, label, _) in enumerate(found):
            assert label == i % len(NAMES)
            images[n, mask, 0] = STEP * (i + 1)
        for i, (mask, label, crowd) in enumerate(true):
            segments[n, ..., 1][mask & (segments[n, ..., 1] == 0)] = i + 1
            segments[n, ..., 0][mask] = i + 1
            rows, columns = (np.flatnonzero(mask.any(1 - axis)) for axis in (0, 1))
            boxes[n, i] = np.array([rows[0], columns[0], rows[-1] + 1, columns[-1] + 1]) / SIDE
            others[:, n, i] = label, crowd, mask.sum()
    features = {"boxes": boxes, "labels": others[0], "crowd": others[1], "area": others[2].astype("float32")}
    source = from_arrays(images, features={**features, "segments": segments})
    return dataclasses.replace(source, class_names=names, most_objects=most, outlined=True, stuff=stuff)


def box(top, left, bottom, right):
    """A mask (h, w) bool of a rectangle, in pixels."""
    mask = np.zeros((SIDE, SIDE), bool)
    mask[top:bottom, left:right] = True
    return mask
