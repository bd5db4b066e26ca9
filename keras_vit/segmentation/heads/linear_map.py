"""The linear head: one linear layer on every place of the feature map, as for frozen features (DINOv2, DINOv3)."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras

from keras_vit.layers.arguments import choice
from keras_vit.layers.normalization import BatchNormalization, LayerNormalization
from keras_vit.layers.registration import serializable
from keras_vit.layers.resizing import resize_bilinear
from keras_vit.models.heads.decoder import Decoder, Encoder
from keras_vit.models.heads.parts import PlaceClassifier

NORMS = {"batch": BatchNormalization, "layer": LayerNormalization}


@serializable
class LinearMap(keras.layers.Layer):
    """Maps, concatenated, to logits: [(b, h, w, d), ...] -> (b, h, w, classes) at the size of the largest map.

    Args:
        classes: number of outputs.
        norm: "batch" (DINOv3's recipe), "layer" or None, before the linear layer.
        dropout: rate before the linear layer.
    """

    def __init__(self, classes: int, norm: str | None = None, dropout: float = 0.0, **kwargs: Any):
        super().__init__(**kwargs)
        self.classes, self.dropout = classes, dropout
        self.norm = None if norm is None else choice(norm, "LinearMap: norm", NORMS)
        policy = self.dtype_policy
        self.normalization = None if norm is None else NORMS[norm](epsilon=1e-5, dtype=policy, name="norm")
        self.classifier = PlaceClassifier(classes, dropout, dtype=policy, name="classifier")

    def build(self, input_shapes):
        *size, _ = max(input_shapes, key=lambda shape: shape[1] * shape[2])
        shape = (*size, sum(shape[-1] for shape in input_shapes))
        if self.normalization is not None:
            self.normalization.build(shape)
        self.classifier.build(shape)

    def call(self, maps, training=False):
        size = max((x.shape[1:3] for x in maps), key=lambda size: size[0] * size[1])
        maps = [x if x.shape[1:3] == size else resize_bilinear(x, size) for x in maps]
        x = maps[0] if len(maps) == 1 else keras.ops.concatenate(maps, axis=-1)  # (b, h, w, d)
        if self.norm is not None:
            x = self.normalization(x, training=training)
        return self.classifier(x, training=training)

    def compute_output_spec(self, maps, training=False):
        b, h, w, _ = max((x.shape for x in maps), key=lambda shape: shape[1] * shape[2])
        return keras.KerasTensor((b, h, w, self.classes), self.variable_dtype)


@dataclasses.dataclass(frozen=True)
class Linear:
    """The options of the linear head.

    Attributes:
        taps: blocks with outputs to concatenate, each after the encoder's last normalisation; None for the last.
        norm, dropout: as in LinearMap.
    """

    taps: Sequence[int] | None = None
    norm: str | None = None
    dropout: float = 0.0

    def decoder(self, encoder: Encoder, classes: int, auxiliary: bool, policy: keras.DTypePolicy) -> Decoder:
        """Its layers; see HEADS."""
        if auxiliary:
            raise ValueError('The head "linear" has no auxiliary heads: leave auxiliary at 0.')
        taps = encoder.taps(self.taps, (1.0,))
        head = LinearMap(classes, self.norm, self.dropout, dtype=policy, name="head")
        return Decoder(taps, head, normalised=taps)
