"""--sweep: runs each point of a grid in its own directory, and compares them in a table."""

import os
from collections.abc import Callable
from typing import Any

from absl import logging
from etils import epath
from ml_collections import ConfigDict

from keras_vit.distribution import Strategy
from keras_vit.io.atomic import check_folder, write_bytes
from keras_vit.io.paths import locate
from keras_vit.runs.grid import OWN, at, parse_grid
from keras_vit.runs.picture_files import write_picture
from keras_vit.runs.seeds import run_seeds, write_json
from keras_vit.runs.sweep_picture import COST, check_picture, costs_differ, picture
from keras_vit.tasks import Score


def _held_out(config, point):
    """A point's config, on its development splits if it has both; splits that the point sets stay."""
    config = at(config, point)
    data = config.data
    if data.dev_train and data.dev_evaluation:
        splits = {"train": data.dev_train, "evaluation": data.dev_evaluation}
        data.update({name: split for name, split in splits.items() if f"data.{name}" not in point})
    return config


def _warn_of_no_held_out(configs):
    """Warns once if points are compared on the evaluation split itself."""
    flattering = [
        data.evaluation for data in (config.data for config in configs) if not (data.dev_train and data.dev_evaluation)
    ]
    if flattering:
        logging.warning(
            "The sweep compares on %s itself, so the score of the best point is optimistic: set data.dev_train and "
            "data.dev_evaluation, such as train[:98%%] and train[98%%:].",
            flattering[0],
        )


def table(grid, rows, best, split, score):
    """The sweep as a Markdown table; the best point is marked."""
    keys, cost = grid.keys, costs_differ([row for row in rows if score.is_in(row)])
    unit = f", {score.unit}" if score.unit else ""
    extra = [] if score.name == "loss" else ["loss"]
    head = [*keys, *(["forward MFLOP"] if cost else []), f"{score.title} on {split}{unit}", *extra, ""]
    lines = ["| " + " | ".join(head).rstrip() + " |", "|-" * len(head) + "|"]
    for i, row in enumerate(rows):
        cells = [str(row["point"].get(key, "")) for key in keys]
        if cost:
            cells.append(f"{row[COST] / 1e6:.4g}" if COST in row else "-")
        cells.append(score.text(row))
        if extra:
            cells.append(f"{row['loss']:.4f}" if row.get("loss") is not None else "-")
        note = "best" if i == best else row.get("diverged", "" if score.is_in(row) else "no finite score")
        lines.append(f"| {' | '.join(cells)} | {note} |")
    return "\n".join(lines)


def _run_points(configs, grid, folder, run_point, score):
    """(each point's row: values and measures, or that it diverged; index of the best row)."""
    rows: list = []
    seen: dict = {}  # {config: row}: a point shared by several parts runs once
    for i, (point, point_config) in enumerate(zip(grid.points(), configs)):
        logging.info("Sweep, point %d of %d: %s", i + 1, len(configs), grid.name(point))
        same = seen.setdefault(point_config.to_json_best_effort(), i)
        try:
            if same < i:
                rows.append({**rows[same], "point": point})
            else:
                rows.append({"point": point, **run_point(point_config, folder / grid.name(point))})
        except FloatingPointError as error:
            logging.warning("%s diverged: %s", grid.name(point), error)
            rows.append({"point": point, "diverged": "diverged"})
    good = [i for i, row in enumerate(rows) if score.is_in(row)]
    if not good:
        raise ValueError(
            f"All {len(rows)} points of the sweep diverged, or have no finite {score.title}. Sweep over lower learning"
            " rates."
        )
    return rows, max(good, key=lambda i: score.rank(rows[i]))


def _own_sweep(config):
    """(the config's Grid, whether its best point gets a final run, picture options); ValueError without a sweep."""
    if not config.sweep:
        raise ValueError('The config does not define a sweep. Write one: --sweep="optimizer.learning_rate=1e-3,3e-3".')
    return parse_grid(config.sweep, config), config.get("sweep_final", True), dict(config.get("picture") or {})


def _write_table(text, folder, strategy):
    """Prints the table and writes sweep.md, in the chief process only."""
    if strategy.chief:
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / "sweep.md", (text + "\n").encode())
        print(f"\n{text}\n", flush=True)


def run_sweep(
    config: ConfigDict,
    text: str,
    workdir: str | os.PathLike,
    run: Callable[[ConfigDict, Any], dict[str, Any]],
    strategy: Strategy,
    score: Score,
    seeds: int = 1,
) -> dict[str, Any]:
    """Runs a sweep in `workdir` and prints its table; finished points are not repeated.

    The config's own sweep runs each point once on the development splits and then, as in the paper, the best one on the
    whole training split, with `seeds` seeds, in workdir/final. A grid from the command line, or of a study
    (config.sweep_final is False), runs each point with `seeds` seeds and has no final run.

    Args:
        config: a ConfigDict; points use its data.dev_train and data.dev_evaluation if both are set.
        text: a grid, or "own" for the config's.
        workdir: gets a directory per point, sweep.json, sweep.md and sweep.png.
        run: (config, workdir) -> measures.
        strategy: a keras_vit.strategy.
        score: the task's Score, which ranks the points.
        seeds: int. Number of seeds.

    Returns:
        The measures of the final run, or of the best point.

    Raises:
        ValueError: for a malformed grid, a config without a sweep, or if every point diverges.
        OSError: if workdir cannot be written to.
    """
    grid, with_final, shown = _own_sweep(config) if text == OWN else (parse_grid(text, config), False, {})
    folder, configs = epath.Path(locate(os.fspath(workdir))), [_held_out(config, point) for point in grid.points()]
    check_picture(grid, shown.get("x"), shown.get("lines"))
    check_folder(folder)
    _warn_of_no_held_out(configs)
    split = " or ".join(dict.fromkeys(point_config.data.evaluation for point_config in configs))

    def run_point(config, place):
        return run_seeds(config, place, run, strategy, score, 1 if with_final else seeds)

    rows, best = _run_points(configs, grid, folder, run_point, score)
    result = {"evaluation": split, "best": rows[best], "points": rows}
    _write_table(table(grid, rows, best, split, score), folder, strategy)
    write_picture(folder / "sweep.png", lambda: picture(grid, rows, score, **shown), strategy)
    write_json(folder / "sweep.json", result, strategy)
    if not with_final:
        return rows[best]
    final = run_seeds(at(config, rows[best]["point"]), folder / "final", run, strategy, score, seeds)
    write_json(folder / "sweep.json", {**result, "final": final}, strategy)
    if strategy.chief:
        name, data = grid.name(rows[best]["point"]), config.data
        print(f"final, {name} on {data.train}: {score.title} {score.text(final)}{score.unit} of {data.evaluation}")
    return final
