"""A comparison of several models: a table and a picture, sorted by a score."""

import dataclasses
import math

from etils import epath

from keras_vit.distribution import Strategy
from keras_vit.evaluation.registry import Evaluator
from keras_vit.inspection import figures
from keras_vit.io.atomic import write_bytes
from keras_vit.io.json_files import json_text
from keras_vit.io.suggest import did_you_mean
from keras_vit.runs.picture_files import write_picture

LOWER_IS_BETTER = frozenset(("loss", "ece", "nll", "error", "std"))  # words in the names of measures


@dataclasses.dataclass(frozen=True)
class Column:
    """An evaluator's measure for comparing models.

    Attributes:
        evaluator: its name in the comparison.
        measure: one of its measures.
        higher_is_better: whether larger values are better.
    """

    evaluator: str
    measure: str
    higher_is_better: bool = True

    @property
    def title(self) -> str:
        return f"{self.evaluator}/{self.measure}"


def make_column(name: str, evaluator: Evaluator, measures: dict[str, float]) -> Column:
    """The Column of an evaluator: its score, or the first of its measures if the score is missing."""
    others = [measure for measure in measures if measure != "examples"]
    own = evaluator.score if evaluator.score in measures or not others else others[0]
    return Column(name, own, evaluator.higher_is_better)


def _value(measures, column):
    """The value of a column; None if it was not measured or is not finite."""
    value = measures.get(column.evaluator, {}).get(column.measure)
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def ranked(results: dict[str, dict[str, dict[str, float]]], column: Column) -> list[str]:
    """The models by `column`, best first, those without a value last; results: {model: {evaluator: measures}}."""

    def key(model):
        value = _value(results[model], column)
        return value is None, 0 if value is None else -value if column.higher_is_better else value

    return sorted(results, key=key)


def table(results: dict[str, dict[str, dict[str, float]]], columns: list[Column]) -> str:
    """The models as a Markdown table, sorted by the first column."""
    rows = [
        ["model", *(column.title + ("" if column.higher_is_better else " (lower is better)") for column in columns)]
    ]
    for model in ranked(results, columns[0]):
        values = [_value(results[model], column) for column in columns]
        rows.append([model, *("-" if value is None else f"{value:.4f}" for value in values)])
    widths = [max(map(len, cells)) for cells in zip(*rows)]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "-|" * len(widths), *lines[1:]])


def picture(results: dict[str, dict[str, dict[str, float]]], column: Column) -> bytes:
    """A PNG bar chart of a column, best model at the top; ImportError without matplotlib."""
    values = {model: _value(results[model], column) for model in ranked(results, column)}
    return figures.bars({model: value for model, value in values.items() if value is not None}, column.title)


def first_column(
    columns: list[Column], sort: str | None, results: dict[str, dict[str, dict[str, float]]]
) -> list[Column]:
    """The columns with `sort`, "EVALUATOR/MEASURE", first; ValueError if no model has that measure."""
    if not sort:
        return columns
    name, _, measure = sort.partition("/")
    valid = list(
        dict.fromkeys(f"{key}/{m}" for found in results.values() for key, measures in found.items() for m in measures)
    )
    if sort not in valid:
        raise ValueError(
            f"--sort={sort}: no model has this measure.{did_you_mean(sort, valid)} Valid: {', '.join(valid)}."
        )
    own = next((column for column in columns if column.title == sort), None)
    chosen = own or Column(name, measure, LOWER_IS_BETTER.isdisjoint(measure.split("_")))
    return [chosen, *(column for column in columns if column.title != sort)]


def write_comparison(
    folder: str | None,
    results: dict[str, dict[str, dict[str, float]]],
    columns: list[Column],
    sort: str | None,
    failed: dict[str, str],
    strategy: Strategy,
) -> None:
    """Prints the table; with a folder, also writes models.json (all measures, best model first) and models.png.

    Raises:
        ValueError: if `sort` is unknown, after printing the table in the order of the first score.
    """
    if not strategy.chief or not results:
        return
    try:
        columns, refused = first_column(columns, sort, results), None
    except ValueError as error:
        refused = error  # raised below: measures so far are not lost
    print(table(results, columns))
    if folder:
        models = [{"model": model, **results[model]} for model in ranked(results, columns[0])]
        content = {"sorted_by": columns[0].title, "models": models, "failed": failed}
        write_bytes(epath.Path(folder) / "models.json", (json_text(content) + "\n").encode())
        write_picture(epath.Path(folder) / "models.png", lambda: picture(results, columns[0]), strategy)
    if refused is not None:
        raise refused
