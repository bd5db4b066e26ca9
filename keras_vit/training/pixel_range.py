"""Refuses images that are already normalised: the models expect pixel values 0..255 and normalise them themselves."""

from typing import Any

import numpy as np


def _first_images(x):
    """Some of the first images of `x` (arrays, a dataset, an iterable), or None where looking would be costly."""
    if hasattr(x, "element_spec"):
        spec = x.element_spec
        spec = spec[0] if isinstance(spec, (tuple, list)) else spec
        if not hasattr(x, "take") or not getattr(getattr(spec, "dtype", None), "is_floating", False):
            return None
        batch = next(iter(x.take(1)), None)
        return batch[0] if isinstance(batch, (tuple, list)) else batch
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return x[:32]
    return None


def check_pixel_range(x: Any) -> None:
    """Refuses floating-point images that look normalised.

    Raises:
        ValueError: if the first batch is floating-point, not constant, and within [-3, 3].
    """
    images = _first_images(x)
    if images is None or np.issubdtype(np.asarray(images).dtype, np.integer):
        return
    images = np.asarray(images, dtype="float32")
    if images.ndim != 4 or not images.size:
        return
    low, high = float(images.min()), float(images.max())
    if low != high and -3.0 <= low and high <= 3.0:
        raise ValueError(
            f"The images look normalised: the values of the first batch are in [{low:.3g}, {high:.3g}]. This model expects pixels "
            "0..255 and normalises them itself. Multiply images in [0, 1] by 255, or undo the normalisation."
        )
