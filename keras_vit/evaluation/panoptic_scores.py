"""Evaluation of panoptic scenes, one segment for every pixel: panoptic quality, and pictures of examples."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

from keras_vit.evaluation.data import OnSource
from keras_vit.evaluation.outlined_scenes import OutlinedScenes, open_scenes
from keras_vit.evaluation.own_size import nearest
from keras_vit.evaluation.panoptic_quality import PanopticQuality
from keras_vit.evaluation.registry import Evaluation, Setting, register
from keras_vit.inspection.segment_comparison import example_rows
from keras_vit.io.target_values import KIND


@register("panoptic")
@dataclasses.dataclass(frozen=True)
class Panoptic(OnSource):
    """PQ, SQ and RQ of an InstanceModel's segments: of all classes, things and stuff, and of each class.

    Measures at each image's own size; where true objects overlap, the topmost counts. Pixels without a true object are
    void: what is found there counts nowhere. Classes are matched by name (matched_classes.py).

    Attributes:
        source, split: as in OnSource; the source has outlines of objects and stuff.
        preprocess: None; the model's own resizes the whole image.
        pictures: number of examples to draw, spread over the source.
        threshold, overlap: as in `InstanceModel.segment`.
    """

    score: ClassVar[str] = "pq"
    caption: ClassVar[str] = (
        "Each row shows an image, its true segments, those found, and pixels of a wrong class in magenta. Black pixels"
        " have no segment; in the last picture they do not count."
    )

    pictures: int = 4
    threshold: float = 0.8
    overlap: float = 0.8

    def __post_init__(self):
        if not isinstance(self.pictures, int) or self.pictures < 0:
            raise ValueError(f"panoptic: pictures={self.pictures!r}: expected a whole number, 0 or more.")
        for name in ("threshold", "overlap"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"panoptic: {name}={getattr(self, name)!r}: expected a share from 0 to 1.")

    def prepare(self, setting: Setting) -> Callable[[], Evaluation]:
        scenes = open_scenes(self, setting)
        return lambda: self._evaluation(scenes, *self._collect(scenes))

    def _collect(self, scenes: OutlinedScenes):
        """(PanopticQuality, [(image, true segments, their classes, found segments, their classes)]) of all images."""
        from keras_vit.instances.panoptic import PanopticFinder

        model, shown = scenes.setting.model, scenes.shown(self.pictures)
        finder = PanopticFinder(model, scenes.setting.batch_size, self.threshold, self.overlap)
        collected, examples = PanopticQuality(scenes.class_names, scenes.stuff), []
        for scene, found in scenes.found("Segmenting scenes", finder.of_pixels):
            labels = scenes.of_model[found.labels]
            collected.add(scene.segments[..., 0], scene.labels, found.segments, labels, scene.objects[:, KIND] > 0)
            if scene.position in shown:
                image, segments = scene.resized(model.image_size)
                own = nearest(found.segments, model.image_size)
                examples.append((image, segments[..., 0], scene.labels, own, labels))
        return collected, examples

    def _evaluation(self, scenes, collected, examples):
        measures, details = collected.result()
        if not (collected.matches + collected.missed).any():
            raise ValueError(f"The {collected.images} images of {scenes.source.name} have no segments to find.")
        details = {**details, "threshold": self.threshold, "overlap": self.overlap}
        pictures = {"examples": example_rows(examples, scenes.class_names)} if examples else {}
        return Evaluation({**measures, "examples": collected.images}, details, pictures=pictures)
