"""report.html: a self-contained page about a run, with pictures; page.html is its frame, with style and script.

Sections are functions that return HTML, chosen by the run's task; `page` assembles them. Class and file names are HTML
text in any script, always escaped.
"""

import base64
import html
import importlib.resources
import math
import shlex
import string
from typing import Any

import numpy as np

from keras_vit.inspection import figures
from keras_vit.inspection.attention import attention_maps
from keras_vit.io.suggest import counted

MATRIX = 20  # largest number of classes with a confusion matrix; above, the page shows the distribution of recalls
ROWS = 1000  # rows of the class table
PAIRS = 12  # most confused pairs
PICTURES = 6  # steps with an evaluator's pictures
NAMED = 200  # unusable examples to list


def page(title: str, sections) -> str:
    """The document: a heading and sections of HTML."""
    frame = string.Template((importlib.resources.files(__package__) / "page.html").read_text("utf-8"))
    return frame.substitute(title=html.escape(title), body="\n".join(section for section in sections if section))


# Parts of sections


def number(value) -> str:
    """A measure as text: whole numbers in full, others to four digits, anything else unchanged."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.number)):
        return str(value)
    if isinstance(value, (int, np.integer)):
        return f"{value:,}"
    return f"{value:,.0f}" if math.isfinite(value) and abs(value) >= 1e4 else f"{value:.4g}"


def percentage(share: float | None) -> str:
    """A share as text, such as 12.3%; "-" for None."""
    return "-" if share is None else f"{share:.1%}"


def own_text(text: object) -> str:
    """User text, isolated because it may run from right to left."""
    return f"<bdi>{html.escape(str(text))}</bdi>"


def section(title: str, body: str, note: str = "") -> str:
    """A heading, HTML, and a plain-text note."""
    return f"<h2>{html.escape(title)}</h2>\n{body}" + (f"\n<p>{html.escape(note)}</p>" if note else "")


def table(rows) -> str:
    """A table of (name, value) pairs with rounded numbers."""
    cells = "".join(
        f'<tr><th scope="row">{html.escape(str(k))}</th><td>{own_text(number(v))}</td></tr>\n' for k, v in rows
    )
    return f'<table class="facts"><tbody>\n{cells}</tbody></table>'


def figure_row(svgs: dict[str, str]) -> str:
    """Pictures {caption: SVG} side by side, wrapping if needed."""
    parts = (
        '<figure role="img"'
        f' aria-label="{html.escape(caption)}"><figcaption>{html.escape(caption)}</figcaption>{svg}</figure>'
        for caption, svg in svgs.items()
    )
    return f'<div class="pictures">{"".join(parts)}</div>'


def image_element(pixels: np.ndarray, alt: str) -> str:
    """An <img> of pixels (h, w, c), 0..255."""
    media_type, data = figures.photograph(pixels)
    small = ' class="small"' if media_type == "image/png" else ""
    return f'<img{small} alt="{html.escape(alt)}" src="data:{media_type};base64,{base64.b64encode(data).decode()}">'


def embedded(data: bytes, alt: str) -> str:
    """An <img> of a PNG file's bytes, at its own size if there is room."""
    return f'<img class="sheet" alt="{html.escape(alt)}" src="data:image/png;base64,{base64.b64encode(data).decode()}">'


def swatch(color) -> str:
    """A square of a colour, (red, green, blue), 0..255."""
    return f'<i class="swatch" style="background: rgb({" ".join(map(str, color))})"></i>'


def legend(entries) -> str:
    """A list of (color, text) pairs, each with a square of its colour."""
    items = "".join(f"<li>{swatch(color)}{own_text(text)}</li>" for color, text in entries)
    return f'<ul class="legend">{items}</ul>'


def _gallery(items):
    return f'<ul class="gallery">\n{"".join(f"<li>{item}</li>" for item in items)}</ul>'


def sortable(columns: dict[str, str], rows) -> str:
    """A sortable table, scrolling if long; columns are {title: attributes}, rows lists of cells."""
    head = "".join(f'<th scope="col"{attributes}>{title}</th>' for title, attributes in columns.items())
    body = "".join(f"<tr>{''.join(cells)}</tr>\n" for cells in rows)
    return (
        '<div class="scroll"><table'
        f' class="sortable"><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>'
    )


def cell(value, text: str | None = None) -> str:
    """A cell that sorts by a number, or last if `value` is None."""
    return f'<td class="number" data-value="{"" if value is None else value}">{text or number(value)}</td>'


# Sections


def curve_points(records: list[dict], key: str, scale: float) -> dict[str, list[tuple[int, float]]]:
    """{"training": [(step, value)], "evaluation": [(step, value)]} of a metric, each only if the records contain it."""
    series = {}
    for line, name in (("training", key), ("evaluation", f"val_{key}")):
        points = [(record["step"], scale * record[name]) for record in records if record.get(name) is not None]
        series |= {line: points} if points else {}
    return series


