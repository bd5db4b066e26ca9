"""report.html: one self-contained page about a run, with its pictures inside."""

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


def _picture(title, png):
    data = base64.b64encode(png).decode()
    return f'<h2>{html.escape(title)}</h2>\n<img alt="{html.escape(title)}" src="data:image/png;base64,{data}">'


def _table(rows):
    cells = "".join(f"<tr><td>{html.escape(str(k))}</td><td>{html.escape(str(v))}</td></tr>" for k, v in rows)
    return f"<table>{cells}</table>"


def _examples(logits, labels, count):
    """Which examples to show: the wrong ones first, at most half, then right ones spread over the set."""
    wrong = np.flatnonzero(logits.argmax(-1) != labels)[: count // 2]
    right = np.flatnonzero(logits.argmax(-1) == labels)
    spread = right[np.linspace(0, len(right) - 1, min(count - len(wrong), len(right))).astype(int)] if len(right) else right
    return np.concatenate([wrong, spread]).astype(int)


def make_report(title, model, images, labels, logits, measures, records, facts=()):
    """The page as text.

    Args:
        title: of the page.
        model: a ViT, for the attention maps, or a BiT.
        images: (n, h, w, c) uint8, the evaluated images.
        labels, logits: (n,) and (n, classes), of the same.
        measures: of evaluation.report.
        records: of metrics.jsonl.
        facts: (name, value) pairs for the table on top.
    """
    names = np.array(model.class_names or [str(i) for i in range(model.classes)])
    shown = _examples(logits, labels, 24)
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    best = logits.argmax(-1)
    looked_at = shown[:: max(len(shown) // 8, 1)][:8]
    rows = [
        ("examples", measures["examples"]),
        ("top-1", f"{measures['top1']:.2%}"),
        ("loss", f"{measures['loss']:.4f}"),
        ("parameters", f"{model.count_params():,}"),
        ("image size", "x".join(map(str, model.image_size))),
        *facts,
    ]
    body = [
        _table(rows),
        _picture("Learning curves", figures.learning_curves(records)),
        "<p>Training figures are of augmented images, mixed ones too where mixup is on; evaluation figures are of plain ones.</p>",
        _picture("Confusion matrix", figures.confusion_matrix(measures["confusion"], names)),
        _picture(
            "Predictions, wrong ones in red",
            figures.predictions(images[shown], names[labels[shown]], names[best[shown]], p[shown, best[shown]]),
        ),
    ]
    if hasattr(model.spec, "heads"):  # a BiT has no attention
        maps = attention_maps(model, images[looked_at])
        body.append(_picture("Attention rollout: what the output looks at", figures.attention(images[looked_at], maps)))
    return _PAGE.format(title=html.escape(title), body="\n".join(body))
