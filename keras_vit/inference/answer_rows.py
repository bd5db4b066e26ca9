"""A model's answers for a batch of images as table columns: its own kinds, logits, features."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.answers import Column, bind
from keras_vit.answers.answer import takes
from keras_vit.evaluation.features import find_encoder
from keras_vit.fit.checks.pixels import InputRange
from keras_vit.fit.model import Model
from keras_vit.io.suggest import check_known
from keras_vit.models import taps
from keras_vit.prediction.images import encoder_advice
from keras_vit.serving.openvino_engine import runner

KINDS = ("classes", "logits", "features")
_OF_CLASSES = {"classes", "logits"}


def _features(model):
    """Symbolic features (b, d) of a model, or of a pre-training model's encoder."""
    encoder = find_encoder(model)
    own = getattr(encoder, "features", None)
    return taps.features(encoder) if own is None else own


def check_kinds(model: keras.Model, kinds: Sequence[str]) -> None:
    """Raises ValueError for unknown answers, or answers that the model cannot give."""
    valid = tuple(dict.fromkeys((*KINDS, *model.answers)))
    for kind in kinds:
        check_known(kind, "answer", valid)
    if not kinds or len(set(kinds)) < len(kinds):
        raise ValueError(f"Expected one or more of {', '.join(valid)}, each once, got {list(kinds)}.")
    if model.image_size is None:
        raise ValueError(
            f'"{model.name}" needs a single image input of fixed size, got {model.input_shape}.{encoder_advice(model)}'
        )
    own = {*kinds} - {"features"}
    if not own:
        return
    for answer in bind(model):
        answer.tabled()  # refuses what needs files of its own
    if own & _OF_CLASSES and model.classes is None:
        raise ValueError(f'"{model.name}" has no classes: request features, or use a model trained to classify.')
    if model.has_zero_head():
        raise ValueError(
            "The model's head is all zeros, as before training, so its answers would be meaningless. Train it, or"
            " request features."
        )


def check_finite(outputs: dict[str, np.ndarray]) -> None:
    """Raises FloatingPointError if any of {name: values} is not finite."""
    for name, values in outputs.items():
        if not np.isfinite(values).all():
            raise FloatingPointError(
                f"The model's {name} are not finite for some images: training has diverged, or the weights are damaged."
            )


class AnswerRows:
    """A model as a function from pixels to answer columns. Create it in the scope of the model's strategy.

    Args:
        model: a ViT, a BiT or a model built on one; a pre-training model gives its encoder's features.
        kinds: one or more of the model's answers, "logits" (classes,) float32, and "features" (d,) float32. "classes":
            names and probabilities of the `top_k` most probable classes, in the columns classes and probabilities.
        top_k: largest number of classes.
        engine: None for Keras, or an engine of `keras_vit.serving.runner`.

    Attributes:
        columns: tuple of Column.
        model: Keras model from pixels to a dict of tensors.

    Raises:
        ValueError: unsupported answers or engine.
        ImportError: the engine is not installed.
    """

    def __init__(self, model: keras.Model, kinds: Sequence[str], top_k: int = 5, engine: str | None = None):
        check_kinds(model, kinds)
        own = bind(model, top_k=top_k if takes(model, "top_k") else None) if {*kinds} != {"features"} else ()
        answers = {answer.kind: answer for answer in own}
        outputs: dict[str, Any] = {}
        for answer in answers.values():
            outputs |= answer.tabled()
        if "features" in kinds:
            outputs["features"] = _features(model)
        # An encoder may be a separate graph with the surrounding model's images.
        self.model = Model(model.input if own else find_encoder(model).input, outputs)
        self.model.jit_compile = model.jit_compile
        self.model.check_pixels = model.check_pixels
        self._range = InputRange.of(self.model)
        self._outputs = self.model.predict_on_batch if engine is None else runner(self.model, engine)
        columns: list[Column] = []
        for kind in kinds:
            lone = kind not in answers
            columns += [Column(kind, "numbers", outputs[kind].shape[-1])] if lone else answers[kind].columns()
        self.columns = tuple(columns)
        self._answers = [answers[kind] for kind in kinds if kind in answers]
        self._lone = [kind for kind in kinds if kind not in answers]

    def __call__(self, images: Any) -> dict[str, np.ndarray]:
        """{column: values (b, length)} for pixels (b, height, width, c); FloatingPointError if they are not finite."""
        outputs = self._outputs(self._range.of_bytes(np.asarray(images)))
        outputs = {name: np.asarray(values, "float32") for name, values in outputs.items()}
        check_finite(outputs)
        columns = {kind: outputs[kind] for kind in self._lone}
        for answer in self._answers:
            columns |= answer.values(outputs)
        return columns
