"""Pictures of a run: PNG bytes for files, SVG text in the page's own colours for the report.

They need matplotlib, the extra [viz]. Class names, in any script, are never drawn: the page writes them next to a
picture.
"""

import io
import math
import re
from typing import Any

import numpy as np

_INK = "#010203"  # placeholder for the page's text colour
_COLOURS = (
    "#3b82f6",
    "#e8590c",
    "#2f9e44",
    "#ae3ec9",
    "#e03131",
    "#0c8599",
    "#a07000",
    "#868e96",
)  # readable on white and black
_SMALL = 96  # largest side, in pixels, of images that keep their size and are shown enlarged
_LARGE = 256  # longer side of other images


def matplotlib_or_error() -> Any:
    """The module matplotlib; ImportError with an install command."""
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError("Pictures need matplotlib: pip install matplotlib.") from error
    return matplotlib


def _empty(width, height):
    """An off-screen figure of width x height inches without axes."""
    matplotlib_or_error()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _new(width, height):
    """A figure of width x height inches and its axes."""
    figure = _empty(width, height)
    axes = figure.subplots()
    axes.set_prop_cycle(color=_COLOURS)
    axes.grid(alpha=0.2)
    axes.set_axisbelow(True)
    return figure, axes


def _png(figure):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _for_page():
    """A context to draw figures for a page: transparent, in its text colour, with text kept as text."""
    coloured = ("axes.edgecolor", "axes.labelcolor", "grid.color", "text.color", "xtick.color", "ytick.color")
    plain = {"svg.fonttype": "none", "svg.hashsalt": "keras_vit", "font.size": 11, "legend.frameon": False}
    return matplotlib_or_error().rc_context({**plain, **dict.fromkeys(coloured, _INK)})


def _svg(figure, name):
    """The figure as an <svg> element; `name`, a word unique on the page, prefixes its ids."""
    buffer = io.StringIO()
    figure.savefig(
        buffer, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
    )
    text = buffer.getvalue()
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text[text.index("<svg") :]).replace(_INK, "currentColor")
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)


def _finite(points):
    """(xs, ys) of the points with finite y."""
    found = [(x, y) for x, y in points if y is not None and np.isfinite(y)]
    return tuple(zip(*found)) if found else ((), ())


def curves(series, x_label: str, name: str) -> str:
    """Curves {name: [(x, y)]} in one picture, the first a solid line, the others dashed and dotted. SVG."""
    with _for_page():
        figure, axes = _new(4.4, 2.7)
        for i, (label, points) in enumerate(series.items()):
            xs, ys = _finite(points)
            alone = len(xs) == 1
            axes.plot(xs, ys, "o--" if i else "o" if alone else "-", label=label, markersize=4)
        axes.set(xlabel=x_label)
        axes.xaxis.get_major_locator().set_params(integer=True)
        if len(series) > 1:
            axes.legend()
        return _svg(figure, name)


def histogram(percentages, x_label: str, y_label: str, name: str) -> str:
    """Histogram of values from 0 to 100 in 20 intervals. SVG."""
    with _for_page():
        figure, axes = _new(4.4, 2.7)
        axes.hist(percentages, bins=np.linspace(0, 100, 21), rwidth=0.9)
        axes.set(xlabel=x_label, ylabel=y_label, xlim=(0, 100))
        axes.yaxis.get_major_locator().set_params(integer=True)
        return _svg(figure, name)


def reliability(intervals, name: str) -> str:
    """Accuracy against confidence: a dot per [examples, accuracy, mean confidence], larger with more examples. SVG."""
    examples, accuracy, confidence = np.asarray(intervals, "float64").T
    with _for_page():
        figure, axes = _new(4.4, 3.6)
        axes.plot((0, 100), (0, 100), "--", color=_INK, alpha=0.6, linewidth=1)
        axes.scatter(
            100 * confidence, 100 * accuracy, 15 + 500 * examples / examples.sum(), alpha=0.75, clip_on=False, zorder=3
        )
        axes.set(xlabel="mean confidence, %", ylabel="accuracy, %", xlim=(0, 100), ylim=(0, 100))
        return _svg(figure, name)


