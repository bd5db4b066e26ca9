"""Quantisation-aware training (arXiv 1712.05877): fine-tuning with the rounding of the int8 file that comes afterwards.

model = keras_vit.load("runs/mine")
keras_vit.models.quantize_aware(model, images)  # some hundred training images
model.compile(...); model.fit(...)              # a few epochs, at a low learning rate
keras_vit.export(model, "mine.onnx", quantization="int8_static")  # LiteRT also takes calibration=images
"""

import math
from typing import Any

import keras
import numpy as np
from absl import logging
from keras import ops

from keras_vit.fit.checks.inputs import check_images
from keras_vit.fit.model import Model
from keras_vit.layers.dense import Dense, inner_layers
from keras_vit.layers.fake_quantization import (
    FakeQuantizer,
    attach_groups,
    can_quantize,
    fake_quantized_kernel,
    fake_quantizers,
    groups,
)
from keras_vit.layers.quantization import quantized_layers

FEWEST = 16  # inputs from which ranges are found, here and in exports
_BATCH = 16


def _candidates(model):
    """{path: dense layer}, some of which `_shared_inputs` leaves out."""
    return {path: layer for path, layer in inner_layers(model).items() if can_quantize(layer)}


def check(model: keras.Model) -> None:
    """Refuses a model that `quantize_aware` does not suit: ValueError."""
    suits = isinstance(model, Model) and model.answers and model.image_size is not None and not model.parts
    if not suits or len(model.inputs) > 1:
        raise ValueError(
            f"quantize_aware: expected a model with one answer from images, got {getattr(model, 'name', model)!r}, a"
            f" {type(model).__name__}. Train the encoder of a pre-training model, model.get_encoder(), and a tower of a"
            ' DualEncoder, model.tower("image").'
        )
    layers = _candidates(model)
    if fake_quantizers(model):
        raise ValueError(f'quantize_aware: "{model.name}" has fake quantisation already: train or export it as it is.')
    if quantized_layers(model):
        raise ValueError(f'quantize_aware: "{model.name}" is quantised already: begin with the model in floats.')
    if any(getattr(layer, "lora_enabled", False) for layer in layers.values()):
        raise ValueError(
            f'quantize_aware: "{model.name}" has LoRA, whose kernels are frozen. Merge it first:'
            " keras_vit.models.merge_lora(model)."
        )
    if not layers:
        raise ValueError(f'quantize_aware: "{model.name}" has no dense layers.')
    frozen = [path for path, layer in layers.items() if not layer.trainable]
    if frozen:
        raise ValueError(
            f"quantize_aware: layers are frozen, and kernels that do not learn cannot adapt to rounding:"
            f" {', '.join(frozen[:3])} ({len(frozen)} in all). Set model.trainable = True first."
        )


def _shared_inputs(model, layers, image):
    """The paths of the layers that an int8 file rounds, those with the same input together, by a call of the model."""
    seen, kept = {}, []

    def recording(path, call):
        def record(x, *args, **options):
            kept.append(x)  # so that no other tensor gets its id
            # Keras flattens the axes of tensors other than tokens, and files keep these products in floats.
            if isinstance(layers[path], Dense) or len(x.shape) == 2:
                seen.setdefault(path, set()).add(id(x))
            return call(x, *args, **options)

        return record

    for path, layer in layers.items():
        layer.call = recording(path, layer.call)
    try:
        model(image, training=False)
    finally:
        for layer in layers.values():
            del layer.call
    by_input: dict[frozenset, list[str]] = {}
    for path in layers:
        if path in seen:
            by_input.setdefault(frozenset(seen[path]), []).append(path)
    return list(by_input.values())


class _Largest:
    """The largest absolute value that a layer reads.

    Smaller ranges round most values better, but clip the few large ones that transformers need. Without training, an
    LW-DETR on DeiT-Ti has an AP of 35.5% on BCCD (35.2% in floats); with ranges of least squared error 33.4%.
    """

    value = 0.0

    def __call__(self, x):
        self.value = max(self.value, float(ops.max(ops.abs(ops.cast(x, "float32")))))


