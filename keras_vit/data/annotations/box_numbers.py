"""Decides what the four numbers of boxes in a table mean, and whether they are pixels or fractions of the image.

A table often does not say. The numbers of all its rows must fit; if they leave a doubt, the options units= and box= are
asked for, since a wrong guess would move every box.
"""

from collections.abc import Sequence

import numpy as np

from keras_vit.data.annotations import schema
from keras_vit.data.annotations.box_rows import CENTRE, CORNERS, SIZE, Row, Rows

MEANINGS = {
    CORNERS: "left, top, right, bottom",
    SIZE: "left, top, width, height",
    CENTRE: "centre x, centre y, width, height",
}
UNITS = ("fractions", "pixels")
_INSIDE = 1.01  # the largest number of a row that only fractions explain
_PIXELS = 2.0  # larger numbers are pixels


def check_options(text: str, units: str, box: str) -> None:
    """Raises ValueError for unknown values of the options units= and box= of a source's `text`."""
    for key, value, valid in (("units", units, UNITS), ("box", box, tuple(MEANINGS))):
        if value and value not in valid:
            raise ValueError(f'"{text}": expected {key}= as {" or ".join(valid)}, got {key}={value}.')


def _float(text):
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _floats(texts):
    """Returns numbers (n,), NaN for other text."""
    try:
        return np.array(texts, "float64")
    except ValueError:
        return np.array([_float(text) for text in texts], "float64")


def _arrays(rows: Sequence[Row]):
    """Returns (lines (n,), numbers (n, 4), widths and heights (n, 2), infinite if not stated) of rows with a box."""
    some = [row for row in rows if row.numbers]
    numbers = _floats([text for row in some for text in row.numbers or ()]).reshape(-1, 4)
    sides = _floats([row.cells.get(side, "inf") for row in some for side in ("width", "height")]).reshape(-1, 2)
    good = np.isfinite(numbers).all(1)
    limits = np.where(sides > 0, sides, np.inf)
    return np.array([row.line for row in some], "int64")[good], numbers[good], limits[good]


def _are_fractions(lines, numbers, path):
    """Whether the numbers (n, 4) are fractions of the image.

    Raises:
        ValueError: if some rows only make sense as fractions and others as pixels, or all are 0 and 1.
    """
    fix = "Add ?units=fractions or ?units=pixels, or correct the rows."
    most, whole = np.abs(numbers).max(1, initial=0), (numbers == np.round(numbers)).all(1)
    small, large = ~whole & (most <= _INSIDE), most > _PIXELS
    if small.any() and large.any():
        raise ValueError(
            f'"{path}": line {lines[small][0]} looks like fractions of the image, {numbers[small][0].tolist()}, and'
            f" line {lines[large][0]} like pixels, {numbers[large][0].tolist()}. {fix}"
        )
    if len(numbers) and not large.any() and whole.all():
        raise ValueError(f'"{path}": all coordinates are 0, 1 or 2, which may be fractions or pixels. {fix}')
    return bool(len(numbers)) and not large.any()


def _fits(meaning, numbers, limits, beside):
    """Whether boxes of this meaning are in order and inside their images, within the distance `beside`."""
    first, second = numbers[:, :2], numbers[:, 2:]
    if meaning == CORNERS:
        return bool((second >= first).all() and (second <= limits + beside).all())
    low = first if meaning == SIZE else first - second / 2
    return bool((second >= 0).all() and (low >= -beside).all() and (low + second <= limits + beside).all())


def _meaning(table: Rows, numbers, limits, fractions, path):
    """Returns what the four numbers mean.

    Raises:
        ValueError: if they fit several meanings, or none.
    """
    if len(table.meanings) == 1 or not len(numbers):
        return table.meanings[0]
    beside = schema.BESIDE / 100 if fractions else schema.BESIDE
    limits = np.ones_like(limits) if fractions else limits
    fitting = [meaning for meaning in table.meanings if _fits(meaning, numbers, limits, beside)]
    if len(fitting) == 1:
        return fitting[0]
    said = " or ".join(f"{MEANINGS[meaning]} (?box={meaning})" for meaning in fitting or table.meanings)
    why = "fit" if fitting else "do not all fit"
    raise ValueError(f'"{path}": the four numbers of a box, such as {numbers[0].tolist()}, {why} {said}. Add one.')


def decide_meaning(table: Rows, path: str, units: str = "", box: str = "") -> tuple[str, bool]:
    """Returns (the meaning of the four numbers, whether they are fractions) of a table.

    Args:
        table: Rows.
        path: str. Its path in messages.
        units: str. "fractions" or "pixels"; "" to decide by the numbers.
        box: str. A key of MEANINGS; "" to decide by the columns and numbers.

    Raises:
        ValueError: if the numbers leave a doubt.
    """
    lines, numbers, limits = _arrays(table.rows)
    if units:
        fractions = units == "fractions"
    else:
        fractions = _are_fractions(lines, numbers, path) if table.fractions is None else table.fractions
    return box or _meaning(table, numbers, limits, fractions, path), fractions


def to_box(numbers: Sequence[str], meaning: str, name: str) -> schema.Box:
    """Converts the four numbers of a box to a Box.

    Raises:
        Fault: if they are not finite numbers.
    """
    top, left, bottom, right = schema.parse_box(numbers, name)
    if meaning == SIZE:
        return top, left, top + bottom, left + right
    if meaning == CENTRE:
        return top - bottom / 2, left - right / 2, top + bottom / 2, left + right / 2
    return top, left, bottom, right


def describe(meaning: str, fractions: bool) -> str:
    """Describes the numbers: "boxes as left, top, right, bottom in pixels"."""
    return f"boxes as {MEANINGS[meaning]} in {'fractions' if fractions else 'pixels'}"
