"""Learned tokens beside the patches: the class token and registers."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.registration import serializable


@serializable
class ClassToken(keras.layers.Layer):
    """Inserts `count` learned tokens after the first `after` tokens of the sequence.

    The defaults insert the paper's class token at the front. `ClassToken(4, after=1, initializer="normal")` adds four registers (arXiv
    2309.16588) between the class token and the patches.

    Args:
        count: number of tokens.
        after: how many tokens of the input come before them.
        initializer: any Keras initializer; "normal" has a standard deviation of 0.02.

    Input (b, n, d); output (b, n + count, d). The weight is (1, count, d).
    """

    def __init__(
        self, count: int = 1, after: int = 0, initializer: str | keras.initializers.Initializer = "zeros", **kwargs: Any
    ):
        super().__init__(**kwargs)
        if count < 1 or after < 0:
            raise ValueError(f"ClassToken: expected count >= 1 and after >= 0, got count={count}, after={after}.")
        self.count = count
        self.after = after
        if initializer == "normal":
            initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.initializer = keras.initializers.get(initializer)

    def build(self, input_shape):
        shape = (1, self.count, input_shape[-1])
        self.tokens = self.add_weight(shape=shape, initializer=self.initializer, name="tokens")

    def call(self, x):
        tokens = ops.broadcast_to(self.tokens, (ops.shape(x)[0], self.count, x.shape[-1]))  # (b, count, d)
        tokens = ops.cast(tokens, x.dtype)
        if not self.after:
            return ops.concatenate([tokens, x], axis=1)
        return ops.concatenate([x[:, : self.after], tokens, x[:, self.after :]], axis=1)

    def compute_output_shape(self, input_shape):
        b, n, d = input_shape
        return (b, n + self.count, d)

    def get_config(self):
        initializer = keras.initializers.serialize(self.initializer)
        return {**super().get_config(), "count": self.count, "after": self.after, "initializer": initializer}
