"""Learned tokens beside the patches: the class token and registers."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.arguments import is_integer
from keras_vit.layers.registration import serializable


@serializable
class ClassToken(keras.layers.Layer):
    """Inserts `count` learned tokens after the first `after` tokens of the sequence.

    The defaults insert the paper's class token at the front. `ClassToken(4, after=1, initializer="normal")` adds four
    registers (arXiv 2309.16588) between the class token and the patches.

    Args:
        count: number of tokens.
        after: how many tokens of the input come before them.
        initializer: any Keras initializer; "normal" has a standard deviation of 0.02.

    Input (b, n, d); output (b, n + count, d). The weight is (1, count, d). In a mask the new tokens are there.
    """

    def __init__(
        self, count: int = 1, after: int = 0, initializer: str | keras.initializers.Initializer = "zeros", **kwargs: Any
    ):
        super().__init__(**kwargs)
        if not (is_integer(count) and is_integer(after)) or count < 1 or after < 0:
            raise ValueError(
                f"ClassToken: expected integers count >= 1 and after >= 0, got count={count!r}, after={after!r}."
            )
        self.count = int(count)
        self.after = int(after)
        if initializer == "normal":
            initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.initializer = keras.initializers.get(initializer)
        self.supports_masking = True
        self.input_spec = keras.layers.InputSpec(ndim=3)

    def build(self, input_shape):
        if input_shape[1] is not None and input_shape[1] < self.after:
            raise ValueError(f"ClassToken: after={self.after}, but there are only {input_shape[1]} tokens.")
        shape = (1, self.count, input_shape[-1])
        self.tokens = self.add_weight(shape=shape, initializer=self.initializer, name="tokens")

    def call(self, x):
        tokens = ops.broadcast_to(self.tokens, (ops.shape(x)[0], self.count, x.shape[-1]))  # (b, count, d)
        tokens = ops.cast(tokens, x.dtype)
        if not self.after:
            return ops.concatenate([tokens, x], axis=1)
        return ops.concatenate([x[:, : self.after], tokens, x[:, self.after :]], axis=1)

    def compute_mask(self, inputs, previous_mask):
        if previous_mask is None:
            return None
        there = ops.repeat(ops.ones_like(previous_mask[:, :1]), self.count, axis=1)  # (b, count)
        return ops.concatenate([previous_mask[:, : self.after], there, previous_mask[:, self.after :]], axis=1)

    def compute_output_shape(self, input_shape):
        b, n, d = input_shape
        return (b, None if n is None else n + self.count, d)

    def get_config(self):
        initializer = keras.initializers.serialize(self.initializer)
        return {**super().get_config(), "count": self.count, "after": self.after, "initializer": initializer}
