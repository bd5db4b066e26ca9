"""The reference of published models: a page per family, from the catalogue and the counted costs."""

import collections
import itertools
import re
from collections.abc import Iterable

from layout import ROOT, table

from keras_vit.checkpoints import list_models
from keras_vit.checkpoints.fetch.catalogue import Published, find
from keras_vit.detection.heads.detection_heads import HEADS as DETECTORS
from keras_vit.planning.model_count import ModelCount, read_counts

# (model, what was measured with this package, result, page of docs/ with the run and its hardware).
MEASURED = (
    ("deit/tiny", "ImageNet top-1, 100 photographs", "79", "experiments/robustness.md"),
    ("deit/tiny", "CIFAR-10 after fine-tuning at 96 px", "90.1%", "recipes.md"),
    ("deit/tiny", "CamVid with SETR-MLA, mIoU", "68.5", "segmentation.md"),
    ("deit/tiny", "blood cells with the dense head, AP", "55.3", "detection.md"),
)
# Commands for a model, {0}, by the kind of its file.
_LOAD = 'model = keras_vit.load("{0}")'
_TUNE = 'model = keras_vit.load("{0}", classes=10, head="reset")  # to fine-tune'
_FEATURES = 'model = keras_vit.load("{0}", head="drop")  # features (b, d)'
_FINETUNE = "keras-vit finetune --data=PHOTOS --init={0} --workdir=runs/mine"
_PYTHON = {
    "classifier": [_LOAD, 'model.classify("cat.jpg")', _TUNE],
    "pretrained": [_TUNE, _FEATURES],
    "features": [_FEATURES, _TUNE],
    "autoencoder": ['model = keras_vit.load("{0}")  # a MaskedAutoencoder, with its decoder', _TUNE],
    "towers": [_FEATURES, _TUNE, 'model = keras_vit.load("{0}", text=True, tokenizer="tokenizer.json")  # both towers'],
    "segmentation": [_LOAD, 'model.segment("street.jpg").picture()'],
    "detection": [_LOAD, 'model.detect("street.jpg").picture()'],
    "depth": [_LOAD, 'model.estimate("street.jpg").picture()'],
}
_SHELL = {
    "classifier": ["keras-vit classify {0} cat.jpg", _FINETUNE],
    "segmentation": ["keras-vit segment {0} PHOTOS --output=look"],
    "detection": ["keras-vit detect {0} PHOTOS --output=look"],
    "depth": ["keras-vit predict --model={0} --data=images:PHOTOS --output=depths"],
}
_STORES = {"gs://": "https://storage.googleapis.com/", "hf://": "https://huggingface.co/"}


def families(counts: dict[str, ModelCount]) -> dict[str, list[Published]]:
    """{family: its models}, the smallest first."""
    found = collections.defaultdict(list)
    for name in sorted(list_models(), key=lambda name: counts[name].parameters):
        found[name.partition("/")[0]].append(find(name))
    return dict(sorted(found.items()))


def _link(row: Published) -> str:
    """The weights' page or file."""
    [(scheme, store)] = [item for item in _STORES.items() if row.url.startswith(item[0])]
    return f"[{'Google' if scheme == 'gs://' else 'Hugging Face'}]({store}{row.url.removeprefix(scheme)})"


def _cells(row: Published, counts: dict[str, ModelCount]) -> list[str]:
    count = counts[row.name]
    cost = [f"{count.parameters / 1e6:.1f}", f"{count.flops / 1e9:.1f}"]
    size = " x ".join(map(str, dict.fromkeys(count.image_size)))
    return [f"`{row.name}`", row.variant, size, *cost, row.classes or "", _accuracy(row), _link(row)]


def _accuracy(row: Published) -> str:
    return f"{row.top1} ({row.measure})" if row.top1 else ""


