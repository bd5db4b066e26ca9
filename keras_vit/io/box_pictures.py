"""Boxes with words over pictures. Needs only NumPy and Pillow."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.io.mask_pictures import Color, drawable, rgb, text


def with_boxes(image: Any, boxes: Any, words: Sequence[str], colors: Sequence[Color]) -> np.ndarray:
    """An image (h, w, c) with boxes and words: (h, w, 3) uint8.

    Args:
        image: pixels 0..255.
        boxes: (d, 4), top, left, bottom, right in pixels; the first is drawn last, over the others.
        words: one text per box, on its top edge; "" for none.
        colors: one per box.
    """
    from PIL import Image, ImageDraw

    picture = Image.fromarray(rgb(image))
    draw, thickness = ImageDraw.Draw(picture), max(1, round(max(picture.size) / 300))
    for (top, left, bottom, right), word, color in reversed(list(zip(np.asarray(boxes).tolist(), words, colors))):
        draw.rectangle((left, top, max(right - 1, left), max(bottom - 1, top)), outline=color, width=thickness)
        if word:
            label = _label(drawable(word, 0), color)
            space = picture.width - label.width, picture.height - label.height
            place = min(round(left), space[0]), min(round(top) - label.height, space[1])
            picture.paste(label, tuple(max(side, 0) for side in place))
    return np.asarray(picture)


def _label(words, color):
    """A line of text on a background of the colour, black or white by its brightness: a Pillow image."""
    from PIL import Image

    ink = 1 - text(words).astype("float32") / 255  # 1 where the letters are
    front = np.zeros(3) if np.dot(color, (0.299, 0.587, 0.114)) > 128 else np.full(3, 255.0)
    return Image.fromarray(np.round(ink * front + (1 - ink) * np.array(color)).astype("uint8"))
