"""One number for every pixel: a probability."""

from collections.abc import Iterator
from typing import Any, ClassVar

import keras

from keras_vit.answers.answer import Answer, as_float32, register
from keras_vit.answers.classes import scores_note
from keras_vit.classification.classify import probability_function

SERVE = "keras-vit serve {}, or model.predict(model.preprocess(images)) in Python"


@register
class Pixels(Answer):
    """A probability for every pixel, (b, h, w, 1).

    Args:
        activation: from logits to probabilities; None for the model's own, or sigmoid.
    """

    kind, does, command, classified = "pixels", "has one output per pixel", SERVE, "pixels"
    refused: ClassVar[dict[str, str]] = {"top_k": "has one output per pixel, and no classes to choose from"}

    def __init__(self, model: Any, activation: str | None = None):
        super().__init__(model)
        self.probabilities = probability_function(model, activation)
        self.activation = activation or model.activation or "sigmoid"

    @property
    def what(self) -> str:
        return "the probability of every pixel of the model's size"

    def named(self, outputs: Any) -> dict[str, Any]:
        return as_float32({"logits": outputs, "probabilities": self.probabilities(keras.ops.cast(outputs, "float32"))})

    def about(self) -> dict[str, Any]:
        return {**super().about(), "activation": self.activation}

    @classmethod
    def sentence(cls, metadata: dict[str, Any]) -> str:
        return "It gives every pixel the probability of one class."

    @classmethod
    def notes(cls, metadata: dict[str, Any]) -> Iterator[str]:
        yield scores_note(metadata, "Probabilities")