def _without_empty(head: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """A table without its empty columns."""
    full = [any(row[i] != "" for row in rows) for i in range(len(head))]
    return list(itertools.compress(head, full)), [list(itertools.compress(row, full)) for row in rows]


def _kind(row: Published) -> str:
    """What the file contains, a key of _PYTHON."""
    if row.head in DETECTORS:
        return "detection"
    if row.head:
        return "depth" if row.classes == 1 else "segmentation"
    if row.name.startswith("mae/"):
        return "autoencoder"
    if row.measure == "zero-shot":
        return "towers"
    return "classifier" if row.labels else "pretrained" if row.classes else "features"


def _commands(rows: list[Published]) -> list[str]:
    """Python and shell code for the first model of each kind."""
    firsts = {_kind(row): row.name for row in reversed(rows)}
    python = [line.format(name) for kind, name in reversed(firsts.items()) for line in _PYTHON[kind]]
    shell = [line.format(name) for kind, name in reversed(firsts.items()) for line in _SHELL.get(kind, [_FINETUNE])]
    return ["\n".join(["```python", *python, "```"]), "\n".join(f"    {line}" for line in shell)]


def _notes(rows: Iterable[Published]) -> list[str]:
    """A line per note, with the models that have it."""
    names = collections.defaultdict(list)
    for row in rows:
        if row.note:
            names[row.note].append(f"`{row.name}`")
    return [f"- {note}: {', '.join(of)}" if len(names) > 1 else f"- {note}" for note, of in names.items()]


def _mentions(family: str) -> list[str]:
    """Links to the guides that use a model of the family."""
    found = []
    for path in sorted((ROOT / "docs").glob("*.md")):
        text = path.read_text()
        if re.search(rf'["=` ]{re.escape(family)}/\w', text):
            found.append(f"[{text.partition(chr(10))[0].lstrip('# ')}](../../{path.name})")
    return found


def _measured(family: str) -> list[str]:
    rows = [
        [f"`{name}`", what, result, f"[{page}](../../{page})"]
        for name, what, result, page in MEASURED
        if name.partition("/")[0] == family
    ]
    return ["## Measured here", table(["model", "what", "result", "details"], rows)] if rows else []


def page(family: str, rows: list[Published], counts: dict[str, ModelCount]) -> str:
    sources = ", ".join(f"[{name}](https://github.com/{name})" for name in sorted({row.source for row in rows}))
    head = ["name", "variant", "px", "M parameters", "GFLOP", "classes", "ImageNet %", "weights"]
    parts = [
        f"# {family}",
        f"Published by {sources}. Licence: {', '.join(sorted({row.licence for row in rows}))}.",
        *_commands(rows),
        "Costs are of one image of the given size; a multiply-add counts as two operations.",
        table(*_without_empty(head, [_cells(row, counts) for row in rows])),
        *_measured(family),
    ]
    parts += ["## Notes", "\n".join(notes)] if (notes := _notes(rows)) else []
    parts += ["## Guides", ", ".join(guides) + "."] if (guides := _mentions(family)) else []
    return "\n\n".join(part for part in parts if part)


def index(found: dict[str, list[Published]], counts: dict[str, ModelCount]) -> str:
    rows = []
    for family, members in found.items():
        least, most = (f"{counts[row.name].parameters / 1e6:.0f}" for row in (members[0], members[-1]))
        best = _accuracy(max(members, key=lambda row: row.top1 or 0))
        licences = ", ".join(sorted({row.licence for row in members}))
        size = least if least == most else f"{least} to {most}"
        rows.append([f"[{family}](models/{family}.md)", len(members), size, best, licences])
    return "\n\n".join(
        [
            "# Published models",
            "`keras_vit.load(NAME)` downloads and builds a model. Choose one by task: "
            "[Choose a published model](../checkpoints.md#choose-a-published-model). No published address was fetched "
            "here: ImageNet figures are the authors' or timm's; results measured here are listed separately.",
            table(["family", "models", "M parameters", "best ImageNet %", "licence"], rows),
            "\n".join(["```{toctree}", ":hidden:", "", *(f"models/{family}" for family in found), "```"]),
        ]
    )


def pages() -> dict[str, str]:
    """{path below docs/: Markdown}."""
    counts = {row.name: row for row in read_counts("*")}
    found = families(counts)
    made = {f"reference/models/{family}.md": f"{page(family, rows, counts)}\n" for family, rows in found.items()}
    return {"reference/published.md": f"{index(found, counts)}\n", **made}
