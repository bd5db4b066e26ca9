"""Mixup and mosaic of images with objects, on the device: pure functions of (images, objects, step).

Images are (b, h, w, c). Objects are (b, m, 7), rows of top, left, bottom, right, label, crowd and area, boxes as
fractions of the image; padding has the label -1. Each output row has room for the objects of all images in it, real
ones first. As in classification/mixup.py, neighbours mix, shapes are static, and XLA can compile everything.
"""

import dataclasses

import keras
from keras import ops

from keras_vit.classification.mixup import mix, mixup_share, step_seed, swap_neighbours
from keras_vit.fit.mixing import Neighbours
from keras_vit.io.target_values import PADDING_ROW
from keras_vit.layers.dropout import FixedSeed, fold_in
from keras_vit.layers.registration import serializable


def _check_shares(mixing, *names):
    for name in names:
        if not 0 <= getattr(mixing, name) <= 1:
            raise ValueError(f"{type(mixing).__name__}: {name} must be from 0 to 1, got {getattr(mixing, name)}.")


def _uniforms(seed, shape):
    return keras.random.uniform(shape, seed=FixedSeed(fold_in(seed, 3)))


def _packed(objects, valid):
    """Objects (b, m, 7) with the rows that are `valid`, (b, m), first and in order; the others are padding."""
    m = objects.shape[1]
    order = ops.argsort(ops.where(valid, 0, m) + ops.arange(m), axis=1)
    objects = ops.where(valid[..., None], objects, ops.convert_to_tensor(PADDING_ROW, objects.dtype))
    return ops.take_along_axis(objects, order[..., None], axis=1)


@serializable
@dataclasses.dataclass(frozen=True)
class SceneMixup(Neighbours):
    """Blends the images of each pair in one proportion per batch; both have the objects of both (arXiv 1902.04103).

    Attributes:
        alpha: the proportion is sampled from Beta(alpha, alpha); 32 keeps it near one half.
        probability: of mixing a batch.
        seed: selects the random stream; the result is a pure function of (seed, step).
    """

    alpha: float = 32.0
    probability: float = 0.5
    seed: int = 0

    def __post_init__(self):
        if self.alpha <= 0:
            raise ValueError(f"SceneMixup: alpha must be positive, got {self.alpha}.")
        _check_shares(self, "probability")

    def __call__(self, images, objects, step):
        """Images (b, h, w, c), objects (b, m, 7), step -> float32 images, objects (b, 2 m, 7)."""
        seed = step_seed(self.seed, step)
        mixes = _uniforms(seed, ()) < self.probability
        keep = ops.where(mixes, mixup_share(self.alpha, seed), 1.0)
        b = ops.shape(objects)[0]
        paired = ops.arange(b) < b // 2 * 2  # (b,)
        both = ops.concatenate([objects, swap_neighbours(objects)], axis=1)
        joins = ops.broadcast_to(ops.logical_and(paired, mixes)[:, None], ops.shape(objects)[:2])
        valid = ops.logical_and(ops.concatenate([ops.ones_like(joins), joins], axis=1), both[..., 4] >= 0)
        return mix(ops.cast(images, "float32"), keep), _packed(both, valid)


def _neighbourhoods(x):
    """(b, ...) -> (b / 4, 4, 4, ...): for each row of four neighbours, the row and the three after it, cyclically."""
    fours = ops.reshape(x, (-1, 4, *x.shape[1:]))
    return ops.stack([ops.roll(fours, -place, axis=1) for place in range(4)], axis=2)


def window_weights(size: int, start, extent):
    """The weights with which two adjacent images give the pixels of a window, along one axis: (r, size, 2, size).

    Bilinear and antialiased, and without blending across the seam.

    Args:
        size: pixels of an image, and of the result.
        start, extent: (r,) each. The windows, as fractions of the two images.
    """
    pixel = ops.arange(2 * size, dtype="float32")  # of the two images
    place = 2 * size * start[:, None] + 2 * extent[:, None] * (ops.arange(size, dtype="float32") + 0.5)  # (r, size)
    reach = ops.maximum(2 * extent, 1.0)[:, None, None]
    weights = ops.relu(1.0 - ops.abs(place[..., None] - (pixel + 0.5)) / reach)  # (r, size, 2 size)
    weights = ops.where((place[..., None] >= size) == (pixel >= size), weights, 0.0)
    return ops.reshape(weights / ops.sum(weights, axis=-1, keepdims=True), (-1, size, 2, size))


