"""DINO's projection head, and the centring and sharpening of the teacher's outputs (arXiv 2104.14294, section 3.1)."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.arguments import flag, integer, number
from keras_vit.layers.backend import sum_over_replicas
from keras_vit.layers.registration import serializable


@serializable
class ProjectionHead(keras.layers.Layer):
    """An MLP with GELU, l2-normalised, and a linear layer with normalised columns: features (b, d) -> logits (b, k),
    float32.

    Args:
        outputs: number of logits k.
        hidden: width of the MLP.
        bottleneck: width of the normalised vector.
        depth: number of the MLP's layers.
        scale: whether the last kernel's columns have learned norms; otherwise 1.

    Attributes:
        learns: a variable, 0 while the last layer is frozen, or 1.
    """

    def __init__(
        self,
        outputs: int = 65_536,
        hidden: int = 2048,
        bottleneck: int = 256,
        depth: int = 3,
        scale: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.outputs = integer(outputs, "ProjectionHead: outputs", least=2)
        self.hidden = integer(hidden, "ProjectionHead: hidden")
        self.bottleneck = integer(bottleneck, "ProjectionHead: bottleneck")
        self.depth = integer(depth, "ProjectionHead: depth")
        self.scale = flag(scale, "ProjectionHead: scale")

    def build(self, input_shape):
        self.mlp, width = [], input_shape[-1]
        for i in range(self.depth):
            last = i == self.depth - 1
            units, activation = (self.bottleneck, None) if last else (self.hidden, "gelu")
            initializer = keras.initializers.TruncatedNormal(stddev=0.02)
            layer = keras.layers.Dense(
                units, activation, kernel_initializer=initializer, dtype=self.dtype_policy, name=f"mlp_{i}"
            )
            layer.build((None, width))
            self.mlp.append(layer)
            width = units
        limit = self.bottleneck**-0.5  # torch's for a linear layer; only directions matter
        uniform = keras.initializers.RandomUniform(-limit, limit)
        self.kernel = self.add_weight(
            shape=(self.bottleneck, self.outputs), initializer=uniform, autocast=False, name="kernel"
        )
        # While frozen it is exempt from weight decay, as in the authors' code.
        self.kernel.rests_without_gradient = True
        if self.scale:
            self.norms = self.add_weight(shape=(self.outputs,), initializer="ones", autocast=False, name="norms")
        self.learns = self.add_weight(shape=(), initializer="ones", trainable=False, autocast=False, name="learns")

    def call(self, x):
        for layer in self.mlp:
            x = layer(x)
        x = ops.cast(x, "float32")
        x = x / ops.maximum(ops.norm(x, axis=-1, keepdims=True), 1e-12)
        kernel = self._held_back(self.kernel)
        kernel = kernel / ops.norm(kernel, axis=0, keepdims=True)
        # (b, bottleneck) -> (b, k)
        x = ops.matmul(ops.cast(x, self.compute_dtype), ops.cast(kernel, self.compute_dtype))
        x = ops.cast(x, "float32")
        return x * self._held_back(self.norms) if self.scale else x

    def _held_back(self, weight):
        """The weight, without gradient while `learns` is 0."""
        return self.learns * weight + (1.0 - self.learns) * ops.stop_gradient(ops.convert_to_tensor(weight))

    def compute_output_shape(self, input_shape):
        return (input_shape[0], self.outputs)

    def get_config(self):
        names = ("outputs", "hidden", "bottleneck", "depth", "scale")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


@serializable
class Sharpening(keras.layers.Layer):
    """(x - centre) / temperature of the teacher's logits x (b, v, k), without a gradient.

    Training adds up the logits; `update`, once after each step, moves the centre towards their mean over the whole
    batch, whatever its replicas and micro-batches, and counts the step. So all parts of a batch share a centre.

    Args:
        momentum: of the centre.
        temperature: after `warmup` steps of a linear rise from `first`.
    """

    def __init__(
        self, momentum: float = 0.9, temperature: float = 0.07, first: float = 0.04, warmup: int = 0, **kwargs: Any
    ):
        super().__init__(**{"trainable": False, "autocast": False, **kwargs})
        self.momentum = number(momentum, "Sharpening: momentum", least=0)
        self.temperature, self.first = (number(t, "Sharpening: temperature", least=0) for t in (temperature, first))
        if not self.temperature or not self.first:
            raise ValueError("Sharpening: temperatures must be above 0.")
        self.warmup = integer(warmup, "Sharpening: warmup", least=0)

    def build(self, input_shape):
        zeros = {"initializer": "zeros", "trainable": False}
        self.center = self.add_weight(shape=(input_shape[-1],), name="center", **zeros)
        self.step = self.add_weight(shape=(), dtype="int32", name="step", **zeros)
        # Each replica has its own part.
        part = {**zeros, "dtype": "float32", "aggregation": "sum", "synchronization": "on_read"}
        self.total = keras.Variable(shape=(input_shape[-1],), name="total", **part)
        self.count = keras.Variable(shape=(), name="count", **part)

    def call(self, x, training=False):
        x = ops.stop_gradient(x)
        if training:
            self.total.assign_add(ops.sum(x, axis=(0, 1)))
            self.count.assign_add(ops.cast(ops.shape(x)[0] * x.shape[1], "float32"))
        return (x - self.center) / self.current()

    def current(self) -> Any:
        """The temperature at the present step."""
        progress = ops.minimum(ops.cast(self.step, "float32") / max(self.warmup, 1), 1.0) if self.warmup else 1.0
        return self.first + (self.temperature - self.first) * progress

    def update(self) -> None:
        total, count = sum_over_replicas([ops.convert_to_tensor(self.total), ops.convert_to_tensor(self.count)])
        mean = total / ops.maximum(count, 1.0)
        self.center.assign(self.momentum * self.center + (1.0 - self.momentum) * mean)
        self.total.assign(ops.zeros_like(total))
        self.count.assign(ops.zeros_like(count))
        self.step.assign(self.step + 1)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        names = ("momentum", "temperature", "first", "warmup")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
