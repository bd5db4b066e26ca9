"""The YAML above a card, as the Hugging Face hub reads it: huggingface/hub-docs, modelcard.md."""

from typing import Any

import yaml

from keras_vit.sharing.data_names import on_the_hub
from keras_vit.sharing.facts import Facts
from keras_vit.sharing.run import Measured

# A measure of ours -> (type, name) of the metric there.
_METRICS = {
    "top1": ("accuracy", "top-1 accuracy"),
    "top5": ("accuracy", "top-5 accuracy"),
    "mean_recall": ("recall", "mean recall of the classes"),
    "ece": ("ece", "expected calibration error"),
    "loss": ("loss", "loss"),
    "nll": ("nll", "negative log likelihood"),
    "psnr": ("psnr", "peak signal-to-noise ratio, dB"),
}
_READERS = {"huggingface": "transformers", "timm": "timm"}
_COUNTS = ("examples", "images", "samples", "train_images", "k")  # numbers beside the measures


def metric(name: str) -> tuple[str, str]:
    """(type, name) of a measure for the hub."""
    return _METRICS.get(name, (name, name.replace("_", " ")))


def _result(measured: Measured, task: str) -> dict[str, Any]:
    """An entry of model-index's results: all measures of the run's own evaluation, and of an evaluator those that the
    hub has a type for.
    """
    data, prefix = measured.data, f"{measured.name.replace('_', ' ')}: " if measured.name else ""
    known = _METRICS if measured.name else measured.measures.keys() - set(_COUNTS)
    kinds = {key: metric(key) for key in measured.measures if key in known}
    metrics = [
        {"type": kind, "value": measured.measures[key], "name": f"{prefix}{name}"}
        for key, (kind, name) in kinds.items()
    ]
    dataset = {"type": data.kind, "name": data.name, **({"split": data.split} if data.split else {})}
    return {"task": {"type": task}, "dataset": dataset, "metrics": metrics}


def results(facts: Facts) -> list[dict[str, Any]]:
    """What was measured on data that is known, as model-index's results."""
    return [
        result
        for entry in facts.measured
        if entry.data and (result := _result(entry, facts.task or "other"))["metrics"]
    ]


def metadata(facts: Facts) -> dict[str, Any]:
    """The front matter as a dict."""
    data, base = (facts.run.data, on_the_hub(facts.run.base)) if facts.run else (None, None)
    found = results(facts)
    tags = ["keras", "keras-vit", "bit" if facts.family == "BiT" else "vision-transformer"]
    content = {
        "library_name": "keras-vit",
        "license": facts.licence,
        "pipeline_tag": facts.task,
        "tags": tags + ([_READERS[facts.other_format]] if facts.other_format else []),
        "datasets": [data.on_the_hub] if data and data.on_the_hub else None,
        "base_model": base,
        "metrics": sorted({kind["type"] for result in found for kind in result["metrics"]}) or None,
        "model-index": [{"name": facts.name, "results": found}] if found else None,
    }
    return {key: value for key, value in content.items() if value is not None}


def front_matter(facts: Facts) -> str:
    """The YAML between its two lines of dashes."""
    return f"---\n{yaml.safe_dump(metadata(facts), sort_keys=False, allow_unicode=True)}---\n"
