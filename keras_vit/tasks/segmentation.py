"""Semantic segmentation: a class for every pixel."""

import dataclasses
import functools
from typing import Any

import keras
import numpy as np

from keras_vit import evaluation as evaluators
from keras_vit.answers import check_answers
from keras_vit.data.mask_pixels import count_pixels, has_classes
from keras_vit.data.sources.base import Source
from keras_vit.inspection import figures, html_report, segmentation_sections
from keras_vit.io.durations import resolve_steps
from keras_vit.io.mask_pictures import palette
from keras_vit.io.target_values import VOID
from keras_vit.segmentation.mask_loss import MaskClassificationLoss
from keras_vit.segmentation.pixel_losses import SegmentationLoss, pixel_class_weights
from keras_vit.segmentation.scores import SegmentationScores
from keras_vit.segmentation.segmentation_model import SegmentationModel
from keras_vit.tasks.classification import (
    class_weights,
)
from keras_vit.tasks.dense_task import DenseTask, plain_options
from keras_vit.tasks.task import Score, predict

_SHOWN = 6  # examples in a report


@dataclasses.dataclass(frozen=True)
class Options:
    """config.objective: the head and the terms of the loss.

    Attributes:
        head: str. A row of keras_vit.segmentation.heads.segmentation_heads.HEADS.
        head_options: dict. Arguments of the head, such as {"taps": (2, 5, 8, 11), "norm": "group"}.
        auxiliary: float. Weight of the auxiliary heads' losses, 0.4 in the papers, or 0. For "eomt", weight of the
            predictions before the last blocks, 1 in the paper.
        cross_entropy, dice, focal: float. Weights of these losses.
        gamma: float. Exponent of the focal loss.
        ohem_thresh: float. The cross-entropy counts only pixels with a lower probability of their class; None for all.
        ohem_min_kept: int. Smallest number of pixels per image to count.
    """

    head: str = "setr_pup"
    head_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    auxiliary: float = 0.0
    cross_entropy: float = 1.0
    dice: float = 0.0
    focal: float = 0.0
    gamma: float = 2.0
    ohem_thresh: float | None = None
    ohem_min_kept: int | None = None

    def __post_init__(self):
        object.__setattr__(self, "head_options", plain_options(self.head_options))


MASKS = "eomt"  # the head that predicts masks
_OF_THE_LOSS = ("cross_entropy", "dice", "focal", "gamma", "ohem_thresh", "ohem_min_kept")


def _pixel_weights(kind, source):
    """Computes `pixel_class_weights` of a source, or of a plan, which has no masks."""
    counts = count_pixels(source) if isinstance(source, Source) else source.class_counts()
    return pixel_class_weights(counts.tolist(), kind)


# Rules of config.loss.class_weights, based on the pixels of each class.
_RULES = {kind: functools.partial(_pixel_weights, kind) for kind in ("balanced", "log")}


