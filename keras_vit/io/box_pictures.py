"""Boxes with labels, drawn over an image. Needs only NumPy and Pillow. Lines and text grow with the image."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.io.mask_pictures import Color, font, rgb

SOLID, DASHED, DOTTED = (0, 0), (4, 3), (1.5, 1.5)  # line and gap, in widths of a line; no gap is a solid line
_SMALLEST = 320  # pixels of the longer side
_LABELS = 40  # boxes up to which a picture has labels


@dataclasses.dataclass(frozen=True)
class Mark:
    """A box to draw.

    Attributes:
        box: top, left, bottom, right, as fractions of the image.
        label: text beside it; "" for none.
        color: of line and label.
        style: SOLID, DASHED or DOTTED.
    """

    box: Any
    label: str
    color: Color
    style: tuple[float, float] = SOLID


def enlarged(image: Any) -> np.ndarray:
    """An image (h, w, c) as (h', w', 3) uint8: pixels repeated until the longer side has 320 or more."""
    pixels = rgb(image)
    factor = -(-_SMALLEST // max(pixels.shape[:2]))
    return pixels.repeat(factor, axis=0).repeat(factor, axis=1)


def draw(image: Any, marks: Sequence[Mark]) -> np.ndarray:
    """The image with its boxes, and with labels if there are at most 40: (h, w, 3) uint8.

    Args:
        image: pixels 0..255 (h, w, c).
        marks: boxes; later ones cover earlier ones.
    """
    from PIL import Image, ImageDraw

    pixels = rgb(image)
    h, w = pixels.shape[:2]
    width = max(2, round(max(h, w) / 250))
    picture = Image.fromarray(pixels)
    canvas = ImageDraw.Draw(picture)
    corners = [np.clip(mark.box, 0, 1) * (h - 1, w - 1, h - 1, w - 1) for mark in marks]
    for mark, corner in zip(marks, corners):
        _outline(canvas, corner, mark, width)
    return draw_labels(np.asarray(picture), marks)


def draw_labels(image: np.ndarray, marks: Sequence[Mark]) -> np.ndarray:
    """An image (h, w, 3) uint8 with the labels of marks alone, if there are at most 40: (h, w, 3) uint8."""
    from PIL import Image, ImageDraw

    if len(marks) > _LABELS:
        return image
    h, w = image.shape[:2]
    picture, taken = Image.fromarray(image), list[tuple]()
    for mark in marks:
        if mark.label:
            corner = np.clip(mark.box, 0, 1) * (h - 1, w - 1, h - 1, w - 1)
            taken.append(_label(ImageDraw.Draw(picture), corner, mark, (h, w), taken))
    return np.asarray(picture)


def _outline(canvas, corner, mark, width):
    """Draws a box's four sides, with a dark edge that shows on any background."""
    top, left, bottom, right = corner
    sides = [((left, top), (right, top)), ((right, top), (right, bottom))]
    sides += [((right, bottom), (left, bottom)), ((left, bottom), (left, top))]
    parts = [part for start, end in sides for part in _dashes(np.array(start), np.array(end), mark.style, width)]
    for color, thickness in (((0, 0, 0), width + 2), (mark.color, width)):
        for start, end in parts:
            canvas.line([*start, *end], color, thickness)


def _dashes(start, end, style, width):
    """The parts of a line to draw, as pairs of points."""
    length, (dash, gap) = float(np.abs(end - start).max()), (width * part for part in style)
    if not gap or length < dash:
        return [(start, end)]
    count = max(1, round(length / (dash + gap)))
    shares = [(i / count, (i + dash / (dash + gap)) / count) for i in range(count)]
    return [(start + (end - start) * first, start + (end - start) * last) for first, last in shares]


def _label(canvas, corner, mark, size, taken):
    """Draws a label above, below or inside the box, where no other one is if possible; returns its rectangle."""
    letters = font(max(12, round(max(size) / 40)))
    left, top, right, bottom = canvas.textbbox((0, 0), mark.label, letters)
    h, w = bottom - top + 4, right - left + 6
    tops = (corner[0] - h, corner[2], corner[0], corner[2] - h)
    places = [(round(x), round(y)) for x in (corner[1], corner[3] - w) for y in tops]
    places = [(min(max(x, 0), max(size[1] - w, 0)), y) for x, y in places if 0 <= y <= size[0] - h]
    places = places or [(0, 0)]
    free = [place for place in places if not any(_meet((*place, w, h), other) for other in taken)]
    x, y = (free or places)[0]
    canvas.rectangle((x, y, x + w - 1, y + h - 1), mark.color, (0, 0, 0))
    dark = np.dot(mark.color, (0.299, 0.587, 0.114)) < 140
    canvas.text((x + 3 - left, y + 2 - top), mark.label, "white" if dark else "black", letters)
    return x, y, w, h


def _meet(one, other):
    """Whether two rectangles (x, y, width, height) overlap."""
    return all(one[i] < other[i] + other[i + 2] and other[i] < one[i] + one[i + 2] for i in (0, 1))


def legend(kinds: dict[str, tuple[Color, tuple[float, float]]], width: int) -> np.ndarray:
    """A small box of each kind, {name: (color, style)}, with its name: (h, width, 3) uint8, on white.

    It grows with the width, as labels do with the image.
    """
    from PIL import Image, ImageDraw

    unit = max(14, round(width / 80))  # pixels of the text
    x, y, places, letters = 0, 0, [], font(unit)
    for name in kinds:
        wide = 4 * unit + round(letters.getlength(name))
        x, y = (x, y) if x + wide <= width else (0, y + 2 * unit)
        places.append((x, y))
        x += wide
    picture = Image.new("RGB", (width, y + round(2.5 * unit) if kinds else 0), "white")
    canvas = ImageDraw.Draw(picture)
    for (name, (color, style)), (x, y) in zip(kinds.items(), places):
        corner = y + unit // 2, x + unit // 3, y + 2 * unit, x + 2 * unit
        _outline(canvas, corner, Mark((), name, color, style), max(2, unit // 8))
        canvas.text((x + 2.5 * unit, y + 1.25 * unit), name, "black", letters, anchor="lm")
    return np.asarray(picture)
