"""Text encoders: those of CLIP (arXiv 2103.00020, section 2.4), SigLIP (2303.15343) and SigLIP 2 (2502.14786)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from keras_vit import layers
from keras_vit.io.suggest import check_known
from keras_vit.layers.blocks.mlp import ACTIVATIONS
from keras_vit.layers.normalization import LayerNormalization
from keras_vit.layers.pooling import EndPooling
from keras_vit.layers.registration import serializable
from keras_vit.models.checks import blocks_to_remat, float_policy, model_name, plain_remat
from keras_vit.models.classifier import ModelOfArguments
from keras_vit.models.fields import COUNT, EPSILON, FLAG, POSITIVE, documented, field, make_plain, one_of, row

POOLS = ("last", "end")


@documented
@dataclasses.dataclass(frozen=True)
class TextSpec:
    """The complete architecture of a text encoder: equal specs make equal models."""

    vocabulary: int = dataclasses.field(metadata=row(POSITIVE, "Number of different tokens."))
    length: int = dataclasses.field(metadata=row(POSITIVE, "Tokens per text; shorter texts are padded."))
    depth: int = dataclasses.field(metadata=row(POSITIVE, "Number of blocks."))
    width: int = dataclasses.field(metadata=row(POSITIVE, "Size d of a token."))
    mlp_dim: int = dataclasses.field(metadata=row(POSITIVE, "Hidden width of the MLP."))
    heads: int = dataclasses.field(metadata=row(POSITIVE, "Number of attention heads."))
    outputs: int | None = field(None, POSITIVE, "Width of the linear head; None for no head.")
    outputs_bias: bool = field(True, FLAG, "Whether that head has a bias.")
    pool: str = field("last", one_of(POOLS), "What the head reads: the last token, or the first that ends the text.")
    end: int | None = field(None, COUNT, 'Number of the token that ends a text, for pool="end".')
    causal: bool = field(False, FLAG, "Each token attends only to itself and those before it.")
    mlp_activation: str = field("gelu_tanh", one_of(ACTIVATIONS), "The MLP's activation.")
    epsilon: float = field(1e-6, EPSILON, "Epsilon of the layer normalisations.")

    def __post_init__(self):
        make_plain(self)
        if self.pool == "end" and (self.end is None or self.end >= self.vocabulary):
            raise ValueError(
                f'pool="end" needs end, the number of the token that ends a text, below {self.vocabulary}, got'
                f" {self.end}."
            )
        if self.pool != "end" and self.end is not None:
            raise ValueError(f'end={self.end} has no effect with pool="{self.pool}". Leave it out.')
        if self.width % self.heads:
            raise ValueError(f"A width of {self.width} does not divide into {self.heads} heads.")


_B, _L = ({"depth": n, "width": d, "mlp_dim": 4 * d, "heads": k} for n, d, k in ((12, 768, 12), (24, 1024, 16)))
_SO400M = {"depth": 27, "width": 1152, "mlp_dim": 4304, "heads": 16}
_SIGLIP, _SIGLIP2 = {"vocabulary": 32_000, "length": 64}, {"vocabulary": 256_000, "length": 64}
_CLIP = {
    **{"vocabulary": 49_408, "length": 77, "outputs_bias": False, "pool": "end", "end": 49_407},
    **{"causal": True, "mlp_activation": "quick_gelu", "epsilon": 1e-5},
}
# The published text encoders, by the name of their image encoder's size.
TEXT_VARIANTS: dict[str, dict[str, Any]] = {
    "SigLIP-B": {**_SIGLIP, **_B, "outputs": 768},
    "SigLIP-L": {**_SIGLIP, **_L, "outputs": 1024},
    "SigLIP-So400m": {**_SIGLIP, **_SO400M, "outputs": 1152},
    "SigLIP2-B": {**_SIGLIP2, **_B, "outputs": 768},
    "SigLIP2-L": {**_SIGLIP2, **_L, "outputs": 1024},
    "SigLIP2-So400m": {**_SIGLIP2, **_SO400M, "outputs": 1152},
    "SigLIP2-g-opt": {**_SIGLIP2, **_SO400M, "outputs": 1536},
    "CLIP-B": {**_CLIP, "depth": 12, "width": 512, "mlp_dim": 2048, "heads": 8, "outputs": 512},
    "CLIP-L": {**_CLIP, "depth": 12, "width": 768, "mlp_dim": 3072, "heads": 12, "outputs": 768},
}


def make_text_spec(variant: str | TextSpec | Mapping[str, Any], **overrides: Any) -> TextSpec:
    """The TextSpec of `variant`, a name in TEXT_VARIANTS, a TextSpec or its fields, with `overrides` applied.

    Raises:
        ValueError: for an unknown variant or field, with the nearest valid name.
    """
    if isinstance(variant, str):
        check_known(variant, "text encoder", TEXT_VARIANTS)
    known = TEXT_VARIANTS[variant] if isinstance(variant, str) else variant
    fields = {**(dataclasses.asdict(known) if isinstance(known, TextSpec) else known), **overrides}
    names = [each.name for each in dataclasses.fields(TextSpec)]
    for name in fields:
        check_known(name, "TextEncoder: argument", names)
    missing = [each.name for each in dataclasses.fields(TextSpec) if each.default is dataclasses.MISSING]
    if missing := [name for name in missing if name not in fields]:
        raise ValueError(f"A TextEncoder needs {', '.join(missing)}.")
    return TextSpec(**fields)


def _block_arguments(spec):
    """The arguments of each block."""
    return {name: getattr(spec, name) for name in ("heads", "mlp_dim", "mlp_activation", "epsilon", "causal")}


def _embed(tokens, spec, policy):
    """Token ids (b, n) to tokens (b, n, d), with positions."""
    normal = keras.initializers.RandomNormal(stddev=0.02)
    x = keras.layers.Embedding(spec.vocabulary, spec.width, normal, dtype=policy, name="token_embedding")(tokens)
    return layers.AddPositionEmbs((1, spec.length), dtype=policy, name="position_embedding")(x)


def _encode(x, spec, remat, policy):
    """The blocks and the last normalisation: (b, n, d) -> (b, n, d)."""
    rematerialised = blocks_to_remat(remat, spec.depth)
    for i in range(spec.depth):
        options = {"remat": i in rematerialised, "dtype": policy, "name": f"block_{i:02d}"}
        x = layers.TransformerBlock(**_block_arguments(spec), **options)(x)
    return LayerNormalization(epsilon=spec.epsilon, dtype=policy, name="encoder_norm")(x)


def _pool(x, tokens, spec, policy):
    """Tokens (b, n, d) and their numbers (b, n) to the text's features (b, d)."""
    if spec.pool == "end":
        return EndPooling(spec.end, dtype=policy, name="pool")(x, tokens)
    return layers.TokenPooling(spec.length - 1, dtype=policy, name="pool")(x)


