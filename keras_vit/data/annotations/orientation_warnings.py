"""Names images that EXIF data turns or mirrors where annotations do not show which pixels they belong to."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.data.ops import orientation
from keras_vit.data.splits import spread
from keras_vit.io.logs import log_once
from keras_vit.io.paths import in_threads
from keras_vit.io.suggest import counted

_SAMPLE = 200  # images to look at
_HEAD = 2**16  # bytes to read of each
_MARKS = (b"Exif", b"eXIf", b"tiff:Orientation")


def _orientation(path):
    """Reads the EXIF orientation of a JPEG or PNG from its first bytes; 1 for other files."""
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            head = file.read(_HEAD)
    except tf.errors.OpError:
        return 1
    if not any(mark in head for mark in _MARKS):
        return 1
    read = {b"\xff\xd8": orientation.of_jpeg, b"\x89P": orientation.of_png}.get(head[:2])
    return int(read(tf.constant(head))) if read else 1


def warn_about_orientation(title: str, paths: Sequence[str], sizes: np.ndarray) -> None:
    """Warns of images, among a sample, whose annotations may belong to the stored or to the upright pixels.

    The stated size tells for an image that EXIF data turns by 90 degrees, unless it is square.

    Args:
        title: of the source.
        paths: (n,) of the images.
        sizes: (n, 2) stated heights and widths; 0 if not stated.
    """
    looked = spread(range(len(paths)), _SAMPLE)
    found = dict(zip(looked, in_threads(_orientation, [paths[i] for i in looked])))
    tells = {i: sizes[i][0] != sizes[i][1] for i in looked}
    unclear = [i for i, turned in found.items() if turned in (2, 3, 4) or (turned in (5, 6, 7, 8) and not tells[i])]
    if unclear:
        first = unclear[0]
        log_once(
            logging.WARNING,
            f"{title}: EXIF data turns or mirrors {counted(len(unclear), 'image')} of {len(looked):,} looked at, such"
            f' as "{paths[first]}" (orientation {found[first]}), and the annotations do not show whether they belong to'
            " the image as viewers show it, which is assumed, or to the stored pixels. If they were drawn on the stored"
            " pixels, remove the EXIF data.",
        )
