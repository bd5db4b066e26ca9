"""RF-DETR-Seg: RF-DETR (arXiv 2511.09554) with a mask for each query.

The map that the decoder reads is enlarged to a quarter of the image, and refined by one block for each decoder layer.
A mask is the product of a query, after an MLP, with each place of this map.

Letters: b images, g groups of queries, q queries, s predictions (one per decoder layer, then the proposals), d width, k
classes, h w places of the masks, p = h * w.
"""

import dataclasses
from typing import Any

import keras
from keras import ops

from keras_vit.detection.heads.lw_detr import RFDETR, QueryDecoder
from keras_vit.layers.arguments import integer
from keras_vit.layers.normalization import LayerNormalization
from keras_vit.layers.registration import serializable
from keras_vit.layers.resizing import resize_bilinear
from keras_vit.models.headed import decoder_maps
from keras_vit.models.heads.decoder import Decoder, Encoder


@serializable
class PlaceBlock(keras.layers.Layer):
    """x + GELU(dense(norm(3x3 depthwise convolution of x))): (b, h, w, d) -> the same."""

    def build(self, input_shape):
        policy = self.dtype_policy
        self.depthwise = keras.layers.DepthwiseConv2D(
            3, padding="same", data_format="channels_last", dtype=policy, name="depthwise"
        )
        self.norm = LayerNormalization(1e-6, dtype=policy, name="norm")
        self.dense = keras.layers.Dense(input_shape[-1], dtype=policy, name="dense")
        for layer in (self.depthwise, self.norm, self.dense):
            layer.build(input_shape)

    def call(self, x, training=False):
        y = self.dense(self.norm(self.depthwise(x), training=training))
        return x + ops.gelu(y, approximate=False)


