"""Calibration: whether confidence matches accuracy, and temperature scaling (Guo et al. 2017, arXiv 1706.04599)."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import numpy as np
from absl import logging

from keras_vit.data import open_source
from keras_vit.data.sources.selection import subset
from keras_vit.evaluation.classes import check_classes
from keras_vit.evaluation.data import OnSource, open_data
from keras_vit.evaluation.features import Embedder
from keras_vit.evaluation.loss_and_metrics import check_head
from keras_vit.evaluation.registry import Chart, Evaluation, Setting, register
from keras_vit.evaluation.reliability import BINS, Reliability, log_softmax
from keras_vit.models.taps import ends_in_probabilities

_ROWS = 4096  # logits to convert to float64 at once
_COLDEST, _HOTTEST = 0.01, 100.0  # limits of the temperature


def _slopes(logits, labels, inverse):
    """First and second derivative of the mean negative log-likelihood by the inverse temperature."""
    first = second = 0.0
    for start in range(0, len(labels), _ROWS):
        z, y = np.asarray(logits[start : start + _ROWS], "float64"), labels[start : start + _ROWS]
        z = z - z.max(-1, keepdims=True)
        p = np.exp(log_softmax(z, 1 / inverse))
        mean = (p * z).sum(-1)
        first += (mean - z[np.arange(len(y)), y]).sum()
        second += (p * np.square(z - mean[:, None])).sum()
    return first / len(labels), second / len(labels)


def fit_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """The temperature that minimises the negative log-likelihood of logits / temperature.

    Bracketed Newton's method on the inverse temperature, in which the loss is convex. The result is limited to 0.01 to
    100, with a warning if the optimum is unbounded: when all predictions are right, or no better than chance.

    Args:
        logits: (n, classes).
        labels: (n,) integers.

    Raises:
        ValueError: wrong shapes, or no examples.
    """
    logits, labels = np.asarray(logits), np.asarray(labels)
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or not len(labels):
        raise ValueError(
            f"Expected logits (n, classes) and labels (n,) with n above 0, got {logits.shape} and {labels.shape}."
        )
    low, high, inverse = 1 / _HOTTEST, 1 / _COLDEST, 1.0
    if _slopes(logits, labels, low)[0] >= 0 or _slopes(logits, labels, high)[0] <= 0:
        best = _HOTTEST if _slopes(logits, labels, low)[0] >= 0 else _COLDEST
        logging.warning("No temperature from %g to %g maximises the likelihood: using %g.", _COLDEST, _HOTTEST, best)
        return best
    for _ in range(200):
        first, second = _slopes(logits, labels, inverse)
        low, high = (low, inverse) if first > 0 else (inverse, high)
        step = inverse - first / second if second > 0 else low
        new = step if low < step < high else (low * high) ** 0.5
        if abs(new - inverse) <= 1e-12 * inverse:
            break
        inverse = new
    return float(1 / inverse)


@register("calibration")
@dataclasses.dataclass(frozen=True)
class Calibration(OnSource):
    """ECE and negative log-likelihood before and after temperature scaling. Keeps the fitted images' logits in memory.

    Attributes:
        source, split, preprocess: as in OnSource.
        fit: split to fit the temperature on; None to fit on every other image of `split` and measure the rest.
        bins: number of confidence intervals.
    """

    score: ClassVar[str] = "ece"
    higher_is_better: ClassVar[bool] = False
    fit: str | None = None
    bins: int = BINS

    def __post_init__(self):
        if not isinstance(self.bins, int) or isinstance(self.bins, bool) or self.bins < 1:
            raise ValueError(f"calibration: bins={self.bins!r}: expected a whole number above 0.")
        if self.fit is not None and self.source is None:
            raise ValueError(f'calibration: fit="{self.fit}" is a split of source=, which is missing. Set source=.')

    def _splits(self, source, data_dir):
        """(source to fit the temperature on, source to measure)."""
        if self.fit is not None:
            return open_source(self.source, self.fit, data_dir), source
        if source.size < 2:
            raise ValueError(
                f"{source.name} has {source.size} images: calibration needs at least 2, to fit on one half and measure"
                " the other."
            )
        return subset(source, np.arange(0, source.size, 2)), subset(source, np.arange(1, source.size, 2))

    def prepare(self, setting: Setting) -> Callable[[], Evaluation]:
        setting, source, preprocess = open_data(self, setting)
        model = setting.model
        check_classes(model, source)
        if ends_in_probabilities(model):
            raise ValueError(
                "calibration needs logits, but the model ends in a softmax or sigmoid: remove this activation from the"
                " model."
            )
        fitted, measured = self._splits(source, setting.data_dir)
        check_classes(model, fitted)
        with setting.strategy.scope():
            verbose = setting.verbose and setting.strategy.chief
            logits_of = Embedder(
                model, preprocess, setting.batch_size, verbose=verbose, output=model.output, errors=setting.errors
            )
        logits_of.check(source)

        def evaluate():
            check_head(model)
            logits, labels = logits_of(fitted)
            temperature = fit_temperature(logits, labels)
            before, after = Reliability(1.0, self.bins), Reliability(temperature, self.bins)
            for batch in logits_of.batches(measured):
                before.add(*batch)
                after.add(*batch)
            return _evaluation(
                before, after, {"source": source.name, "preprocess": preprocess, "fit_images": len(labels)}
            )

        return evaluate


def _evaluation(before: Reliability, after: Reliability, about: dict) -> Evaluation:
    """The Evaluation of the same images before and after scaling."""
    if not before.examples:
        raise ValueError(f"None of the images of {about['source']} can be used: the warnings say why.")
    measures = {
        "examples": before.examples,
        "top1": before.accuracy,
        "ece": before.ece,
        "nll": before.nll,
        "temperature": after.temperature,
        "ece_scaled": after.ece,
        "nll_scaled": after.nll,
    }
    intervals = {"calibration": before.intervals(), "calibration_scaled": after.intervals()}
    curves = {
        "unscaled": intervals["calibration"],
        f"temperature {after.temperature:.3g}": intervals["calibration_scaled"],
    }
    return Evaluation(measures, {**about, **intervals}, {"reliability": Chart("reliability", curves)})
