"""A class for every pixel.

Letters: b images, h w pixels of the model's size, k classes.
"""

import base64
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import keras
import numpy as np

from keras_vit.answers.answer import Answer, Entry, as_float32, register
from keras_vit.answers.classes import scores_note
from keras_vit.classification.classify import probability_function
from keras_vit.io.mask_pictures import mask_png, overlay
from keras_vit.io.target_values import void_value
from keras_vit.segmentation.segment import Segmenter, names_and_colors, whole_text


def shares(mask: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """(class numbers of a mask (h, w), the largest first; their shares of its pixels)."""
    counts = np.bincount(mask.reshape(-1), minlength=classes)
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    return order, counts[order] / mask.size


@register
class Masks(Answer):
    """A class for every pixel.

    Args:
        activation: from logits to probabilities; None for the model's own, or softmax.
    """

    kind, task, hub_task = "masks", "segmentation", "image-segmentation"
    example = 'model.segment("photo.jpg").picture()  # a class for every pixel'
    does, command = "gives every pixel a class", "keras-vit segment {} IMAGES --output=FOLDER"
    reads_exports, classified, title = True, "pixels", "classes of pixels"
    reading = "the class of every pixel, in the colours of the list below each image, with the share of each."
    refused: ClassVar[dict[str, str]] = {"top_k": "gives every pixel one class, and exports return its number"}

    def __init__(self, model: Any, activation: str | None = None):
        super().__init__(model)
        self.probabilities = probability_function(model, activation)
        self.activation = activation or model.activation or "softmax"
        self.names, self.colors = names_and_colors(model)

    @staticmethod
    def segmenter(model: Any, batch_size: int = 8, **windows: Any) -> Segmenter:
        return Segmenter(model, batch_size=batch_size, **windows)

    @property
    def what(self) -> str:
        return "the class of every pixel of the model's size"

    def named(self, outputs: Any) -> dict[str, Any]:
        """The numbers of the best classes (b, h, w) int32, and probabilities (b, h, w, k), in a TensorFlow graph."""
        import tensorflow as tf

        logits = keras.ops.cast(outputs, "float32")
        # Not keras.ops.argmax: LiteRT lacks its test for negative zeros.
        return {"ids": tf.argmax(logits, axis=-1, output_type=tf.int32), "probabilities": self.probabilities(logits)}

    def trained(self, outputs: Any) -> dict[str, Any]:
        return as_float32({"logits": outputs})

    @property
    def preprocessing(self) -> str:
        return whole_text(self.model)

    def about(self) -> dict[str, Any]:
        """Void is the value of pixels without a class in masks."""
        own = {"activation": self.activation, "task": self.task}
        return {**super().about(), **own, "colors": self.colors, "void": void_value(self.model.classes)}

    @classmethod
    def sentence(cls, metadata: dict[str, Any]) -> str:
        return f"It gives every pixel one of {metadata['classes']:,} classes."

    @classmethod
    def notes(cls, metadata: dict[str, Any]) -> Iterator[str]:
        height, width = metadata["image_size"]
        yield scores_note(metadata, "Probabilities")
        yield (
            f"- `ids` are the numbers of the most probable classes of {height} x {width} pixels; their colours are in"
            " `metadata.json`. `mask_bytes` are PNG files of these numbers at each image's own size."
        )

    def further(self) -> dict[str, tuple[Callable, str]]:
        from keras_vit.answers.masks_in_graph import masks_of_encoded

        what = "masks as PNG files of class numbers, of encoded images, each at its image's own size"
        return {"encoded_masks": (masks_of_encoded(self.model), what)}

    def computed(self, outputs: Any) -> dict[str, Any]:
        return {"logits": outputs}

    def rows(self, values: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        """Each image's classes, the largest first, with shares, colours and a PNG mask."""
        return [self._row(mask) for mask in values["logits"].argmax(-1)]

    def _row(self, mask):
        order, parts = shares(mask, len(self.names))
        return {
            "classes": [self.names[i] for i in order],
            "shares": parts.tolist(),
            "colors": [list(self.colors[i]) for i in order],
            "mask": {"b64": base64.b64encode(mask_png(mask, self.colors)).decode()},
        }

    def mask(self, run: Callable, encoded: bytes) -> bytes:
        segmenter = Segmenter(self.model, function=lambda images: run(images)["logits"])
        return next(segmenter([(encoded, "It")])).png()

    def tabled(self) -> dict[str, Any]:
        raise ValueError(f'"{self.model.name}" {self.does}: use predict_masks, or request only features.')

    def draw(self, picture: np.ndarray, values: dict[str, np.ndarray]) -> np.ndarray:
        segmenter = Segmenter(self.model, function=lambda _: values["logits"][None])
        [found] = segmenter.of_pixels([(picture, "The picture")])
        return overlay(picture, found.classes, self.colors)

    def entries(self, values: dict[str, np.ndarray]) -> list[Entry]:
        order, parts = shares(values["logits"].argmax(-1), len(self.names))
        return [Entry(f"{self.names[i]} {part:.0%}", self.colors[i]) for i, part in zip(order, parts)]
