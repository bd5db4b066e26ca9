"""Evaluation of found objects with masks: average precision of masks and of boxes, and pictures of examples."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from keras_vit.evaluation.average_precision import AveragePrecision
from keras_vit.evaluation.data import OnSource
from keras_vit.evaluation.mask_boundaries import BoundaryOverlaps
from keras_vit.evaluation.matched_boxes import any_class_matches
from keras_vit.evaluation.matched_masks import MaskOverlaps
from keras_vit.evaluation.outlined_scenes import OutlinedScenes, open_scenes
from keras_vit.evaluation.registry import Evaluation, Setting, register
from keras_vit.inspection.instance_comparison import compared, sheet
from keras_vit.io.target_values import CROWD, KIND, LABEL, PADDING

_DRAWN = 100  # objects found in an image that a picture can show


@dataclasses.dataclass(frozen=True)
class _Example:
    """An image to draw with what was found, best score first; pixels and masks at the model's size.

    Attributes:
        image: (h, w, c) uint8.
        segments: (h, w, 2), as of Scene.
        objects: (m, 7) rows.
        masks: d masks (h, w) bool.
        boxes: (d, 4) as fractions of the image.
        scores, labels: (d,).
        iou: (d, m).
    """

    image: np.ndarray
    segments: np.ndarray
    objects: np.ndarray
    masks: list[np.ndarray]
    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    iou: np.ndarray

    def drawn(self, names, threshold):
        """The image with true objects, and with found ones that score `threshold` or more."""
        real = self.objects[:, LABEL] >= 0
        kept = (self.labels >= 0) & (self.scores >= threshold)
        labels, truth = self.labels[kept], self.objects[real, LABEL]
        found = any_class_matches(self.iou[kept][:, real], labels[:, None] == truth, self.objects[real, KIND] > 0)
        true_masks = [(self.segments == i + 1).any(-1) for i in np.flatnonzero(real)]
        masks = [self.masks[i] for i in np.flatnonzero(kept)]
        detections = masks, self.boxes[kept], self.scores[kept], labels, found
        return compared(self.image, true_masks, self.objects[real], *detections, names)


@register("instances")
@dataclasses.dataclass(frozen=True)
class Instances(OnSource):
    """AP and AR of masks as COCO defines them, AP of their boxes, curves and a confusion matrix of an InstanceModel.

    Measures at each image's own size. Stuff is left out. Classes are matched by name (matched_classes.py).

    Attributes:
        source, split: as in OnSource; the source has outlines of objects.
        preprocess: None; the model's own resizes the whole image.
        pictures: number of examples to draw, spread over the source.
        threshold: score from which found objects count in the confusion matrix, precision, recall and pictures; None
            for the one with the highest F1 on this data.
        limit: objects found per image, those with the highest scores; 100 of each class count, as in COCO.
        boundary: also measure Boundary AP (arXiv 2103.16562), which is strict about the edges of large masks.
    """

    score: ClassVar[str] = "ap"
    caption: ClassVar[str] = (
        "Left the true objects: green where found, yellow, dashed, where missed. Right the found ones with their score:"
        " green if right, magenta if taken for another class, or, dotted, where no object is. Grey ones do not count:"
        " crowds, difficult objects, and what is found there."
    )

    pictures: int = 4
    threshold: float | None = None
    limit: int = 100
    boundary: bool = False

    def __post_init__(self):
        if not isinstance(self.pictures, int) or self.pictures < 0:
            raise ValueError(f"instances: pictures={self.pictures!r}: expected a whole number, 0 or more.")
        if not isinstance(self.limit, int) or self.limit < 1:
            raise ValueError(f"instances: limit={self.limit!r}: expected a whole number, 1 or more.")
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise ValueError(f"instances: threshold={self.threshold!r}: expected a score from 0 to 1, or None.")
        if not isinstance(self.boundary, bool):
            raise ValueError(f"instances: boundary={self.boundary!r}: expected True or False.")

    def prepare(self, setting: Setting) -> Callable[[], Evaluation]:
        scenes = open_scenes(self, setting)
        return lambda: self._evaluation(scenes, *self._collect(scenes))

    def _collect(self, scenes: OutlinedScenes):
        """({measure: AveragePrecision}, [_Example]) of all images."""
        from keras_vit.instances.found import InstanceFinder

        model, shown = scenes.setting.model, scenes.shown(self.pictures)
        finder = InstanceFinder(model, scenes.setting.batch_size, limit=self.limit)
        names = ("ap", "box_ap", "boundary_ap") if self.boundary else ("ap", "box_ap")
        collected, examples = {name: AveragePrecision(scenes.class_names) for name in names}, []
        stuff = [scenes.class_names.index(name) for name in scenes.stuff]
        for scene, found in scenes.found("Finding objects", finder.of_pixels):
            size, objects, labels = scene.image.shape[:2], scene.objects.copy(), scenes.of_model[found.labels]
            objects[np.isin(objects[:, LABEL], stuff), LABEL] = PADDING
            iou, areas, of_boundaries = self._overlaps(found, scene.segments, objects[:, KIND] == CROWD)
            around = found.boxes / np.tile(np.array(size, "float64"), 2)
            collected["ap"].add(size, objects, None, found.scores, labels, iou, areas)
            collected["box_ap"].add(size, objects, around, found.scores, labels)
            if self.boundary:
                collected["boundary_ap"].add(size, objects, None, found.scores, labels, of_boundaries, areas)
            if scene.position in shown:
                drawn = [found.mask(i, model.image_size) for i in range(min(len(found), _DRAWN))]
                detections = (part[:_DRAWN] for part in (around, found.scores, labels, iou))
                examples.append(_Example(*scene.resized(model.image_size), objects, drawn, *detections))
        return collected, examples

    def _overlaps(self, found, segments, crowd):
        """(IoU (d, m), areas (d,), what Boundary AP compares (d, m), or None) of the objects found in an image."""
        masks, edges = MaskOverlaps(segments, crowd), BoundaryOverlaps(segments, crowd) if self.boundary else None
        for i in range(len(found)):
            part = found.part(i)
            masks.add(*part)
            if edges is not None:
                edges.add(*part)
        iou, areas = masks.result()
        return iou, areas, None if edges is None else edges.combined(iou)

    def _evaluation(self, scenes, collected, examples):
        masks = collected.pop("ap")
        measures, details = masks.result(self.threshold)
        if "ap" not in measures:
            raise ValueError(f"The {masks.images} images of {scenes.source.name} have no objects to find.")
        measures |= {name: others.result()[0]["ap"] for name, others in collected.items()}
        measures["examples"] = masks.images
        drawn = [example.drawn(scenes.class_names, details["score_threshold"]) for example in examples]
        return Evaluation(measures, details, pictures={"examples": sheet(drawn)} if drawn else {})