LINES = tuple(tuple(bytes.fromhex(color[1:])) for color in _COLOURS)  # (red, green, blue) of the first lines


def precision_recall(curves, mean, name: str) -> str:
    """Precision at evenly spaced recalls: a line per curve, at most 8, and the dashed mean. SVG."""
    recalls = np.linspace(0, 100, len(mean))
    with _for_page():
        figure, axes = _new(4.4, 3.6)
        for curve in curves:
            axes.plot(recalls, 100 * np.asarray(curve), linewidth=1.5)
        axes.plot(recalls, 100 * np.asarray(mean), "--", color=_INK, linewidth=1.5)
        axes.set(xlabel="recall, %", ylabel="precision, %", xlim=(0, 100), ylim=(0, 102))
        return _svg(figure, name)


def reliabilities(curves: dict) -> bytes:
    """`reliability` plots side by side, from {title: [[examples, accuracy, mean confidence], ...]}. PNG."""
    figure = _empty(3.6 * len(curves), 3.4)
    for axes, (title, intervals) in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves.items()):
        examples, accuracy, confidence = np.asarray(intervals, "float64").T
        axes.plot((0, 100), (0, 100), "--", color="#868e96", linewidth=1)
        sizes = 15 + 500 * examples / examples.sum()
        axes.scatter(100 * confidence, 100 * accuracy, sizes, color=_COLOURS[0], alpha=0.75, clip_on=False, zorder=3)
        axes.set(title=title, xlabel="mean confidence, %", ylabel="accuracy, %", xlim=(0, 100), ylim=(0, 100))
        axes.grid(alpha=0.2)
    return _png(figure)


def against_truth(truth, predicted, name: str) -> str:
    """Predicted against true numbers, each (n,), with the line of equality. SVG."""
    with _for_page():
        figure, axes = _new(4.4, 3.6)
        ends = min(np.min(truth), np.min(predicted)), max(np.max(truth), np.max(predicted))
        axes.plot(ends, ends, "--", color=_INK, alpha=0.6, linewidth=1)
        axes.scatter(truth, predicted, 12, alpha=0.6)
        axes.set(xlabel="true", ylabel="predicted")
        return _svg(figure, name)


def _for_both(draw, width, height, name):
    """(SVG for a page, PNG for a file) of what draw(figure, axes) draws."""
    with _for_page():
        figure, axes = _new(width, height)
        draw(figure, axes)
        svg = _svg(figure, name)
    figure, axes = _new(width, height)
    draw(figure, axes)
    return svg, _png(figure)


def by_block(values, even, y_label: str, even_label: str, name: str) -> tuple[str, bytes]:
    """A dot per head's value (l, k) above its block, dashed lines at `even`, one number or (l,). (SVG, PNG)."""

    def draw(figure, axes):
        count, heads = values.shape
        for i, row in enumerate(values):
            axes.plot([i] * heads, np.sort(row), "o", color=_COLOURS[0], alpha=0.75, markersize=4.5)
        level, x = np.repeat(np.broadcast_to(even, count), 2), np.arange(count)[:, None] + (-0.5, 0.5)
        axes.plot(x.reshape(-1), level, linestyle="--", linewidth=1, color=_COLOURS[1], label=even_label)
        axes.set(xlabel="block", ylabel=y_label, ylim=(0, None), xlim=(-0.5, count - 0.5))
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(loc="lower right")

    return _for_both(draw, 5.2, 3.2, name)


def matrix(values, label: str, name: str) -> tuple[str, bytes]:
    """Values (l, l) from 0 to 1 between blocks, first block at the bottom left. (SVG, PNG)."""

    def draw(figure, axes):
        axes.grid(visible=False)
        drawn = axes.imshow(values, origin="lower", cmap="magma", vmin=0, vmax=1)
        axes.set(xlabel="block", ylabel="block")
        for axis in (axes.xaxis, axes.yaxis):
            axis.get_major_locator().set_params(integer=True)
        figure.colorbar(drawn, label=label, shrink=0.85)

    return _for_both(draw, 4.6, 3.8, name)


