"""Depth: metres for every pixel."""

import dataclasses
from typing import Any

import keras
import numpy as np

from keras_vit import evaluation as evaluators
from keras_vit.answers import check_answers
from keras_vit.depth.depth_losses import DepthL1, DepthScores, ScaleInvariantLogLoss
from keras_vit.depth.depth_model import DepthModel
from keras_vit.evaluation.depth_evaluation import Depth as DepthEvaluator
from keras_vit.evaluation.depth_evaluation import image_and_depth
from keras_vit.inspection import figures, html_report
from keras_vit.layers.arguments import choice
from keras_vit.tasks.dense_task import DenseTask, plain_options
from keras_vit.tasks.task import Score

LOSSES = ("log", "l1")


@dataclasses.dataclass(frozen=True)
class Options:
    """config.objective: the head and the loss.

    Attributes:
        head: str. A row of keras_vit.depth.depth_model.HEADS.
        head_options: dict. Arguments of the head, such as {"width": 64}.
        kind: str. "metric", or "relative", an inverse depth up to scale and shift, trained by the aligned L1 loss.
        max_depth: float. The largest depth in metres; depths beyond it cannot be predicted. None for DepthModel's.
        loss: str. "log", ScaleInvariantLogLoss, or "l1", DepthL1, of metric depth.
        invariance: float. That of ScaleInvariantLogLoss.
    """

    head: str = "dpt"
    head_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    kind: str = "metric"
    max_depth: float | None = None
    loss: str = "log"
    invariance: float = 0.85

    def __post_init__(self):
        object.__setattr__(self, "head_options", plain_options(self.head_options))
        choice(self.loss, "config.objective.loss", LOSSES)


class Depth(DenseTask):
    """A ViT, hybrid or BiT with the head `config.objective.head`: metres, or void, for every pixel."""

    score = Score("abs_rel", title="AbsRel", higher_is_better=False, curve="val_abs_rel")
    Model = DepthModel
    Options = Options
    keeps_for_other_classes = True

    def placeholders(self) -> dict[str, Any]:
        """A depth map."""
        return {"depth": np.zeros((1, 1, 1), "float32")}

    def select(self, example: dict[str, Any]) -> tuple:
        """Returns (image (h, w, c), depth (h, w))."""
        return image_and_depth(example)

    def around(self, encoder, source, head, head_options, **arguments):
        options = {"kind": self.options.kind, "max_depth": self.options.max_depth}
        return DepthModel(encoder, head=head, head_options=head_options, **options, **arguments)

    def copy_head(self, model, trained):
        for own, other in zip(model.decoder.layers, trained.decoder.layers):
            own.set_weights(other.get_weights())

    def check_model(self, model: keras.Model, source: Any) -> None:
        check_answers(model, "depth")

    def loss(self, source: Any) -> keras.losses.Loss:
        if self.options.kind == "relative" or self.options.loss == "l1":
            return DepthL1(align=self.options.kind == "relative")
        return ScaleInvariantLogLoss(self.options.invariance)

    def metrics(self, model: keras.Model) -> list[keras.metrics.Metric]:
        return [DepthScores(align=model.kind == "relative")]

    def evaluator(self) -> evaluators.Evaluator:
        return DepthEvaluator()

    def report(self, model, evaluation, samples, records):
        facts = [("head", model.head_name), ("kind", model.kind), ("largest depth", f"{model.max_depth:g} m")]
        shown = [*self._shown(evaluation.measures), *facts, ("parameters", model.count_params())]
        drawn = [html_report.embedded(figures.png(pixels), name) for name, pixels in evaluation.pictures.items()]
        sections = [html_report.table(shown), self._learning_curves(records)]
        return [*sections, html_report.section("Predictions", "".join(drawn), DepthEvaluator.caption)]
