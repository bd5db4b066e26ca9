"""How well each image and each text fit, from their embeddings (CLIP: arXiv 2103.00020; SigLIP: arXiv 2303.15343)."""

import math
from typing import Any

import keras
from keras import ops

from keras_vit.layers.arguments import number
from keras_vit.layers.backend import gather_over_replicas
from keras_vit.layers.registration import serializable


@serializable
class Similarity(keras.layers.Layer):
    """exp(t) cos(image, text) + b, for every image with every text.

    Args:
        scale: initial value of exp(t), the inverse temperature.
        bias: initial value of b; None for no bias.

    Inputs: normalised embeddings of images (b, d) and of texts (c, d). Output: logits (b, c), in float32 under every
    policy but float64.

    With `everywhere=True`, for training on pairs: logits (b, 2, B) of each image with the texts of all replicas, and of
    each text with their images, B = replicas * b. A replica has only its rows.
    """

    synchronized = True  # it sums over replicas, in its gradient

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

    def _scores(self, rows, others):
        scores = ops.exp(self.log_scale) * ops.matmul(rows, ops.transpose(others))  # (b, d), (c, d) -> (b, c)
        return scores if self.bias is None else scores + self.offset

    def call(self, images, texts, everywhere=False):
        images, texts = (ops.cast(x, self.variable_dtype) for x in (images, texts))
        if not everywhere:
            return self._scores(images, texts)
        all_images, all_texts = gather_over_replicas([images, texts])
        return ops.stack([self._scores(images, all_texts), self._scores(texts, all_images)], axis=1)

    def compute_output_spec(self, images, texts, everywhere=False):
        b, c = images.shape[0], texts.shape[0]
        return keras.KerasTensor((b, 2, c) if everywhere else (b, c), self.variable_dtype)
