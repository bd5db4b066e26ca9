"""The architecture of a Vision Transformer: ViTSpec."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from keras_vit.io.suggest import counted
from keras_vit.layers.arguments import integers
from keras_vit.layers.attention import patterns
from keras_vit.layers.attention.self_attention import POSITIONS as INNER_POSITIONS
from keras_vit.layers.attention.self_attention import RELATIVE
from keras_vit.layers.blocks.mlp import ACTIVATIONS, DENSE_ACTIVATIONS, MLPS
from keras_vit.layers.embedding.patches import FORMS, grid_size
from keras_vit.layers.positions.embeddings import FIXED, KINDS, LEARNED
from keras_vit.layers.positions.rotary import ROTARY
from keras_vit.layers.registration import serializable
from keras_vit.models.families import FAMILIES, Spec
from keras_vit.models.fields import (
    AT_LEAST_1,
    BLOCKS,
    COUNT,
    EPSILON,
    FLAG,
    NOT_NEGATIVE,
    NOTHING,
    NUMBER,
    PAIR,
    PER_BLOCK,
    PER_CHANNEL,
    POSITIVE,
    RATE,
    WEIGHTS,
    Kind,
    at_least,
    documented,
    field,
    one_of,
    row,
    rows,
)

if TYPE_CHECKING:
    from keras_vit.models.overrides import ViTOverrides

CONV_FORMS = ("plain", "residual")
POOLS = ("token", "gap", "map", "token_gap", "mean")
POSITIONS = (*KINDS, *INNER_POSITIONS, "none")
PLACES = ("stem", "every", "shared")


def token_stride(patch_size: tuple, stem: tuple | None, conv_strides: tuple = ()) -> tuple[int, int]:
    """Pixels (height, width) between patch tokens; a hybrid's root has stride 4, each stage after the first 2."""
    reduction = 1 if stem is None else 4 * 2 ** max(len(stem) - 1, 0)
    reduction *= math.prod(conv_strides)
    return tuple(p * reduction for p in patch_size)


_ATTENTION = Kind(patterns.attention_text, "an attention pattern")
_UNITS = Kind(functools.partial(integers, example=(3, 4, 9)), "positive integers")
_CONVOLUTIONS = Kind(functools.partial(integers, example=(32, 64)), "positive integers")


def _check_combinations(spec: Any) -> None:
    """Raises ValueError unless a ViTSpec's fields go together."""
    _check_stems(spec)
    _check_reduction(spec)
    _check_head(spec)
    _check_causal(spec)
    _check_palette(spec)
    _check_windows(spec)
    _check_attention(spec)
    _check_positions(spec)


def _check_effect(overrides: Mapping[str, Any], spec: Any) -> None:
    """Raises ValueError for overrides that the architecture ignores."""
    unused = {
        "mlp_activation": not MLPS[spec.mlp_form].uses_activation
        and spec.pool != "map"
        and f'mlp_form="{spec.mlp_form}" has none',
        "pre_logits_activation": not spec.pre_logits and "there is no pre_logits",
        "position_std": spec.positions not in LEARNED and f'positions="{spec.positions}" are not learned tables',
        "rope_rescale": spec.inner_positions not in ROTARY and f'positions="{spec.positions}" are not rotations',
        "rope_grid": spec.inner_positions not in ("rope2d_cells", "rope2d_cells1")
        and "there are no rotations of the form rope2d_cells",
        "pool_heads": spec.pool != "map" and f'pool="{spec.pool}" has no heads',
        "stem_width": spec.stem is None and "there is no stem",
        "conv_strides": not spec.conv_stem and "there is no conv_stem",
        "conv_form": not spec.conv_stem and "there is no conv_stem",
        "patch_dropout_block": not spec.patch_dropout and "there is no patch_dropout",
        "global_blocks": spec.windows == 1 and "there are no windows (a pattern has global=(...) in its attention)",
        "mean": spec.palette and "a palette takes pixels 0..255 as they are",
        "std": spec.palette and "a palette takes pixels 0..255 as they are",
        "patch_form": spec.palette and "a palette has no linear patches",
    }
    fields = rows(type(spec))
    for name, reason in unused.items():
        if reason and name in overrides and getattr(spec, name) != fields[name].default:
            raise ValueError(f"{name}={overrides[name]!r} has no effect: {reason}. Leave it out.")


