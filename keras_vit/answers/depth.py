"""A depth for every pixel."""

from collections.abc import Iterator
from typing import Any, ClassVar

import keras
import numpy as np

from keras_vit.answers.answer import Answer, Entry, register
from keras_vit.depth.depth_map import depth_picture, depth_range, resized_depth, with_scale
from keras_vit.segmentation.segment import whole_text

_NO_CLASSES = "gives every pixel a depth, and has no classes"


@register
class Depth(Answer):
    """A depth for every pixel of the model's size, metric or relative: (b, h, w)."""

    kind, task, hub_task = "depth", "depth", "depth-estimation"
    does, title = "gives every pixel a depth, and no classes", "depth of pixels"
    command = "keras-vit predict --model={} --data=images:FOLDER --output=FOLDER"
    example = 'model.estimate("photo.jpg").picture()  # a depth for every pixel'
    reading = "the depth of every pixel, in the colours of the scale below each image."
    refused: ClassVar[dict[str, str]] = {"top_k": _NO_CLASSES, "activation": _NO_CLASSES}

    @property
    def what(self) -> str:
        return "the depth of every pixel of the model's size"

    def named(self, outputs: Any) -> dict[str, Any]:
        return {"depth": keras.ops.cast(outputs[..., 0], "float32")}

    @property
    def preprocessing(self) -> str:
        return whole_text(self.model)

    def about(self) -> dict[str, Any]:
        return {**super().about(), "classes": None, "task": self.task, "depth": self.model.kind}

    @classmethod
    def sentence(cls, metadata: dict[str, Any]) -> str:
        return f"It gives every pixel a {metadata['depth']} depth."

    @classmethod
    def notes(cls, metadata: dict[str, Any]) -> Iterator[str]:
        height, width = metadata["image_size"]
        unit = ", in metres" if metadata["depth"] == "metric" else ", larger is nearer"
        yield f"- `depth` is the {metadata['depth']} depth of {height} x {width} pixels, as the model returns it{unit}."

    def draw(self, picture: np.ndarray, values: dict[str, np.ndarray]) -> np.ndarray:
        depth = resized_depth(values["depth"], picture.shape[:2])
        limits = depth_range(depth)
        return with_scale(depth_picture(depth, *limits), *limits, "m" if self.model.kind == "metric" else "")

    def entries(self, values: dict[str, np.ndarray]) -> list[Entry]:
        low, high = depth_range(values["depth"])
        text = f"{low:.2f} m to {high:.2f} m" if self.model.kind == "metric" else "relative depth, larger is nearer"
        return [Entry(text)]
