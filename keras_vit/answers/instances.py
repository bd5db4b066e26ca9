"""Objects in an image with their masks.

Letters: b images, d objects, q queries, k classes, h' w' the grid of masks.
"""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

from keras_vit.answers.answer import Answer, as_float32, register
from keras_vit.answers.boxes import LEAST_SCORE, Boxes
from keras_vit.answers.classes import scores_note
from keras_vit.detection.detect import class_names
from keras_vit.detection.tiles import Window

_NO_SUPPRESSION = "finds each object once, so no boxes are suppressed"


def above(found: dict[str, Any], threshold: float) -> dict[str, Any]:
    """The outputs of BestObjects with empty places for scores that are not above the threshold."""
    from keras import ops

    there = found["scores"] > threshold  # (b, d)
    return {
        "scores": ops.where(there, found["scores"], 0.0),
        "labels": ops.where(there, found["labels"], -1),
        "boxes": ops.where(there[..., None], found["boxes"], 0.0),
        "masks": ops.where(there[..., None, None], found["masks"], -1.0),
    }


def _blank(size):
    """An image (height, width, 3) without memory."""
    return np.broadcast_to(np.uint8(0), (*size, 3))


@register
class InstanceMasks(Boxes):
    """The objects in an image with their masks, highest score first, at most `limit`.

    Args:
        threshold, limit: as in `InstanceModel.detect`; None for its defaults.
        activation: from logits to scores; only the head's own.
    """

    kind, task, hub_task = "instances", "instances", "image-segmentation"
    example = 'model.detect("photo.jpg").picture()  # names, scores, boxes and masks'
    does, title, has_masks = "finds objects with masks", "objects with masks", True
    reading = "the objects with scores above the model's threshold and their masks; their numbers are below each image."
    refused: ClassVar[dict[str, str]] = {
        **Boxes.refused,
        **dict.fromkeys(("iou", "soft", "across_classes"), _NO_SUPPRESSION),
    }

    def __init__(
        self, model: Any, threshold: float | None = None, limit: int | None = None, activation: str | None = None
    ):
        Answer.__init__(self, model)
        self.activation = model.head_row.activation
        if activation not in (None, self.activation):
            raise ValueError(
                f'activation="{activation}": the scores of "{model.name}" are by {self.activation}. Leave it out.'
            )
        self._threshold = model.score_threshold if threshold is None else threshold
        self._limit = 100 if limit is None else limit
        self._layer_of_objects = model.finder(self._limit).get_layer("best_objects")
        self.names = class_names(model)

    @staticmethod
    def finder(model: Any, batch_size: int = 8, **finding: Any) -> Any:
        from keras_vit.instances.found import InstanceFinder

        stray = [name for name in ("iou", "soft", "across_classes") if name in finding]
        if stray:
            raise ValueError(f'{", ".join(stray)}: "{model.name}" {_NO_SUPPRESSION}. Leave out {", ".join(stray)}.')
        return InstanceFinder.of(model, batch_size, **finding)

    @staticmethod
    def segmenter(model: Any, batch_size: int = 8, **windows: Any) -> Any:
        """Things and stuff, one segment for every pixel."""
        from keras_vit.instances.panoptic import PanopticFinder

        if windows.get("window", "whole") != "whole" or windows.get("flips"):
            raise ValueError(
                f'"{model.name}" finds objects, and sees images whole: leave out the options window and flips.'
            )
        return PanopticFinder(model, batch_size)

    def _best(self, outputs, threshold):
        parts = [outputs[name] for name in ("logits", "masks", "boxes") if name in outputs]
        return above(self._layer_of_objects(*parts), threshold)

    @property
    def what(self) -> str:
        return "objects with masks, highest score first"

    def named(self, outputs: Any) -> dict[str, Any]:
        """Scores (b, d), labels (b, d) int32, boxes (b, d, 4), and masks (b, d, h', w'), probabilities."""
        from keras import ops

        found = self._best(outputs, self._threshold)
        return as_float32({**found, "masks": ops.sigmoid(found["masks"])})

    def trained(self, outputs: Any) -> dict[str, Any]:
        return as_float32({name: outputs[name] for name in ("logits", "masks", "boxes") if name in outputs})

    def in_files(self, outputs: Any) -> dict[str, Any]:
        """Objects, and "logits", "query_masks" and "query_boxes", from which they were chosen."""
        queries = {f"query_{name}": outputs[name] for name in ("masks", "boxes") if name in outputs}
        return {**as_float32({"logits": outputs["logits"], **queries}), **self.named(outputs)}

    def expected(self, found: dict[str, Any]) -> dict[str, Any]:
        names = {"logits": "logits", "query_masks": "masks", "query_boxes": "boxes"}
        return self.named({own: found[name] for name, own in names.items() if name in found})

    def about(self) -> dict[str, Any]:
        finding = {"threshold": self._threshold, "limit": self._limit}
        scene = {"mask_grid": list(self.model.mask_grid), "stuff": list(self.model.stuff)}
        return {**Answer.about(self), "activation": self.activation, "task": self.task, **finding, **scene}

    @classmethod
    def sentence(cls, metadata: dict[str, Any]) -> str:
        return f"{super().sentence(metadata)[:-1]}, each with its mask."

    @classmethod
    def notes(cls, metadata: dict[str, Any]) -> Iterator[str]:
        height, width = metadata["mask_grid"]
        yield scores_note(metadata, "Scores")
        yield (
            "- `boxes` are top, left, bottom, right as fractions of the image, highest score first. Scores are above"
            f" {metadata['threshold']:.3g}. Empty places have score 0, label -1 and no name."
        )
        yield (
            f"- `masks` are probabilities on a grid of {height} x {width} cells over the whole image, inside above 0.5;"
            " `mask_bytes` are PNG files of each object's pixels, 255 inside, at the image's own size, and empty for"
            " empty places."
        )

    def of_encoded(self, decode: Callable, outputs: Callable) -> Callable:
        from keras_vit.answers.boxes_in_graph import objects_of_encoded

        return objects_of_encoded(self.model, outputs)

    def further(self) -> dict[str, tuple[Callable, str]]:
        from keras_vit.answers.boxes_in_graph import objects_of_encoded

        def best(images):
            return self._best(self.model(images, training=False), self._threshold)

        what = "objects of encoded images with masks as PNG files, each at its image's own size"
        return {"encoded_masks": (objects_of_encoded(self.model, best, as_files=True), what)}

    def computed(self, outputs: Any) -> dict[str, Any]:
        return self.trained(outputs)

    def chosen(self, values: dict[str, Any]) -> dict[str, Any]:
        """Objects above the least score of a request; masks are logits."""
        return self._best(values, min(LEAST_SCORE, self.model.score_threshold))

    def in_page(self, values: dict[str, Any]) -> dict[str, Any]:
        """`chosen`; of a model with stuff, queries, which the page merges as InstanceModel.segment does."""
        if not self.model.stuff:
            return self.chosen(values)
        return as_float32(self.model.queries().get_layer("best_classes")(values["logits"], values["masks"]))

    def rows(self, values: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        """Each image's `chosen` arrays; `at_size` makes JSON of them."""
        return [dict(zip(values, row)) for row in zip(*values.values())]

    def at_size(self, row: dict[str, Any], size: tuple[int, int], threshold: float) -> dict[str, Any]:
        """The objects with scores above `threshold`: boxes in pixels of the upright image, its size, and masks of this
        size as COCO's run lengths.
        """
        return self._json(self._instances(_blank(size), row, threshold))

    def of_windows(
        self, rows: list[dict[str, Any]], windows: list[Window], size: tuple[int, int], threshold: float
    ) -> dict[str, Any]:
        """`at_size` of an image, from the `rows` of its windows: each object once."""
        from keras_vit.instances.found import of_windows

        sizes = [(bottom - top, right - left) for top, left, bottom, right in windows]
        found = [self._instances(_blank(own), row, threshold) for row, own in zip(rows, sizes, strict=True)]
        return self._json(of_windows(_blank(size), list(zip(windows, found))))

    def _json(self, found):
        return {
            "classes": list(found.names),
            "scores": found.scores.astype("float64").tolist(),
            "boxes": found.boxes.astype("float64").tolist(),
            "labels": found.labels.tolist(),
            "masks": found.run_lengths(),
            "size": list(found.image.shape[:2]),
        }

    def _instances(self, picture, values, threshold):
        from keras_vit.instances.found import instances

        return instances(self.model, values, picture, threshold)

    def _found(self, picture, values):
        return self._instances(picture, values, self._threshold)