def few_shot_accuracy(results) -> bytes:
    """Accuracy against examples per class with standard deviations, from evaluation.few_shot's `results`. PNG."""
    figure, axes = _new(4.5, 3.2)
    shots = list(results)
    mean, std = ([100 * measures[name] for measures in results.values()] for name in ("mean", "std"))
    axes.errorbar(shots, mean, std, fmt="o-", markersize=4, capsize=3)
    axes.set(ylabel="accuracy, %")
    _label_each(axes, "examples per class", shots)
    return _png(figure)


def _label_each(axes, label, xs, may_be_logarithmic=True):
    """Scales the x axis to separate the values, and labels each with enough room after its predecessor."""
    xs = sorted({x for x in xs if not math.isnan(x)})
    positive = [x for x in xs if x > 0]
    if may_be_logarithmic and xs[0] >= 0 and positive and positive[-1] >= 4 * positive[0]:
        axes.set_xscale("symlog", linthresh=positive[0])  # logarithmic, with 0 one decade to the left
    axes.set_xlabel(label)
    axes.minorticks_off()
    axes.autoscale_view()  # now: the labels are measured below
    places, labels = (
        axes.transData.transform([(x, 0) for x in xs])[:, 0],
        [f"{x:,.0f}" if x >= 1e4 else f"{x:.4g}" for x in xs],
    )
    room = (2 + max(map(len, labels))) * 0.09 * axes.figure.dpi  # pixels; a digit is 0.09 inches wide
    shown = []
    for i, place in enumerate(places):
        if not shown or place - places[shown[-1]] >= room:
            shown.append(i)
    axes.set_xticks([xs[i] for i in shown], [labels[i] for i in shown])


def lines(
    series: dict,
    x_label: str,
    y_label: str,
    label_each: bool = False,
    logarithmic: bool = True,
    from_zero: bool = False,
) -> bytes:
    """Lines {name: (xs, ys)} in one picture; a single point is a dot, and NaN interrupts a line. PNG.

    Args:
        series, x_label, y_label: lines and axis labels.
        label_each: whether to label every x, on a logarithmic axis if the xs span a factor of 4. If False, the xs are
            whole numbers, such as steps.
        logarithmic: whether label_each may use a logarithmic axis.
        from_zero: whether the y axis starts at 0.
    """
    figure, axes = _new(6, 3.6)
    for name, (xs, ys) in series.items():
        axes.plot(xs, ys, "o-" if len(xs) < 20 else "-", label=name, markersize=4)
    axes.set(xlabel=x_label, ylabel=y_label)
    if from_zero:
        axes.set_ylim(0, 1.05 * max(y for _, ys in series.values() for y in ys))
    if label_each:
        _label_each(axes, x_label, [x for xs, _ in series.values() for x in xs], logarithmic)
    else:
        axes.xaxis.get_major_locator().set_params(integer=True)
    if len(series) > 1:
        figure.legend(loc="outside right upper", fontsize=9)
    return _png(figure)


def _drawable(text, number):
    """`text` in lines of at most 40 characters; "point NUMBER" if the font lacks any of them."""
    from matplotlib import font_manager, ft2font

    font = ft2font.FT2Font(font_manager.findfont(font_manager.FontProperties()))
    if any(not font.get_char_index(ord(character)) for character in text):
        return f"point {number}"
    parts = [part if len(part) <= 40 else f"{part[:24]}...{part[-13:]}" for part in text.split(",")]
    return ",\n".join(parts)


def bars(values: dict, label: str) -> bytes:
    """Horizontal bars with values from {name: value}, top to bottom. PNG.

    Long names wrap at commas; a name that the font cannot draw is "point N", counted from 1.
    """
    matplotlib_or_error()
    names = [_drawable(name, number) for number, name in enumerate(values, 1)]
    figure, axes = _new(7, 1 + sum(0.12 + 0.2 * (1 + name.count("\n")) for name in names))
    drawn = axes.barh(range(len(names)), list(values.values()))
    axes.bar_label(drawn, fmt="%.4g", padding=3, fontsize=9)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set(xlabel=label)
    axes.grid(visible=False, axis="y")
    return _png(figure)


