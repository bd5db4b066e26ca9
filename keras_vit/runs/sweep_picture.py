"""The picture of a sweep: bars, or lines over a key's values or a cost.

`config.picture.x` names the x axis: a numeric key of the grid, or one of MEASURED. The lines are the grid's parts,
named by `config.picture.lines`.
"""

import math
from collections.abc import Sequence
from typing import Any

from keras_vit.inspection import figures
from keras_vit.io.suggest import did_you_mean

COST = "forward_flops"
# Measures of every task's runs: (title, divisor for the picture).
MEASURED = {
    COST: ("forward MFLOP of an image", 1e6),
    "training_flops": ("training TFLOP", 1e12),
    "training_examples": ("training examples", 1),
}


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def costs_differ(rows: Sequence[dict]) -> bool:
    """Whether all points have a cost, and at least two differ."""
    return all(COST in row for row in rows) and len({row[COST] for row in rows}) > 1


def check_picture(grid: Any, x: str | None, lines: Sequence[str] | None) -> None:
    """Refuses options that do not fit the grid, before anything runs: an invalid x, or lines not naming every part."""
    valid = [
        *MEASURED,
        *(key for key in grid.keys if all(_is_number(v) for part in grid.parts for v in part.get(key, ()))),
    ]
    if x is not None and x not in valid:
        raise ValueError(
            f'config.picture.x="{x}" cannot be an axis.{did_you_mean(x, valid)} Valid: {", ".join(valid)}.'
        )
    if lines is not None and len(lines) != len(grid.parts):
        raise ValueError(
            f"config.picture.lines has {len(lines)} names, and the sweep {len(grid.parts)} parts: {', '.join(lines)}."
        )


def _parts_of_points(grid):
    """The index of each point's part."""
    return [i for i, part in enumerate(grid.parts) for _ in range(_size(part))]


def _size(part):
    size = 1
    for values in part.values():
        size *= len(values)
    return size


def _joined(parts):
    """(xs, ys) of one name's line: single points are joined, parts of several points stay apart."""
    if all(len(points) == 1 for points in parts):
        parts = [[point for points in parts for point in points]]
    apart = [point for points in parts for point in (*sorted(points), (math.nan, math.nan))]
    return tuple(zip(*apart[:-1]))


def _over(grid, rows, score, x, lines):
    """Lines over x, one per part of the grid; parts of one name share a colour."""
    title, unit = MEASURED.get(x, (x, 1))
    series: dict = {}
    for part, row in zip(_parts_of_points(grid), rows):
        value = row.get(x, row["point"].get(x))
        if score.is_in(row) and value is not None:
            name = lines[part] if lines else ", ".join(map(grid.short, row["point"]))
            series.setdefault(name, {}).setdefault(part, []).append((value / unit, score.scaled(row[score.name])))
    drawn = {name: _joined(list(parts.values())) for name, parts in series.items()}
    return figures.lines(drawn, title, score.label, label_each=True)


def picture(
    grid: Any, rows: Sequence[dict], score: Any, x: str | None = None, lines: Sequence[str] | None = None
) -> bytes:
    """The score of each point, as PNG.

    Args:
        grid: the Grid.
        rows: a row per point, with "point" and its measures.
        score: the task's Score.
        x: the x axis. None for the single key if numeric, for costs if several parts are all numeric, else for bars.
        lines: the parts' names, which may repeat; None for the points' keys.
    """
    good = [row for row in rows if score.is_in(row)]
    numeric = all(_is_number(value) for part in grid.parts for given in part.values() for value in given)
    if x is not None:
        return _over(grid, rows, score, x, lines)
    if numeric and len(grid.parts) > 1 and costs_differ(good):
        return _over(grid, rows, score, COST, lines)
    if numeric and len(grid.keys) == 1:
        return _over(grid, rows, score, grid.keys[0], [score.title] * len(grid.parts))
    return figures.bars({grid.name(row["point"]): score.scaled(row[score.name]) for row in good}, score.label)
