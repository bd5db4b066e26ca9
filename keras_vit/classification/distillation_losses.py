"""Distillation losses and metrics: pure functions of (labels, outputs of `keras_vit.Distilled`).

Outputs are logits (b, k, c): of the student's head, of its second head if it has a distillation token, and last of the
teacher.
"""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_vit.fit.losses import Accuracy, FromLogits, MeanMetric
from keras_vit.layers.arguments import number
from keras_vit.layers.registration import serializable


def student_logits(outputs: Any) -> Any:
    """The student's prediction, (b, c): the mean of its heads, as when used alone."""
    return ops.mean(ops.cast(outputs[:, :-1], "float32"), axis=1)


def teacher_logits(outputs: Any) -> Any:
    """The teacher's prediction, (b, c)."""
    return ops.cast(outputs[:, -1], "float32")


def cross_entropy(rows: Any, logits: Any) -> Any:
    """-sum(rows * log softmax(logits)): (b, c), (b, c) -> (b,)."""
    return -ops.sum(rows * ops.log_softmax(logits, axis=-1), axis=-1)


def divergence(teacher: Any, student: Any) -> Any:
    """KL(softmax(teacher) || softmax(student)) of logits: (b, c), (b, c) -> (b,)."""
    log_p, log_q = ops.log_softmax(teacher, axis=-1), ops.log_softmax(student, axis=-1)
    return ops.sum(ops.exp(log_p) * (log_p - log_q), axis=-1)


class DistillationLoss(FromLogits):
    """(1 - alpha) * cross-entropy(labels, head) + alpha * `taught`: the base of both losses.

    Labels teach the student's head, the teacher its last head (the same one without a distillation token). A subclass
    defines `taught(teacher, student)`, two arrays (b, c) -> (b,).
    """

    shares = True

    def __init__(
        self,
        alpha: float,
        label_smoothing: float = 0.0,
        class_weights: Sequence[float] | None = None,
        name: str = "loss",
        **kwargs: Any,
    ):
        super().__init__(label_smoothing, class_weights, name, **kwargs)
        self.alpha = number(alpha, f"{type(self).__name__}: alpha", least=0)
        if self.alpha > 1:
            raise ValueError(
                f"{type(self).__name__}: alpha, the teacher's share of the loss, must be in [0, 1], got {alpha!r}."
            )

    def taught(self, teacher: Any, student: Any) -> Any:
        raise NotImplementedError

    def per_example(self, rows: Any, outputs: Any) -> Any:
        if len(outputs.shape) != 3 or outputs.shape[1] not in (2, 3):
            raise ValueError(
                f"{type(self).__name__} takes the outputs (b, 2 or 3, classes) of a keras_vit.Distilled, got"
                f" {tuple(outputs.shape)}."
            )
        head, last, teacher = outputs[:, 0], outputs[:, -2], outputs[:, -1]
        loss = self.alpha * self.taught(ops.stop_gradient(teacher), last)
        return loss if self.alpha == 1 else (1 - self.alpha) * cross_entropy(rows, head) + loss

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "alpha": self.alpha}


@serializable
class HardDistillation(DistillationLoss):
    """The teacher's most probable class as a second label (DeiT, arXiv 2012.12877, equation 3).

    Args:
        alpha: the teacher's share of the loss.
        label_smoothing, class_weights: as in SoftmaxCrossEntropy; smoothing applies to the labels' part, weights to
            all.
    """

    def __init__(self, alpha: float = 0.5, **kwargs: Any):
        super().__init__(alpha, **kwargs)

    def taught(self, teacher, student):
        return cross_entropy(ops.one_hot(ops.argmax(teacher, axis=-1), teacher.shape[-1], dtype=student.dtype), student)


@serializable
class SoftDistillation(DistillationLoss):
    """temperature^2 * KL(softmax(teacher / temperature) || softmax(student / temperature)) plus labels' cross-entropy.

    Hinton's distillation (arXiv 1503.02531); with a distillation token DeiT's soft one (arXiv 2012.12877, equation 2);
    with alpha=1, which ignores labels, the loss of a consistent teacher (FunMatch, arXiv 2106.05237). DeiT's code also
    divides the divergence by the number of classes; this does not.

    Args:
        alpha: the teacher's share of the loss.
        temperature: larger values give improbable classes more weight.
        label_smoothing, class_weights: as in HardDistillation.
    """

    def __init__(self, alpha: float = 0.9, temperature: float = 3.0, **kwargs: Any):
        super().__init__(alpha, **kwargs)
        self.temperature = number(temperature, "SoftDistillation: temperature")
        if self.temperature <= 0:
            raise ValueError(f"SoftDistillation: temperature must be above 0, got {temperature!r}.")

    def taught(self, teacher, student):
        return self.temperature**2 * divergence(teacher / self.temperature, student / self.temperature)


@serializable
class StudentAccuracy(Accuracy):
    """The student's accuracy, on the outputs of a Distilled model."""

    def values(self, y_true, y_pred):
        return super().values(y_true, student_logits(y_pred))


@serializable
class TeacherAccuracy(Accuracy):
    """The teacher's accuracy on the student's images, in training augmented and mixed."""

    def __init__(self, k: int = 1, name: str = "teacher_accuracy", dtype: str | None = None):
        super().__init__(k, name, dtype)

    def values(self, y_true, y_pred):
        return super().values(y_true, teacher_logits(y_pred))


@serializable
class Agreement(MeanMetric):
    """The share of images with the same most probable class for student and teacher."""

    _direction = "up"

    def __init__(self, name: str = "agreement", dtype: str | None = None):
        super().__init__(name, dtype)

    def values(self, y_true, y_pred):
        student, teacher = student_logits(y_pred), teacher_logits(y_pred)
        return ops.cast(ops.equal(ops.argmax(student, axis=-1), ops.argmax(teacher, axis=-1)), "float32")