def _check_stems(spec):
    if spec.stem is not None and spec.conv_stem:
        raise ValueError("stem and conv_stem exclude each other: a hybrid already has a stem.")
    if len(spec.conv_stem) != len(spec.conv_strides):
        raise ValueError(
            f"conv_stem has {len(spec.conv_stem)} convolutions, conv_strides {len(spec.conv_strides)} strides."
        )


def _check_reduction(spec):
    merging, block = spec.token_merging, spec.patch_dropout_block
    if isinstance(merging, tuple) and len(merging) != spec.depth:
        raise ValueError(
            f"token_merging has {len(merging)} numbers, the model {spec.depth} blocks: give one per block."
        )
    if not spec.norm_first and (merging is not None or block is not None):
        raise ValueError(
            "norm_first=False does not go with token_merging and patch_dropout_block: their blocks normalise first."
        )
    if block is not None and block >= spec.depth:
        raise ValueError(f"patch_dropout_block={block}: the model has blocks 0 to {spec.depth - 1}.")


def _check_head(spec):
    if spec.pool in ("token", "token_gap") and not spec.class_token:
        raise ValueError(
            f'pool="{spec.pool}" reads the class token, but class_token is False. Use pool="gap" or "map".'
        )
    if spec.distillation_token and (spec.pool != "token" or spec.pre_logits):
        raise ValueError(
            'distillation_token needs pool="token" and no pre_logits: each of the two tokens has its own linear head.'
        )
    if spec.fc_norm and spec.pool == "map":
        raise ValueError('fc_norm needs pool "gap", "token", "token_gap" or "mean", got "map".')
    if spec.fc_norm and not spec.final_norm:
        raise ValueError("fc_norm=True is a normalisation after the blocks, which final_norm=False leaves out.")


def _check_causal(spec):
    if spec.causal and (spec.pool in ("token", "token_gap") or spec.distillation_token):
        what = "distillation_token" if spec.distillation_token else f'pool="{spec.pool}"'
        raise ValueError(
            f"causal=True lets the tokens before the patches see no patch, so that {what} would read the same of"
            ' every image: use pool="gap" or "map", with class_token=True for a token to start from.'
        )
    if spec.causal and (spec.token_merging is not None or spec.patch_dropout):
        raise ValueError(
            "causal=True needs all patches in their order: leave token_merging and patch_dropout out, which merge"
            " later ones into earlier, or change their order."
        )


def _check_palette(spec):
    if spec.palette is None:
        return
    wrong = {
        "patch_size": spec.patch_size != (1, 1),
        "stem": spec.stem is not None,
        "conv_stem": bool(spec.conv_stem),
        "patch_norm": spec.patch_norm,
        "pre_norm": spec.pre_norm,
    }
    for name, given in wrong.items():
        if given:
            raise ValueError(
                f"palette={spec.palette} makes a token of each pixel: set patch_size=1 and leave stem, conv_stem,"
                f" patch_norm and pre_norm out, got {name}={getattr(spec, name)!r}."
            )


