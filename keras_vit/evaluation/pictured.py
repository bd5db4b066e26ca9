"""Images of an evaluation source for pictures, and sheets of them."""

import numpy as np

from keras_vit.data import evaluation_batches
from keras_vit.data.sources.base import Source
from keras_vit.data.sources.selection import subset
from keras_vit.inspection import tiles

_SMALLEST = 64  # pixels that an image in a picture has at least


def spread_images(source: Source, preprocess: str, count: int) -> np.ndarray:
    """Images spread evenly over a source, `count` at most, as arrays (n, h, w, c) uint8; those that cannot be read are
    left out.

    Raises:
        ValueError: if none can be read.
    """
    places = np.unique(np.linspace(0, source.size - 1, min(count, source.size)).astype(int))
    batches = evaluation_batches(
        subset(source, places), preprocess, len(places), select=lambda example: (example["image"], 0)
    )
    [(images, _, weights)] = batches.as_numpy_iterator()
    images = images[weights > 0].astype("uint8")
    if not len(images):
        raise ValueError(f"None of the {len(places)} images of {source.name} can be read.")
    return images


def sheet(images: np.ndarray, columns: int) -> np.ndarray:
    """Images (m, h, w, c) uint8, so many in a row, as one picture (height, width, 3), white between them; small ones
    are enlarged.
    """
    colours = images[..., :3] if images.shape[-1] >= 3 else np.repeat(images[..., :1], 3, axis=-1)
    larger = -(-_SMALLEST // min(images.shape[1:3]))
    whole = tiles.sheet(tiles.enlarged(colours, larger), columns)
    return np.where(whole[..., 3:] == 0, 255, whole[..., :3]).astype("uint8")
