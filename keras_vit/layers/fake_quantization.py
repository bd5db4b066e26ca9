"""Fake quantisation: products of a float model with their inputs and kernels rounded as in its int8 file.

A rounded value is a float on the grid of the integers. Its gradient passes as if nothing were rounded, inside the range
("straight through", arXiv 1308.3432), and an input's range learns (arXiv 1902.08153, its logarithm as in arXiv
1903.08066), so that training needs no state besides weights.

`attach` puts a FakeQuantizer into existing layers; neither the layers nor their models know.
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.layers.dense import inner_layers

ATTRIBUTE = "fake_quantizer"  # of a layer with one
IN_FLOATS = 'keras_vit.models.without_fake_quantization(model), for commands with .save("floats.keras")'
_STEPS = 127.0  # from 0 to the end of an input's range
KERNEL_STEPS = 64.0  # 7 bits: processors without VNNI add pairs of byte products in 16 bits, which 8 bits overflow
_SMALLEST = 1e-30  # an empty kernel column's largest value


def fake_quantized(x: Any, scale: Any) -> Any:
    """x, any shape, rounded to -128..127 times `scale`, (); gradients of both as in LSQ."""
    steps = ops.clip(x / scale, -128.0, 127.0)
    return (steps + ops.stop_gradient(ops.round(steps) - steps)) * scale


def fake_quantized_kernel(kernel: Any) -> Any:
    """A kernel (c, d) rounded to -64..64 times a scale for each output, by its largest weight; the gradient passes."""
    largest = ops.max(ops.abs(kernel), axis=0, keepdims=True)
    scale = ops.stop_gradient(ops.maximum(largest, _SMALLEST) / KERNEL_STEPS)
    return kernel + ops.stop_gradient(ops.round(kernel / scale) * scale - kernel)


class FakeQuantizer(keras.layers.Layer):
    """Rounds the inputs of layers that share one, and the kernels of these layers, in float32 under every policy.

    Attributes:
        log_range: weight (), the logarithm of the largest value that an input keeps.
        observe: a function of inputs, called instead of rounding, to calibrate the range; None afterwards.
    """

    observe: Callable[[Any], None] | None = None

    def __init__(self, name: str = ATTRIBUTE):
        super().__init__(name=name, dtype="float32", autocast=False)

    def build(self):
        self.log_range = self.add_weight(shape=(), initializer="zeros", name="log_range")

    @property
    def range(self) -> float:
        """The largest value that an input keeps."""
        return math.exp(float(ops.convert_to_numpy(self.log_range)))

    def call(self, x, kernel):
        """(inputs, any shape, and a kernel, both rounded); `kernel` is a function, which reads the whole precision."""
        weight = ops.convert_to_tensor(kernel())
        if self.observe is not None:
            self.observe(x)
            return x, weight
        # Sums over many values, whose gradient would be larger than all others': section 2.2 of arXiv 1902.08153.
        share = 1 / math.sqrt(x.shape[-1] * 127)
        log_range = ops.convert_to_tensor(self.log_range)
        log_range = share * log_range + (1 - share) * ops.stop_gradient(log_range)
        rounded = fake_quantized(ops.cast(x, "float32"), ops.exp(log_range) / _STEPS)
        return ops.cast(rounded, x.dtype), fake_quantized_kernel(weight)


def can_quantize(layer: keras.layers.Layer) -> bool:
    """Whether a layer is one product of its input and a kernel, and can have a FakeQuantizer."""
    return isinstance(layer, keras.layers.Dense) and layer.built


def attach(layers: Sequence[keras.layers.Layer]) -> FakeQuantizer:
    """Gives built layers with the same input one FakeQuantizer, unless they have one, and returns it."""
    known = [vars(layer)[ATTRIBUTE] for layer in layers if ATTRIBUTE in vars(layer)]
    quantizer = known[0] if known else _quantizer(layers[0])
    for layer in layers:
        if ATTRIBUTE in vars(layer):
            continue
        layer._tracker.unlock()  # a built layer takes no other parts
        layer.fake_quantizer = quantizer
        layer._tracker.lock()
        layer.call = _rounding(layer, quantizer, layer.call)
    return quantizer


def _quantizer(layer):
    """A FakeQuantizer with a path inside `layer`."""
    quantizer = FakeQuantizer()
    with contextlib.ExitStack() as scopes:
        for name in layer.path.split("/"):
            scopes.enter_context(keras.name_scope(name))
        quantizer.build()
    return quantizer


def _rounding(layer, quantizer, call):
    """`call`, a layer's own, of a rounded input and with a rounded kernel."""

    def rounding(x, *args, **options):
        if isinstance(x, keras.KerasTensor):  # counts a model's operations
            return call(x, *args, **options)
        x, kernel = quantizer(x, kernel=lambda: layer._kernel)
        values = [(layer._kernel, kernel)] + ([] if layer.bias is None else [(layer.bias, layer.bias.value)])
        with keras.StatelessScope(values, initialize_variables=False):  # gives the kernel another value
            return call(x, *args, **options)

    return rounding


def fake_quantizers(model: keras.layers.Layer) -> dict[keras.layers.Layer, FakeQuantizer]:
    """{layer: its FakeQuantizer} inside a model, at any depth."""
    return {layer: vars(layer)[ATTRIBUTE] for layer in model._flatten_layers() if ATTRIBUTE in vars(layer)}


def check_plain(model: keras.Model, purpose: str) -> None:
    """Refuses a model with fake quantisation; `purpose`, the start of the message, says what needs one without."""
    if fake_quantizers(model):
        raise ValueError(
            f'{purpose} needs a model without fake quantisation, and "{model.name}" has it. Take the one in floats:'
            f" {IN_FLOATS}."
        )


def groups(model: keras.Model) -> list[list[str]]:
    """The paths inside a model of its layers with a FakeQuantizer, those that share one together."""
    found: dict[int, list[str]] = {}
    for path, layer in inner_layers(model).items():
        if ATTRIBUTE in vars(layer):
            found.setdefault(id(vars(layer)[ATTRIBUTE]), []).append(path)
    return list(found.values())


def attach_groups(model: keras.Model, paths: Sequence[Sequence[str]]) -> list[FakeQuantizer]:
    """Attaches what `groups` describes; ValueError for a path without such a layer."""
    inner = inner_layers(model)
    wrong = [path for group in paths for path in group if path not in inner or not can_quantize(inner[path])]
    if wrong or not all(paths):
        raise ValueError(
            f"fake quantisation of layers that are missing, or not dense: {', '.join(map(str, wrong[:5]))}"
        )
    return [attach([inner[path] for path in group]) for group in paths]


def copy_fake_quantization(model: keras.Model, copy: keras.Model) -> None:
    """Gives a copy of a model without fake quantisation, with the same layers, that of the model."""
    inner, paths = inner_layers(model), groups(model)
    for group, quantizer in zip(paths, attach_groups(copy, paths)):
        quantizer.log_range.assign(vars(inner[group[0]])[ATTRIBUTE].log_range)
