"""Text of a model card, README.md: YAML for the Hugging Face hub, by huggingface_hub, and Markdown."""

import html
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from huggingface_hub import EvalResult, ModelCardData

from keras_vit.answers import find
from keras_vit.checkpoints.formats.evaluation_steps import nearest_steps
from keras_vit.inspection.html_report import number
from keras_vit.io.suggest import counted
from keras_vit.sharing.data_names import on_the_hub
from keras_vit.sharing.facts import Facts
from keras_vit.sharing.published_run import Measured
from keras_vit.version import DISTRIBUTION, __version__

_SHARES = (
    "top1",
    "top5",
    "mean_recall",
    "ece",
    "miou",
    "pixel_accuracy",
    "ap",
    "ap50",
    "ap75",
)  # measures shown as percentages
_BAR = r"\|"  # in a table
# Markers of the section for the author's own words, invisible in a browser.
OWN_WORDS = (
    "<!-- Your own words: text between this line and the next one like it is kept when the model is shared"
    " again; everything else is replaced. -->"
)
OWN_WORDS_END = "<!-- The end of your own words. -->"
_MOST_CLASSES = 1000  # largest number of classes on the card; the files contain all
# Our measure -> the hub's (type, name).
_METRICS = {
    "top1": ("accuracy", "top-1 accuracy"),
    "top5": ("accuracy", "top-5 accuracy"),
    "mean_recall": ("recall", "mean recall of the classes"),
    "ece": ("ece", "expected calibration error"),
    "miou": ("mean_iou", "mean IoU of the classes"),
    "ap": ("ap", "AP, mean of IoU .5 to .95"),
    "ap50": ("ap50", "AP at IoU .5"),
    "ap75": ("ap75", "AP at IoU .75"),
    "loss": ("loss", "loss"),
    "nll": ("nll", "negative log likelihood"),
    "psnr": ("psnr", "peak signal-to-noise ratio, dB"),
}
_READERS = {"huggingface": "transformers", "timm": "timm"}
_COUNTS = ("examples", "images", "samples", "train_images", "k")  # reported with the measures


def _metric(name: str) -> tuple[str, str]:
    """The hub's (type, name) of a measure."""
    return _METRICS.get(name, (name, name.replace("_", " ")))


def _eval_results(facts):
    """Results on known data: the run's own evaluation, and evaluators' measures that have a type on the hub."""
    for entry in facts.measured:
        prefix = f"{entry.name.replace('_', ' ')}: " if entry.name else ""
        for key, value in entry.measures.items() if entry.data else ():
            if key in _METRICS or not (entry.name or key in _COUNTS):
                kind, name = _metric(key)
                yield EvalResult(
                    task_type=facts.task or "other",
                    dataset_type=entry.data.kind,
                    dataset_name=entry.data.name,
                    dataset_split=entry.data.split,
                    metric_type=kind,
                    metric_name=f"{prefix}{name}",
                    metric_value=value,
                )


def _front_matter(facts):
    """The YAML front matter, with its two lines of dashes."""
    data, base = (facts.run.data, on_the_hub(facts.run.base)) if facts.run else (None, None)
    results = list(_eval_results(facts))
    tags = ["keras", DISTRIBUTION, *([facts.family.tag] if facts.family else [])]
    content = ModelCardData(
        library_name=DISTRIBUTION,
        license=facts.licence,
        pipeline_tag=facts.task,
        tags=tags + ([_READERS[facts.other_format]] if facts.other_format else []),
        datasets=[data.on_the_hub] if data and data.on_the_hub else None,
        base_model=base,
        metrics=sorted({result.metric_type for result in results}) or None,
        model_name=facts.name if results else None,
        eval_results=results or None,
    )
    return f"---\n{content.to_yaml()}\n---\n"


def _plain(text: object) -> str:
    """Text escaped for Markdown, on one line."""
    return re.sub(r"([\\`*_{}\[\]<>|#&~$])", r"\\\1", " ".join(str(text).split()))


