"""Inputs of layers inside a model, computed for images."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.fit.checks.inputs import check_images
from keras_vit.models import taps


def call_arguments(block: keras.layers.Layer) -> dict[str, Any]:
    """Symbolic arguments of a block's call: x (b, n, d), and its masks, including Keras' own."""
    call = block._inbound_nodes[0].arguments
    given = {**dict(zip(("x", "mask", "attention_mask"), call.args)), **call.kwargs}
    implicit = getattr(given["x"], "_keras_mask", None)
    masks = {
        "mask": implicit if given.get("mask") is None else given["mask"],
        "attention_mask": given.get("attention_mask"),
    }
    return {"x": given["x"], **{name: mask for name, mask in masks.items() if mask is not None}}


def chosen(count: int, blocks: Sequence[int] | None) -> list[int]:
    """Block numbers from 0, without repetitions; ValueError for unknown ones. All `count` of them for None."""
    try:
        return list(dict.fromkeys(range(count)[i] for i in (range(count) if blocks is None else blocks)))
    except IndexError:
        raise ValueError(f"blocks={blocks}: the model has blocks 0 to {count - 1}.") from None


def converted(model: keras.Model, images: Any) -> Any:
    """Image arrays as float32 tensors of the engine; a list of them for a model with several inputs.

    ValueError for images on another scale.
    """
    is_one = isinstance(model.input, keras.KerasTensor)
    given = [np.asarray(x) for x in ([images] if is_one else images)]
    check_images(model, given)
    tensors = [ops.convert_to_tensor(x.astype("float32")) for x in given]
    return tensors[0] if is_one else tensors


def computing(model: keras.Model, calls: Mapping[Any, dict[str, Any]]) -> Callable[[Any], dict[Any, dict[str, Any]]]:
    """A function from the model's image tensors to `calls`, {key: {name: symbolic tensor or any value}}, computed."""
    encoder, image = taps.encoder_in(model)
    front = None if encoder is model else keras.Model(model.input, image)
    symbolic = {
        key: {name: t for name, t in call.items() if isinstance(t, keras.KerasTensor)} for key, call in calls.items()
    }
    tapped = keras.Model(encoder.input, symbolic)

    def compute(images):
        values = tapped(images if front is None else front(images, training=False), training=False)
        return {key: {**call, **values[key]} for key, call in calls.items()}

    return compute
