"""The Vision Transformer (arXiv 2010.11929) as a functional Keras model: pixels 0..255 in, logits out."""

import dataclasses

import keras

from keras_vit import layers
from keras_vit.layers.patches import grid_size, pair
from keras_vit.layers.registration import serializable
from keras_vit.models.spec import make_spec
from keras_vit.training.fit import Model


def _embed(image, spec, grid, policy):
    """Pixels to tokens with positions: (b, height, width, c) -> (b, prefix + n, d)."""
    x = layers.PixelNormalization(spec.mean, spec.std, dtype=policy, name="normalization")(image)
    encoder = layers.PatchEncoder(spec.patch_size, spec.width, spec.patch_form, dtype=policy, name="patch_encoder")
    x = encoder(x)  # (b, n, d)
    if spec.class_token:
        x = layers.ClassToken(dtype=policy, name="class_token")(x)  # (b, 1+n, d)
    embs = layers.AddPositionEmbs(
        grid,
        prefix=int(spec.class_token),
        kind=spec.positions,
        stddev=spec.position_std,
        dtype=policy,
        name="position_embedding",
    )
    x = embs(x)
    if spec.registers:
        after = int(spec.class_token)
        x = layers.ClassToken(spec.registers, after, "normal", dtype=policy, name="registers")(x)
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
    return keras.layers.LayerNormalization(epsilon=spec.epsilon, dtype=policy, name="encoder_norm")(x)


def _pool(x, spec, policy):
    """Tokens to the image's features: (b, n, d) -> (b, d), or (b, pre_logits)."""
    if spec.pool == "token":
        x = layers.TokenPooling(dtype=policy, name="pool")(x)
    elif spec.pool == "gap":
        x = layers.MeanPooling(spec.prefix, dtype=policy, name="pool")(x)
    else:
        pool = layers.AttentionPooling(spec.heads, spec.mlp_dim, gelu=spec.gelu, epsilon=spec.epsilon, dtype=policy, name="pool")
        x = pool(x)
    if spec.pre_logits:
        x = keras.layers.Dense(spec.pre_logits, activation="tanh", dtype=policy, name="pre_logits")(x)
    return x


def _blocks_to_remat(remat, depth):
    """`remat` (bool, or block numbers) as a set of block numbers."""
    blocks = set(range(depth)) if remat is True else set(remat or ())
    if not blocks <= set(range(depth)):
        raise ValueError(f"remat names blocks {sorted(blocks - set(range(depth)))}; the model has 0 to {depth - 1}.")
    return blocks


@serializable
class ViT(Model):
    """A Vision Transformer.

    Args:
        variant: "B/16" and the like (sizes Ti, S, B, L, H, g, G; any patch size), or a ViTSpec.
        image_size: pixels, a number or (height, width).
        classes: number of classes; None for a model without head, which returns features.
        channels: of the image.
        class_names: their names, in order; they travel with the model into `.keras` and SavedModel files.
        preprocessing: text of the evaluation preprocessing (docs/data.md), which export replays.
        remat: rematerialise all blocks (True) or those numbered, to train with less memory.
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
        if class_names is not None and len(class_names) != classes:
            raise ValueError(f"class_names has {len(class_names)} names for {classes} classes.")
        policy = keras.dtype_policies.get(dtype or keras.config.dtype_policy())
        image = keras.Input((*size, channels), dtype="float32", name="image")
        x = _embed(image, spec, grid_size(size, spec.patch_size), policy)
        x = _encode(x, spec, _blocks_to_remat(remat, spec.depth), policy)
        features = _pool(x, spec, policy)
        outputs = features
        if classes is not None:
            # Zeros to start with, as in the paper; the logits are computed in full precision under every policy.
            head = keras.layers.Dense(
                classes,
                kernel_initializer="zeros",
                bias_initializer=keras.initializers.Constant(spec.head_bias),
                dtype=policy.variable_dtype,
                name="head",
            )
            outputs = head(features)
        super().__init__(image, outputs, name=name)
        self.dtype_policy = policy
        self.spec = spec
        self.image_size = size
        self.classes = classes
        self.channels = channels
        self.class_names = None if class_names is None else tuple(class_names)
        self.preprocessing = preprocessing
        self.remat = remat
        self._features = features

    @property
    def features(self):
        """The symbolic features before the head, (b, d): `keras.Model(vit.input, vit.features)` extracts them."""
        return self._features

    @property
    def grid(self):
        """The patch grid (h, w)."""
        return grid_size(self.image_size, self.spec.patch_size)

    def get_config(self):
        return {
            "variant": dataclasses.asdict(self.spec),
            "image_size": self.image_size,
            "classes": self.classes,
            "channels": self.channels,
            "class_names": self.class_names,
            "preprocessing": self.preprocessing,
            "remat": self.remat,
            "name": self.name,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(**{**config, "dtype": keras.dtype_policies.deserialize(config["dtype"])})