def prepare(model: keras.Model) -> None:
    """Attaches fake quantisation to a model, with ranges that `calibrate` has to set; arguments as quantize_aware's."""
    check(model)
    image = ops.zeros((1, *model.image_size, model.channels))
    attach_groups(model, _shared_inputs(model, _candidates(model), image))
    model.train_function = model.test_function = model.predict_function = None  # of the functions before


def calibrate(model: keras.Model, images: np.ndarray) -> None:
    """Sets the ranges of a prepared model from images (n, height, width, c), as for `fit`."""
    seen = {quantizer: _Largest() for quantizer in fake_quantizers(model).values()}
    try:
        for quantizer, observe in seen.items():
            quantizer.observe = observe
        for i in range(0, len(images), _BATCH):
            model(ops.convert_to_tensor(np.asarray(images[i : i + _BATCH], "float32")), training=False)
    finally:
        for quantizer in seen:
            quantizer.observe = None
    for quantizer, largest in seen.items():
        quantizer.log_range.assign(math.log(largest.value or 1.0))


def quantize_aware(model: keras.Model, images: np.ndarray) -> list[str]:
    """Fake quantisation: the model computes as its int8 file will, and learns to. Call it before compile.

    The encoder's dense layers and a classifier's head round their inputs to 8 bits and their kernels to 7, as
    `keras_vit.export(model, "x.onnx", quantization="int8_static")` does, which then needs no calibration. Everything
    else, such as a dense head, stays in floats, here and in the file; a LiteRT file rounds more, and calibrates that.
    Weights stay floats, and gradients pass as if nothing were rounded. The range of an input starts at the largest
    value for `images`, and learns.

    `.keras` files, checkpoints and `clone()` keep it; `without_fake_quantization` gives the model in floats.

    Args:
        model: a trained keras_vit.Model that predicts: a ViT, a SegmentationModel... Changed in place.
        images: pixels (n, height, width, c), as for `fit`, 16 or more; some hundred training images are enough.

    Returns:
        The paths of the layers, such as "block_00/attention/query".

    Raises:
        ValueError: for a model that only trains another one, has several inputs, is quantised, has LoRA, frozen layers,
            or no such layer; for fewer images, or of another size or scale. The model is as it was.
    """
    check(model)
    images, expected = np.asarray(images), (*model.image_size, model.channels)
    if images.shape[1:] != expected or len(images) < FEWEST:
        raise ValueError(
            f"quantize_aware: expected pixels of at least {FEWEST} images, (n, {', '.join(map(str, expected))}), got"
            f" the shape {images.shape}."
        )
    check_images(model, images)
    prepare(model)
    calibrate(model, images)
    return [path for group in groups(model) for path in group]


def _plain(config):
    """A config without its fake quantisation, and that of nested models."""
    if isinstance(config, dict):
        return {key: _plain(value) for key, value in config.items() if key != "fake_quantization"}
    return [_plain(value) for value in config] if isinstance(config, list) else config


def _rounded(layer):
    return fake_quantized_kernel(ops.convert_to_tensor(layer.kernel))


def without_fake_quantization(model: Model, rounded: bool = False) -> Model:
    """A copy of a model that rounds nothing; with `rounded` kernels as in training, otherwise as they are stored."""
    copy = type(model).from_config(_plain(model.get_config()))
    copies, quantizers = {"": copy, **inner_layers(copy)}, fake_quantizers(model)
    for path, layer in {"": model, **inner_layers(model)}.items():
        weights: dict[str, Any] = {}
        layer.save_own_variables(weights)
        if weights and not isinstance(layer, FakeQuantizer):
            copies[path].load_own_variables({key: ops.copy(value) for key, value in weights.items()})
        if rounded and layer in quantizers:
            copies[path].kernel.assign(_rounded(layer))
    return copy


def in_floats(model: Model, path: Any) -> Model:
    """A model from `path` without fake quantisation: as it is, or a copy if it was trained for int8, with a warning."""
    if not fake_quantizers(model):
        return model
    logging.warning("%s was trained for int8: its weights are taken in floats, without the learned ranges.", path)
    return without_fake_quantization(model)


def learned_ranges(model: keras.Model) -> dict[str, float]:
    """{path inside the model: the largest value of a layer's input} of the layers with fake quantisation."""
    quantizers = fake_quantizers(model)
    return {path: quantizers[layer].range for path, layer in inner_layers(model).items() if layer in quantizers}
