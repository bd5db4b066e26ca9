"""Panoptic scenes: each pixel belongs to an object, or to a region of stuff."""

from typing import Any

from keras_vit import evaluation as evaluators
from keras_vit.inspection import html_report, segment_sections
from keras_vit.tasks.instances import Instances
from keras_vit.tasks.task import Score


class Panoptic(Instances):
    """A ViT with the head `config.objective.head`, whose segments of things and stuff cover the image."""

    score = Score("pq", title="PQ", percent=True, curve="panoptic/pq")

    def settle(self, model, evaluation):
        """Changes nothing: the threshold of segments is an argument of `segment`."""

    def evaluator(self) -> evaluators.Evaluator:
        return evaluators.Panoptic()

    def report(self, model: Any, evaluation: Any, samples: Any, records: list[dict]) -> list[str]:
        facts = [*self._shown(evaluation.measures), ("head", model.head_name), ("parameters", model.count_params())]
        facts.append(("image size", "x".join(map(str, model.image_size))))
        classes = segment_sections.classes(evaluation.details["per_class"])
        return [html_report.table(facts), self._learning_curves(records), classes]
