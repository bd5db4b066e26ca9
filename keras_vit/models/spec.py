"""The architecture of a Vision Transformer: ViTSpec."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np

from keras_vit.io.suggest import counted
from keras_vit.layers.arguments import choice, flag, integer, is_integer, number, per_channel, rate
from keras_vit.layers.attention import self_attention
from keras_vit.layers.blocks.mlp import ACTIVATIONS, MLPS
from keras_vit.layers.embedding.patches import FORMS, pair
from keras_vit.layers.positions.embeddings import FIXED, KINDS, LEARNED
from keras_vit.layers.registration import serializable
from keras_vit.models.arguments import ViTOverrides
from keras_vit.models.families import FAMILIES, Spec

CONV_FORMS = ("plain", "residual")
POOLS = ("token", "gap", "map", "token_gap")
POSITIONS = (*KINDS, *self_attention.POSITIONS, "none")
PLACES = ("stem", "every", "shared")
# The fields by the kind of their values; those of _OPTIONAL may be None.
_SIZES = ("depth", "width", "mlp_dim", "heads", "head_dim", "pre_logits", "stem_width", "palette")
_FLAGS = ("class_token", "qkv_bias", "qk_norm", "patch_norm", "distillation_token", "fc_norm", "causal")
_NUMBERS = ("layer_scale", "head_bias")
_RATES = ("dropout", "attention_dropout", "drop_path", "patch_dropout")
_OPTIONAL = ("head_dim", "pre_logits", "class_token", "layer_scale", "palette")


def token_stride(patch_size: tuple, stem: tuple | None, conv_strides: tuple = ()) -> tuple[int, int]:
    """Pixels (height, width) from one patch token to the next.

    A hybrid's root has a stride of 4, each stage after the first a stride of 2.
    """
    reduction = 1 if stem is None else 4 * 2 ** max(len(stem) - 1, 0)
    reduction *= math.prod(conv_strides)
    return tuple(p * reduction for p in patch_size)


@serializable
@dataclasses.dataclass(frozen=True)
class ViTSpec(Spec):
    """The complete architecture of a Vision Transformer: equal specs make equal models.

    Attributes:
        patch_size: (height, width) in pixels; after a stem, in positions of the stem's output.
        depth, width, mlp_dim, heads: number of blocks, size d of a token, hidden width of the MLP, attention heads.
        head_dim: width of an attention head; None for width / heads.
        class_token: whether there is one; None means yes exactly for the pools "token" and "token_gap".
        registers: number of register tokens, after the class token.
        distillation_token: DeiT's second token with a head of its own; the output is the mean of both heads.
        positions: added to the tokens: "learned" (1-D), "learned2d", "sincos1d", "sincos2d" as in big_vision,
            "sincos2d_mae" (layers.AddPositionEmbs); in the attention: "relative", "relative2d", "rope2d"
            (layers.MultiHeadSelfAttention); or "none".
        positions_at: where they are added: at the "stem", once; at "every" block's input, each with a table of its own;
            or "shared", one table at every block's input.
        position_std: standard deviation of the initial learned tables, 0.02 in the paper's code. Small data sets learn
            better with more (docs/recipes.md).
        pool: "token", "gap" (mean of the patch tokens), "map", or "token_gap" (both, concatenated: DINOv2's
            classifiers).
        fc_norm: normalise after the pooling instead of before it (timm's average-pooled models).
        pre_logits: width of a tanh layer before the head; None for no such layer.
        qkv_bias, qk_norm, gelu, mlp_form, epsilon, layer_scale: see layers.TransformerBlock.
        dropout: rate after every dense layer except query, key and value, and after the position embedding.
        attention_dropout: rate on the attention weights.
        drop_path: the last block's rate; rates grow linearly from 0 at the first block.
        head_bias: initial value of the head's bias (AugReg: -6.9 for ImageNet with the sigmoid loss).
        mean, std: the normalisation, on the 0..255 scale: a number, or one per channel.
        patch_form, patch_norm: "conv" or "dense", and normalisations around the embedding; see layers.PatchEncoder.
        stem: a hybrid's ResNet units per stage, such as (3, 4, 9); () for its root alone; None for a ViT without a
            ResNet.
        stem_width: channels of that ResNet's root, 64 in the paper.
        conv_stem: channels of each 3x3 convolution before the patches, with batch normalisation and ReLU (arXiv
            2106.14881); () for none. Small data sets learn faster with such a stem.
        conv_strides: strides of these convolutions; () for 2 each.
        conv_form: "plain"; or "residual": after the first convolution, max-pooling takes the place of strides, and a
            convolution that keeps the shape is added to its input. It takes more time a step, and learns more in the
            same time.
        token_merging: how many patches each block merges into similar ones (ToMe, arXiv 2210.09461), a number or one
            per block; None for none. A number is at most half of the patches that a block has left.
        patch_dropout: share of the patches that are left out, in prediction too; 0 to see them all.
        patch_dropout_block: the block after whose attention the patches that it heeds least are left out; None to leave
            out random ones before the first block, in prediction the same for every image (PatchDropout, arXiv
            2208.07220).
        causal: whether each token attends only to itself and those before it: the prefix, then the patches row by row
            (iGPT).
        palette: number of colours of a palette; the nearest one of each pixel has an embedding, in place of linear
            patches (layers.PaletteEncoder). None for no palette.
    """

    patch_size: tuple
    depth: int
    width: int
    mlp_dim: int
    heads: int
    head_dim: int | None = None
    class_token: bool | None = None
    registers: int = 0
    positions: str = "learned"
    positions_at: str = "stem"
    position_std: float = 0.02
    pool: str = "token"
    pre_logits: int | None = None
    qkv_bias: bool = True
    qk_norm: bool = False
    gelu: str = "erf"
    epsilon: float = 1e-6
    layer_scale: float | None = None
    dropout: float = 0.0
    attention_dropout: float = 0.0
    drop_path: float = 0.0
    head_bias: float = 0.0
    mean: float | tuple = 127.5
    std: float | tuple = 127.5
    patch_form: str = "conv"
    patch_norm: bool = False
    distillation_token: bool = False
    fc_norm: bool = False
    mlp_form: str = "gelu"
    stem: tuple | None = None
    stem_width: int = 64
    conv_stem: tuple = ()
    conv_strides: tuple = ()
    conv_form: str = "plain"
    token_merging: int | tuple | None = None
    patch_dropout: float = 0.0
    patch_dropout_block: int | None = None
    causal: bool = False
    palette: int | None = None

    has_attention = has_tokens = True
    # A patch kernel is resampled for another patch_size.
    fixed = tuple(
        "depth width mlp_dim mlp_form heads head_dim class_token distillation_token registers positions positions_at"
        " pre_logits qkv_bias qk_norm patch_norm fc_norm layer_scale stem stem_width conv_stem conv_strides conv_form"
        " causal palette".split()
    )

    def __post_init__(self):
        self._replace("patch_size", pair(self.patch_size, "patch_size"))
        self._make_plain()
        if self.class_token is None:
            self._replace("class_token", self.pool in ("token", "token_gap"))
        self._complete_conv_stem()
        self._complete_stem()
        self._complete_reduction()
        self._check()
        self._check_positions()

    def _replace(self, name, value):
        """Sets a field of the frozen dataclass, while it is made."""
        object.__setattr__(self, name, value)

    def _make_plain(self):
        """Numbers as Python's own: numpy's would not go into JSON."""
        for names, kind in ((_SIZES, integer), (_FLAGS, flag), (_NUMBERS, number), (_RATES, rate)):
            for name in names:
                value = getattr(self, name)
                if value is not None or name not in _OPTIONAL:
                    self._replace(name, kind(value, name))
        self._replace("position_std", number(self.position_std, "position_std", least=0))
        self._replace("epsilon", number(self.epsilon, "epsilon"))
        if not 0 < self.epsilon < 1:
            raise ValueError(f"epsilon must be above 0 and below 1, got {self.epsilon!r}.")
        self._replace("registers", integer(self.registers, "registers", least=0))
        self._replace("mean", per_channel(self.mean, "mean"))
        self._replace("std", per_channel(self.std, "std"))

    def _complete_stem(self):
        if self.stem is None:
            return
        if not isinstance(self.stem, (list, tuple, np.ndarray)):
            raise ValueError(f"stem must be the ResNet units per stage, such as (3, 4, 9), got {self.stem!r}.")
        if self.conv_stem:
            raise ValueError("stem and conv_stem exclude each other: a hybrid already has a stem.")
        if not all(is_integer(units) and units > 0 for units in self.stem):
            raise ValueError(f"stem must be the ResNet units per stage, such as (3, 4, 9), got {self.stem}.")
        self._replace("stem", tuple(int(units) for units in self.stem))

    def _check(self):
        if self.head_dim is not None and self.head_dim * self.heads == self.width:
            self._replace("head_dim", None)  # equal models, equal specs
        choices = (
            ("gelu", ACTIVATIONS),
            ("mlp_form", MLPS),
            ("pool", POOLS),
            ("positions", POSITIONS),
            ("positions_at", PLACES),
            ("patch_form", FORMS),
            ("conv_form", CONV_FORMS),
        )
        for name, valid in choices:
            self._replace(name, choice(getattr(self, name), name, valid))
        for name in ("class_token", "qkv_bias", "qk_norm", "patch_norm", "distillation_token", "fc_norm"):
            if getattr(self, name) not in (True, False):  # text would count as True
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}.")
        if self.pool in ("token", "token_gap") and not self.class_token:
            raise ValueError(
                f'pool="{self.pool}" reads the class token, but class_token is False. Use pool="gap" or "map".'
            )
        if self.distillation_token and (self.pool != "token" or self.pre_logits):
            raise ValueError(
                'distillation_token needs pool="token" and no pre_logits: each of the two tokens has a linear head of'
                " its own."
            )
        if self.fc_norm and self.pool == "map":
            raise ValueError('fc_norm needs pool "gap", "token" or "token_gap", got "map".')
        self._check_causal()
        self._check_palette()

    def _check_causal(self):
        if self.causal and (self.pool in ("token", "token_gap") or self.distillation_token):
            what = "distillation_token" if self.distillation_token else f'pool="{self.pool}"'
            raise ValueError(
                f"causal=True lets the tokens before the patches see no patch, so that {what} would read the same of"
                ' every image: use pool="gap" or "map", with class_token=True for a token to start from.'
            )
        if self.causal and (self.token_merging is not None or self.patch_dropout):
            raise ValueError(
                "causal=True needs all patches in their order: leave token_merging and patch_dropout out, which merge"
                " later ones into earlier, or change their order."
            )

    def _check_palette(self):
        if self.palette is None:
            return
        if self.palette < 2:
            raise ValueError(f"palette must be the number of colours, 2 or more, got {self.palette}.")
        wrong = {
            "patch_size": self.patch_size != (1, 1),
            "stem": self.stem is not None,
            "conv_stem": bool(self.conv_stem),
            "patch_norm": self.patch_norm,
        }
        for name, given in wrong.items():
            if given:
                raise ValueError(
                    f"palette={self.palette} makes a token of each pixel: set patch_size=1 and leave stem, conv_stem"
                    f" and patch_norm out, got {name}={getattr(self, name)!r}."
                )

    def _check_positions(self):
        if self.positions_at != "stem" and self.positions not in KINDS:
            raise ValueError(
                f'positions_at="{self.positions_at}" needs a table that can be added at each block, {", ".join(KINDS)};'
                f' positions="{self.positions}" has none. Leave positions_at at "stem".'
            )
        if not self.reads_grid or (self.token_merging is None and not self.patch_dropout):
            return
        reduces = "patch_dropout" if self.patch_dropout else "token_merging"
        raise ValueError(
            f'{reduces} does not go with positions="{self.positions}", positions_at="{self.positions_at}": after it the'
            " blocks no longer "
            f"know where a patch was. They go with positions that are added at the stem ({', '.join(KINDS)}), or none."
        )

    def _complete_reduction(self):
        merging = self.token_merging
        if isinstance(merging, (list, tuple, np.ndarray)):
            if len(merging) != self.depth:
                raise ValueError(
                    f"token_merging has {len(merging)} numbers, the model {self.depth} blocks: give one per block."
                )
            merging = tuple(integer(r, "token_merging", least=0) for r in merging)
            self._replace("token_merging", merging if any(merging) else None)
        elif merging is not None:
            self._replace("token_merging", integer(merging, "token_merging", least=0) or None)
        if self.patch_dropout_block is not None:
            block = integer(self.patch_dropout_block, "patch_dropout_block", least=0)
            if block >= self.depth:
                raise ValueError(f"patch_dropout_block={block}: the model has blocks 0 to {self.depth - 1}.")
            self._replace("patch_dropout_block", block)

    def _complete_conv_stem(self):
        if not all(isinstance(value, (list, tuple, np.ndarray)) for value in (self.conv_stem, self.conv_strides)):
            raise ValueError(
                "conv_stem and conv_strides must be tuples with one number per convolution, such as (32, 64), got "
                f"{self.conv_stem!r} and {self.conv_strides!r}."
            )
        if not all(is_integer(n) and n > 0 for n in (*self.conv_stem, *self.conv_strides)):
            raise ValueError(
                f"conv_stem and conv_strides must be positive integers, got {self.conv_stem}, {self.conv_strides}."
            )
        self._replace("conv_stem", tuple(int(n) for n in self.conv_stem))
        self._replace("conv_strides", tuple(int(n) for n in self.conv_strides) or (2,) * len(self.conv_stem))
        if len(self.conv_stem) != len(self.conv_strides):
            raise ValueError(
                f"conv_stem has {len(self.conv_stem)} convolutions, conv_strides {len(self.conv_strides)} strides."
            )

    @property
    def reads_grid(self) -> bool:
        """Whether the blocks have positions: `encode` must then know the grid."""
        return self.positions in self_attention.POSITIONS or self.positions_at != "stem"

    @property
    def positioned(self) -> int:
        """Number of tokens before the patches that have a position embedding: class and distillation token."""
        return int(bool(self.class_token)) + int(self.distillation_token)

    @property
    def prefix(self) -> int:
        """Number of tokens before the patches in the blocks: class and distillation token, registers."""
        return self.positioned + self.registers

    @property
    def stride(self) -> tuple[int, int]:
        """Pixels (height, width) from one patch token to the next."""
        return token_stride(self.patch_size, self.stem, self.conv_strides)

    @property
    def strides(self) -> tuple[tuple[int, int], ...]:
        return (self.stride,) * self.depth

    @property
    def repeated(self) -> int:
        return self.depth + sum(self.stem or ()) + len(self.conv_stem)

    @property
    def in_words(self) -> str:
        patches = " x ".join(map(str, self.patch_size))
        sizes = f"{counted(self.depth, 'block')} of width {self.width} with {counted(self.heads, 'head')}"
        parts = [sizes, f"patches of {patches} pixels"]
        parts += ["a ResNet in front"] if self.stem is not None else []
        parts += [f"{len(self.conv_stem)} convolutions in front"] if self.conv_stem else []
        parts += [f"{self.registers} registers"] if self.registers else []
        return ", ".join(parts)

    @classmethod
    def completed(cls, fields, overrides):
        if "pool" in overrides and "class_token" not in overrides:
            fields = {name: value for name, value in fields.items() if name != "class_token"}
        spec = super().completed(fields, overrides)
        _check_effect(overrides, spec)
        return spec

    def fixes(self, name, value):
        own = getattr(self, name)
        if name == "pool":  # the others average or take tokens that are there
            return "map" in (value, own) and value != own
        if name == "positions" and value == "learned" and own in FIXED:  # which begin with the fixed table
            return False
        if name == "layer_scale":  # a number is only where its training began
            return (value is None) != (own is None)
        return super().fixes(name, value) and not (name == "class_token" and value is None)

    def with_new_head(self, changes):
        # As in the paper, the hidden layer goes with the head, and one zero-initialised linear layer takes their place;
        # a new normalisation after pooling replaces the last one before it.
        fc_norm = bool(changes.get("fc_norm")) or self.fc_norm
        return dataclasses.replace(self, head_bias=0.0, pre_logits=None, fc_norm=fc_norm)


FIELDS = tuple(field.name for field in dataclasses.fields(ViTSpec))
_DEFAULTS = ViTSpec(patch_size=(1, 1), depth=1, width=1, mlp_dim=1, heads=1)


def _check_effect(overrides, spec):
    """Refuses overrides that the architecture does not use.

    Raises:
        ValueError: for a field that would have no effect.
    """
    unused = {
        "gelu": not MLPS[spec.mlp_form].uses_activation
        and spec.pool != "map"
        and f'mlp_form="{spec.mlp_form}" has no GELU',
        "position_std": spec.positions not in LEARNED and f'positions="{spec.positions}" are not learned tables',
        "stem_width": spec.stem is None and "there is no stem",
        "conv_strides": not spec.conv_stem and "there is no conv_stem",
        "conv_form": not spec.conv_stem and "there is no conv_stem",
        "patch_dropout_block": not spec.patch_dropout and "there is no patch_dropout",
        "mean": spec.palette and "a palette takes pixels 0..255 as they are",
        "std": spec.palette and "a palette takes pixels 0..255 as they are",
        "patch_form": spec.palette and "a palette has no linear patches",
    }
    for name, reason in unused.items():
        if reason and name in overrides and getattr(spec, name) != getattr(_DEFAULTS, name):
            raise ValueError(f"{name}={overrides[name]!r} has no effect: {reason}. Leave it out.")


def make_spec(variant: str | ViTSpec | Mapping[str, Any], **overrides: Unpack[ViTOverrides]) -> ViTSpec:
    """The ViTSpec of `variant` with `overrides` applied.

    Args:
        variant: a name such as "B/16" or "R50+B/16", a ViTSpec, or its to_dict().
        **overrides: any field of ViTSpec.

    Raises:
        ValueError: for an unknown variant or field, with the nearest valid name, or an override without effect.
    """
    return FAMILIES["ViT"].make_spec(variant, **overrides)