def _box_areas(boxes):
    """Boxes (..., 4) -> (...)."""
    return ops.prod(ops.maximum(boxes[..., 2:] - boxes[..., :2], 0.0), axis=-1)


@serializable
@dataclasses.dataclass(frozen=True)
class Mosaic(Neighbours):
    """Four neighbours, two above two, seen through a random window (YOLOv4, arXiv 2004.10934, Sec. 3.3).

    Each of the four rows has its own window and its own order of the images. A window with the side 1 shows all four
    images at half their size, one with the side 0.5 parts of them at full size.

    Attributes:
        low: the side of the window is uniform between `low` and 1, as a share of the two images' side.
        keep: a box of which less than this share is visible is dropped.
        probability: of mixing a batch.
        seed: selects the random stream; the result is a pure function of (seed, step).
    """

    low: float = 0.6
    keep: float = 0.25
    probability: float = 0.5
    seed: int = 0
    group = 4

    def __post_init__(self):
        _check_shares(self, "low", "keep", "probability")
        if self.low == 0:
            raise ValueError("Mosaic: low must be above 0, got 0.")

    def __call__(self, images, objects, step):
        """Images (b, h, w, c), objects (b, m, 7), step -> float32 images, objects (b, 4 m, 7)."""
        images, seed = ops.cast(images, "float32"), step_seed(self.seed, step)
        samples = _uniforms(seed, (13,))
        room = ops.broadcast_to(
            ops.convert_to_tensor(PADDING_ROW, objects.dtype), (ops.shape(objects)[0], 3 * objects.shape[1], 7)
        )
        unmixed = ops.concatenate([objects, room], axis=1)
        whole = ops.shape(images)[0] // 4 * 4  # the last rows of other batches stay

        def mixed():
            windows = self._windows(ops.reshape(samples[1:], (3, 4)))
            parts = [self._images(images[:whole], *windows), self._objects(objects[:whole], *windows)]
            return tuple(ops.concatenate([part, x[whole:]]) for part, x in zip(parts, (images, unmixed)))

        return ops.cond(samples[0] < self.probability, mixed, lambda: (images, unmixed))

    def _windows(self, samples):
        """(3, 4) samples -> top, left and side of four windows, (4,) each, as fractions of the two images."""
        side = self.low + (1.0 - self.low) * samples[0]
        return samples[1] * (1.0 - side), samples[2] * (1.0 - side), side

    def _images(self, images, top, left, side):
        _, h, w, c = images.shape
        fours = ops.reshape(_neighbourhoods(images), (-1, 4, 2, 2, h, w, c))  # g r i j h w c
        rows = ops.einsum("grijhwc,ryih->grjywc", fours, window_weights(h, top, side))
        pixels = ops.einsum("grjywc,rxjw->gryxc", rows, window_weights(w, left, side))
        return ops.reshape(pixels, (-1, h, w, c))

    def _objects(self, objects, top, left, side):
        m = objects.shape[1]
        fours = _neighbourhoods(objects)  # g r 4 m 7
        corners = ops.convert_to_tensor([[0, 0, 0, 0], [0, 1, 0, 1], [1, 0, 1, 0], [1, 1, 1, 1]], objects.dtype)
        start = ops.stack([top, left, top, left], axis=1)[:, None, None]  # r 1 1 4
        boxes = (ops.clip(fours[..., :4], 0.0, 1.0) + corners[:, None]) / 2.0
        boxes = (boxes - start) / side[:, None, None, None]
        inside = ops.clip(boxes, 0.0, 1.0)
        visible = _box_areas(inside)
        valid = ops.logical_and(visible > 0, visible >= self.keep * _box_areas(boxes))
        valid = ops.logical_and(valid, fours[..., 4] >= 0)
        moved = ops.concatenate([inside, fours[..., 4:]], axis=-1)
        return _packed(ops.reshape(moved, (-1, 4 * m, 7)), ops.reshape(valid, (-1, 4 * m)))
