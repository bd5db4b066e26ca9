"""The picture of a sweep: bars, or lines over the values of a key or over what a run cost.

What lies along the axis is named by `config.picture.x`: a key of the grid with numbers, or one of MEASURED. The lines
are the parts of the grid, called `config.picture.lines`.
"""

import math
from collections.abc import Sequence
from typing import Any

from keras_vit.inspection import figures
from keras_vit.io.suggest import did_you_mean

COST = "forward_flops"
# What a run returns beside its task's measures: its title, and what it is divided by for the picture.
MEASURED = {
    COST: ("forward MFLOP of an image", 1e6),
    "training_flops": ("training TFLOP", 1e12),
    "training_examples": ("training examples", 1),
}


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def costs_differ(rows: Sequence[dict]) -> bool:
    """Whether all points' models have a cost, and not all the same."""
    return all(COST in row for row in rows) and len({row[COST] for row in rows}) > 1


def check_picture(grid: Any, x: str | None, lines: Sequence[str] | None) -> None:
    """Refuses a picture that the grid does not have, before anything runs.

    Raises:
        ValueError: for an x that is neither a key of the grid with numbers nor measured, or lines that are not as many
            as the grid has parts.
    """
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
    """For each point the number of its part."""
    return [i for i, part in enumerate(grid.parts) for _ in range(_size(part))]


def _size(part):
    size = 1
    for values in part.values():
        size *= len(values)
    return size


def _joined(parts):
    """(xs, ys) of a line from the points of the parts of one name: parts of several points stand apart, single points
    are one line.
    """
    if all(len(points) == 1 for points in parts):
        parts = [[point for points in parts for point in points]]
    apart = [point for points in parts for point in (*sorted(points), (math.nan, math.nan))]
    return tuple(zip(*apart[:-1]))


def _over(grid, rows, score, x, lines):
    """Lines over x, one for each part of the grid; parts of the same name have one colour."""
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
        rows: a row for each of its points, with "point" and its measures.
        score: the task's Score.
        x: what lies along the axis; None for the values of a single numeric key, for what the models cost where each
            part has numbers alone, and for bars otherwise.
        lines: the names of the grid's parts, of which several may have one; None for the keys that they change.
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
