"""Arrays sampled by name, and fixed pixels: shared by the goldens and the tests that read them.

A published checkpoint has hundreds of megabytes, a golden a few kilobytes: it holds the names and shapes of the arrays
only, and `sample` makes the values from these.
"""

import re
import zlib

import numpy as np

# Normalisation scales and layer scales: sampled around one, or the signal of a deep network would die out.
SCALES = ("scale", "gamma", "lambda1")


def is_scale(name, shape):
    """Whether the array is the scale of a normalisation or a layer scale, which PyTorch calls a weight."""
    last = re.split(r"[/.]", name)[-1]
    return last in SCALES or (len(shape) == 1 and last.endswith("weight"))


def sample(name, shape, scale):
    """A float32 array; the same name, shape and scale always give the same values."""
    normal = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(tuple(shape))
    values = 1 + 0.1 * normal if is_scale(name, shape) else scale * normal
    return np.asarray(values, "float32")


def pixels(height, width):
    """Two images of noise, uint8, channels last."""
    return np.random.RandomState(0).randint(0, 256, (2, height, width, 3)).astype("uint8")
