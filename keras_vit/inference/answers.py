"""A model's answers for a batch of images as table columns: classes, logits, features."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.classification.classify import check_top_k, probability_function
from keras_vit.detection.detect import finds_objects
from keras_vit.evaluation.features import encoder_of
from keras_vit.fit.checks.pixels import InputRange
from keras_vit.fit.model import Model
from keras_vit.inference.tables import Column
from keras_vit.io.suggest import did_you_mean
from keras_vit.models import taps
from keras_vit.prediction.images import encoder_advice
from keras_vit.segmentation.segment import is_dense, segments
from keras_vit.serving.openvino_engine import runner

KINDS = ("classes", "logits", "features")


def _features_of(model):
    """Symbolic features (b, d) of a model, or of a pre-training model's encoder."""
    encoder = encoder_of(model)
    own = getattr(encoder, "features", None)
    return taps.features(encoder) if own is None else own


def check_kinds(model: keras.Model, kinds: Sequence[str]) -> None:
    """Raises ValueError for unknown answers, or answers that the model cannot give."""
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(f'Unknown answer "{kind}".{did_you_mean(kind, KINDS)} Valid: {", ".join(KINDS)}.')
    if not kinds or len(set(kinds)) < len(kinds):
        raise ValueError(f"Expected one or more of {', '.join(KINDS)}, each once, got {list(kinds)}.")
    if model.image_size is None:
        raise ValueError(
            f'"{model.name}" needs a single image input of fixed size, got {model.input_shape}.{encoder_advice(model)}'
        )
    if set(kinds) == {"features"}:
        return
    if finds_objects(model):
        raise ValueError(f'"{model.name}" detects objects: use predict_objects, or request only features.')
    if segments(model):
        raise ValueError(f'"{model.name}" gives every pixel a class: use predict_masks, or request only features.')
    if is_dense(model):
        raise ValueError(
            f'"{model.name}" has one output per pixel, such as a depth: use model.predict, or request only features.'
        )
    if model.classes is None:
        raise ValueError(f'"{model.name}" has no classes: request features, or use a model trained to classify.')
    if hasattr(model, "has_zero_head") and model.has_zero_head():
        raise ValueError(
            "The model's head is all zeros, as before training, so its answers would be meaningless. Train it, or"
            " request features."
        )


def best(probabilities: np.ndarray, names: np.ndarray, top_k: int) -> dict[str, np.ndarray]:
    """Names and probabilities (b, k) of the top k classes, best first, from probabilities (b, classes)."""
    order = np.argsort(-probabilities, axis=-1, kind="stable")[:, :top_k]  # (b, k)
    return {"classes": names[order], "probabilities": np.take_along_axis(probabilities, order, -1)}


def columns_of(kinds: Sequence[str], top_k: int, lengths: dict[str, int]) -> tuple[Column, ...]:
    """The columns of the answers; `lengths` are the lengths of logits and features."""
    found = []
    for kind in kinds:
        if kind == "classes":
            found += [Column("classes", "texts", top_k), Column("probabilities", "numbers", top_k)]
        else:
            found.append(Column(kind, "numbers", lengths[kind]))
    return tuple(found)


def check_finite(outputs: dict[str, np.ndarray]) -> None:
    """Raises FloatingPointError if any of {name: values} is not finite."""
    for name, values in outputs.items():
        if not np.isfinite(values).all():
            raise FloatingPointError(
                f"The model's {name} are not finite for some images: training has diverged, or the weights are damaged."
            )


class Answers:
    """A model as a function from pixels to answer columns. Create it in the scope of the model's strategy.

    Args:
        model: a ViT, a BiT or a model built on one; a pre-training model gives its encoder's features.
        kinds: one or more of KINDS. "classes": names and probabilities of the `top_k` most probable classes, in the
            columns classes and probabilities; "logits": (classes,) float32; "features": (d,) float32.
        top_k: largest number of classes.
        engine: None for Keras, or an engine of `keras_vit.serving.runner`.

    Attributes:
        columns: tuple of Column.
        model: Keras model from pixels to a dict of tensors.

    Raises:
        ValueError: unsupported answers or engine.
        ImportError: the engine is not installed.
    """

    def __init__(
        self, model: keras.Model, kinds: Sequence[str] = ("classes",), top_k: int = 5, engine: str | None = None
    ):
        check_kinds(model, kinds)
        self._kinds, self._top_k, outputs = tuple(kinds), min(check_top_k(top_k), model.classes or 0), {}
        if set(kinds) != {"features"}:
            outputs["logits"] = model.output
            self._probabilities = probability_function(model)
            self._names = np.array(model.class_names or [str(i) for i in range(model.classes)], object)
        if "features" in kinds:
            outputs["features"] = _features_of(model)
        # An encoder may be a separate graph with the surrounding model's images.
        inputs = model.input if "logits" in outputs else encoder_of(model).input
        self.model = Model(inputs, outputs)
        self.model.jit_compile = model.jit_compile
        self.model.check_pixels = model.check_pixels
        self._range = InputRange.of(self.model)
        self._outputs = self.model.predict_on_batch if engine is None else runner(self.model, engine)
        lengths = {name: int(tensor.shape[-1]) for name, tensor in outputs.items()}
        self.columns = columns_of(kinds, self._top_k, lengths)

    def __call__(self, images: Any) -> dict[str, np.ndarray]:
        """{column: values (b, length)} for pixels (b, height, width, c); FloatingPointError if they are not finite."""
        outputs = self._outputs(self._range.of_bytes(np.asarray(images)))
        outputs = {name: np.asarray(values, "float32") for name, values in outputs.items()}
        check_finite(outputs)
        answers = {name: outputs[name] for name in self._kinds if name in outputs}
        if "classes" not in self._kinds:
            return answers
        probabilities = keras.ops.convert_to_numpy(self._probabilities(outputs["logits"]))
        return {**answers, **best(np.asarray(probabilities, "float32"), self._names, self._top_k)}
