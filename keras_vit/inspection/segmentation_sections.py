"""Sections of report.html about segmentation: scores per class, and pictures of image, truth, prediction and error."""

import base64
import html
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.inspection.html_report import (
    cell,
    image_element,
    legend,
    own_text,
    percentage,
    section,
    sortable,
    swatch,
)
from keras_vit.inspection.mask_comparison import error
from keras_vit.io.mask_pictures import Color, mask_png, rgb, void_color

_COLUMNS = {"iou": "IoU", "accuracy": "accuracy", "boundary_f": "boundary F", "share": "share of pixels"}


def class_scores(per_class: Sequence[dict[str, Any]], colors: Sequence[Color]) -> str:
    """A sortable table of the classes with their colours, lowest IoU first.

    Args:
        per_class: rows with "name", and the shares "iou", "accuracy", "share" and, optionally, "boundary_f"; None if
            undefined.
        colors: one per class.
    """
    shown = {key: title for key, title in _COLUMNS.items() if any(key in row for row in per_class)}
    known = [number for number, row in enumerate(per_class) if row["iou"] is not None]
    rows = []
    for number in sorted(known, key=lambda number: per_class[number]["iou"]):
        row = per_class[number]
        cells = [cell(row.get(key), percentage(row.get(key))) for key in shown]
        rows.append([f'<th scope="row">{swatch(colors[number])}{own_text(row["name"])}</th>', *cells])
    heads = {"class": "", **dict.fromkeys(shown.values(), ' class="number"')}
    heads["IoU"] += ' aria-sort="ascending"'
    note = (
        "IoU: the pixels of the class in both truth and prediction, divided by those in either. Accuracy: the share of"
        " the class's pixels that are found."
    )
    if "boundary_f" in shown:
        note += " Boundary F: how well predicted outlines match true ones, from the share of each near the other."
    missing = len(per_class) - len(known)
    note += f" {missing} of {len(per_class)} classes occur in neither truth nor predictions." if missing else ""
    return section("Classes", sortable(heads, rows), note)


def _mask_element(mask, colors, alt):
    data = base64.b64encode(mask_png(mask, colors)).decode()
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{data}">'


def comparisons(
    images: np.ndarray, truths: np.ndarray, predictions: np.ndarray, names: Sequence[str], colors: Sequence[Color]
) -> str:
    """Image, truth, prediction and error of each example side by side, under a legend; "" without examples.

    Args:
        images: (n, h, w, c). Pixels 0..255.
        truths, predictions: (n, h, w). Class numbers; numbers outside the classes are pixels without a class.
        names, colors: one per class.
    """
    if not len(images):
        return ""
    rows, classes = [], len(names)
    for image, truth, guess in zip(images, truths, predictions):
        counts = truth < classes
        right = f"{np.mean(truth[counts] == guess[counts]):.1%} of pixels correct" if counts.any() else "no class"
        pictures = {
            "image": image_element(rgb(image), "image"),
            "truth": _mask_element(truth, colors, "truth"),
            "prediction": _mask_element(guess, colors, "prediction"),
            f"error: {right}": image_element(error(image, truth, guess, classes), "error"),
        }
        figures = "".join(f"<figure>{x}<figcaption>{title}</figcaption></figure>" for title, x in pictures.items())
        rows.append(f'<div class="compared">{figures}</div>')
    present = set(np.unique(truths).tolist()) | set(np.unique(predictions).tolist())
    shown = [number for number in range(classes) if number in present]
    entries = [(colors[i], names[i]) for i in shown] + [(void_color(colors), "no class")] * (max(present) >= classes)
    note = "Examples spread over the data, worst first. In the last picture, magenta: wrong; black: no true class."
    return section("Predictions", f"{legend(entries)}\n{''.join(rows)}", note)
