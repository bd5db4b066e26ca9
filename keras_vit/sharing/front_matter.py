"""The YAML above a card, as the Hugging Face hub reads it, written by the hub's own library."""

from huggingface_hub import EvalResult, ModelCardData

from keras_vit.sharing.data_names import on_the_hub
from keras_vit.sharing.facts import Facts

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


def _results(facts):
    """What was measured on data that is known: of the run's own evaluation all measures, of an evaluator those that the
    hub has a type for.
    """
    for entry in facts.measured:
        prefix = f"{entry.name.replace('_', ' ')}: " if entry.name else ""
        for key, value in entry.measures.items() if entry.data else ():
            if key in _METRICS or not (entry.name or key in _COUNTS):
                kind, name = metric(key)
                yield EvalResult(
                    task_type=facts.task or "other",
                    dataset_type=entry.data.kind,
                    dataset_name=entry.data.name,
                    dataset_split=entry.data.split,
                    metric_type=kind,
                    metric_name=f"{prefix}{name}",
                    metric_value=value,
                )


def front_matter(facts: Facts) -> str:
    """The YAML between its two lines of dashes."""
    data, base = (facts.run.data, on_the_hub(facts.run.base)) if facts.run else (None, None)
    results = list(_results(facts))
    tags = ["keras", "keras-vit", "bit" if facts.family == "BiT" else "vision-transformer"]
    content = ModelCardData(
        library_name="keras-vit",
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
