"""A depth for every pixel."""

from collections.abc import Iterator
from typing import Any, ClassVar

import keras

from keras_vit.answers.answer import Answer, register
from keras_vit.answers.pixels import SERVE

_NO_CLASSES = "gives every pixel a depth, and has no classes"


@register
class Depth(Answer):
    """A depth for every pixel of the model's size, metric or relative: (b, h, w)."""

    kind, task, hub_task = "depth", "depth", "depth-estimation"
    does, command = "gives every pixel a depth, and no classes", SERVE
    refused: ClassVar[dict[str, str]] = {"top_k": _NO_CLASSES, "activation": _NO_CLASSES}

    @property
    def what(self) -> str:
        return "the depth of every pixel of the model's size"

    def named(self, outputs: Any) -> dict[str, Any]:
        return {"depth": keras.ops.cast(outputs[..., 0], "float32")}

    def about(self) -> dict[str, Any]:
        return {**super().about(), "classes": None, "task": self.task, "depth": self.model.depth}

    @classmethod
    def notes(cls, metadata: dict[str, Any]) -> Iterator[str]:
        height, width = metadata["image_size"]
        yield f"- `depth` is the {metadata['depth']} depth of {height} x {width} pixels, as the model returns it."
