"""--sweep: a grid of config values, each point a run in a directory of its own, one table at the end.

A grid is text: "optimizer.learning_rate=1e-3,3e-3;model.dropout=0,0.1". Commas inside brackets belong to a value.
"""

import ast
import dataclasses
import itertools
import math
import re

from absl import logging
from etils import epath

from keras_vit.inspection import figures
from keras_vit.training.files import write_bytes

from . import flags
from .runs import run_seeds, write_json, write_picture

OWN = "own"  # what --sweep alone means: the config's own grid


@dataclasses.dataclass(frozen=True)
class Grid:
    """What a sweep tries.

    Attributes:
        values: {config key: values}.
    """

    values: dict

    def points(self):
        """Each point as {key: value}, the last key varying fastest."""
        return [dict(zip(self.values, point)) for point in itertools.product(*self.values.values())]

    def name(self, point):
        """A directory's name: "learning_rate=0.001,dropout=0.1"."""
        lasts = [key.split(".")[-1] for key in self.values]
        short = {key: last if lasts.count(last) == 1 else key for key, last in zip(self.values, lasts)}
        return re.sub(r"[^\w.,=+-]+", "-", ",".join(f"{short[key]}={value}" for key, value in point.items()))


def _split(text, separator):
    """`text` cut at the separators that stand outside of brackets."""
    depth, parts = 0, [""]
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == separator and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def _place(config, key):
    """(the ConfigDict that holds the last part of `key`, that part)."""
    *folders, last = key.split(".")
    for folder in folders:
        config = config[folder]
    return config, last


def _value(text, kind, key):
    """`text` as the type of the config's key."""
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        return kind(text) if kind in (int, float, str) else ast.literal_eval(text)
    except (KeyError, ValueError, SyntaxError):
        raise ValueError(f'The sweep\'s {key}="{text}": expected a value of type {kind.__name__}.') from None


def parse_grid(text, config):
    """The Grid that `text` describes, its values of the types that the config has.

    Raises:
        ValueError: for text that is no grid, a key that the config has not, a value of another type, or points that share a name.
    """
    values = {}
    for part in _split(text, ";"):
        key, equals, tail = part.partition("=")
        key = key.strip()
        if not equals or not _split(tail, ","):
            raise ValueError(
                f'"{part}" is no line of a sweep. Write such as "optimizer.learning_rate=1e-3,3e-3;model.dropout=0,0.1".'
            )
        flags.check_overrides([f"--config.{key}"], config)
        place, last = _place(config, key)
        values[key] = [_value(value, place.get_type(last), key) for value in _split(tail, ",")]
    grid = Grid(values)
    names = [grid.name(point) for point in grid.points()]
    twice = sorted({name for name in names if names.count(name) > 1})
    if not values or twice:
        raise ValueError(f'The sweep "{text}" ' + (f"has {', '.join(twice)} twice." if twice else "is empty."))
    return grid


def at(config, point):
    """A copy of the config with the point's values."""
    config = config.copy_and_resolve_references()
    for key, value in point.items():
        place, last = _place(config, key)
        place[last] = value
    return config


def _on_held_out(config):
    """A copy that trains and is evaluated on the splits for choosing, where the config has them."""
    config = config.copy_and_resolve_references()
    data = config.data
    if data.dev_train and data.dev_evaluation:
        data.train, data.evaluation = data.dev_train, data.dev_evaluation
    else:
        logging.warning(
            "The sweep compares on %s itself, so that the best one's figure is flattering: set data.dev_train and "
            "data.dev_evaluation, such as train[:98%%] and train[98%%:].",
            data.evaluation,
        )
    return config


def _percent(row, name):
    if row.get(name) is None:
        return "-"
    deviation = row.get(f"{name}_std")
    return f"{100 * row[name]:.2f}" + (f" +- {100 * deviation:.2f}" if deviation is not None else "")


