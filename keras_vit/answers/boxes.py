"""Objects in an image: a box, a class and a score for each.

Letters: b images, n candidates, d detections, k classes.
"""

import collections
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

from keras_vit.answers.answer import Answer, Entry, Refusal, as_float32, register
from keras_vit.answers.classes import scores_note
from keras_vit.detection.detect import Detections, Finder, class_names, in_image, of_windows, shown_text, visible
from keras_vit.detection.tiles import Window
from keras_vit.io.suggest import counted

LEAST_SCORE = 0.05  # of objects that a service computes; requests choose among them


def _suppression_note(metadata):
    """What happens to boxes that overlap, in words; "" if all stay."""
    boxes = "boxes" if metadata["across_classes"] else "boxes of one class"
    if metadata["soft"]:
        return f"; of {boxes} that overlap, all but the best get lower scores"
    return f"; of {boxes} with an IoU above {metadata['iou']:g} the best stays" if metadata["iou"] < 1 else ""


@register
class Boxes(Answer):
    """The objects in an image, highest score first, at most `limit`.

    Args:
        threshold, iou, limit, soft, across_classes: as in `DetectionModel.detect`; None for its defaults.
        activation: from logits to scores; only the head's own.
    """

    kind, task, hub_task = "objects", "detection", "object-detection"
    example = 'model.detect("photo.jpg")  # names, scores and boxes'
    does, command = "finds objects", "keras-vit detect {} IMAGES --output=FOLDER"
    needs_size, classified, title, finds_objects = True, "objects", "objects", True
    reading = "the objects with scores above the model's threshold; their numbers are below each image."
    refused: ClassVar[dict[str, str]] = {"top_k": "finds objects, each of one class: choose by score, with threshold"}

    def __init__(
        self,
        model: Any,
        threshold: float | None = None,
        iou: float | None = None,
        limit: int | None = None,
        soft: bool | None = None,
        across_classes: bool | None = None,
        activation: str | None = None,
    ):
        super().__init__(model)
        self.activation = model.head_row.activation
        if activation not in (None, self.activation):
            raise ValueError(
                f'activation="{activation}": the scores of "{model.name}" are by {self.activation}. Leave it out.'
            )
        options: dict[str, Any] = {"iou": iou, "limit": limit, "soft": soft, "across_classes": across_classes}
        self._options = {name: value for name, value in options.items() if value is not None}
        self._threshold = model.score_threshold if threshold is None else threshold
        self._suppress = self._suppression(self._threshold)
        self.names = class_names(model)

    @staticmethod
    def finder(model: Any, batch_size: int = 8, **finding: Any) -> Any:
        """A function from images to the objects in each; arguments as of the model's `detect`."""
        return Finder.of(model, batch_size, **finding)

    def _layer(self, threshold):
        return self.model.finder(threshold=threshold, **self._options).get_layer("suppression")

    def _suppression(self, threshold):
        """The layer from candidates {"logits" (b, n, k), "boxes" (b, n, 4)} to detections, as a function."""
        layer = self._layer(threshold)
        return lambda candidates: layer(candidates["logits"], candidates["boxes"])

    @property
    def what(self) -> str:
        return "objects, highest score first"

    def named(self, outputs: Any) -> dict[str, Any]:
        """Boxes (b, d, 4), scores (b, d) and labels (b, d) int32."""
        return as_float32(self._suppress(outputs))

    def trained(self, outputs: Any) -> dict[str, Any]:
        return as_float32(outputs)

    def in_files(self, outputs: Any) -> dict[str, Any]:
        """Detections, and "logits" and "candidates", the boxes from which they were chosen."""
        return {**as_float32({"logits": outputs["logits"], "candidates": outputs["boxes"]}), **self.named(outputs)}

    def expected(self, found: dict[str, Any]) -> dict[str, Any]:
        return dict(self._suppress({"logits": found["logits"], "boxes": found["candidates"]}))

    @property
    def preprocessing(self) -> str:
        return shown_text(self.model)

    def about(self) -> dict[str, Any]:
        layer = self._layer(self._threshold)
        finding = {name: getattr(layer, name) for name in ("threshold", "iou", "limit", "soft", "across_classes")}
        return {**super().about(), "activation": self.activation, "task": self.task, **finding}

    @classmethod
    def sentence(cls, metadata: dict[str, Any]) -> str:
        return f"It finds objects of {counted(metadata['classes'], 'class')}."

    @classmethod
    def notes(cls, metadata: dict[str, Any]) -> Iterator[str]:
        yield scores_note(metadata, "Scores")
        yield (
            "- `boxes` are top, left, bottom, right as fractions of the image, highest score first. Scores are above"
            f" {metadata['threshold']:.3g}{_suppression_note(metadata)}."
            " Empty places have score 0, label -1 and no name."
        )

    def best(self, outputs: dict[str, Any]) -> dict[str, Any]:
        """Also the names (b, d) of the classes, "" for empty places."""
        import tensorflow as tf

        names = tf.constant([*self.names, ""])  # label -1 is the last
        return {**outputs, "classes": tf.gather(names, outputs["labels"] % len(names))}

    def of_encoded(self, decode: Callable, outputs: Callable) -> Callable:
        from keras_vit.answers.boxes_in_graph import objects_of_encoded

        return objects_of_encoded(self.model, outputs)

    def computed(self, outputs: Any) -> dict[str, Any]:
        return outputs

    def chosen(self, values: dict[str, Any]) -> dict[str, Any]:
        """Objects above the least score of a request."""
        return self._suppression(min(LEAST_SCORE, self.model.score_threshold))(values)

    def rows(self, values: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        """Each image's objects, best first; boxes are fractions of the input."""
        labels = values["labels"].astype("int64")
        return [self._row(*each) for each in zip(values["boxes"], values["scores"], labels)]

    def _row(self, boxes, scores, labels):
        kept = labels >= 0
        return {
            "classes": [self.names[label] for label in labels[kept]],
            "scores": scores[kept].astype("float64").tolist(),
            "boxes": boxes[kept].astype("float64").tolist(),
            "labels": labels[kept].tolist(),
        }

    def check_threshold(self, asked: float | None) -> float:
        if asked is None:
            return self.model.score_threshold
        if not LEAST_SCORE <= asked <= 1:
            raise Refusal(f"threshold={asked:g}: expected a score from {LEAST_SCORE} to 1.")
        return asked

    def at_size(self, row: dict[str, Any], size: tuple[int, int], threshold: float) -> dict[str, Any]:
        """The objects with scores above `threshold`, boxes in pixels of the upright image, and its size."""
        boxes = in_image(self.preprocessing, np.reshape(row["boxes"], (-1, 4)), size)
        chosen = np.flatnonzero((np.array(row["scores"]) > threshold) & visible(boxes))
        row = {name: [values[i] for i in chosen] for name, values in row.items()}
        return {**row, "boxes": (boxes[chosen] * np.tile(size, 2)).tolist(), "size": list(size)}

    def of_windows(
        self, rows: list[dict[str, Any]], windows: list[Window], size: tuple[int, int], threshold: float
    ) -> dict[str, Any]:
        """`at_size` of an image, from the `rows` of its windows: each object once."""
        found: list[tuple[Window, tuple[np.ndarray, ...]]] = []
        for row, (top, left, bottom, right) in zip(rows, windows, strict=True):
            own = self.at_size(row, (bottom - top, right - left), threshold)
            parts = np.reshape(own["boxes"], (-1, 4)), np.array(own["scores"]), np.array(own["labels"], "int64")
            found.append(((top, left, bottom, right), parts))
        iou, across_classes = self._options.get("iou"), bool(self._options.get("across_classes"))
        boxes, scores, labels = of_windows(found, size, iou=iou, across_classes=across_classes)
        names = [self.names[label] for label in labels]
        own = {"classes": names, "scores": scores.tolist(), "boxes": boxes.tolist(), "labels": labels.tolist()}
        return {**own, "size": list(size)}

    def tabled(self) -> dict[str, Any]:
        raise ValueError(f'"{self.model.name}" {self.does}: use predict_objects, or request only features.')

    def _found(self, picture, values):
        """The Detections in a picture (h', w', c) with scores above the threshold."""
        kept = (values["labels"] >= 0) & (values["scores"] > self._threshold)
        sides = np.tile(np.array(picture.shape[:2], "float32"), 2)
        return Detections(
            values["boxes"][kept] * sides, values["scores"][kept], values["labels"][kept], self.names, picture
        )

    def draw(self, picture: np.ndarray, values: dict[str, np.ndarray]) -> np.ndarray:
        return np.asarray(self._found(picture, values).picture())

    def entries(self, values: dict[str, np.ndarray]) -> list[Entry]:
        counts = collections.Counter(self._found(np.zeros((1, 1, 3), "uint8"), values).names).most_common()
        return [Entry(f"{count} {name}") for name, count in counts] or [Entry("no objects")]