def learning_curves(records, metric: str = "accuracy", title: str = "", percent: bool = False, note: str = "") -> str:
    """Curves of the loss and a metric over steps; "" without records.

    Args:
        records: records of metrics.jsonl; a single one becomes a table.
        metric: metric name in the records, prefixed with "val_" for evaluation.
        title: metric name on the page.
        percent: whether to show the metric in percent.
        note: text below the pictures.
    """
    titles, scales = {"loss": "loss", metric: title or metric}, {"loss": 1, metric: 100 if percent else 1}
    series = {name: curve_points(records, key, scales[key]) for key, name in titles.items()}
    if len(records) == 1:
        rows = [(f"{name}, {line}", points[0][1]) for name, lines in series.items() for line, points in lines.items()]
        return section(f"After step {records[0]['step']:,}", table(rows), note) if rows else ""
    drawn = {
        name: figures.curves(lines, "step", f"curve{i}") for i, (name, lines) in enumerate(series.items()) if lines
    }
    return section("Learning curves", figure_row(drawn), note) if drawn else ""


def evaluator(
    name: str,
    measures: dict[str, list[tuple[int, float]]],
    pictures: dict[str, dict[int, bytes]],
    caption: str = "",
    title: str = "",
) -> str:
    """An evaluator's results during training; "" without any.

    Args:
        name: evaluator name.
        measures: {measure: [(step, value)]}; constant ones, such as a number of examples, are not drawn.
        pictures: {picture: {step: PNG file}}; shows at most six steps.
        caption: caption of the pictures.
        title: heading; "" for the name in words.
    """
    title = title or name.replace("_", " ").capitalize()
    curves = {key: points for key, points in measures.items() if len({value for _, value in points}) > 1}
    drawn = {
        key: figures.curves({key: points}, "step", f"{name}-{i}") for i, (key, points) in enumerate(curves.items())
    }
    parts = [figure_row(drawn)] if drawn else []
    last = [(key, points[-1][1]) for key, points in measures.items() if points]
    parts += [table(last)] if last else []
    for picture, steps in pictures.items():
        shown = [sorted(steps)[round(i)] for i in np.linspace(0, len(steps) - 1, min(len(steps), PICTURES))]
        parts += [f"<h3>{html.escape(picture)}, step {step:,}</h3>\n{embedded(steps[step], picture)}" for step in shown]
    return section(title, "\n".join(parts), caption if pictures else "") if parts else ""


def _share(count, whole, shares):
    """A cell of a confusion matrix, shaded by its share of the row: the count, or the share in percent."""
    if not count or (shares and count < 0.005 * whole):
        return "<td></td>"
    text = f"{100 * count / whole:.0f}" if shares else f"{count:,}"
    return f'<td style="background: rgb(59 130 246 / {0.6 * count / whole:.3f})">{text}</td>'


def confusion(matrix, names, shares: bool = False) -> str:
    """The confusion matrix (classes, classes), rows true, columns predicted, with class names.

    With `shares`, for counts of pixels, each number is a percentage of its row, blank below 0.5.
    """
    kind = "long" if max(map(len, names)) > 3 else "short"
    head = "".join(f'<th scope="col"><div class="{kind}">{own_text(name)}</div></th>' for name in names)
    rows = []
    for name, counts in zip(names, matrix):
        cells = "".join(_share(count, sum(counts), shares) for count in counts)
        rows.append(f'<tr><th scope="row">{own_text(name)}</th>{cells}</tr>\n')
    body = f"<thead><tr><td></td>{head}</tr></thead><tbody>\n{''.join(rows)}</tbody>"
    what = "the number is the percentage" if shares else "the shade is the share"
    note = f"Rows are true classes, columns predicted ones; {what} of the row."
    return section("Confusion matrix", f'<div class="scroll matrix"><table>{body}</table></div>', note)


def recalls(per_class) -> str:
    """Distribution of many classes' recalls; None marks a class without examples."""
    known = [100 * recall for recall in per_class if recall is not None]
    picture = figures.histogram(known, "recall, %", "classes", "recalls")
    return section("Recall of the classes", figure_row({f"{len(known):,} classes by their recall": picture}))


def classes(details, names) -> str:
    """A sortable table of the classes, lowest recall first; "" without details.

    `details` contains "per_class" and, optionally, "precision" and "examples_per_class".
    """
    keys = {"recall": "per_class", "precision": "precision", "examples": "examples_per_class"}
    columns: dict[str, Any] = {title: details[key] for title, key in keys.items() if key in details}
    if "recall" not in columns:
        return ""
    known = [i for i, recall in enumerate(columns["recall"]) if recall is not None]
    order = sorted(known, key=columns["recall"].__getitem__)[:ROWS]
    rows = []
    for i in order:
        values = {title: column[i] for title, column in columns.items()}
        cells = [cell(value, None if title == "examples" else percentage(value)) for title, value in values.items()]
        rows.append([f'<th scope="row">{own_text(names[i])}</th>', *cells])
    heads = {"class": "", **dict.fromkeys(columns, ' class="number"')}
    heads["recall"] += ' aria-sort="ascending"'
    notes = [
        "Recall: the share of a class's examples that are found. Precision: the share of its predictions that are"
        " correct."
    ]
    if len(order) < len(known):
        notes.append(f"Shown: the {len(order):,} of {len(known):,} classes with the lowest recall.")
    if len(known) < len(names):
        notes.append(f"{len(names) - len(known):,} of {len(names):,} classes have no examples here.")
    return section("Classes", sortable(heads, rows), " ".join(notes))


