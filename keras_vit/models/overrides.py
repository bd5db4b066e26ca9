"""The keyword arguments that models, `load` and `transfer` hand on, for type checkers, each of them optional."""

from collections.abc import Sequence
from typing import TypedDict

import keras

# Generated from the fields of the specs by `make generate`.


class ViTOverrides(TypedDict, total=False):
    """Any field of ViTSpec."""

    patch_size: int | Sequence[int]
    depth: int
    width: int
    mlp_dim: int
    heads: int
    head_dim: int | None
    class_token: bool | None
    registers: int
    positions: str
    positions_at: str
    position_std: float
    rope: str | None
    rope_grid: int
    rope_rescale: float
    pool: str
    pool_heads: int | None
    pre_logits: int | None
    pre_logits_activation: str
    qkv_bias: bool
    key_bias: bool
    qk_norm: bool
    mlp_activation: str
    epsilon: float
    layer_scale: float | None
    dropout: float
    attention_dropout: float
    drop_path: float
    head_bias: float
    mean: float | Sequence[float]
    std: float | Sequence[float]
    patch_form: str
    patch_norm: bool
    distillation_token: bool
    fc_norm: bool
    final_norm: bool
    norm_first: bool
    pre_norm: bool
    mlp_form: str
    hidden_norm: bool
    stem: Sequence[int] | None
    stem_width: int
    conv_stem: Sequence[int]
    conv_strides: Sequence[int]
    conv_form: str
    token_merging: int | Sequence[int] | None
    patch_dropout: float
    patch_dropout_block: int | None
    causal: bool
    attention: str
    windows: int
    global_blocks: Sequence[int]
    palette: int | None


class BiTOverrides(TypedDict, total=False):
    """Any field of BiTSpec."""

    units: Sequence[int]
    width_factor: float
    head_bias: float
    mean: float | Sequence[float]
    std: float | Sequence[float]


class SwinOverrides(TypedDict, total=False):
    """Any field of SwinSpec."""

    version: str
    width: int
    depths: Sequence[int]
    heads: int
    window: int | None
    pretrained_windows: Sequence[int | Sequence[int]] | None
    roll: str
    patch_size: int | Sequence[int]
    mlp_ratio: float
    qkv_bias: bool
    dropout: float
    attention_dropout: float
    drop_path: float
    head_bias: float
    mean: float | Sequence[float]
    std: float | Sequence[float]


class AnyOverrides(ViTOverrides, total=False):
    """Any field of a spec."""

    units: Sequence[int]
    width_factor: float
    version: str
    depths: Sequence[int]
    window: int | None
    pretrained_windows: Sequence[int | Sequence[int]] | None
    roll: str
    mlp_ratio: float


# End of the generated code.


class Changes(AnyOverrides, total=False):
    """What `load` and `transfer` may change: any field of a spec, and the other arguments of models."""

    channels: int
    preprocessing: str | None
    remat: bool | Sequence[int]
    name: str
    dtype: str | keras.DTypePolicy | None


class Answers(Changes, total=False):
    """What `load` also takes where a file does not show it: the decoder of a masked autoencoder."""

    decoder_heads: int
    normalise_targets: bool
    mask_ratio: float


class Arguments(Changes, total=False):
    """All arguments of models but the variant."""

    image_size: int | tuple[int, int]
    classes: int | None
    class_names: Sequence[str] | None