def table(grid, rows, best, split):
    """The sweep as a Markdown table; the best point is marked."""
    keys = list(grid.values)
    lines = [f"| {' | '.join(keys)} | top-1 on {split}, % | loss | |", "|-" * (len(keys) + 3) + "|"]
    for i, row in enumerate(rows):
        cells = [str(row["point"][key]) for key in keys]
        loss = f"{row['loss']:.4f}" if row.get("loss") is not None else "-"
        note = "best" if i == best else row.get("diverged", "")
        lines.append(f"| {' | '.join(cells)} | {_percent(row, 'top1')} | {loss} | {note} |")
    return "\n".join(lines)


def _picture(grid, rows):
    """Top-1 against the one key's numbers, or as bars."""
    good = [row for row in rows if "top1" in row]
    keys = list(grid.values)
    numeric = all(isinstance(row["point"][keys[0]], (int, float)) for row in good)
    if len(keys) > 1 or not numeric:
        return figures.bars({grid.name(row["point"]): 100 * row["top1"] for row in good}, "top-1, %")
    points = sorted((row["point"][keys[0]], 100 * row["top1"]) for row in good)
    log = points[0][0] > 0 and points[-1][0] >= 4 * points[0][0]
    return figures.lines({"top-1": tuple(zip(*points))}, keys[0], "top-1, %", log)


def _run_points(config, grid, folder, run_point):
    """A row a point: its values and measures, or how it diverged; those that share a best top-1 are told apart by the loss."""
    rows = []
    for i, point in enumerate(grid.points()):
        logging.info("Sweep, point %d of %d: %s", i + 1, len(grid.points()), grid.name(point))
        try:
            rows.append({"point": point, **run_point(at(config, point), folder / grid.name(point))})
        except FloatingPointError as error:
            logging.warning("%s diverged: %s", grid.name(point), error)
            rows.append({"point": point, "diverged": "diverged"})
    good = [i for i, row in enumerate(rows) if "top1" in row]
    if not good:
        raise ValueError(f"All {len(rows)} points of the sweep diverged. Sweep over lower learning rates.")
    best = max(good, key=lambda i: (rows[i]["top1"], -rows[i]["loss"] if math.isfinite(rows[i]["loss"]) else -math.inf))
    return rows, best


def run_sweep(config, text, workdir, run, layout, seeds=1):
    """Runs a sweep in `workdir` and prints its table; what has finished before is not run again.

    The config's own sweep runs each point once, on the held-out part, and then the best one on the whole training split, with `seeds`
    seeds, in workdir/final: the paper's way. A grid from the command line runs each point with `seeds` seeds, and nothing after.

    Args:
        config: a ConfigDict; data.dev_train and data.dev_evaluation are what the points are compared on.
        text: a grid, or "own" for the config's.
        workdir: gets a directory a point, sweep.json, sweep.md and sweep.png.
        run: (config, workdir) -> measures.
        layout: a keras_vit.strategy.
        seeds: how many.

    Returns:
        The measures of the final run, or of the best point.

    Raises:
        ValueError: for text that is no grid, a config without a sweep of its own, or if every point diverges.
    """
    own = text == OWN
    if own and not config.sweep:
        raise ValueError('The config has no sweep of its own. Write one: --sweep="optimizer.learning_rate=1e-3,3e-3".')
    grid, folder, chosen = parse_grid(config.sweep if own else text, config), epath.Path(workdir), _on_held_out(config)
    run_point = lambda c, place: run_seeds(c, place, run, layout, 1 if own else seeds)  # noqa: E731
    rows, best = _run_points(chosen, grid, folder, run_point)
    found = {"evaluation": chosen.data.evaluation, "best": rows[best], "points": rows}
    shown = table(grid, rows, best, chosen.data.evaluation)
    if layout.chief:
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / "sweep.md", (shown + "\n").encode())
        print(f"\n{shown}\n", flush=True)
    write_picture(folder / "sweep.png", lambda: _picture(grid, rows), layout)
    write_json(folder / "sweep.json", found, layout)
    if not own:
        return rows[best]
    final = run_seeds(at(config, rows[best]["point"]), folder / "final", run, layout, seeds)
    write_json(folder / "sweep.json", {**found, "final": final}, layout)
    if layout.chief:
        print(
            f"final, {grid.name(rows[best]['point'])} on {config.data.train}: top-1 {_percent(final, 'top1')}% of {config.data.evaluation}"
        )
    return final
