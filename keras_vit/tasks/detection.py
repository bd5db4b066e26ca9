"""Object detection: boxes with classes."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import keras
import numpy as np
from absl import logging
from ml_collections import ConfigDict

from keras_vit import evaluation as evaluators
from keras_vit.data.objects import has_objects, pack
from keras_vit.data.sources.base import Source
from keras_vit.detection.detection_model import DetectionModel
from keras_vit.detection.heads.detection_heads import HEADS
from keras_vit.detection.scene_mixing import Mosaic, SceneMixup
from keras_vit.fit.mixing import check_pairs
from keras_vit.inspection import detection_sections, html_report
from keras_vit.layers.arguments import choice
from keras_vit.models.heads.decoder import check_options
from keras_vit.tasks.dense_task import DenseTask, plain_options
from keras_vit.tasks.task import Score


@dataclasses.dataclass(frozen=True)
class Options:
    """config.objective: the head, its loss, and how scenes are combined.

    Attributes:
        head: a row of keras_vit.detection.heads.detection_heads.HEADS.
        head_options: the head's own arguments, such as {"scales": (2, 1, 0.5), "width": 128}.
        loss: arguments of the head's loss, such as {"assignment": "center"}.
        mosaic: probability of training on mosaics of four images, arXiv 2004.10934; 0 for never.
        mixup: probability of training on two images blended, arXiv 1902.04103; 0 for never. Only one of the two.
        objects: the largest number of objects in an image, to which batches are padded; None for that of the data.
    """

    head: str = "dense"
    head_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    loss: dict[str, Any] = dataclasses.field(default_factory=dict)
    mosaic: float = 0.0
    mixup: float = 0.0
    objects: int | None = None

    def __post_init__(self):
        for name in ("head_options", "loss"):
            object.__setattr__(self, name, plain_options(getattr(self, name)))


_NOT_COUNTED = " Crowds and difficult objects do not count."


def _is_empty(source):
    """Whether a source, or a plan of one, has no object that counts."""
    return not source.most_objects or (isinstance(source, Source) and not has_objects(source))


class Detection(DenseTask):
    """A ViT, hybrid or BiT with the head `config.objective.head`, which finds objects.

    Attributes:
        heads: the rows of heads.
        recipe: the config whose variants have options that suit each head.
        wanted: what the data must have, and how to pass it.
    """

    Model = DetectionModel
    score = Score("ap", title="AP", percent=True, curve="detection/ap")
    Options = Options
    keeps_for_other_classes = True
    samples = 1  # the evaluator draws examples
    heads: ClassVar[Mapping[str, Any]] = HEADS
    recipe, wanted = "detection", "boxes: give a folder of images and annotations as --data=boxes:FOLDER"

    def __init__(self, config: ConfigDict):
        super().__init__(config)
        self._objects = self.options.objects or 100  # for a plan without data; otherwise `check_data` counts them

    def check_config(self) -> None:
        super().check_config()
        self.loss(None)  # refuses its options
        head = self.options.head
        try:
            check_options(head, self.options.head_options, self.heads[head].options())
        except ValueError as error:
            raise ValueError(
                f"--config.objective.head_options: {error} --config={self.recipe}:{head} has options that suit this"
                " head."
            ) from None
        self.check_mixing()

    def check_mixing(self) -> None:
        """Raises ValueError for options of mixing that do not fit together."""
        mosaic, mixup = self.options.mosaic, self.options.mixup
        if mosaic and mixup:
            raise ValueError(
                f"--config.objective.mosaic={mosaic} and --config.objective.mixup={mixup}: a batch is mixed one way."
                " Set one of them to 0."
            )
        mixing = self.mixing(None)
        if mixing is not None:
            check_pairs(self.config.batch_size, group=mixing.group)

    # Data

    def check_data(self, train: Any, held_out: Any) -> None:
        data, most = self.config.data, []
        for source, split in ((train, data.train), (held_out, data.evaluation)):
            if not self.has_targets(source):
                raise ValueError(
                    f"{data.source}, {split}, has no {self.wanted}, or another source of this kind"
                    f" (docs/{self.recipe}.md)."
                )
            most.append(source.most_objects)
        self.check_same_classes(train, held_out)
        if _is_empty(train):
            raise ValueError(f"{data.source}, {data.train}, has no objects: there is nothing to learn.{_NOT_COUNTED}")
        if _is_empty(held_out):
            raise ValueError(
                f"{data.source}, {data.evaluation}, the {held_out.size} images to evaluate on, have no objects, so no"
                f" average precision is defined.{_NOT_COUNTED} Hold out others: --config.data.evaluation=SPLIT, such as"
                " a larger slice of the training images, with the rest in --config.data.train."
            )
        objects = self.options.objects
        if objects is not None and objects < max(most):
            raise ValueError(
                f"--config.objective.objects={objects}: an image of {data.source} has {max(most)}. Set it to that, or"
                " to None for the number in the data."
            )
        self._objects = objects or max(most)

    def has_targets(self, source: Any) -> bool:
        """Whether a source has what the task learns from."""
        return getattr(source, "most_objects", None) is not None and bool(source.class_names)

    def placeholders(self) -> dict[str, Any]:
        """One object."""
        number = np.zeros(1, "int32")
        return {"boxes": np.zeros((1, 4), "float32"), "labels": number, "crowd": number, "area": np.zeros(1, "float32")}

    def select(self, example: dict[str, Any]) -> tuple:
        """(image (h, w, c), objects (m, 7))."""
        return example["image"], pack(example, self._objects)

    # Model

    def around(self, encoder, source, head, head_options, **arguments):
        return DetectionModel(
            encoder,
            head=head,
            classes=len(source.class_names),
            class_names=source.class_names,
            head_options=head_options,
            **arguments,
        )

    def copy_head(self, model, trained):
        """Copies the weights of neck and head; those with an output per class stay new if their number differs."""
        more = model.classes - trained.classes
        for own, other in zip(model.decoder.layers, trained.decoder.layers):
            for variable, value in zip(own.weights, other.weights, strict=True):
                differences = [a - b for a, b in zip(variable.shape, value.shape, strict=True) if a != b]
                if not differences:
                    variable.assign(value)
                elif not more or differences != [more]:
                    raise ValueError(f"{variable.path} has the shape {variable.shape}, not {value.shape}")
        if more:
            logging.info(
                "%s has %d classes, the data %d: the outputs for classes are new, the rest of the head is kept.",
                self.config.init,
                trained.classes,
                model.classes,
            )

    def check_model(self, model: keras.Model, source: Any) -> None:
        if not self.has_targets(source):
            raise ValueError(f"{source.name} cannot be evaluated on: it has no {self.wanted}.")
        super().check_model(model, source)
        self._objects = max(self._objects or 1, source.most_objects)

    # Training

    def loss(self, source: Any) -> keras.losses.Loss:
        return self.head_loss()

    def head_loss(self, *arguments: Any) -> keras.losses.Loss:
        """The head's usual loss with `config.objective.loss`, after these arguments."""
        head = self.heads[choice(self.options.head, "head", self.heads)]
        try:
            return head.losses[0](*arguments, **self.options.loss)
        except (TypeError, ValueError) as error:
            raise ValueError(f"--config.objective.loss: {error}") from None

    def mixing(self, model):
        options, seed = self.options, self.config.seed
        if options.mosaic:
            return Mosaic(probability=options.mosaic, seed=seed)
        return SceneMixup(probability=options.mixup, seed=seed) if options.mixup else None

    # Evaluation

    def settle(self, model, evaluation):
        """Keeps the score threshold with the highest F1; without a right detection the model's stays."""
        if evaluation.measures["f1"] > 0:
            best = np.float32(evaluation.measures["threshold"])  # that score counts, and others must be above it
            model.score_threshold = float(np.nextafter(best, np.float32(0)))

    def evaluator(self) -> evaluators.Evaluator:
        return evaluators.Detection()

    def report(self, model, evaluation, samples, records):
        measures, details = evaluation.measures, evaluation.details
        facts = [*self._shown(measures), ("head", model.head_name), ("parameters", model.count_params())]
        facts.append(("image size", "x".join(map(str, model.image_size))))
        facts.append(("score threshold of model.detect", f"{model.score_threshold:.3g}"))
        names, threshold = details["classes"], details["score_threshold"]
        sections = [html_report.table(facts), self._learning_curves(records)]
        sections.append(detection_sections.precision_recall(details.get("curves", {}), details["per_class"]))
        sections += [detection_sections.sizes(details["sizes"])]
        sections.append(detection_sections.classes(details["per_class"], threshold))
        if "confusion" in details and len(names) < html_report.MATRIX:
            sections.append(detection_sections.confusion(details["confusion"], names, threshold))
        return sections