def _check_positions(spec):
    if spec.rope is not None and spec.positions not in KINDS:
        raise ValueError(
            f'rope="{spec.rope}" adds rotations to a table, {", ".join(KINDS)}, got positions="{spec.positions}".'
            f' For rotations alone set positions="{spec.rope}" and leave rope out.'
        )
    if spec.positions_at != "stem" and spec.positions not in KINDS:
        raise ValueError(
            f'positions_at="{spec.positions_at}" needs a table that can be added at each block, {", ".join(KINDS)};'
            f' positions="{spec.positions}" has none. Leave positions_at at "stem".'
        )
    if not spec.reads_grid or (spec.token_merging is None and not spec.patch_dropout):
        return
    reduces = "patch_dropout" if spec.patch_dropout else "token_merging"
    raise ValueError(
        f'{reduces} does not go with positions="{spec.positions}", positions_at="{spec.positions_at}": after it the'
        " blocks no longer know where a patch was. Use positions that are added at the stem"
        f" ({', '.join(KINDS)}), or none."
    )


def _check_windows(spec):
    wrong = [i for i in spec.global_blocks if i >= spec.depth]
    if wrong:
        raise ValueError(f"global_blocks has {wrong}: the model has blocks 0 to {spec.depth - 1}.")
    if spec.windows == 1:
        return
    problems = {
        f'positions="{spec.inner_positions}" inside attention': spec.inner_positions is not None,
        f'positions_at="{spec.positions_at}"': spec.positions_at != "stem",
        "token_merging": spec.token_merging is not None,
        "patch_dropout": spec.patch_dropout > 0,
        "causal=True": spec.causal,
    }
    for name, given in problems.items():
        if given:
            raise ValueError(f"windows={spec.windows} do not go with {name}. Leave one of them out.")


def _check_attention(spec):
    if not spec.has_pattern:
        return
    wrong = [i for i in spec.pattern.global_blocks if i >= spec.depth]
    if wrong:
        raise ValueError(f'attention="{spec.attention}": the model has blocks 0 to {spec.depth - 1}, not {wrong}.')
    axial = spec.pattern.name == "axial"
    problems = {
        f"windows={spec.windows}": spec.windows > 1,
        f'positions="{spec.positions}", terms of the scores of all pairs; use "rope2d" or positions that are added'
        " to the tokens": spec.positions in RELATIVE,
        "token_merging, which needs each pair's weight": spec.token_merging is not None,
        "patch_dropout, which removes patches from the grid": spec.patch_dropout > 0,
        "causal=True, since rows and columns leave out earlier patches": axial and spec.causal,
        "norm_first=False": axial and not spec.norm_first,
    }
    for name, given in problems.items():
        if given:
            raise ValueError(f'attention="{spec.attention}" does not go with {name}. Leave one of them out.')