def _code(text: object, in_table: bool = False) -> str:
    """Text without backticks as inline code; bars are escaped in a table, where they would end the cell."""
    return f"`{str(text).replace('|', _BAR) if in_table else text}`"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    head = list(head)
    return [f"| {' | '.join(head)} |", f"|{'-|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows), ""]


def _summary(facts):
    """The first paragraph."""
    height, width = facts.model["image_size"]
    what = facts.family.title if facts.is_plain else facts.kind
    encoder = " It is used to train its encoder." if facts.pretrains else ""
    trained = f" Trained on {_plain(facts.run.data)}." if facts.run and facts.run.data else ""
    does = " ".join(["", *(find(kind).sentence(facts.model) for kind in facts.model["answers"])]).rstrip()
    return [
        f"{what} for images of {height} x {width} pixels.{does}{encoder}{trained}",
        "",
    ]


def _sizes(facts):
    model = facts.model
    rows = [
        ("architecture", _plain(facts.architecture)),
        ("parameters", f"{model['parameters']:,}"),
        ("FLOPs of one image", f"{facts.flops:,} (2 per multiply-add)" if facts.flops else ""),
        (
            "image size",
            f"{model['image_size'][0]} x {model['image_size'][1]} pixels, {counted(model['channels'], 'channel')}",
        ),
        ("classes", "" if model["classes"] is None else f"{model['classes']:,}"),
        ("returns", "features" if facts.headless and not facts.pretrains else ""),
        ("licence", facts.licence),
    ]
    return _table(("model", "value"), [row for row in rows if row[1]])


def _use(facts):
    """How to load the model with this package and others."""
    height, width = facts.model["image_size"]
    size = height if height == width else (height, width)
    code = ["import keras_vit", "", f'model = keras_vit.load("{facts.address}")']
    if not facts.pretrains:
        code += [example for kind in facts.model["answers"] if (example := find(kind).example)]
    if facts.pretrains:
        code += ["encoder = model.get_encoder()  # from pixels 0..255, (b, h, w, c), to features"]
    else:
        code += ['keras_vit.export(model, "exported")  # a SavedModel that takes encoded images']
    if facts.pretrains or facts.is_plain:
        code += [
            f'model = keras_vit.load("{facts.address}", image_size={size}, classes=5, head="reset")  # to fine-tune'
        ]
    return [
        "## Use",
        "",
        "With keras_vit and its extra `hub`:",
        "",
        "```python",
        *code,
        "```",
        "",
        *_other_library(facts),
    ]


def _other_library(facts):
    """How transformers or timm loads the model."""
    if facts.other_format is None:
        return []
    repository = facts.address.partition("://")[2]
    if facts.other_format == "huggingface":
        name, code = "transformers", [f"from transformers import {facts.other_class}"]
        code += ["", f'model = {facts.other_class}.from_pretrained("{repository}")']
        steps, exact = nearest_steps(facts.model["preprocessing"], tuple(facts.model["image_size"]))
        note = "`preprocessor_config.json` prepares images "
        note += "as below." if exact else f"by {_code(steps.text)}; the measures use images prepared as below."
    else:
        name, code = "timm", ["import timm", ""]
        code += [f'model = timm.create_model("hf-hub:{repository}", pretrained=True)']
        note = "timm normalises outside the model: see `pretrained_cfg` in config.json."
    return [f"With {name}, in PyTorch:", "", "```python", *code, "```", "", note, ""]


def _images(facts):
    """How to prepare images."""
    model = facts.model
    name = "encoder" if facts.pretrains else "model"
    lines = ["## Images", "", f'Use {_code(model["preprocessing"])}, as `{name}.preprocess("photo.jpg")` does.']
    if model["mean"] is not None:
        lines += [
            "The model takes pixels from 0 to 255 and normalises them itself, (x - mean) / std, with mean"
            f" {_numbers(model['mean'])} and std {_numbers(model['std'])}."
        ]
    return [*lines, ""]


def _numbers(values):
    """A number, or one per channel, as text."""
    return ", ".join(f"{value:g}" for value in np.ravel(values))


def _shown(name, value):
    return f"{100 * value:.2f}%" if name in _SHARES else number(value)


def _measured(measured: Measured) -> list[str]:
    """A table of measures."""
    on = "" if measured.data is None else f"On {_plain(measured.data)}"
    title = ", ".join([_code(measured.name), *([f"o{on[1:]}"] if on else [])]) if measured.name else on
    order = sorted(measured.measures, key=lambda name: _SHARES.index(name) if name in _SHARES else len(_SHARES))
    rows = [(_plain(_metric(name)[1]), _shown(name, measured.measures[name])) for name in order]
    return [*([f"{title}:", ""] if title else []), *_table(("measure", "value"), rows)]


def _pictures(facts):
    """The pictures with their captions, two to a row."""
    cells = [
        f'<td width="50%"><img src="{html.escape(path)}" alt="{html.escape(what)}"><br>{html.escape(what)}</td>'
        for path, what in facts.pictures.items()
    ]
    rows = [f"<tr>{''.join(cells[i : i + 2])}</tr>" for i in range(0, len(cells), 2)]
    return ["<table>", *rows, "</table>", ""] if rows else []


def _results(facts):
    """The run's measures and pictures."""
    entries = [entry for entry in facts.measured if entry.measures]
    if not entries:
        return ["## Measures", "", "No measures are available.", "", *_pictures(facts)]
    tables = [line for entry in entries for line in _measured(entry)]
    return ["## Measures", "", *tables, *_pictures(facts)]


def _classes(facts):
    """The classes, with recall, precision and number of examples where known."""
    model, details = facts.model, facts.run.evaluation.details if facts.run and facts.run.evaluation else {}
    if model["classes"] is None:
        return []
    names = model["class_names"] or [""] * model["classes"]
    columns = {"name": [_plain(name) for name in names]} if model["class_names"] else {}
    for title, values in _columns(details).items():
        if isinstance(values, list) and len(values) == len(names):
            columns[title] = [_cell(title, value) for value in values]
    rows = list(zip(map(str, range(len(names))), *columns.values()))[:_MOST_CLASSES] if columns else []
    left = [f"And {len(names) - len(rows):,} more.", ""] if 0 < len(rows) < len(names) else []
    table = [*_table(("class", *columns), rows), *left] if rows else []
    folded = ["<details><summary>All classes</summary>", "", *table, "</details>", ""] if len(rows) > 20 else table
    unnamed = "" if model["class_names"] else " The classes have no names."
    return [
        "## Classes",
        "",
        f"Probabilities are the {model['activation']} of the model's outputs.{unnamed}",
        "",
        *folded,
    ]


def _columns(details):
    """{title: values of the classes}. Of dense tasks, "per_class" is a list of rows, {"name", "iou", ...}."""
    rows = details.get("per_class")
    if isinstance(rows, list) and rows and isinstance(rows[0], dict):
        return {key.replace("_", " "): [row[key] for row in rows] for key in rows[0] if key != "name"}
    keys = {"recall": "per_class", "precision": "precision", "examples": "examples_per_class"}
    return {title: details.get(key) for title, key in keys.items()}


def _cell(title: str, value: Any) -> str:
    return "-" if value is None else number(value) if title in ("examples", "objects") else f"{value:.1%}"


def _training(facts):
    rows = facts.run.training() if facts.run else []
    texts = [
        (name, _code(value, in_table=True) if "preprocessing" in name else _plain(number(value)))
        for name, value in rows
    ]
    return ["## Training", "", *_table(("training", "value"), texts)] if texts else []


def own_words(text: str, where: str) -> str | None:
    """The author's own words in a card, or None without a section for them; `where` names the card in errors.

    Raises:
        ValueError: only one of the section's two marker lines is left.
    """
    start, end = "<!-- Your own words", "<!-- The end of your own words"
    section = re.search(rf"{start}\b[^\n]*?-->(.*?){end}\b", text, re.DOTALL)
    if section is None and (start in text or end in text):
        raise ValueError(
            f"{where} has only one of the two lines around your own words. Both are needed: {OWN_WORDS} {OWN_WORDS_END}"
        )
    return None if section is None else section[1].replace("\r\n", "\n").strip()


def card(facts: Facts, words: str | None = None) -> str:
    """README.md with front matter and `words`, Markdown for the section of the author's own words."""
    lines = [f"# {_plain(facts.name)}", "", *_summary(facts), *_sizes(facts), *_results(facts), *_use(facts)]
    lines += [*_images(facts), *_classes(facts), *_training(facts)]
    lines += [OWN_WORDS, "", *([words, ""] if words else []), OWN_WORDS_END, ""]
    lines += [f"Made by keras\\_vit {__version__}.", ""]
    return "\n".join([_front_matter(facts), *lines])
