"""YOLOS, You Only Look at One Sequence (Fang et al., NeurIPS 2021, arXiv 2106.00666): detection tokens in a plain ViT.

Learned tokens follow the patches through all blocks, which treat them alike; two small MLPs make a class and a box of
each. Larger models add positions before every block, to these tokens too (`positions_at="every"`).

Letters: b images, n tokens of the encoder, q detection tokens, d width, k classes.
"""

import dataclasses
from typing import Any

import keras
from keras import ops

from keras_vit.layers.arguments import integer
from keras_vit.layers.boxes import from_centers
from keras_vit.layers.registration import serializable
from keras_vit.models import taps
from keras_vit.models.heads.decoder import Decoder, Encoder, check_joinable

_STDDEV = 0.02  # of new tokens and positions, as of the class token of DeiT


def _normal():
    return keras.initializers.TruncatedNormal(stddev=_STDDEV)


@serializable
class DetectionTokens(keras.layers.Layer):
    """Learned tokens with positions after those of the encoder: (b, n, d) -> (b, n + q, d).

    Args:
        count: q.
    """

    def __init__(self, count: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.count = integer(count, "DetectionTokens: count")

    def build(self, input_shape):
        shape = (self.count, input_shape[-1])
        self.tokens = self.add_weight(shape=shape, initializer=_normal(), name="tokens")
        self.positions = self.add_weight(shape=shape, initializer=_normal(), name="positions")

    def call(self, x):
        learned = ops.cast(self.tokens, x.dtype) + ops.cast(self.positions, x.dtype)  # (q, d)
        return ops.concatenate([x, ops.broadcast_to(learned, (ops.shape(x)[0], *learned.shape))], axis=1)

    def compute_output_shape(self, input_shape):
        b, n, d = input_shape
        return (b, None if n is None else n + self.count, d)


@serializable
class DetectionPositions(keras.layers.Layer):
    """Positions of detection tokens before a block: (b, q, d) -> (b, q, d)."""

    def build(self, input_shape):
        self.positions = self.add_weight(shape=input_shape[1:], initializer=_normal(), name="positions")

    def call(self, x):
        return x + ops.cast(self.positions, x.dtype)

    def compute_output_shape(self, input_shape):
        return input_shape


@serializable
class SetHead(keras.layers.Layer):
    """A class and a box for each detection token: (b, q, d) -> logits (b, q, k + 1), boxes (b, q, 4), both float32.

    Two MLPs of three layers with ReLU, as in DETR (arXiv 2005.12872, section 3.2). The last class is "no object". Boxes
    are top, left, bottom, right as fractions of the image, from the sigmoid of centre x, centre y, width, height.

    Args:
        classes: k.
    """

    def __init__(self, classes: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.classes = integer(classes, "SetHead: classes")

    def build(self, input_shape):
        width, policy = input_shape[-1], self.dtype_policy
        sizes = {"class": (width, width, self.classes + 1), "box": (width, width, 4)}
        self.mlps = {}
        for name, units in sizes.items():
            layers = []
            for i, out in enumerate(units):
                # The last layers are small, and their numbers matter: in float32 under every policy.
                dtype = policy if i < 2 else policy.variable_dtype
                layer = keras.layers.Dense(out, "relu" if i < 2 else None, dtype=dtype, name=f"{name}_{i}")
                layer.build(input_shape if i == 0 else (*input_shape[:-1], width))
                layers.append(layer)
            self.mlps[name] = layers

    def call(self, x):
        found = []
        for layers in (self.mlps["class"], self.mlps["box"]):
            y = x
            for layer in layers:
                y = layer(y)
            found.append(ops.cast(y, "float32"))
        logits, centers = found
        x, y, width, height = ops.split(ops.sigmoid(centers), 4, axis=-1)
        return logits, from_centers(ops.concatenate([y, x, height, width], axis=-1))

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.classes + 1), (*input_shape[:-1], 4)


def token_outputs(encoder: Any, decoder: Decoder) -> dict[str, Any]:
    """The symbolic logits and boxes of detection tokens in a ViT, as SetHead returns them.

    Args:
        encoder: the ViT, a Classifier.
        decoder: as `YOLOS.decoder` returns it.
    """
    blocks, added = taps.blocks(encoder), dict(decoder.auxiliary)
    norm = encoder.get_layer(taps.family_in(encoder).encoded)
    n = blocks[0].input.shape[1]
    assert decoder.neck is not None, "YOLOS makes one"
    x = decoder.neck(blocks[0].input)
    for i, block in enumerate(blocks):
        if i in added:
            table = encoder.get_layer(f"position_embedding_{i:02d}")
            x = ops.concatenate([table(x[:, :n]), added[i](x[:, n:])], axis=1)
        x = block(x)
    logits, boxes = decoder.head(norm(x)[:, n:])
    return {"logits": logits, "boxes": boxes}


@dataclasses.dataclass(frozen=True)
class YOLOS:
    """The options of YOLOS.

    Attributes:
        tokens: the largest number of objects that can be found in an image.
    """

    tokens: int = 100

    def __post_init__(self):
        integer(self.tokens, "tokens")

    def decoder(self, encoder: Encoder, classes: int, policy: keras.DTypePolicy) -> Decoder:
        """Its layers; see HEADS."""
        spec = encoder.spec
        others = bool(getattr(spec, "inner_positions", None)) or getattr(spec, "positions_at", "stem") == "shared"
        check_joinable("yolos", spec, "tables of positions, at the stem or at each block", others)
        neck = DetectionTokens(self.tokens, dtype=policy, name="neck")
        head = SetHead(classes, dtype=policy, name="head")
        blocks = range(1, encoder.depth) if spec.positions_at == "every" else ()
        added = [(i, DetectionPositions(dtype=policy, name=f"detection_positions_{i:02d}")) for i in blocks]
        return Decoder(tuple(range(encoder.depth)), head, neck, tuple(added), joins=True)
