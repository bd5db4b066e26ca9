"""Pictures of a run, each returned as PNG bytes. They need matplotlib, the extra [viz]."""

import io

import numpy as np


def _new(width, height, rows=1, columns=1):
    """A figure of width x height inches and its axes (rows, columns), off any screen."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError('Pictures need matplotlib: pip install "keras-vit[viz]".') from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)


def _png(figure):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def learning_curves(records, metric: str = "accuracy") -> bytes:
    """The loss and a metric against steps, from the records of metrics.jsonl; evaluation as dashed lines with dots."""
    figure, axes = _new(9, 3.2, 1, 2)
    steps = [record["step"] for record in records]
    for ax, name in zip(axes[0], dict.fromkeys(("loss", metric))):
        for key, style, label in ((name, "-", "training"), (f"val_{name}", "o--", "evaluation")):
            if records and key in records[0]:
                ax.plot(steps, [record.get(key, np.nan) for record in records], style, label=label, markersize=4)
        ax.set(xlabel="step", title=name)
        ax.grid(alpha=0.3)
        ax.legend()
    return _png(figure)


def confusion_matrix(confusion, class_names) -> bytes:
    """A confusion matrix (classes, classes), rows true, columns predicted. Up to 20 classes, cells show their counts."""
    counts = np.asarray(confusion)
    n = len(counts)
    size = min(4 + 0.25 * n, 14)
    figure, axes = _new(size, size)
    ax = axes[0, 0]
    ax.imshow(counts / np.maximum(counts.sum(1, keepdims=True), 1), cmap="Blues", vmin=0, vmax=1)
    ax.set(xlabel="predicted", ylabel="true")
    if n <= 50:
        ax.set_xticks(range(n), class_names, rotation=90 if max(map(len, class_names)) > 3 else 0)
        ax.set_yticks(range(n), class_names)
    if n <= 20:
        for (row, column), count in np.ndenumerate(counts):
            if count:
                dark = count > counts[row].sum() / 2
                ax.text(column, row, str(count), ha="center", va="center", color="white" if dark else "black", fontsize=8)
    return _png(figure)


def few_shot_accuracy(results) -> bytes:
    """Accuracy against examples per class, with the standard deviation over samples; `results` is evaluation.few_shot's."""
    figure, axes = _new(4.5, 3.2)
    ax, shots = axes[0, 0], list(results)
    mean, std = ([100 * measures[name] for measures in results.values()] for name in ("mean", "std"))
    ax.errorbar(shots, mean, std, fmt="o-", markersize=4, capsize=3)
    ax.set_xscale("log")
    ax.set_xticks(shots, [str(n) for n in shots])
    ax.minorticks_off()
    ax.set(xlabel="examples per class", ylabel="accuracy, %")
    ax.grid(alpha=0.3)
    return _png(figure)


def _show(ax, image, title="", color="black"):
    gray = image.shape[-1] == 1
    ax.imshow(image[..., 0] if gray else image, cmap="gray" if gray else None, vmin=0, vmax=255)
    ax.set_title(title, fontsize=8, color=color)
    ax.axis("off")


def predictions(images, truth, predicted, confidence, columns: int = 8) -> bytes:
    """Images (b, h, w, c) uint8 with the names (b,) of their true and predicted classes; wrong predictions in red."""
    rows = -(-len(images) // columns)
    figure, axes = _new(1.2 * columns, 1.45 * rows, rows, columns)
    for ax in axes.flat:
        ax.axis("off")
    for ax, image, true, guess, p in zip(axes.flat, images, truth, predicted, confidence):
        right = true == guess
        _show(ax, image, f"{guess} {p:.0%}" + ("" if right else f"\ntrue: {true}"), "black" if right else "crimson")
    return _png(figure)


def attention(images, maps) -> bytes:
    """Images (b, height, width, c), and below them the same images under their attention maps (b, h, w)."""
    figure, axes = _new(1.2 * len(images), 2.6, 2, len(images))
    for column, (image, weights) in enumerate(zip(images, maps)):
        height, width = image.shape[:2]
        _show(axes[0, column], image)
        _show(axes[1, column], image)
        extent = (-0.5, width - 0.5, height - 0.5, -0.5)
        axes[1, column].imshow(weights, cmap="inferno", alpha=0.6, extent=extent, interpolation="bilinear", vmin=0, vmax=1)
    return _png(figure)


def lines(series: dict, x_label: str, y_label: str, log_x: bool = False) -> bytes:
    """Lines in one picture. `series` is {name: (xs, ys)}; a single point appears as a dot."""
    figure, axes = _new(6, 3.6)
    ax = axes[0, 0]
    for name, (xs, ys) in series.items():
        ax.plot(xs, ys, "o-" if len(xs) < 20 else "-", label=name, markersize=4)
    ax.set(xlabel=x_label, ylabel=y_label)
    if log_x:
        ax.set_xscale("log")
    if len(series) > 1:
        ax.legend()
    ax.grid(alpha=0.3)
    return _png(figure)


def bars(values: dict, label: str) -> bytes:
    """Horizontal bars from {name: value}, the first at the top."""
    figure, axes = _new(7, 1 + 0.3 * len(values))
    ax = axes[0, 0]
    ax.barh(list(values), list(values.values()))
    ax.invert_yaxis()
    ax.set(xlabel=label)
    ax.grid(alpha=0.3, axis="x")
    return _png(figure)