@serializable
@documented
@dataclasses.dataclass(frozen=True)
class ViTSpec(Spec):
    """The complete architecture of a Vision Transformer: equal specs make equal models."""

    patch_size: tuple[int, int] = dataclasses.field(
        metadata=row(PAIR, "Pixels of a patch; after a stem, positions of the stem's output.")
    )
    depth: int = dataclasses.field(metadata=row(POSITIVE, "Number of blocks.", WEIGHTS))
    width: int = dataclasses.field(metadata=row(POSITIVE, "Size d of a token.", WEIGHTS))
    mlp_dim: int = dataclasses.field(metadata=row(POSITIVE, "Hidden width of the MLP.", WEIGHTS))
    heads: int = dataclasses.field(metadata=row(POSITIVE, "Number of attention heads.", WEIGHTS))
    head_dim: int | None = field(None, POSITIVE, "Width of an attention head; None for width / heads.", WEIGHTS)
    class_token: bool | None = field(
        None, FLAG, "Whether there is a class token; None for one exactly where the pool reads it.", WEIGHTS
    )
    registers: int = field(0, COUNT, "Number of learned tokens after the class token (arXiv 2309.16588).", WEIGHTS)
    positions: str = field(
        "learned",
        one_of(POSITIONS),
        "How the model encodes where a patch is: a table that is added to the tokens, or terms in the attention.",
        WEIGHTS,
    )
    positions_at: str = field(
        "stem",
        one_of(PLACES),
        "Where the table is added: to the first block's input, or to every block's, each with a separate table or"
        " all with one.",
        WEIGHTS,
    )
    position_std: float = field(
        0.02,
        NOT_NEGATIVE,
        "Standard deviation of learned tables at the start, 0.02 in the paper's code; small data sets learn better"
        " with more.",
        NOTHING,
    )
    rope: str | None = field(
        None,
        one_of(ROTARY),
        "Rotations of queries and keys in addition to a table (EVA-02, Perception Encoder); None for none, or those of"
        " `positions`.",
        WEIGHTS,
    )
    rope_grid: int = field(
        16,
        POSITIVE,
        "Patches a side of the reference grid of rope2d_cells and rope2d_cells1, at any image size (EVA-02: 16).",
    )
    rope_rescale: float = field(
        1.0,
        AT_LEAST_1,
        "In training each step multiplies the coordinates of rotations by one random number, log-uniform in [1 / this,"
        " this], so that the model learns other image sizes (DINOv3: 2); 1 for none.",
        NOTHING,
    )
    pool: str = field(
        "token",
        one_of(POOLS),
        "The head's input: the class token, the mean of the patch tokens, attention pooling by a learned query (MAP),"
        " class token and that mean, concatenated, or the mean of all tokens, the class token too.",
    )
    pool_heads: int | None = field(
        None,
        POSITIVE,
        "Attention heads of the MAP pool; None for as many as in a block (Perception Encoder: 8).",
        WEIGHTS,
    )
    pre_logits: int | None = field(
        None, POSITIVE, "Width of a dense layer before the head; None for no such layer.", WEIGHTS
    )
    pre_logits_activation: str = field("tanh", one_of(DENSE_ACTIVATIONS), "That layer's activation.")
    qkv_bias: bool = field(True, FLAG, "Whether query, key and value have biases.", WEIGHTS)
    key_bias: bool = field(
        True, FLAG, "Whether the key has a bias, too; DINOv3 and EVA-02 have those of query and value alone.", WEIGHTS
    )
    qk_norm: bool = field(False, FLAG, "Layer-normalise queries and keys per head (arXiv 2302.05442).", WEIGHTS)
    mlp_activation: str = field(
        "gelu",
        one_of(ACTIVATIONS),
        'The MLP\'s activation: "gelu_tanh" is GELU\'s approximation in the original JAX code, "quick_gelu" CLIP\'s.',
    )
    epsilon: float = field(1e-6, EPSILON, "Epsilon of the layer normalisations.")
    layer_scale: float | None = field(
        None, NUMBER, "Initial value of LayerScale (arXiv 2103.17239); None for no such layers.", WEIGHTS
    )
    dropout: float = field(
        0.0,
        RATE,
        "Rate after every dense layer except query, key and value, and after the position embedding.",
        NOTHING,
    )
    attention_dropout: float = field(0.0, RATE, "Rate on the attention weights.", NOTHING)
    drop_path: float = field(
        0.0, RATE, "Stochastic depth: the last block's rate; rates grow linearly from 0 at the first block.", NOTHING
    )
    head_bias: float = field(
        0.0, NUMBER, "Initial value of the head's bias (AugReg: -6.9 for ImageNet with the sigmoid loss).", NOTHING
    )
    mean: float | tuple[float, ...] = field(127.5, PER_CHANNEL, "Mean of the normalisation, on the 0..255 scale.")
    std: float | tuple[float, ...] = field(
        127.5, PER_CHANNEL, "Standard deviation of the normalisation, on the 0..255 scale."
    )
    patch_form: str = field(
        "conv",
        one_of(FORMS),
        "How patches are embedded: same weights, same results; the speed depends on the machine.",
        NOTHING,
    )
    patch_norm: bool = field(
        False, FLAG, "Normalise a patch's pixels before the embedding, and its token after it.", WEIGHTS
    )
    distillation_token: bool = field(
        False, FLAG, "DeiT's second token, with a second head; the output is the mean of both heads.", WEIGHTS
    )
    fc_norm: bool = field(False, FLAG, "Normalise after the pooling instead of before it.", WEIGHTS)
    final_norm: bool = field(True, FLAG, "Whether there is a normalisation after the blocks.", WEIGHTS)
    norm_first: bool = field(
        True,
        FLAG,
        "Where a block normalises: before attention and MLP, or, as in nn.TransformerEncoderLayer, after each residual"
        " sum (post-norm).",
        WEIGHTS,
    )
    pre_norm: bool = field(
        False,
        FLAG,
        "CLIP's: normalise the tokens before the first block, too; the patches then have no bias.",
        WEIGHTS,
    )
    mlp_form: str = field(
        "plain",
        one_of(MLPS),
        'The MLP: "plain" is the paper\'s, "swiglu" that of DINOv2-g (arXiv 2002.05202).',
        WEIGHTS,
    )
    hidden_norm: bool = field(
        False, FLAG, "Normalise the MLP's hidden values before its second layer (sub-LN, EVA-02's B and L).", WEIGHTS
    )
    stem: tuple[int, ...] | None = field(
        None,
        _UNITS,
        "A hybrid's ResNet units per stage, such as (3, 4, 9); () for its root alone; None for no ResNet.",
        WEIGHTS,
    )
    stem_width: int = field(64, POSITIVE, "Channels of that ResNet's root.", WEIGHTS)
    conv_stem: tuple[int, ...] = field(
        (),
        _CONVOLUTIONS,
        "Channels of each 3x3 convolution before the patches, with batch normalisation and ReLU (arXiv 2106.14881);"
        " () for none. Small data sets learn faster with such a stem.",
        WEIGHTS,
    )
    conv_strides: tuple[int, ...] = field((), _CONVOLUTIONS, "Strides of these convolutions; () for 2 each.", WEIGHTS)
    conv_form: str = field(
        "plain",
        one_of(CONV_FORMS),
        'Form of these convolutions: "residual" ones replace strides by max-pooling after the first, and add their'
        " input where the shape stays. They take more time a step, and learn more in the same time.",
        WEIGHTS,
    )
    token_merging: int | tuple[int, ...] | None = field(
        None,
        PER_BLOCK,
        "How many patches each block merges into similar ones (ToMe, arXiv 2210.09461), at most half of those it"
        " has left.",
    )
    patch_dropout: float = field(0.0, RATE, "Share of the patches that are left out, in prediction too.")
    patch_dropout_block: int | None = field(
        None,
        COUNT,
        "The block that leaves out, after its attention, the patches it attends to least; None to leave out random"
        " ones before the first block, the same of every image in prediction (PatchDropout, arXiv 2208.07220).",
    )
    causal: bool = field(
        False,
        FLAG,
        "Each token attends only to itself and those before it: class token and registers, then the patches row by"
        " row (iGPT).",
        WEIGHTS,
    )
    attention: str = field(
        "global",
        _ATTENTION,
        'Which patches each attends to: "global" for all, "window(14, global=(2, 5, 8, 11))" and others, see attention'
        " patterns.",
    )
    windows: int = field(
        1,
        POSITIVE,
        "Windows per side of the patch grid: tokens attend inside them, each with a copy of the tokens before the"
        " patches (RF-DETR, arXiv 2511.09554); 1 for attention among all.",
    )
    global_blocks: tuple[int, ...] = field(
        (), BLOCKS, "With windows, the numbers of the blocks with attention among all tokens, from 0."
    )
    palette: int | None = field(
        None,
        at_least(2),
        "Number of colours of a palette: each pixel is a token, the embedding of its nearest colour"
        " (layers.PaletteEncoder).",
        WEIGHTS,
    )

    has_attention = has_attention_maps = has_tokens = True

    def __post_init__(self):
        super().__post_init__()
        if self.class_token is None:
            self._replace("class_token", self.pool in ("token", "token_gap", "mean"))
        if self.head_dim is not None and self.head_dim * self.heads == self.width:
            self._replace("head_dim", None)  # equal models, equal specs
        if self.pool_heads == self.heads:
            self._replace("pool_heads", None)
        if not self.qkv_bias:
            self._replace("key_bias", True)
        if not self.conv_strides:
            self._replace("conv_strides", (2,) * len(self.conv_stem))
        if not np.any(self.token_merging or 0):
            self._replace("token_merging", None)
        _check_combinations(self)

    def _replace(self, name, value):
        """Sets a field of the frozen dataclass under construction."""
        object.__setattr__(self, name, value)

    @property
    def pattern(self) -> patterns.Attention:
        """The attention pattern."""
        return patterns.parse(self.attention, "attention")

    @property
    def has_pattern(self) -> bool:
        """Whether patches attend to some patches, not all."""
        return self.attention != "global"

    @property
    def positions_in_blocks(self) -> bool:
        """Whether the blocks have positions, inside attention or added to their inputs."""
        return self.inner_positions is not None or self.positions_at != "stem"

    @property
    def inner_positions(self) -> str | None:
        """The positions inside attention, or None."""
        return self.positions if self.positions in INNER_POSITIONS else self.rope

    @property
    def reads_grid(self) -> bool:
        """Whether the blocks have positions, windows or a pattern, for which `encode` needs the grid."""
        return self.positions_in_blocks or self.windows > 1 or self.has_pattern

    @property
    def qkv_biases(self) -> int:
        """How many of query, key and value have biases."""
        return (2 + self.key_bias) if self.qkv_bias else 0

    @property
    def positioned(self) -> int:
        """Number of tokens before the patches with a position embedding: class and distillation token."""
        return int(bool(self.class_token)) + int(self.distillation_token)

    @property
    def window_prefix(self) -> int:
        """Number of tokens before the patches of a window: class and distillation token, registers."""
        return self.positioned + self.registers

    @property
    def prefix(self) -> int:
        """Number of tokens before the patches in the blocks: those of every window."""
        return self.window_prefix * self.windows**2

    @property
    def stride(self) -> tuple[int, int]:
        """Pixels (height, width) between patch tokens."""
        return token_stride(self.patch_size, self.stem, self.conv_strides)

    @property
    def strides(self) -> tuple[tuple[int, int], ...]:
        return (self.stride,) * self.depth

    def offset_tables(self, image_size):
        if self.positions != "relative2d":
            return {}
        grid = grid_size(image_size, self.stride)
        return {f"block_{i:02d}/attention/relative2d/bias": grid for i in range(self.depth)}

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
        if "pool" in overrides:
            changed = {"class_token"} | ({"pool_heads"} if overrides["pool"] != "map" else set())
            fields = {name: value for name, value in fields.items() if name not in changed - overrides.keys()}
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
        if name == "attention":  # axial blocks have twice the weights
            return value != own and "axial" in (str(value).strip(), own)
        return super().fixes(name, value) and not (name == "class_token" and value is None)

    def with_new_head(self, changes):
        # As in the paper, one zero-initialised linear layer replaces head and hidden layer; a new normalisation after
        # pooling replaces the last one before it.
        fc_norm = bool(changes.get("fc_norm")) or self.fc_norm
        return dataclasses.replace(self, head_bias=0.0, pre_logits=None, pre_logits_activation="tanh", fc_norm=fc_norm)


def make_spec(variant: str | ViTSpec | Mapping[str, Any], **overrides: "Unpack[ViTOverrides]") -> ViTSpec:
    """The ViTSpec of `variant` with `overrides` applied.

    Args:
        variant: name such as "B/16" or "R50+B/16", ViTSpec, or its to_dict().
        **overrides: any field of ViTSpec.

    Raises:
        ValueError: for an unknown variant or field, with the nearest valid name, or an override without effect.
    """
    return FAMILIES["ViT"].make_spec(variant, **overrides)
