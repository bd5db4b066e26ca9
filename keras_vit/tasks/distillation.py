"""Distillation: a student learns classification from a teacher's predictions on the same images and from labels."""

import dataclasses

from keras_vit.checkpoints import load
from keras_vit.checkpoints.transfer import transfer
from keras_vit.classification.distillation_losses import (
    Agreement,
    HardDistillation,
    SoftDistillation,
    StudentAccuracy,
    TeacherAccuracy,
)
from keras_vit.classification.distilled import Distilled
from keras_vit.inspection import html_report
from keras_vit.io.suggest import check_known
from keras_vit.models import Classifier
from keras_vit.tasks.classification import Classification, class_weights
from keras_vit.tasks.task import OPTIONS

# config.objective.kind: (loss, options that it takes, arguments that differ from the loss's defaults).
KINDS = {
    "hard": (HardDistillation, ("alpha",), {}),
    "soft": (SoftDistillation, ("alpha", "temperature"), {}),
    "consistent": (SoftDistillation, ("temperature",), {"alpha": 1.0, "temperature": 1.0}),
}
_OF_LABELS = ("label_smoothing", "class_weights")


class Distillation(Classification):
    """One class per image, taught by `config.objective.teacher`; the run delivers only the student."""

    reads = tuple(key for key in OPTIONS if key not in ("loss.name", "quantization"))

    @dataclasses.dataclass(frozen=True)
    class Options:
        """config.objective.

        Attributes:
            teacher: str. Anything that keras_vit.load accepts: a path, run directory or published name of a ViT, a BiT
                or a model built on one.
            kind: str. "hard" (the teacher's class as a second label: DeiT), "soft" (its probabilities: Hinton, DeiT) or
                "consistent" (only its probabilities, without labels: FunMatch).
            alpha: float. The teacher's share of the loss; None for .5 (hard) or .9 (soft).
            temperature: float. Temperature of the soft kinds; None for 3 (soft) or 1 (consistent).
            teacher_size: int or (height, width). Size in pixels to which to resample the teacher; None for its
                original size. Images are resized.
        """

        teacher: str | None = None
        kind: str = "hard"
        alpha: float | None = None
        temperature: float | None = None
        teacher_size: int | tuple[int, int] | None = None

    def check_config(self):
        super().check_config()
        options = self.options
        check_known(options.kind, "config.objective.kind=", KINDS)
        if not options.teacher:
            raise ValueError(
                "Distillation needs a teacher with the data's classes: set --config.objective.teacher to a run"
                " directory (runs/TEACHER), a file or a published name."
            )
        taken = KINDS[options.kind][1]
        for name in ("alpha", "temperature"):
            if getattr(options, name) is not None and name not in taken:
                raise ValueError(f'config.objective.{name} has no effect with kind="{options.kind}": remove it.')
        for name in _OF_LABELS if options.kind == "consistent" else ():
            if self.config.loss[name]:
                raise ValueError(
                    f'--config.loss.{name} has no effect with kind="consistent", which uses no labels: remove it.'
                )

    def model(self, source):
        student = super().model(source)  # first, to keep its random weights independent of the teacher
        return Distilled(student, self._teacher())

    def _teacher(self):
        """Loads the teacher at the requested size, in the run's precision."""
        options = self.options
        teacher = load(
            options.teacher, **({} if options.teacher_size is None else {"image_size": options.teacher_size})
        )
        other = teacher.dtype_policy.name != self.config.dtype
        if other and isinstance(teacher, Classifier) and not {"quantization", "lora"} & teacher.get_config().keys():
            return transfer(teacher, dtype=self.config.dtype)
        return teacher

    def fit_head(self, model, source, strategy, errors):
        """Fits the student's head."""
        super().fit_head(model.student, source, strategy, errors)

    def deliver(self, model):
        """Returns only the student, an ordinary classifier."""
        return model.student

    def loss(self, source):
        loss, taken, defaults = KINDS[self.options.kind]
        given = {name: getattr(self.options, name) for name in taken if getattr(self.options, name) is not None}
        of_labels = {
            "label_smoothing": self.config.loss.label_smoothing,
            "class_weights": class_weights(self.config.loss.class_weights, source),
        }
        return loss(**{**defaults, **given}, **of_labels)

    def metrics(self, model):
        several = [StudentAccuracy(k=5, name="top5")] if model.student.classes > 5 else []
        return [StudentAccuracy(), *several, Agreement(), TeacherAccuracy()]

    def mixing(self, model):
        return super().mixing(model.student)

    def report(self, model, evaluation, samples, records):
        return [*super().report(model, evaluation, samples, records), *_taught(records, self.options)]


def _taught(records, options):
    """Returns the section about the teacher: its agreement with the student, and its accuracy."""
    last = next((record for record in reversed(records) if record.get("val_agreement") is not None), None)
    if last is None:
        return []
    rows = [
        ("teacher", options.teacher),
        ("kind", options.kind),
        ("agreement of student and teacher", f"{last['val_agreement']:.2%}"),
        ("teacher's top-1", f"{last['val_teacher_accuracy']:.2%}"),
    ]
    curves = html_report.learning_curves(records, "agreement", "agreement with the teacher, %", True)
    return [html_report.section("The teacher", html_report.table(rows)), curves]
