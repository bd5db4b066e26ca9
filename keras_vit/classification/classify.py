"""Image classes with names and probabilities, for `model.classify`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vit.fit.checks.compiled import what_is
from keras_vit.fit.losses import ACTIVATIONS
from keras_vit.io.suggest import check_known
from keras_vit.layers.arguments import integer
from keras_vit.prediction.images import Preprocessor, item_name, listed


class Prediction(NamedTuple):
    """A class with its name, its probability in [0, 1] and its number."""

    name: str
    probability: float
    index: int


def check_top_k(top_k: int) -> int:
    """`top_k` as an int; ValueError unless positive."""
    return integer(top_k, "top_k")


def probability_function(model: keras.Model, activation: str | None = None) -> Callable[[Any], Any]:
    """The function from outputs to probabilities, by name; by default the model's own.

    Raises:
        ValueError: for an unknown name, a softmax over one class, or outputs that are already probabilities.
    """
    if what_is(model.output) == "probabilities":
        if activation is not None:
            raise ValueError(f"The model's outputs are probabilities already: leave out activation={activation!r}.")
        return lambda outputs: outputs
    activation = activation or model.activation or ("sigmoid" if model.classes == 1 else "softmax")
    check_known(activation, "activation", ACTIVATIONS)
    if activation == "softmax" and model.classes == 1:
        raise ValueError('The softmax of a single class is always 1: use activation="sigmoid".')
    return keras.ops.softmax if activation == "softmax" else keras.ops.sigmoid


def _best(probabilities, names, top_k):
    """The `top_k` most probable classes of one image, in order, from probabilities (classes,)."""
    order = np.argsort(-probabilities, kind="stable")[:top_k]
    return [Prediction(names[i], float(probabilities[i]), int(i)) for i in order]


def classify(model, x, top_k: int = 5, batch_size: int = 32, activation: str | None = None, verbose="auto"):
    """The classes of one image or a list; see Model.classify."""
    top_k, batch_size = check_top_k(top_k), integer(batch_size, "batch_size")
    if model.classes is None:
        raise ValueError(
            f'"{model.name}" has no classes: it returns features, or the outputs of a head of your own. Use '
            "model.predict(model.preprocess(images)), or name the classes: vit.with_head(layer, class_names=...)."
        )
    function = probability_function(model, activation)
    names = model.class_names or [str(i) for i in range(model.classes)]
    images, single = listed(x)
    prepare, results = Preprocessor(model), []
    bar = keras.utils.Progbar(len(images), unit_name="image") if verbose and len(images) > batch_size else None
    for start in range(0, len(images), batch_size):
        numbered = enumerate(images[start : start + batch_size], start)
        pixels = np.stack([prepare(item, item_name(item, i, single)) for i, item in numbered])
        outputs = np.asarray(model.predict_on_batch(prepare.range.of_bytes(pixels)), "float32")
        results += [_best(row, names, top_k) for row in keras.ops.convert_to_numpy(function(outputs))]
        if bar:
            bar.update(len(results))
    return results[0] if single else results
