"""Reliability: predictions counted by intervals of confidence (Guo et al. 2017, arXiv 1706.04599).

Confidence is a prediction's softmax probability; the intervals (0, 1/bins], (1/bins, 2/bins]... have equal widths.
`sums` (bins, 3) contains each interval's number of examples, correct predictions, and summed confidence.
"""

import keras
import numpy as np
from keras import ops

from keras_vit.evaluation.loss_and_metrics import class_numbers, counted_rows

BINS = 15


def expected_error(sums: np.ndarray) -> float:
    """Expected calibration error (ECE, equation 3): mean |accuracy - confidence| over examples; 0 without any."""
    return float(np.abs(sums[:, 1] - sums[:, 2]).sum() / max(sums[:, 0].sum(), 1))


def intervals(sums: np.ndarray) -> list[list[float]]:
    """[examples, accuracy, mean confidence] of each interval with examples."""
    return [[int(n), right / n, confidence / n] for n, right, confidence in np.asarray(sums, "float64").tolist() if n]


def log_softmax(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """log softmax(logits / temperature), (b, classes) float64."""
    z = np.asarray(logits, "float64") / temperature
    z -= z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


class Reliability:
    """Accuracy and confidence by intervals, and log-likelihood, accumulated by batch in float64.

    Args:
        temperature: divisor of the logits.
        bins: number of intervals.

    Attributes:
        sums: (bins, 3). Examples, correct predictions, and summed confidence of each interval.
    """

    def __init__(self, temperature: float = 1.0, bins: int = BINS):
        self.temperature, self.sums, self._nll = temperature, np.zeros((bins, 3)), 0.0

    def add(self, logits: np.ndarray, labels: np.ndarray) -> "Reliability":
        """Adds logits (b, classes) and labels (b,)."""
        log_p = log_softmax(logits, self.temperature)
        confidence, right = np.exp(log_p.max(-1)), log_p.argmax(-1) == labels
        bins = len(self.sums)
        interval = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
        np.add.at(self.sums, interval, np.stack([np.ones_like(confidence), right, confidence], -1))
        self._nll -= log_p[np.arange(len(labels)), labels].sum()
        return self

    @property
    def examples(self) -> int:
        return int(self.sums[:, 0].sum())

    @property
    def accuracy(self) -> float:
        return float(self.sums[:, 1].sum() / self.examples)

    @property
    def nll(self) -> float:
        """Mean negative log-likelihood in nats."""
        return float(self._nll / self.examples)

    @property
    def ece(self) -> float:
        """Expected calibration error."""
        return expected_error(self.sums)

    def intervals(self) -> list[list[float]]:
        """`intervals` of these sums."""
        return intervals(self.sums)


class CalibrationError(keras.metrics.Metric):
    """`expected_error` of integer labels and logits as a metric, accumulated on the device by every replica.

    Labels outside the classes raise a ValueError where their values are known, and give NaN inside compiled functions.
    """

    _direction = "down"

    def __init__(self, bins=BINS, name="ece", dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.bins = bins
        # Examples, correct predictions, summed confidence.
        self.sums = self.add_variable(shape=(bins, 3), initializer="zeros", name="sums")

    def update_state(self, y_true, y_pred, sample_weight=None):
        labels, known = class_numbers(y_true, y_pred.shape[-1], sample_weight)
        p = ops.softmax(ops.cast(y_pred, "float32"), axis=-1)  # (b, c)
        confidence, best = ops.max(p, axis=-1), ops.cast(ops.argmax(p, axis=-1), "int32")
        right = ops.equal(best, labels)
        interval = ops.clip(ops.cast(ops.ceil(confidence * self.bins), "int32") - 1, 0, self.bins - 1)
        rows = counted_rows(interval, self.bins, sample_weight)  # (b, bins)
        values = ops.stack([ops.ones_like(confidence), ops.cast(right, "float32"), confidence], axis=-1)  # (b, 3)
        self.sums.assign_add(ops.cast(ops.matmul(ops.transpose(rows), values) * known, self.sums.dtype))

    def result(self):
        examples, right, confidence = ops.unstack(ops.convert_to_tensor(self.sums), 3, axis=1)
        return ops.divide_no_nan(ops.sum(ops.abs(right - confidence)), ops.sum(examples))

    def details(self) -> dict[str, list]:
        """ "calibration": [examples, accuracy, mean confidence] of each interval with examples."""
        return {"calibration": intervals(ops.convert_to_numpy(self.sums))}