@serializable
class MaskBranch(keras.layers.Layer):
    """The factors of masks: a map (b, h', w', d) and queries, s of (b, n, d) -> s of (b, n, d + 1), s of (b, p, d + 1).

    A query's mask logits are its products with the p places. The last queries are proposals, whose map has no block of
    its own. A bias of all masks is the queries' last channel.

    Args:
        size: (h, w) of the masks.
        blocks: s - 1, the number of decoder layers.
    """

    def __init__(self, size: tuple[int, int], blocks: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.size, self.blocks = tuple(size), integer(blocks, "MaskBranch: blocks")

    def build(self, map_shape, query_shape):
        policy, d = self.dtype_policy, map_shape[-1]

        def dense(units, name, activation=None):
            return keras.layers.Dense(units, activation, dtype=policy, name=name)

        self.refining = [PlaceBlock(dtype=policy, name=f"block_{i}") for i in range(self.blocks)]
        self.places, self.query = dense(d, "places"), dense(d, "query")
        self.query_norm = LayerNormalization(1e-5, dtype=policy, name="query_norm")
        self.query_hidden, self.query_out = dense(4 * d, "query_hidden"), dense(d, "query_out")
        for layer in (*self.refining, self.places):
            layer.build((map_shape[0], *self.size, d))
        for layer in (self.query_norm, self.query_hidden, self.query):
            layer.build(query_shape)
        self.query_out.build((*query_shape[:-1], 4 * d))
        self.bias = self.add_weight(shape=(1,), initializer="zeros", name="bias")

    def _queries(self, x, training):
        """(b, n, d) -> (b, n, d + 1)."""
        y = ops.gelu(self.query_hidden(self.query_norm(x, training=training)), approximate=False)
        y = self.query(x + self.query_out(y))
        bias = ops.zeros_like(y[..., :1]) + ops.cast(self.bias, y.dtype)
        return ops.concatenate([y, bias], axis=-1)

    def _places(self, x):
        """(b, h, w, d) -> (b, p, d + 1)."""
        (h, w), d = self.size, x.shape[-1]
        y = ops.reshape(self.places(x), (-1, h * w, d))
        return ops.concatenate([y, ops.ones_like(y[..., :1])], axis=-1)

    def call(self, x, queries, training=False):
        x = ops.cast(resize_bilinear(x, self.size), self.compute_dtype)  # (b, h', w', d) -> (b, h, w, d)
        first, places = self._places(x), []
        for block in self.refining:
            x = block(x, training=training)
            places.append(self._places(x))
        return [self._queries(y, training) for y in queries], [*places, first]


@serializable
class QueryMaskDecoder(QueryDecoder):
    """QueryDecoder with masks: [(b, h', w', d), ...] -> logits, boxes, masks, and what PackedMasks takes.

    Logits (b, q, k), boxes (b, q, 4) and mask logits (b, h, w, q), float32, are those of the last layer, for the first
    group.

    Args:
        size: (h, w) of the masks.
        others: as in QueryDecoder.
    """

    def __init__(self, *args: Any, size: tuple[int, int], **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.size = (size[0], size[1])
        self.masks = MaskBranch(self.size, self.layers, dtype=self.dtype_policy, name="masks")

    def build(self, input_shapes):
        super().build(input_shapes)
        self.masks.build(input_shapes[0], (None, self.queries, input_shapes[0][-1]))

    def call(self, maps, training=False):
        prediction, queries = self.decoded(maps, training=training)
        queries, places = self.masks(maps[0], queries, training=training)
        masks = ops.matmul(places[-2], ops.transpose(queries[-2][:, : self.queries], (0, 2, 1)))  # (b, p, q)
        masks = ops.cast(ops.reshape(masks, (-1, *self.size, self.queries)), "float32")
        return *self._last(prediction), masks, prediction, ops.stack(queries, axis=1), ops.stack(places, axis=1)

    def compute_output_spec(self, maps, training=False):
        logits, boxes, prediction = super().compute_output_spec(maps, training=training)
        (b, s, *_), (h, w), c = prediction.shape, self.size, maps[0].shape[-1] + 1
        masks = keras.KerasTensor((b, h, w, self.queries), "float32")
        factors = (keras.KerasTensor((b, s, n, c), self.compute_dtype) for n in (None, h * w))
        return logits, boxes, masks, prediction, *factors


@serializable
class PackedMasks(keras.layers.Layer):
    """One tensor of all that a loss needs: (b, s, g, q + r, 4 + k + d + 1), float32; r is p / g, rounded up.

    Keras gives a loss one tensor, and the masks of all groups would be larger by far than their factors: predictions
    (b, s, g, q, 4 + k), queries (b, s, g*q, d + 1) and places (b, s, p, d + 1). For each group it has the rows of its
    queries, boxes and logits and then factors, and its share of the rows of places.
    """

    def __init__(self, **kwargs: Any):
        super().__init__(**{"autocast": False, **kwargs})

    def call(self, prediction, queries, places):
        (_, s, _, q, c), (p, d) = prediction.shape, places.shape[2:]
        g = ops.shape(prediction)[2] if prediction.shape[2] is None else prediction.shape[2]
        factors = ops.reshape(ops.cast(queries, "float32"), (-1, s, g, q, d))
        rows = -(-p // g)
        maps = ops.pad(ops.cast(places, "float32"), ((0, 0), (0, 0), (0, g * rows - p), (0, 0)))
        maps = ops.pad(ops.reshape(maps, (-1, s, g, rows, d)), ((0, 0),) * 4 + ((c, 0),))
        return ops.concatenate([ops.concatenate([prediction, factors], axis=-1), maps], axis=3)

    def compute_output_spec(self, prediction, queries, places):
        (b, s, g, _, c), d = prediction.shape, places.shape[3]
        return keras.KerasTensor((b, s, g, None, c + d), "float32")


def unpacked_masks(packed: Any, classes: int, places: int) -> tuple[Any, Any, Any]:
    """What was packed: predictions (b, s, g, q, 4 + k), queries (b, s, g, q, d + 1) and places (b, s, p, d + 1).

    Args:
        packed: as from PackedMasks.
        classes: k.
        places: p.
    """
    (_, s, g, n, _), c = packed.shape, 4 + classes
    q = n - -(-places // g)
    maps = ops.reshape(packed[..., q:, c:], (-1, s, g * (n - q), packed.shape[-1] - c))
    return packed[..., :q, :c], packed[..., :q, c:], maps[:, :, :places]


@dataclasses.dataclass(frozen=True)
class RFDETRSeg(RFDETR):
    """The options of RF-DETR-Seg: those of RF-DETR, and the masks' grid.

    Attributes:
        layers: of the decoder; 4 (N, S), 5 (M, L) or 6 (XL, 2XL).
        mask_stride: pixels of the image for a cell of the masks.
    """

    layers: int = 4
    mask_stride: int = 4

    def __post_init__(self):
        super().__post_init__()
        integer(self.mask_stride, "mask_stride")

    def decoder(self, encoder: Encoder, classes: int, auxiliary: bool, policy: keras.DTypePolicy) -> Decoder:  # type: ignore[override]
        """Its layers; see instance_heads.HEADS. The auxiliary one packs what the loss needs."""
        made = super().decoder(encoder, classes, policy)
        packing = ((0, PackedMasks(dtype="float32", name="auxiliary_0")),) if auxiliary else ()
        return dataclasses.replace(made, auxiliary=packing)

    def _head(self, encoder, classes, policy):
        size = tuple(max(1, side // self.mask_stride) for side in encoder.image_size)
        return QueryMaskDecoder(*self._form(classes), size=size, dtype=policy, name="head")


def mask_outputs(encoder: Any, decoder: Decoder) -> dict[str, Any]:
    """The symbolic outputs of a QueryMaskDecoder: logits, boxes and masks; for training "prediction", packed."""
    assert decoder.neck is not None, "RFDETR makes one"
    logits, boxes, masks, *rest = decoder.head(decoder.neck(decoder_maps(encoder, decoder)))
    outputs = {"logits": logits, "boxes": boxes, "masks": masks}
    for _, packing in decoder.auxiliary:
        outputs["prediction"] = packing(*rest)
    return outputs
