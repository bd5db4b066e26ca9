"""One or several classes for a whole image, with probabilities."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_vit.answers.answer import Answer, Column, Entry, as_float32, named_outputs, register
from keras_vit.classification.classify import check_top_k, probability_function

CLASSES_FILE = "assets/classes.txt"  # in an export, one name a line


def class_names(model: Any) -> tuple[str, ...]:
    """A model's class names, or numbers as text."""
    return tuple(model.class_names or map(str, range(model.classes)))


def scores_note(metadata: dict[str, Any], scores: str) -> str:
    """Where an export's class names are, and what its scores are."""
    names = f"The names are in `{CLASSES_FILE}`, one a line. " if metadata["class_names"] else ""
    return f"- {names}{scores} are the {metadata['activation']} of logits."


def best(probabilities: np.ndarray, names: np.ndarray, top_k: int) -> dict[str, np.ndarray]:
    """Names and probabilities (b, k) of the top k classes, best first, from probabilities (b, classes)."""
    order = np.argsort(-probabilities, axis=-1, kind="stable")[:, :top_k]  # (b, k)
    return {"classes": names[order], "probabilities": np.take_along_axis(probabilities, order, -1)}


def class_columns(top_k: int) -> tuple[Column, ...]:
    """The columns of the most probable classes."""
    return Column("classes", "texts", top_k), Column("probabilities", "numbers", top_k)


@register
class Classes(Answer):
    """The most probable classes of an image.

    Args:
        top_k: largest number of classes; None for 5.
        activation: from logits to probabilities, "softmax" or "sigmoid"; None for the model's own.
    """

    kind, does, command, reads_exports = "classes", "classifies whole images", "keras-vit classify {} IMAGES", True
    hub_task = "image-classification"
    example = 'model.classify("photo.jpg")  # names and probabilities'

    def __init__(self, model: Any, top_k: int | None = None, activation: str | None = None):
        super().__init__(model)
        self.top_k = min(check_top_k(5 if top_k is None else top_k), model.classes)
        self.probabilities = probability_function(model, activation)
        self.activation = activation or model.activation or ("sigmoid" if model.classes == 1 else "softmax")
        self.names = class_names(model)

    @property
    def what(self) -> str:
        return "the most probable classes, best first"

    def named(self, outputs: Any) -> dict[str, Any]:
        """Logits and probabilities, (b, classes); of a custom head also its outputs under Keras' names."""
        own = {} if self.model.outputs_are_logits else named_outputs(outputs)
        return as_float32({**own, "logits": outputs, "probabilities": self._probabilities(outputs)})

    def _probabilities(self, outputs):
        return self.probabilities(keras.ops.cast(outputs, "float32"))

    def about(self) -> dict[str, Any]:
        return {**super().about(), "activation": self.activation}

    @classmethod
    def sentence(cls, metadata: dict[str, Any]) -> str:
        count = metadata["classes"]
        return f"It classifies {count:,} classes." if count > 1 else "It returns the probability of one class."

    @classmethod
    def notes(cls, metadata: dict[str, Any]) -> Iterator[str]:
        yield scores_note(metadata, "Probabilities")

    def best(self, outputs: dict[str, Any]) -> dict[str, Any]:
        """The top k probabilities and class names (b, k), best first."""
        import tensorflow as tf

        found = tf.math.top_k(outputs["probabilities"], k=self.top_k)
        return {"probabilities": found.values, "classes": tf.gather(tf.constant(self.names), found.indices)}

    def computed(self, outputs: Any) -> dict[str, Any]:
        return {"probabilities": self._probabilities(outputs)}

    def rows(self, values: dict[str, np.ndarray]) -> list[dict[str, Any]]:
        found = best(values["probabilities"].astype("float64"), np.array(self.names, object), self.top_k)
        return [
            {"classes": classes.tolist(), "probabilities": probabilities.tolist()}
            for classes, probabilities in zip(found["classes"], found["probabilities"])
        ]

    def entries(self, values: dict[str, np.ndarray]) -> list[Entry]:
        [first] = self.rows({"probabilities": values["probabilities"][None]})
        return [Entry(f"{name} {p:.0%}") for name, p in zip(first["classes"][:1], first["probabilities"])]

    def tabled(self) -> dict[str, Any]:
        return {"logits": self.model.output}

    def columns(self) -> tuple[Column, ...]:
        return class_columns(self.top_k)

    def values(self, outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        probabilities = keras.ops.convert_to_numpy(self.probabilities(outputs["logits"]))
        return best(np.asarray(probabilities, "float32"), np.array(self.names, object), self.top_k)
