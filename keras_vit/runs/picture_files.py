"""Picture files of runs and evaluations."""

import functools
import os
from collections.abc import Callable

import numpy as np
from absl import logging
from etils import epath

from keras_vit.distribution import Strategy
from keras_vit.evaluation.registry import Chart
from keras_vit.inspection import figures
from keras_vit.io.atomic import write_bytes
from keras_vit.io.paths import os_errors


def write_picture(path: os.PathLike, draw: Callable[[], bytes], strategy: Strategy) -> None:
    """Writes the PNG that `draw()` returns; without matplotlib, logs a warning."""
    if not strategy.chief:
        return
    try:
        write_bytes(path, draw())
    except ImportError as error:
        logging.warning("No %s: %s", path, error)


def drawn(chart: Chart) -> bytes:
    """A chart as PNG; ImportError without matplotlib."""
    if chart.kind == "bars":
        return figures.bars(chart.values, chart.x_label)
    if chart.kind == "reliability":
        return figures.reliabilities(chart.values)
    if chart.kind == "lines":
        axes = {"label_each": True, "logarithmic": chart.logarithmic, "from_zero": True}
        return figures.lines(chart.values, chart.x_label, chart.y_label, **axes)
    raise ValueError(f'Unknown kind of chart "{chart.kind}". Valid: bars, lines, reliability.')


def write_pixels(
    folder: os.PathLike, name: str, pictures: dict[str, np.ndarray], strategy: Strategy, ending: str = ""
) -> None:
    """Writes an evaluator's pictures, pixels (h, w, 3), to NAME_PICTURE.png or NAME_PICTURE_ENDING.png in a folder."""
    if pictures and strategy.chief:
        with os_errors():
            epath.Path(folder).mkdir(parents=True, exist_ok=True)
    for title, pixels in pictures.items():
        parts = [name, title, ending] if ending else [name, title]
        write_picture(epath.Path(folder) / f"{'_'.join(parts)}.png", functools.partial(figures.png, pixels), strategy)


def write_charts(folder: os.PathLike, name: str, charts: dict[str, Chart], strategy: Strategy) -> None:
    """Writes an evaluator's charts to NAME_CHART.png in a folder."""
    for title, chart in charts.items():
        write_picture(epath.Path(folder) / f"{name}_{title}.png", functools.partial(drawn, chart), strategy)