def grouped_bars(panels: dict, label: str) -> bytes:
    """Horizontal bars side by side, {title: {group: {name: value}}}, a colour per name, first group on top. PNG."""
    names = list(dict.fromkeys(name for groups in panels.values() for group in groups.values() for name in group))
    highest = max(
        (value for groups in panels.values() for group in groups.values() for value in group.values()), default=1
    )
    rows = max(len(groups) for groups in panels.values())
    figure = _empty(5.2 * len(panels), 1.2 + 0.16 * (len(names) + 1) * rows)
    for axes, (title, groups) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items()):
        for i, name in enumerate(names):
            places = [row + (i + 0.5) / (len(names) + 1) for row, group in enumerate(groups.values()) if name in group]
            values = [group[name] for group in groups.values() if name in group]
            drawn = axes.barh(places, values, 1 / (len(names) + 1), color=_COLOURS[i % len(_COLOURS)], label=name)
            axes.bar_label(drawn, fmt="%.2f", padding=3, fontsize=8)
        axes.set_yticks([row + 0.5 - 0.5 / (len(names) + 1) for row in range(len(groups))], list(groups), fontsize=8)
        axes.set(title=title, xlabel=label, xlim=(0, 1.12 * highest), ylim=(max(rows, 1), -0.25))
        axes.grid(alpha=0.2, axis="x")
        axes.set_axisbelow(True)
    if panels and names:
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(names), fontsize=9)
    return _png(figure)


def _pillow(image):
    """An image (h, w, c) of pixels 0..255 for Pillow: gray, or the first three channels."""
    matplotlib_or_error()  # matplotlib depends on Pillow
    from PIL import Image

    pixels = np.clip(np.round(image), 0, 255).astype("uint8")
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] < 3 else np.ascontiguousarray(pixels[..., :3]))


def as_rgb(image) -> np.ndarray:
    """An image (h, w, c) of pixels 0..255 as (h, w, 3) uint8: repeats gray, drops channels after the third."""
    return np.asarray(_pillow(image).convert("RGB"))


def photograph(image) -> tuple[str, bytes]:
    """(media type, bytes) of an image (h, w, c), pixels 0..255: PNG if small, else JPEG of at most 256 pixels."""
    picture, buffer = _pillow(image), io.BytesIO()
    if max(picture.size) <= _SMALL:
        picture.save(buffer, "PNG")
        return "image/png", buffer.getvalue()
    picture.thumbnail((_LARGE, _LARGE))
    picture.save(buffer, "JPEG", quality=85)
    return "image/jpeg", buffer.getvalue()


def png(image) -> bytes:
    """An image (h, w, c), pixels 0..255, as PNG."""
    buffer = io.BytesIO()
    _pillow(image).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def heat(image, weights) -> np.ndarray:
    """An image (height, width, c) under a map (h, w) from 0 to 1: (height', width', 3) uint8, enlarged if small."""
    matplotlib = matplotlib_or_error()
    from PIL import Image

    picture = _pillow(image).convert("RGB")
    factor = -(-2 * _SMALL // max(picture.size))
    picture = picture.resize((factor * picture.width, factor * picture.height), Image.Resampling.NEAREST)
    smooth = Image.fromarray(np.asarray(weights, "float32")).resize(picture.size, Image.Resampling.BILINEAR)
    colours = 255 * matplotlib.colormaps["inferno"](np.asarray(smooth))[..., :3]
    return np.round(0.4 * np.asarray(picture) + 0.6 * colours).astype("uint8")


def neighbours(rows) -> bytes:
    """A row per (query pixels, list of (similarity, pixels)); pixels are (h, w, c) uint8 of any size. PNG."""
    columns = 1 + max(len(found) for _, found in rows)
    figure = _empty(1.5 * columns, 1.75 * len(rows))
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for axes, (query, found) in zip(grid, rows):
        for place in axes:
            place.set_axis_off()
        for place, (title, pixels) in zip(
            axes, [("query", query), *((f"{similarity:.3f}", image) for similarity, image in found)]
        ):
            place.imshow(as_rgb(pixels), interpolation="nearest" if max(pixels.shape[:2]) <= _SMALL else "antialiased")
            place.set_title(title, fontsize=9, fontweight="bold" if title == "query" else "normal")
    return _png(figure)
