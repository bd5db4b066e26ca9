"""Arrays drawn from their names, and fixed pixels: what the goldens and the tests that read them share.

A published checkpoint is hundreds of megabytes; a golden is a few kilobytes, since every array of its file is
drawn again from the array's name and shape.
"""

import re
import zlib

import numpy as np

# Normalisation scales and layer scales: drawn around one, or a deep network's signal dies out.
SCALES = ("scale", "gamma", "lambda1")


def is_scale(name, shape):
    """Whether the array multiplies what was normalised; PyTorch calls it a weight, like matrices and kernels."""
    last = re.split(r"[/.]", name)[-1]
    return last in SCALES or (len(shape) == 1 and last.endswith("weight"))


def draw(name, shape, scale):
    """A float32 array of any rank, the same wherever its name, shape and scale are the same."""
    normal = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(tuple(shape))
    values = 1 + 0.1 * normal if is_scale(name, shape) else scale * normal
    return np.asarray(values, "float32")


def pixels(height, width):
    """Two images of noise, uint8, channels last."""
    return np.random.RandomState(0).randint(0, 256, (2, height, width, 3)).astype("uint8")
