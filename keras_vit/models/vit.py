"""The Vision Transformer (arXiv 2010.11929) as a functional Keras model: pixels 0..255 in, logits out."""

import keras

from keras_vit import layers
from keras_vit.layers.patches import grid_size, pair
from keras_vit.layers.registration import serializable
from keras_vit.models.classifier import Classifier, make_head
from keras_vit.models.convolutional import conv_stem
from keras_vit.models.resnet import hybrid_stem
from keras_vit.models.spec import make_spec


def _embed(image, spec, grid, remat, policy):
    """Pixels to tokens with positions: (b, height, width, c) -> (b, prefix + n, d)."""
    x = layers.PixelNormalization(spec.mean, spec.std, dtype=policy, name="normalization")(image)
    if spec.stem is not None:
        x = hybrid_stem(x, spec.stem, spec.stem_width, bool(remat), policy)  # (b, height/s, width/s, c)
    x = conv_stem(x, spec.conv_stem, spec.conv_strides, policy)
    encoder = layers.PatchEncoder(
        spec.patch_size, spec.width, spec.patch_form, spec.patch_norm, spec.epsilon, dtype=policy, name="patch_encoder"
    )
    x = encoder(x)  # (b, n, d)
    if spec.class_token:
        x = layers.ClassToken(dtype=policy, name="class_token")(x)  # (b, 1+n, d)
    if spec.distillation_token:
        x = layers.ClassToken(after=1, initializer="normal", dtype=policy, name="distillation_token")(x)
    embs = layers.AddPositionEmbs(
        grid,
        prefix=spec.positioned,
        kind=spec.positions,
        stddev=spec.position_std,
        dtype=policy,
        name="position_embedding",
    )
    x = embs(x)
    if spec.registers:
        x = layers.ClassToken(spec.registers, spec.positioned, "normal", dtype=policy, name="registers")(x)
    return layers.Dropout(spec.dropout, dtype=policy, name="embedding_dropout")(x)


def _encode(x, spec, remat, policy):
    """The blocks, `block_00` on, and the last normalisation: (b, n, d) -> (b, n, d)."""
    for i in range(spec.depth):
        block = layers.TransformerBlock(
            heads=spec.heads,
            mlp_dim=spec.mlp_dim,
            head_dim=spec.head_dim,
            qkv_bias=spec.qkv_bias,
            qk_norm=spec.qk_norm,
            gelu=spec.gelu,
            mlp_form=spec.mlp_form,
            epsilon=spec.epsilon,
            dropout=spec.dropout,
            attention_dropout=spec.attention_dropout,
            drop_path=spec.drop_path * i / max(spec.depth - 1, 1),
            layer_scale=spec.layer_scale,
            remat=i in remat,
            dtype=policy,
            name=f"block_{i:02d}",
        )
        x = block(x)
    return x if spec.fc_norm else keras.layers.LayerNormalization(epsilon=spec.epsilon, dtype=policy, name="encoder_norm")(x)


def _pool(x, spec, policy):
    """Tokens to the image's features: (b, n, d) -> (b, d), or (b, 2d) for token_gap, or (b, pre_logits)."""
    token = layers.TokenPooling(dtype=policy, name="pool" if spec.pool == "token" else "pool_token")
    mean = layers.MeanPooling(spec.prefix, dtype=policy, name="pool" if spec.pool == "gap" else "pool_gap")
    if spec.pool == "token":
        x = token(x)
    elif spec.pool == "gap":
        x = mean(x)
    elif spec.pool == "token_gap":
        x = keras.layers.Concatenate(dtype=policy, name="pool")([token(x), mean(x)])
    else:
        pool = layers.AttentionPooling(spec.heads, spec.mlp_dim, gelu=spec.gelu, epsilon=spec.epsilon, dtype=policy, name="pool")
        x = pool(x)
    if spec.fc_norm:
        x = keras.layers.LayerNormalization(epsilon=spec.epsilon, dtype=policy, name="fc_norm")(x)
    if spec.pre_logits:
        x = keras.layers.Dense(spec.pre_logits, activation="tanh", dtype=policy, name="pre_logits")(x)
    return x


def _outputs(x, spec, classes, policy):
    """Tokens (b, n, d) to (features, outputs)."""
    features = _pool(x, spec, policy)
    if not spec.distillation_token:
        return features, features if classes is None else make_head(features, classes, spec.head_bias, policy)
    second = layers.TokenPooling(1, dtype=policy, name="pool_dist")(x)
    mean = keras.layers.Average(dtype=policy, name="features")([features, second])
    if classes is None:
        return mean, mean
    heads = [make_head(y, classes, spec.head_bias, policy, n) for y, n in ((features, "head"), (second, "head_dist"))]
    return mean, keras.layers.Average(dtype=policy.variable_dtype, name="heads")(heads)


def _blocks_to_remat(remat, depth):
    """`remat` (bool, or block numbers) as a set of block numbers."""
    blocks = set(range(depth)) if remat is True else set(remat or ())
    if not blocks <= set(range(depth)):
        raise ValueError(f"remat names blocks {sorted(blocks - set(range(depth)))}; the model has 0 to {depth - 1}.")
    return blocks


@serializable
class ViT(Classifier):
    """A Vision Transformer.

    Args:
        variant: "B/16" and the like (sizes Ti, S, B, L, So400m, H, g, G; any patch size), a hybrid such as "R50+B/16", or a ViTSpec.
        image_size: pixels, a number or (height, width).
        classes: number of classes; None for a model without head, which returns features.
        channels: of the image.
        class_names: their names, in order; they travel with the model into `.keras` and SavedModel files.
        preprocessing: text of the evaluation preprocessing (docs/data.md), which export replays.
        remat: rematerialise all blocks (True, a hybrid's stem too) or those numbered, to train with less memory.
        name, dtype: Keras' own; dtype is a policy such as "mixed_bfloat16".
        **overrides: any field of ViTSpec: depth, dropout, pool, positions, registers, ...

    Input: pixels 0..255, (b, height, width, channels), uint8 or float; the model normalises. Output: logits (b, classes), float32
    under mixed precision too. `block_00`... name the blocks, `features` is the tensor before the head.

    Raises:
        ValueError: for an unknown variant or argument, or an image that the patches do not divide.
    """

    def __init__(
        self,
        variant,
        image_size=224,
        classes=1000,
        channels=3,
        class_names=None,
        preprocessing=None,
        remat=False,
        name="vit",
        dtype=None,
        **overrides,
    ):
        spec = make_spec(variant, **overrides)
        size = pair(image_size, "image_size")
        policy = keras.dtype_policies.get(dtype or keras.config.dtype_policy())
        image = keras.Input((*size, channels), dtype="float32", name="image")
        x = _embed(image, spec, grid_size(size, spec.stride), remat is True, policy)
        x = _encode(x, spec, _blocks_to_remat(remat, spec.depth), policy)
        features, outputs = _outputs(x, spec, classes, policy)
        super().__init__(image, features, outputs, spec, classes, class_names, preprocessing, remat, name, policy)

    @property
    def grid(self):
        """The patch grid (h, w)."""
        return grid_size(self.image_size, self.spec.stride)
