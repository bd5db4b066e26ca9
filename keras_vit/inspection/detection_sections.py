"""Sections of report.html about detection: precision and recall, AP by class and size, confusion, and examples."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.inspection import figures, html_report
from keras_vit.inspection.box_comparison import sheet
from keras_vit.inspection.html_report import cell, embedded, figure_row, legend, own_text, percentage, section, sortable
from keras_vit.io.box_pictures import Mark

_RANGES = {"all": "all", "small": "below 32 x 32", "medium": "32 x 32 to 96 x 96", "large": "above 96 x 96"}
_COLUMNS = {"ap": "AP", "ap50": "AP50", "precision": "precision", "recall": "recall"}


def precision_recall(curves: dict[str, Sequence[float]], per_class: Sequence[dict[str, Any]]) -> str:
    """Precision against recall at IoU .5: the mean, and the classes with the lowest AP50, at most 8; "" without curves.

    Args:
        curves: {class: precisions at evenly spaced recalls} of the classes with objects.
        per_class: rows with "name" and "ap50".
    """
    if not curves:
        return ""
    ap = {row["name"]: row["ap50"] for row in per_class}
    shown = sorted(curves, key=ap.__getitem__)[: len(figures.LINES)]
    mean = np.mean(list(curves.values()), axis=0)
    picture = figures.precision_recall([curves[name] for name in shown], mean, "precision-recall")
    caption = f"mean of the classes: AP50 {np.mean([ap[name] for name in curves]):.1%}"
    entries = [(color, f"{name}, AP50 {ap[name]:.1%}") for color, name in zip(figures.LINES, shown)]
    note = (
        "Each score threshold is a point: precision is the share of correct detections, recall the share of objects"
        " found. Dashed: the mean over the classes."
    )
    if len(shown) < len(curves):
        note += f" Shown: the {len(shown)} of {len(curves)} classes with the lowest AP50."
    return section("Precision and recall at IoU .5", legend(entries) + figure_row({caption: picture}), note)


def sizes(by_size: dict[str, dict[str, Any]]) -> str:
    """A table of AP, AR and number of objects for each size, {size: {"ap", "ar", "objects"}}; None if undefined."""
    rows = []
    for size, row in by_size.items():
        shares = [cell(row[key], percentage(row[key])) for key in ("ap", "ar")]
        title = f'<th scope="row">{size}</th><td>{_RANGES[size]}</td>'
        rows.append([title, *shares, cell(row["objects"])])
    heads = {"objects": "", "pixels": "", **dict.fromkeys(("AP", "AR", "number"), ' class="number"')}
    note = "AR: the share of objects found by an image's 100 best detections, averaged like AP."
    return section("AP by size", sortable(heads, rows), note)


def classes(per_class: Sequence[dict[str, Any]], threshold: float) -> str:
    """A sortable table of the classes, lowest AP first.

    Args:
        per_class: rows with "name", "objects", and the shares "ap", "ap50", "precision" and "recall", or None.
        threshold: smallest score of detections that count in precision and recall.
    """
    known = [row for row in per_class if row["ap"] is not None]
    rows = []
    for row in sorted(known, key=lambda row: row["ap"]):
        shares = [cell(row[key], percentage(row[key])) for key in _COLUMNS]
        rows.append([f'<th scope="row">{own_text(row["name"])}</th>', *shares, cell(row["objects"])])
    heads = {"class": "", **dict.fromkeys((*_COLUMNS.values(), "objects"), ' class="number"')}
    heads["AP"] += ' aria-sort="ascending"'
    note = f"AP: the mean over IoU .5 to .95. Precision and recall count detections scoring {threshold:.3g} or more."
    missing = len(per_class) - len(known)
    note += f" {missing} of {len(per_class)} classes have no objects here." if missing else ""
    return section("Classes", sortable(heads, rows), note)


def confusion(matrix: Sequence[Sequence[int]], names: Sequence[str], threshold: float) -> str:
    """The confusion matrix (k + 1, k + 1) of objects and detections, the background last."""
    note = (
        f"Detections scoring {threshold:.3g} or more, matched at IoU .5. The background row counts false alarms, the"
        " background column missed objects."
    )
    return f"{html_report.confusion(matrix, [*names, 'background'])}\n<p>{note}</p>"


def examples(images: np.ndarray, marks: Sequence[Sequence[Mark]], note: str = "") -> str:
    """Images (n, h, w, c) with their marks, from `inspection.detection.match_marks`; "" without images."""
    if not len(images):
        return ""
    return section("Examples", embedded(figures.png(sheet(images, marks)), "examples"), note)
