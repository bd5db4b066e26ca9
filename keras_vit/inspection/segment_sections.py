"""Sections of report.html about panoptic scenes."""

from collections.abc import Sequence
from typing import Any

from keras_vit.inspection.html_report import cell, own_text, percentage, section, sortable


def classes(per_class: Sequence[dict[str, Any]]) -> str:
    """A sortable table of the classes, lowest PQ first.

    Args:
        per_class: rows with "name", "stuff", "pq", "sq", "rq" and "segments", as of evaluation.PanopticQuality.
    """
    known = [row for row in per_class if row["pq"] is not None]
    rows = []
    for row in sorted(known, key=lambda row: row["pq"]):
        shares = [cell(row[key], percentage(row[key])) for key in ("pq", "sq", "rq")]
        kind = "stuff" if row["stuff"] else "thing"
        rows.append([f'<th scope="row">{own_text(row["name"])}</th><td>{kind}</td>', *shares, cell(row["segments"])])
    heads = {"class": "", "kind": "", **dict.fromkeys(("PQ", "SQ", "RQ", "segments"), ' class="number"')}
    heads["PQ"] += ' aria-sort="ascending"'
    note = "PQ is SQ times RQ: the mean IoU of matched segments, and the F1 of matching at IoU .5."
    missing = len(per_class) - len(known)
    note += f" {missing} of {len(per_class)} classes have no segments here." if missing else ""
    return section("Classes", sortable(heads, rows), note)