@serializable
class TextEncoder(ModelOfArguments):
    """Texts, as token ids, to features: a Transformer with the blocks of `ViT`.

    Args:
        variant: name in TEXT_VARIANTS such as "SigLIP-B", "SigLIP2-B" or "CLIP-B", TextSpec, or its fields.
        remat: rematerialise all blocks (True), or those with these numbers, to save memory in training.
        name: of the model, and of its input: "text", or "left_text" for a model called "left".
        dtype: a Keras policy such as "mixed_bfloat16".
        **overrides: any field of TextSpec.

    Input: token ids (b, length), integers from 0, padded to the full length as `Tokenizer` does: no token is
    masked. Output: features (b, outputs). Blocks are named `block_00`...

    Raises:
        ValueError: for an unknown variant or argument.
    """

    check_pixels = False

    def __init__(
        self,
        variant: str | TextSpec | Mapping[str, Any],
        remat: bool | Sequence[int] = False,
        name: str | None = "text_encoder",
        dtype: str | keras.DTypePolicy | None = None,
        **overrides: Any,
    ):
        spec = make_text_spec(variant, **overrides)
        policy, remat = float_policy(dtype), plain_remat(remat)
        name = model_name(name, "text_encoder")
        tokens = keras.Input((spec.length,), dtype="int32", name="text" if name == "text_encoder" else f"{name}_text")
        x = _pool(_encode(_embed(tokens, spec, policy), spec, remat, policy), tokens, spec, policy)
        if spec.outputs is not None:
            x = keras.layers.Dense(spec.outputs, use_bias=spec.outputs_bias, dtype=policy, name="head")(x)
        super().__init__(tokens, x, name=name)
        self.dtype_policy = policy
        self.text_spec = spec
        self.remat = remat

    def arguments(self) -> dict:
        return {
            "variant": dataclasses.asdict(self.text_spec),
            "remat": self.remat,
            "name": self.name,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
        }
