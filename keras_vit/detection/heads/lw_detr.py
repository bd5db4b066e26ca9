"""LW-DETR (arXiv 2406.03459) and RF-DETR (arXiv 2511.09554): a ViT, a projector and a light deformable decoder.

The projector makes one or two maps of the maps of several blocks; the best places of these become queries, and two to
six layers refine them. Each query has one class and one box, without suppression. The rows differ in their
normalisations: RF-DETR stands on DINOv2, and normalises each place.

Letters: b images, g groups of queries, q queries, s predictions (one per decoder layer, then the proposals), d width,
k classes.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.detection.heads.deformable_decoder import DecoderLayer, box_waves
from keras_vit.detection.heads.projector import SCALES, Projector, scaled
from keras_vit.detection.heads.proposals import RARE, Proposals, moved
from keras_vit.layers.arguments import flag, integer
from keras_vit.layers.boxes import from_centers
from keras_vit.layers.embedding.patches import grid_size
from keras_vit.layers.normalization import LayerNormalization
from keras_vit.layers.registration import serializable
from keras_vit.models.headed import decoder_maps
from keras_vit.models.heads.decoder import Decoder, Encoder

_QUARTERS = (0.25, 0.5, 0.75, 1.0)


def _mlp(widths, policy, name, last_kernel="glorot_uniform"):
    """Dense layers with ReLU between them; the last one in full precision, which boxes need."""
    layers = []
    for i, units in enumerate(widths):
        last = i + 1 == len(widths)
        layers.append(
            keras.layers.Dense(
                units,
                None if last else "relu",
                kernel_initializer=last_kernel if last else "glorot_uniform",
                dtype=policy.variable_dtype if last else policy,
                name=f"{name}_{i}",
            )
        )
    return layers


def _through(layers, x):
    for layer in layers:
        x = layer(x)
    return x


def _corners(boxes):
    """Boxes (..., 4) of centre x, centre y, width, height as top, left, bottom, right."""
    x, y, width, height = ops.split(boxes, 4, axis=-1)
    return from_centers(ops.concatenate([y, x, height, width], axis=-1))


@serializable
class QueryDecoder(keras.layers.Layer):
    """Proposals, decoder layers and predictions: [(b, h, w, d), ...] -> logits, boxes and predictions, float32.

    Logits (b, q, k) and boxes (b, q, 4) are those of the last layer, for the first group. Predictions (b, s, g, q,
    4 + k) are boxes and logits of all groups after each layer, then the proposals, for the loss: g is 1 in inference.
    Boxes are top, left, bottom, right as fractions of the image.

    Args:
        classes: k.
        queries: q.
        groups: g in training.
        layers: number of decoder layers.
        heads, map_heads, points, mlp_dim, dropout: as in DecoderLayer.
    """

    def __init__(
        self,
        classes: int,
        queries: int = 300,
        groups: int = 13,
        layers: int = 3,
        heads: int = 8,
        map_heads: int = 16,
        points: int = 2,
        mlp_dim: int = 2048,
        dropout: float = 0.0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.classes, self.queries = integer(classes, "classes"), integer(queries, "queries")
        self.groups, self.layers = integer(groups, "groups"), integer(layers, "layers")
        self.heads, self.map_heads, self.points = heads, map_heads, points
        self.mlp_dim, self.dropout = mlp_dim, dropout
        policy = self.dtype_policy
        self.proposals = Proposals(self.classes, self.queries, self.groups, dtype=policy, name="proposals")
        options = {"map_heads": map_heads, "points": points, "mlp_dim": mlp_dim, "dropout": dropout, "dtype": policy}
        self.stack = [DecoderLayer(heads, name=f"layer_{i}", **options) for i in range(self.layers)]

    def build(self, input_shapes):
        policy, d = self.dtype_policy, input_shapes[0][-1]
        shape = (None, self.queries, d)
        self.proposals.build(input_shapes)
        # Not cast to the compute dtype: boxes need full precision.
        options = {"initializer": "zeros", "autocast": False}
        self.boxes = self.add_weight(shape=(self.groups * self.queries, 4), name="boxes", **options)
        normal = keras.initializers.RandomNormal(stddev=1.0)
        self.features = self.add_weight(shape=(self.groups * self.queries, d), initializer=normal, name="features")
        for layer in self.stack:
            layer.build(shape, input_shapes)
        self.norm = LayerNormalization(1e-5, dtype=policy, name="norm")
        self.norm.build(shape)
        exact = policy.variable_dtype
        bias = keras.initializers.Constant(RARE)
        self.classifier = keras.layers.Dense(self.classes, bias_initializer=bias, dtype=exact, name="classifier")
        self.classifier.build(shape)
        self.positions = _mlp((d, d), policy, "position")
        self.box_mlp = _mlp((d, d, 4), policy, "box", last_kernel="zeros")
        for i, layer in enumerate((*self.positions, *self.box_mlp)):
            layer.build((None, self.queries, 2 * d) if i == 0 else shape)

    def _prediction(self, x, boxes, groups):
        """Boxes and logits of queries (b, g*q, d) that started from boxes (b, g*q, 4): (b, g, q, 4 + k)."""
        found = _corners(moved(boxes, _through(self.box_mlp, x)))
        rows = ops.concatenate([found, ops.cast(self.classifier(x), "float32")], axis=-1)
        return ops.reshape(rows, (-1, groups, self.queries, 4 + self.classes))

    def decoded(self, maps: Any, training: bool = False) -> tuple[Any, list[Any]]:
        """Predictions of all groups (b, s, g, q, 4 + k), and the queries that make them, s of (b, g*q, d)."""
        groups = self.groups if training else 1
        count, d = groups * self.queries, maps[0].shape[-1]
        proposed, logits, places = self.proposals(maps, groups=groups)  # (b, g, q, 4), (b, g, q, k), (b, g, q, d)
        boxes = moved(ops.reshape(ops.stop_gradient(proposed), (-1, count, 4)), self.boxes[:count])  # (b, g*q, 4)
        positions = _through(self.positions, ops.cast(box_waves(boxes, d), self.compute_dtype))
        positions = ops.cast(positions, self.compute_dtype)
        x = ops.cast(self.features[:count], self.compute_dtype) + ops.zeros_like(positions)  # (b, g*q, d)
        queries, found = [], []
        for layer in self.stack:
            x = layer(x, positions, boxes, maps, groups=groups, training=training)
            queries.append(self.norm(x, training=training))
            found.append(self._prediction(queries[-1], boxes, groups))
        queries.append(ops.reshape(places, (-1, count, d)))
        found.append(ops.concatenate([_corners(proposed), logits], axis=-1))
        return ops.stack(found, axis=1), queries

    def call(self, maps, training=False):
        prediction, _ = self.decoded(maps, training=training)
        return *self._last(prediction), prediction

    def _last(self, prediction):
        """Logits and boxes of the last layer, for the first group."""
        last = prediction[:, -2, 0]  # (b, q, 4 + k)
        return last[..., 4:], last[..., :4]

    def compute_output_spec(self, maps, training=False):
        b, q, k = maps[0].shape[0], self.queries, self.classes
        shapes = ((b, q, k), (b, q, 4), (b, len(self.stack) + 1, None if training else 1, q, 4 + k))
        return tuple(keras.KerasTensor(shape, "float32") for shape in shapes)


def _plain_scales(scales):
    values = tuple(scales) if isinstance(scales, (list, tuple)) else (scales,)
    if not values or any(scale not in SCALES for scale in values):
        raise ValueError(f"scales should be some of {', '.join(map(str, SCALES))}, got {scales!r}.")
    return tuple(float(scale) for scale in values)


def _check(encoder, queries, scales):
    """Refuses an encoder without all its patches, and more queries than the maps have places."""
    spec = encoder.spec
    if not spec.has_tokens or getattr(spec, "token_merging", None) is not None or getattr(spec, "patch_dropout", 0):
        raise ValueError("This head needs a ViT with all its patches (no token_merging, no patch_dropout).")
    grid = grid_size(encoder.image_size, spec.strides[-1])
    places = sum(math.prod(scaled(grid, scale)) for scale in scales)
    if queries > places:
        raise ValueError(
            f"queries={queries}: the maps have {places} places, from which queries are chosen. Use larger images, or"
            f' head_options={{"queries": {places}}} at most.'
        )


@dataclasses.dataclass(frozen=True)
class LWDETR:
    """The options of LW-DETR.

    Attributes:
        taps: numbers of the blocks with maps for the projector; None for those after each quarter.
        normalised: whether these maps pass through the encoder's last normalisation.
        scales: of the maps that the decoder reads, relative to the encoder's: some of 2, 1 and 0.5.
        width: d; 384 in LW-DETR's large models.
        blocks: steps of the projector's C2f.
        norm: of the projector, as in ConvBlock.
        queries: the largest number of objects that can be found in an image; at most the number of places.
        groups: of queries in training.
        layers: of the decoder; RF-DETR has 2 (N), 3 (S) or 4 (M, L).
        heads, map_heads, points, mlp_dim, dropout: as in DecoderLayer.
    """

    taps: Sequence[int] | None = None
    normalised: bool = False
    scales: Sequence[float] = (1.0,)
    width: int = 256
    blocks: int = 3
    norm: str = "batch"
    queries: int = 300
    groups: int = 13
    layers: int = 3
    heads: int = 8
    map_heads: int = 16
    points: int = 2
    mlp_dim: int = 2048
    dropout: float = 0.0

    def __post_init__(self):
        flag(self.normalised, "normalised")
        integer(self.queries, "queries")
        if integer(self.width, "width") % 4:
            raise ValueError(f"width={self.width}: the positions of queries need a multiple of 4.")

    def decoder(self, encoder: Encoder, classes: int, policy: keras.DTypePolicy) -> Decoder:
        """Its layers; see HEADS."""
        scales = _plain_scales(self.scales)
        _check(encoder, self.queries, scales)
        taps = encoder.taps_of_one_stride("lw_detr", self.taps, _QUARTERS if self.taps is None else (1.0,))
        neck = Projector(self.width, scales, self.blocks, self.norm, dtype=policy, name="neck")
        return Decoder(taps, self._head(encoder, classes, policy), neck, normalised=taps if self.normalised else ())

    def _form(self, classes):
        """The arguments of QueryDecoder."""
        sizes = (self.heads, self.map_heads, self.points, self.mlp_dim, self.dropout)
        return (classes, self.queries, self.groups, self.layers, *sizes)

    def _head(self, encoder, classes, policy):
        return QueryDecoder(*self._form(classes), dtype=policy, name="head")


@dataclasses.dataclass(frozen=True)
class RFDETR(LWDETR):
    """The options of RF-DETR: those of LW-DETR, with other normalisations."""

    normalised: bool = True
    norm: str = "layer"


def query_outputs(encoder: Any, decoder: Decoder) -> dict[str, Any]:
    """The symbolic outputs of a QueryDecoder on an encoder: logits, boxes, and the input of the loss, "prediction"."""
    assert decoder.neck is not None, "LWDETR makes one"
    return dict(zip(("logits", "boxes", "prediction"), decoder.head(decoder.neck(decoder_maps(encoder, decoder)))))