class Segmentation(DenseTask):
    """A ViT, hybrid or BiT with the dense head `config.objective.head`: one class, or void, per pixel."""

    score = Score("miou", title="mIoU", percent=True, curve="val_miou")
    Model = SegmentationModel
    reads = ("loss.label_smoothing", "loss.class_weights", *DenseTask.reads)
    Options = Options
    samples = 24

    def check_config(self) -> None:
        super().check_config()
        if self.options.head == MASKS:
            self._check_masks()
        self._loss(None, VOID, 2)  # checks its options

    def _check_masks(self):
        """Refuses options of pixel losses with a mask head, and training without auxiliary predictions."""
        options, loss, given = self.options, self.config.loss, Options()
        names = [f"objective.{n}" for n in _OF_THE_LOSS if getattr(options, n) != getattr(given, n)]
        names += [f"loss.{name}" for name in ("label_smoothing", "class_weights") if loss[name]]
        if names:
            listed = ", ".join(f"config.{name}" for name in names)
            raise ValueError(
                f"--config.objective.head={MASKS} compares masks, not pixels, so {listed} would have no effect. Use"
                f" --config=segmentation:{MASKS}, and remove {'it' if len(names) == 1 else 'them'}."
            )
        if not options.auxiliary:
            raise ValueError(
                f"--config.objective.head={MASKS} trains with auxiliary predictions: set objective.auxiliary=1.0."
            )

    # Data

    def check_data(self, train: Any, held_out: Any) -> None:
        data = self.config.data
        for source, split in ((train, data.train), (held_out, data.evaluation)):
            if getattr(source, "void", VOID) is None or not source.class_names:
                raise ValueError(
                    f"Segmentation needs masks, but {data.source}, {split}, has none: pass a folder of images and masks"
                    " as --data=masks:FOLDER, or another source with masks (docs/segmentation.md)."
                )
        if len(train.class_names) == 1:
            raise ValueError(
                f'{data.source}, {data.train}, has one class, "{train.class_names[0]}", so there is nothing to learn:'
                " the other pixels need a class, too, such as background."
            )
        self.check_same_classes(train, held_out)
        for source, split in ((train, data.train), (held_out, data.evaluation)):
            if isinstance(source, Source) and not has_classes(source):
                raise ValueError(
                    f"{data.source}, {split}: no pixel of the {source.size} masks has a class, all are void, so"
                    f" {'there is nothing to learn' if source is train else 'no score is defined'}. Use other images:"
                    f" --config.data.{'train' if source is train else 'evaluation'}=SPLIT."
                )

    def placeholders(self) -> dict[str, Any]:
        """An encoded mask."""
        return {"mask": b""}

    def select(self, example: dict[str, Any]) -> tuple:
        """Returns (image (h, w, c), mask (h, w))."""
        return example["image"], example["mask"][..., 0]

    # Model

    def around(self, encoder, source, head, head_options, **arguments):
        if head == MASKS:
            steps = resolve_steps(self.config.total, self.config.batch_size, source.size)
            head_options = {**head_options, "annealing_steps": self.options.head_options.get("annealing_steps", steps)}
        return SegmentationModel(
            encoder,
            head=head,
            classes=len(source.class_names),
            class_names=source.class_names,
            colors=getattr(source, "colors", None),
            head_options=head_options,
            auxiliary=self.options.auxiliary,
            **arguments,
        )

    def copy_head(self, model, trained):
        """Copies the head and the auxiliary heads that both models have."""
        ours, theirs = model.decoder, trained.decoder
        pairs = [(ours.head, theirs.head), (ours.neck, theirs.neck)]
        pairs += [(own, other) for (_, own), (_, other) in zip(ours.auxiliary, theirs.auxiliary)]
        for own, other in pairs:
            if own is not None:
                own.set_weights(other.get_weights())

    def check_model(self, model: keras.Model, source: Any) -> None:
        check_answers(model, "masks")
        if getattr(source, "void", VOID) is None:
            raise ValueError(
                f"{source.name} has no masks to evaluate on: pass images and masks, such as --data=masks:FOLDER."
            )
        super().check_model(model, source)

    # Training

    def _loss(self, weights, void, classes):
        if self.options.head == MASKS:
            return MaskClassificationLoss(classes, void=void)
        options = {name: getattr(self.options, name) for name in _OF_THE_LOSS}
        try:
            return SegmentationLoss(
                label_smoothing=self.config.loss.label_smoothing, class_weights=weights, void=void, **options
            )
        except ValueError as error:
            raise ValueError(f"--config.objective or --config.loss: {error}") from None

    def loss(self, source: Any) -> keras.losses.Loss:
        weights = class_weights(self.config.loss.class_weights, source, _RULES)
        return self._loss(weights, getattr(source, "void", VOID), len(source.class_names))

    def metrics(self, model: keras.Model) -> list[keras.metrics.Metric]:
        return [SegmentationScores(model.classes, void=model.void)]

    # Evaluation

    def deliver(self, model: keras.Model) -> keras.Model:
        """Returns the model without auxiliary heads."""
        return model.without_auxiliary()

    def evaluator(self) -> evaluators.Evaluator:
        return evaluators.Segmentation()

    def report(self, model, evaluation, samples, records):
        measures, details = evaluation.measures, evaluation.details
        names = model.class_names or details.get("classes") or [str(i) for i in range(model.classes)]
        colors = model.colors or palette(model.classes)
        sections = [html_report.table(_facts(model, measures, details)), self._learning_curves(records)]
        if "per_class" in details:
            sections.append(segmentation_sections.class_scores(details["per_class"], colors))
        if "confusion" in details and len(names) <= html_report.MATRIX:
            sections.append(html_report.confusion(details["confusion"], names, shares=True))
        if "window" in details:  # the samples have the model's image size
            return [*sections, *_own_pictures(evaluation)]
        return [*sections, _examples(model, samples, names, colors)]


def _measured_at(details):
    """Describes the image size of an evaluation."""
    if "window" not in details:
        return "the model's image size"
    how = "by sliding windows" if details["window"] == "slide" else "resized from the model's"
    return f"the images' original size, {how}{', with flips' if details['flips'] else ''}"


def _facts(model, measures, details):
    """Returns (name, value) pairs of the measures and the model."""
    titles = {
        "miou": "mIoU",
        "pixel_accuracy": "pixel accuracy",
        "mean_accuracy": "mean accuracy of the classes",
        "boundary_f": "boundary F",
    }
    shares = [(title, f"{measures[name]:.2%}") for name, title in titles.items() if name in measures]
    others = [(name, value) for name, value in measures.items() if name not in titles]
    size = "x".join(map(str, model.image_size))
    facts = [("measured at", _measured_at(details)), ("head", model.head_name)]
    return [*shares, *others, *facts, ("parameters", model.count_params()), ("image size", size)]


def _own_pictures(evaluation):
    """Returns the section with the evaluation's pictures of examples."""
    drawn = [html_report.embedded(figures.png(pixels), name) for name, pixels in evaluation.pictures.items()]
    return [html_report.section("Predictions", "".join(drawn), evaluators.Segmentation.caption)] if drawn else []


def _examples(model, samples, names, colors):
    """Returns the section of examples, from worst to best."""
    images, truths = samples
    if not len(images):
        return ""
    predictions = predict(model, images).argmax(-1)  # (n, h, w)
    counts = np.maximum((truths < model.classes).sum((1, 2)), 1)
    right = ((truths == predictions) & (truths < model.classes)).sum((1, 2)) / counts
    order = np.argsort(right, kind="stable")
    shown = order[np.linspace(0, len(order) - 1, min(_SHOWN, len(order))).astype(int)]
    return segmentation_sections.comparisons(images[shown], truths[shown], predictions[shown], names, colors)
