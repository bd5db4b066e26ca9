"""EoMT, the encoder-only mask transformer (Kerssies et al., CVPR 2025, arXiv 2503.19108, section 3): queries in a ViT.

Learned queries join the tokens before the last blocks, which treat both alike: the ViT is encoder and decoder in one.
The mask module predicts a class and a mask for each query. In training it also predicts before each of these blocks,
and there a query attends to the patches of its mask alone, until annealing switches this off; inference has plain
blocks.

Letters: b h w n d as elsewhere, q queries, K classes; masks are (b, h', w', q), at a stride of 4 pixels for patches of
16.
"""

import dataclasses
import math
from typing import Any

import keras
from keras import ops

from keras_vit.layers.arguments import integer
from keras_vit.layers.dropout import ReplicaSeedGenerator
from keras_vit.layers.embedding.patches import grid_size
from keras_vit.layers.normalization import LayerNormalization
from keras_vit.layers.registration import serializable
from keras_vit.layers.resizing import resize_bilinear
from keras_vit.models import taps
from keras_vit.models.heads.decoder import Decoder, Encoder, check_joinable
from keras_vit.models.heads.parts import Enlargement

_LEAST = 1e-7  # score of a class that no query claims, before the logarithm
_POWER = 0.9  # of the annealing


@serializable
class Queries(keras.layers.Layer):
    """Learned queries after the tokens: (b, n, d) -> (b, n + q, d).

    Args:
        count: number of queries q.
    """

    def __init__(self, count: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.count = integer(count, "Queries: count")

    def build(self, input_shape):
        initializer = keras.initializers.RandomNormal(stddev=1.0)
        self.queries = self.add_weight(shape=(self.count, input_shape[-1]), initializer=initializer, name="queries")

    def call(self, tokens):
        shape = (ops.shape(tokens)[0], *self.queries.shape)
        queries = ops.broadcast_to(ops.cast(self.queries, tokens.dtype), shape)  # (q, d) -> (b, q, d)
        return ops.concatenate([tokens, queries], axis=1)


@serializable
class ScaleBlock(keras.layers.Layer):
    """Doubles a map: transposed convolution, GELU, 3x3 depthwise convolution, norm: (b, h, w, d) -> (b, 2h, 2w, d)."""

    def build(self, input_shape):
        b, h, w, d = input_shape
        policy = self.dtype_policy
        self.enlargement = Enlargement(2, dtype=policy, name="enlargement")
        self.depthwise = keras.layers.DepthwiseConv2D(
            3,
            padding="same",
            use_bias=False,
            data_format="channels_last",
            depthwise_initializer=keras.initializers.RandomNormal(stddev=math.sqrt(2 / 9)),
            dtype=policy,
            name="depthwise",
        )
        self.norm = LayerNormalization(1e-6, dtype=policy, name="norm")
        self.enlargement.build(input_shape)
        for layer in (self.depthwise, self.norm):
            layer.build((b, 2 * h, 2 * w, d))

    def call(self, x, training=False):
        x = ops.gelu(self.enlargement(x), approximate=False)
        return self.norm(self.depthwise(x), training=training)

    def compute_output_shape(self, input_shape):
        b, h, w, d = input_shape
        return (b, 2 * h, 2 * w, d)


@serializable
class MaskModule(keras.layers.Layer):
    """Classes and masks of the queries, from normalised tokens (b, n, d), queries last.

    Returns logits (b, q, K + 1), the last class "no object", and mask logits (b, h', w', q): the product of each query,
    after an MLP of three layers, with the patches' map, after `scales` ScaleBlocks.

    Args:
        classes: K.
        queries: q.
        grid: (h, w) patches.
        scales: number of doublings, h' = h * 2^scales.
    """

    def __init__(self, classes: int, queries: int, grid: tuple[int, int], scales: int = 2, **kwargs: Any):
        super().__init__(**kwargs)
        self.classes, self.queries, self.grid = classes, queries, tuple(grid)
        self.scales = integer(scales, "MaskModule: scales", least=0)

    def build(self, input_shape):
        b, _, d = input_shape
        policy = self.dtype_policy
        self.classifier = keras.layers.Dense(self.classes + 1, dtype=policy.variable_dtype, name="classifier")
        self.mlp = [keras.layers.Dense(d, dtype=policy, name=f"mlp_{i}") for i in range(3)]
        self.blocks = [ScaleBlock(dtype=policy, name=f"scale_{i}") for i in range(self.scales)]
        for layer in (self.classifier, *self.mlp):
            layer.build((b, self.queries, d))
        shape = (b, *self.grid, d)
        for block in self.blocks:
            block.build(shape)
            shape = block.compute_output_shape(shape)
        self.map_shape = shape[1:]  # (h', w', d)

    def call(self, tokens, training=False):
        (h, w), d, first = self.grid, tokens.shape[-1], tokens.shape[1] - self.queries
        x = queries = tokens[:, first:]  # (b, q, d)
        for i, layer in enumerate(self.mlp):
            x = layer(x if i == 0 else ops.gelu(x, approximate=False))
        patches = ops.reshape(tokens[:, first - h * w : first], (-1, h, w, d))  # (b, h*w, d) -> (b, h, w, d)
        for block in self.blocks:
            patches = block(patches, training=training)
        (_, h, w, _) = patches.shape
        masks = ops.matmul(ops.reshape(patches, (-1, h * w, d)), ops.transpose(x, (0, 2, 1)))  # (b, h'*w', q)
        return self.classifier(queries), ops.reshape(masks, (-1, h, w, self.queries))


@serializable
class MaskedAttention(keras.layers.Layer):
    """Which tokens a block's tokens may attend to: mask logits (b, h', w', q) -> booleans (b, n + q, n + q).

    In training, with a probability, a query attends to the patches with a mask logit above 0, and to all other
    tokens. The probability falls from 1 to 0 while `steps` updates pass: in block i of l, in part i + 2 of l + 2 equal
    ones, by (1 - progress)^0.9, so the first blocks lose their masks first (paper, section 3.3). In inference every
    token attends to all.

    Args:
        block: i, from 0.
        blocks: l, the blocks with queries.
        steps: updates of the whole training; None for plain attention.
        grid: (h, w) patches, the last tokens before the queries.
        prefix: number of tokens before the patches.
    """

    def __init__(self, block: int, blocks: int, steps: int | None, grid: tuple[int, int], prefix: int, **kwargs: Any):
        super().__init__(**{"autocast": False, **kwargs})
        self.block, self.blocks, self.grid, self.prefix = block, blocks, tuple(grid), prefix
        self.steps = None if steps is None else integer(steps, "MaskedAttention: steps")
        self.seed_generator = ReplicaSeedGenerator()

    def build(self, input_shape):
        options = {"initializer": "zeros", "trainable": False, "aggregation": "only_first_replica"}
        self.step = self.add_weight(shape=(), dtype="int32", name="step", **options)

    def probability(self) -> Any:
        """The probability of masking a query's attention at the present step."""
        part = (self.blocks + 2) * ops.cast(self.step, "float32") / self.steps - (self.block + 1)  # 0 to 1 on the way
        return ops.power(ops.clip(1.0 - part, 0.0, 1.0), _POWER)

    def update(self) -> None:
        """Counts an update."""
        self.step.assign_add(1)

    def call(self, masks, training=False):
        (h, w), b, q = self.grid, ops.shape(masks)[0], masks.shape[-1]
        n = self.prefix + h * w
        if not training:
            return ops.ones((b, n + q, n + q), "bool")
        inside = ops.reshape(resize_bilinear(masks, (h, w)) > 0, (-1, h * w, q))  # (b, h*w, q)
        free = keras.random.uniform((b, 1, q), seed=self.seed_generator) >= self.probability()
        inside = ops.transpose(inside | free, (0, 2, 1))  # (b, q, h*w)
        before, after = (ops.ones((b, q, size), "bool") for size in (self.prefix, q))
        rows = ops.concatenate([before, inside, after], axis=2)  # (b, q, n + q)
        return ops.concatenate([ops.ones((b, n, n + q), "bool"), rows], axis=1)


@serializable
class SemanticMap(keras.layers.Layer):
    """A class for every pixel from the queries' classes and masks: logits (b, height, width, K).

    A class's score is the sum over queries of their probability of it, without "no object", times the sigmoid of their
    mask at the image's size. The logits are its logarithm, so their softmax is the share of each class in the scores.

    Args:
        size: (height, width) in pixels.
    """

    returns = "logits"

    def __init__(self, size: tuple[int, int], **kwargs: Any):
        super().__init__(**{"autocast": False, **kwargs})
        self.size = tuple(size)

    def call(self, classes, masks):
        p = ops.softmax(ops.cast(classes, "float32"), axis=-1)[..., :-1]  # (b, q, K)
        inside = ops.sigmoid(resize_bilinear(masks, self.size))  # (b, height, width, q)
        (height, width), (_, q, k) = self.size, p.shape
        scores = ops.matmul(ops.reshape(inside, (-1, height * width, q)), p)  # (b, height*width, K)
        return ops.reshape(ops.log(ops.maximum(scores, _LEAST)), (-1, height, width, k))


def prediction_rows(classes: Any, masks: Any) -> Any:
    """Classes and masks in one row per query, for losses: (b, q, K + 1), (b, h', w', q) -> (b, q, K + 1 + h' * w'),
    float32.
    """
    _, h, w, q = masks.shape
    rows = ops.transpose(ops.reshape(masks, (-1, h * w, q)), (0, 2, 1))  # (b, q, h'*w')
    return ops.concatenate([ops.cast(classes, "float32"), ops.cast(rows, "float32")], axis=-1)


@serializable
class Predictions(keras.layers.Layer):
    """`prediction_rows` as a layer, for training.MaskClassificationLoss."""

    returns = "logits"

    def __init__(self, **kwargs: Any):
        super().__init__(**{"autocast": False, **kwargs})

    def call(self, classes, masks):
        return prediction_rows(classes, masks)


def query_outputs(encoder: Any, decoder: Decoder) -> list[tuple[Any, Any]]:
    """The symbolic (classes (b, q, K + 1), masks (b, h', w', q)) of each mask module: before each block with queries if
    the decoder has auxiliary predictions, and after the last one.

    Args:
        encoder: the ViT, a Classifier.
        decoder: as `EoMT.decoder` returns it.
    """
    norm = encoder.get_layer(taps.family_in(encoder).encoded)
    blocks = [taps.blocks(encoder)[i] for i in decoder.taps]
    assert decoder.neck is not None, "EoMT makes one"
    tokens, found = decoder.neck(blocks[0].input), []
    for i, block in enumerate(blocks):
        masked = decoder.auxiliary[i][1] if decoder.auxiliary else None
        if masked is None:
            tokens = block(tokens)
            continue
        found.append(decoder.head(norm(tokens)))
        tokens = block(tokens) if masked.steps is None else block(tokens, attention_mask=masked(found[-1][1]))
    return [*found, decoder.head(norm(tokens))]


def auxiliary_outputs(before: list[tuple[Any, Any]]) -> dict[str, Any]:
    """What losses compare of the mask modules before each block: "auxiliary_0"..."""
    return {f"auxiliary_{i}": Predictions(dtype="float32", name=f"prediction_{i}")(*x) for i, x in enumerate(before)}


def mask_outputs(encoder: Any, decoder: Decoder) -> Any:
    """The symbolic outputs of EoMT for semantic segmentation; arguments as of `query_outputs`.

    Returns:
        Logits (b, height, width, K). With `decoder.auxiliary` a dict of these, "prediction" with the Predictions of the
        last block, and `auxiliary_outputs`.
    """
    *before, last = query_outputs(encoder, decoder)
    logits = SemanticMap(encoder.image_size, dtype="float32", name="logits")(*last)
    if not decoder.auxiliary:
        return logits
    prediction = Predictions(dtype="float32", name="prediction")(*last)
    return {"logits": logits, "prediction": prediction, **auxiliary_outputs(before)}


def count_update(decoder: Decoder) -> None:
    """Counts an update of the training, by which masked attention is annealed."""
    for _, layer in decoder.auxiliary:
        if isinstance(layer, MaskedAttention) and layer.steps is not None:
            layer.update()


@dataclasses.dataclass(frozen=True)
class EoMT:
    """The options of EoMT.

    Attributes:
        queries: 100 for semantic segmentation, 200 for instances, in the paper.
        blocks: how many of the last blocks they join; None for the paper's: 3, 4 from 24 blocks on, 5 from 40.
        scales: doublings of the patches' map; None for a stride of 4 to 7 pixels, of 2 or 3 for smaller patches than 8.
        annealing_steps: updates of the training, in which masked attention ends; None for training without masks.
    """

    queries: int = 100
    blocks: int | None = None
    scales: int | None = None
    annealing_steps: int | None = None

    def __post_init__(self):
        integer(self.queries, "queries")
        if self.blocks is not None:
            integer(self.blocks, "blocks")

    def decoder(self, encoder: Encoder, classes: int, auxiliary: bool, policy: keras.DTypePolicy) -> Decoder:
        """Its layers; see HEADS.

        The auxiliary predictions are those before each block, without which the model does not train.
        """
        spec, depth = encoder.spec, encoder.depth
        reads_grid = getattr(spec, "reads_grid", False)
        check_joinable("eomt", spec, "positions that are added at the stem, or none", reads_grid)
        blocks = self.blocks or min(depth, 3 + (depth >= 24) + (depth >= 40))
        if blocks > depth:
            raise ValueError(f"blocks={blocks}: the encoder has {depth}.")
        scales = max(1, int(math.log2(max(spec.stride))) - 2) if self.scales is None else self.scales
        grid, steps = grid_size(encoder.image_size, spec.stride), self.annealing_steps
        neck = Queries(self.queries, dtype=policy, name="neck")
        masks = [
            MaskedAttention(i, blocks, steps, grid, spec.prefix, dtype=policy, name=f"auxiliary_{i}")
            for i in range(blocks if auxiliary else 0)
        ]
        head = MaskModule(classes, neck.count, grid, scales, dtype=policy, name="head")
        return Decoder(tuple(range(depth - blocks, depth)), head, neck, tuple(enumerate(masks)), joins=True)
