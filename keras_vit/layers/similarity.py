"""How well each image and each text fit, from their embeddings (CLIP: arXiv 2103.00020; SigLIP: arXiv 2303.15343)."""

import math
from typing import Any

import keras
from keras import ops

from keras_vit.layers.arguments import number
from keras_vit.layers.registration import serializable


@serializable
class Similarity(keras.layers.Layer):
    """exp(t) cos(image, text) + b, for every image with every text.

    Args:
        scale: initial value of exp(t), the inverse temperature.
        bias: initial value of b; None for no bias.

    Inputs: normalised embeddings of images (b, d) and of texts (c, d). Output: logits (b, c), in float32 under every
    policy but float64.
    """

    def __init__(self, scale: float = 10.0, bias: float | None = -10.0, **kwargs: Any):
        super().__init__(**{"autocast": False, **kwargs})
        self.scale = number(scale, "Similarity: scale", least=0)
        if not self.scale:
            raise ValueError("Similarity: scale must be above 0, got 0.")
        self.bias = None if bias is None else number(bias, "Similarity: bias")

    def build(self, images_shape, texts_shape):
        if images_shape[-1] != texts_shape[-1]:
            raise ValueError(
                f"Similarity: embeddings of images have {images_shape[-1]} values, those of texts {texts_shape[-1]}."
                " Project one to the width of the other."
            )
        constant = keras.initializers.Constant
        self.log_scale = self.add_weight(shape=(), initializer=constant(math.log(self.scale)), name="log_scale")
        if self.bias is not None:
            self.offset = self.add_weight(shape=(), initializer=constant(self.bias), name="bias")

    def call(self, images, texts):
        images, texts = (ops.cast(x, self.variable_dtype) for x in (images, texts))
        scores = ops.exp(self.log_scale) * ops.matmul(images, ops.transpose(texts))  # (b, d), (c, d) -> (b, c)
        return scores if self.bias is None else scores + self.offset

    def compute_output_shape(self, images_shape, texts_shape):
        return (images_shape[0], texts_shape[0])
