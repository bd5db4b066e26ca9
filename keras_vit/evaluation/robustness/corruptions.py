"""Accuracy under ImageNet-C's corruptions (arXiv 1903.12261), applied on the fly."""

import dataclasses

from keras_vit.data.ops.corruption.strengths import CORRUPTIONS, STANDARD, STRENGTHS
from keras_vit.evaluation.registry import Chart, Evaluation, register
from keras_vit.evaluation.robustness.changed import Changed, chosen, is_whole, means, numbers
from keras_vit.io.suggest import check_known

# AlexNet's mean errors over the five strengths, the authors' divisors (hendrycks/robustness). Frost is omitted: ours
# is different.
ALEXNET = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}


def relative_error(accuracies: dict[str, float]) -> float | None:
    """Mean of error / AlexNet's error over ALEXNET's fourteen corruptions, from {name: mean accuracy over the
    strengths}.

    None if one is missing. It is not the published mCE, which includes frost and images saved as JPEGs.
    """
    if not ALEXNET.keys() <= accuracies.keys():
        return None
    return sum((1 - accuracies[name]) / error for name, error in ALEXNET.items()) / len(ALEXNET)


def _by_kind(clean, table):
    """{kind: (strengths, mean top-1 in %)} over each kind's corruptions."""
    lines = {}
    for kind in dict.fromkeys(CORRUPTIONS[name].kind for name in table):
        rows = [row for name, row in table.items() if CORRUPTIONS[name].kind == kind]
        of_strength = [sum(row[strength] for row in rows) / len(rows) for strength in rows[0]]
        lines[kind] = [0, *numbers(rows[0])], [100 * value for value in (clean, *of_strength)]
    return lines


@register("corruptions")
@dataclasses.dataclass(frozen=True)
class Corruptions(Changed):
    """Top-1 accuracy under corruptions at several strengths.

    Attributes:
        source, split, preprocess, seed: as in Changed. Strengths are designed for images of about 224 pixels.
        names: corruptions; ImageNet-C's fifteen by default.
        strengths: numbers from 1 to 5.
    """

    names: tuple = STANDARD
    strengths: tuple = STRENGTHS

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.names, str | tuple | list):
            raise ValueError(f"corruptions: names={self.names!r}: expected names, such as ('fog', 'snow').")
        names = tuple(self.names.split(",")) if isinstance(self.names, str) else tuple(self.names)
        for name in names:
            check_known(name, "corruptions: name", CORRUPTIONS)
        if not names:
            raise ValueError(f"corruptions: names is empty. Valid: {', '.join(CORRUPTIONS)}.")
        object.__setattr__(self, "names", names)
        valid = chosen(
            self.strengths,
            "corruptions: strengths",
            lambda s: is_whole(s) and s in STRENGTHS,
            "whole numbers from 1 to 5",
        )
        object.__setattr__(self, "strengths", valid)

    def changes(self, model):
        return {
            (name, str(strength)): f"|corrupt('{name}', {strength})"
            for name in self.names
            for strength in self.strengths
        }

    def summary(self, clean, table):
        each = means(table)
        measures = {"clean": clean, "mean": sum(each.values()) / len(each), **each}
        relative = relative_error(each) if self.strengths == STRENGTHS else None
        details = {"errors": {name: {s: 1 - top1 for s, top1 in row.items()} for name, row in table.items()}}
        if relative is not None:
            measures["error_relative_to_alexnet"] = relative
        bars = {name: 100 * value for name, value in {"clean": clean, **each}.items()}
        charts = {
            "means": Chart("bars", bars, "top-1, %, mean over the strengths"),
            "strengths": Chart("lines", _by_kind(clean, table), "strength (0: clean)", "top-1, %"),
        }
        return Evaluation(measures, details, charts)
