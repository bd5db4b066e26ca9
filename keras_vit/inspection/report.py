"""report.html: one self-contained page about a run, pictures included.

Sections are functions that return HTML, and `page` puts them into a document. Which sections a run's page has, its task says.
"""

import base64
import html

import numpy as np

from keras_vit.inspection import figures
from keras_vit.inspection.attention import attention_maps

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }}
img {{ max-width: 100% }} table {{ border-collapse: collapse }}
td {{ padding: .2rem 1rem .2rem 0; border-bottom: 1px solid #ddd }}
</style>
<h1>{title}</h1>
{body}
</html>
"""


def page(title: str, sections) -> str:
    """The document: a heading, then the sections, each a string of HTML."""
    return _PAGE.format(title=html.escape(title), body="\n".join(sections))


def picture(title: str, png: bytes) -> str:
    """A section with a heading and a picture from PNG bytes."""
    data = base64.b64encode(png).decode()
    return f'<h2>{html.escape(title)}</h2>\n<img alt="{html.escape(title)}" src="data:image/png;base64,{data}">'


def table(rows) -> str:
    """A table of (name, value) pairs."""
    cells = "".join(f"<tr><td>{html.escape(str(k))}</td><td>{html.escape(str(v))}</td></tr>" for k, v in rows)
    return f"<table>{cells}</table>"


def learning_curves(records, metric: str = "accuracy") -> str:
    """The loss and a metric against steps; `records` are those of metrics.jsonl."""
    note = (
        "<p>Training curves are measured on augmented images, and on mixed ones where mixup is on; evaluation uses neither.</p>"
    )
    return picture("Learning curves", figures.learning_curves(records, metric)) + "\n" + note


def confusion(matrix, names) -> str:
    """The confusion matrix (classes, classes) with the classes' names."""
    return picture("Confusion matrix", figures.confusion_matrix(matrix, names))


def examples_to_show(logits, labels, count: int = 24) -> np.ndarray:
    """The numbers of the examples to show: failed ones first, at most half, then correct ones spread over the set.

    Args:
        logits, labels: (n, classes) and (n,).
        count: how many to show at most.
    """
    wrong = np.flatnonzero(logits.argmax(-1) != labels)[: count // 2]
    right = np.flatnonzero(logits.argmax(-1) == labels)
    spread = right[np.linspace(0, len(right) - 1, min(count - len(wrong), len(right))).astype(int)] if len(right) else right
    return np.concatenate([wrong, spread]).astype(int)


def predictions(images, labels, logits, names) -> str:
    """Images (n, h, w, c) uint8 with predicted and true class (n,) and confidence from the logits (n, classes)."""
    names = np.asarray(names)
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    best = logits.argmax(-1)
    png = figures.predictions(images, names[labels], names[best], p[np.arange(len(best)), best])
    return picture("Predictions, wrong ones in red", png)


def attention(model, images) -> str:
    """Attention rollout of a ViT over images (n, h, w, c)."""
    return picture("Attention rollout: what the output attends to", figures.attention(images, attention_maps(model, images)))
