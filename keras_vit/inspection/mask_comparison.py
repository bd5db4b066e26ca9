"""Pictures that compare a predicted mask with the true one: image, truth, prediction and error, side by side.

Masks are (h, w) class numbers; numbers outside the classes are pixels without a class. Needs only NumPy and Pillow.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.io.mask_pictures import (
    WRONG,
    Color,
    colored,
    legend,
    mask_png,
    overlay,
    palette,
    png,
    rgb,
    text,
    void_color,
    with_legend,
)

__all__ = [
    "colored",
    "comparison",
    "error",
    "legend",
    "mask_png",
    "overlay",
    "palette",
    "png",
    "rgb",
    "side_by_side",
    "void_color",
    "with_legend",
]


def error(image: Any, truth: Any, prediction: Any, classes: int) -> np.ndarray:
    """Shows errors: the image in pale grey, wrong pixels in magenta, pixels without a true class in black.

    Args:
        image: (h, w, c). Pixels 0..255.
        truth, prediction: (h, w). Class numbers.
        classes: number of classes.

    Returns:
        (h, w, 3) uint8.
    """
    truth, prediction = np.asarray(truth), np.asarray(prediction)
    grey = rgb(image).mean(-1, keepdims=True)
    picture = np.repeat(np.round(0.5 * grey + 127.5), 3, axis=-1).astype("uint8")
    picture[truth != prediction] = WRONG
    picture[(truth < 0) | (truth >= classes)] = 0
    return picture


def side_by_side(*pictures: np.ndarray, titles: Sequence[str] = (), gap: int = 8) -> np.ndarray:
    """Pictures (h, w, 3) uint8 of equal height side by side on white, with titles above: (h', w', 3) uint8."""
    parts = []
    for i, picture in enumerate(pictures):
        width = picture.shape[1]
        parts += [np.full((len(picture) + len(text("")) * bool(titles), gap, 3), 255, "uint8")] if i else []
        title = [text(titles[i], width)] if titles else []
        parts.append(np.concatenate([*title, picture]))
    return np.concatenate(parts, axis=1)


def comparison(
    image: Any, truth: Any, prediction: Any, colors: Sequence[Color]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Image, truth, prediction (with truth's void) and error as pictures (h, w, 3) uint8, for `side_by_side`.

    Args:
        image: (h, w, c). Pixels 0..255.
        truth, prediction: (h, w). Class numbers.
        colors: one per class.
    """
    wrong = error(image, truth, prediction, len(colors))
    return rgb(image), colored(truth, colors), colored(prediction, colors), wrong