def confused(pairs, names, examples_per_class, samples=None) -> str:
    """The most confused pairs of classes; "" without any.

    Args:
        pairs: [true, predicted, examples], most frequent first.
        names: class names.
        examples_per_class: (classes,). Number of examples, for the shares.
        samples: (images, labels, predicted classes) from which to show an image of each pair.
    """
    items = []
    for true, guess, count in pairs[:PAIRS]:
        found = [] if samples is None else np.flatnonzero((samples[1] == true) & (samples[2] == guess))
        image = image_element(samples[0][found[0]], f"{names[true]}, taken for {names[guess]}") if len(found) else ""
        share = f"{count:,} of {examples_per_class[true]:,}, {count / examples_per_class[true]:.0%}"
        items.append(
            f"{image}<span>{own_text(names[true])} taken for {own_text(names[guess])}</span><small>{share}</small>"
        )
    return section("Most confused", _gallery(items)) if items else ""


def calibration(intervals, error: float) -> str:
    """Confidence against accuracy, from [examples, accuracy, mean confidence] per interval, and the ECE, a share."""
    picture = figures.reliability(intervals, "reliability")
    note = (
        "Each dot is a range of confidence, larger with more examples: above the line the model is underconfident,"
        " below it overconfident. Confidence is the softmax probability of the predicted class. The expected"
        " calibration error (ECE) is the distance between accuracy and mean confidence in 15 ranges of equal width,"
        " averaged over the examples."
    )
    return section("Calibration", figure_row({f"ECE {error:.2%}": picture}), note)


def examples_to_show(logits, labels, count: int = 24) -> np.ndarray:
    """Positions of at most `count` of n examples: up to half wrong ones, then correct ones spread over the set."""
    wrong = np.flatnonzero(logits.argmax(-1) != labels)[: count // 2]
    right = np.flatnonzero(logits.argmax(-1) == labels)
    spread = (
        right[np.linspace(0, len(right) - 1, min(count - len(wrong), len(right))).astype(int)] if len(right) else right
    )
    return np.concatenate([wrong, spread]).astype(int)


def predictions(images, labels, logits, names) -> str:
    """Images (n, h, w, c), 0..255, with predicted and true class and confidence from logits (n, classes); or ""."""
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    items = []
    for image, true, guess, share in zip(images, labels, logits.argmax(-1), p.max(-1)):
        kind, truth = ("right", "") if true == guess else ("wrong", f"<small>true: {own_text(names[true])}</small>")
        caption = f'<span class="{kind}">{own_text(names[guess])} {share:.0%}</span>{truth}'
        items.append(image_element(image, f"{names[true]}, predicted {names[guess]}") + caption)
    note = "With the model's confidence. Wrong predictions come first, in red, with the true class below."
    return section("Predictions", _gallery(items), note) if items else ""


def attention(model, images) -> str:
    """Attention rollout of a ViT or Swin over images (n, h, w, c); "" without any."""
    if not len(images):
        return ""
    maps = attention_maps(model, images)
    items = [
        image_element(image, "image") + image_element(figures.heat(image, weights), "its map")
        for image, weights in zip(images, maps)
    ]
    return section("Attention rollout: what the output attends to", _gallery(items))


def against_truth(truth, predicted) -> str:
    """Predicted against true numbers, each (n,)."""
    picture = figures.against_truth(truth, predicted, "truth")
    return section("Predictions", figure_row({f"{counted(len(truth), 'example')}, true against predicted": picture}))


def skipped(failed) -> str:
    """The number and names of unusable examples, {name: reason}."""
    if not failed:
        return section("Left out", "<p>None: all examples could be read.</p>")
    count = counted(len(failed), "example")
    rows = [
        [f"<td>{own_text(name)}</td>", f"<td>{own_text(reason)}</td>"] for name, reason in list(failed.items())[:NAMED]
    ]
    more = f" The first {NAMED}:" if len(failed) > NAMED else ""
    return section(
        "Left out", f"<p>{count} could not be used.{more}</p>\n" + sortable({"example": "", "why": ""}, rows)
    )


def configuration(config) -> str:
    """A config, {key: value}, folded; "" if empty."""
    if not config:
        return ""
    return section("Configuration", f"<details><summary>{len(config)} keys</summary>{table(config.items())}</details>")


def about(command, facts) -> str:
    """How the page was made: the command's words, and (name, value) pairs such as versions and devices."""
    words = " ".join(own_text(shlex.quote(word)) for word in command)
    return section("Made by", (f"<pre>{words}</pre>\n" if words else "") + table(facts))
