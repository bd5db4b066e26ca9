"""DINO's loss (arXiv 2104.14294, equation 3): a pure function of the outputs of `keras_vit.DINO`, without labels."""

from typing import Any

from keras import ops

from keras_vit.fit.losses import Loss, MeanMetric
from keras_vit.layers.arguments import number
from keras_vit.layers.registration import serializable

_TEACHER = 2  # the first rows are the teacher's


@serializable
class DINOLoss(Loss):
    """Cross-entropy between the teacher's softmax of a large crop and the student's of each other crop, averaged over
    pairs.

    Args:
        temperature: of the student.
    """

    def __init__(self, temperature: float = 0.1, name: str = "loss", **kwargs: Any):
        super().__init__(name=name, **kwargs)
        self.temperature = number(temperature, "DINOLoss: temperature")
        if self.temperature <= 0:
            raise ValueError(f"DINOLoss: temperature must be above 0, got {temperature!r}.")

    def call(self, y_true, y_pred):
        teacher = ops.softmax(ops.stop_gradient(y_pred[:, :_TEACHER]), axis=-1)
        student = ops.log_softmax(y_pred[:, _TEACHER:] / self.temperature, axis=-1)
        pairs = -ops.einsum("btk,bvk->btv", teacher, student)
        b_t, views = pairs.shape[1:]
        others = 1.0 - ops.eye(b_t, views, dtype=pairs.dtype)  # all but a crop with itself
        return ops.sum(pairs * others, axis=(1, 2)) / (b_t * views - b_t)


@serializable
class TeacherEntropy(MeanMetric):
    """The teacher's mean entropy per crop, in nats: after a collapse 0 or the logarithm of the number of outputs.

    Neither more nor less is better, so callbacks that monitor it need a `mode`.
    """

    def __init__(self, name: str = "teacher_entropy", dtype: str | None = None):
        super().__init__(name, dtype)

    def values(self, y_true, y_pred):
        logs = ops.log_softmax(ops.cast(y_pred[:, :_TEACHER], "float32"), axis=-1)
        return ops.mean(-ops.sum(ops.exp(logs) * logs, axis=-1), axis=-1)
