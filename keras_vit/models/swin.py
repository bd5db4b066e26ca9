"""Swin (arXiv 2103.14030) and Swin V2 (arXiv 2111.09883): attention in shifted windows, in stages of falling size."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import keras

from keras_vit import layers
from keras_vit.layers.normalization import LayerNormalization
from keras_vit.layers.registration import serializable
from keras_vit.models.checks import blocks_to_remat, class_count, float_policy, image_input, model_name, plain_remat
from keras_vit.models.classifier import Classifier
from keras_vit.models.families import Family
from keras_vit.models.heads.label_head import linear
from keras_vit.models.swin_spec import (
    EPSILON,
    NAMES,
    SWIN_VARIANTS,
    SwinSpec,
    make_stages,
    make_swin_spec,
    nearest_variant,
    parse,
)

if TYPE_CHECKING:
    from keras_vit.models.overrides import SwinOverrides


def _embedded(image, spec, policy):
    """Pixels (b, height, width, c) to the first stage's map (b, h, w, d): zeros fill the last patches."""
    x = layers.PixelNormalization(spec.mean, spec.std, dtype=policy, name="normalization")(image)
    below, right = (-side % p for side, p in zip(image.shape[1:3], spec.patch_size))
    if below or right:
        padding = keras.layers.ZeroPadding2D(((0, below), (0, right)), "channels_last", dtype=policy, name="padding")
        x = padding(x)
    grid = make_stages(spec, image.shape[1:3])[0].size
    x = layers.PatchEncoder(spec.patch_size, spec.width, dtype=policy, name="patch_encoder")(x)  # (b, h*w, d)
    x = LayerNormalization(EPSILON, dtype=policy, name="stem_norm")(x)
    x = layers.Dropout(spec.dropout, dtype=policy, name="embedding_dropout")(x)
    return layers.PatchGrid(grid, dtype=policy, name="stem_map")(x)


def _encoded(x, spec, image_size, rematerialised, policy):
    """The stages: maps (b, h, w, d) of half the size and twice the width from one to the next."""
    v2, stages = spec.version == "v2", make_stages(spec, image_size)
    for i, stage in enumerate(spec.stage_of_block):
        first = sum(spec.depths[:stage])
        if i == first and stage:
            x = layers.PatchMerging(not v2, EPSILON, dtype=policy, name=f"merging_{i:02d}")(x)
        _, window, shift = stages[stage]
        x = layers.SwinBlock(
            heads=spec.heads * 2**stage,
            mlp_dim=int(spec.mlp_ratio * spec.width * 2**stage),
            window=window,
            shift=shift if (i - first) % 2 else (0, 0),
            v2=v2,
            pretrained_window=spec.pretrained_windows[stage] if v2 else None,
            roll_first=spec.roll == "before_padding",
            qkv_bias=spec.qkv_bias,
            epsilon=EPSILON,
            dropout=spec.dropout,
            attention_dropout=spec.attention_dropout,
            drop_path=spec.drop_path * i / max(spec.repeated - 1, 1),
            remat=i in rematerialised,
            dtype=policy,
            name=f"block_{i:02d}",
        )(x)
    return x


def with_pretrained_windows(spec: SwinSpec, image_size: tuple[int, int]) -> SwinSpec:
    """The spec with the windows that a v2 is trained with at this size, for loading with others."""
    if spec.version == "v1" or spec.pretrained_windows is not None:
        return spec
    windows = tuple(stage.window for stage in make_stages(spec, image_size))
    return dataclasses.replace(spec, pretrained_windows=windows)


@serializable
class Swin(Classifier):
    """A Swin Transformer of either version.

    Args:
        variant: name such as "Swin-T" or "SwinV2-B", or SwinSpec.
        image_size: pixels, of any size, a number or (height, width); the papers have 224 and 384, V2 256 and more.
        classes, channels, class_names, preprocessing, remat, name, dtype: as in ViT.
        **overrides: any field of SwinSpec.

    Input: pixels 0..255, (b, height, width, channels); output: logits (b, classes). Blocks, of maps (b, h, w, d), are
    named `block_00`...

    Raises:
        ValueError: for an unknown variant or argument.
    """

    spec: SwinSpec

    def __init__(
        self,
        variant: str | SwinSpec | Mapping[str, Any],
        image_size: int | tuple[int, int] = 224,
        classes: int | None = 1000,
        channels: int = 3,
        class_names: Sequence[str] | None = None,
        preprocessing: str | None = None,
        remat: bool | Sequence[int] = False,
        name: str | None = "swin",
        dtype: str | keras.DTypePolicy | None = None,
        **overrides: "Unpack[SwinOverrides]",
    ):
        spec = make_swin_spec(variant, **overrides)
        policy, classes, remat = float_policy(dtype), class_count(classes), plain_remat(remat)
        name = model_name(name, "swin")
        image = image_input(image_size, channels, name, "swin")
        spec = with_pretrained_windows(spec, image.shape[1:3])
        x = _embedded(image, spec, policy)
        x = _encoded(x, spec, image.shape[1:3], blocks_to_remat(remat, spec.repeated), policy)
        x = LayerNormalization(EPSILON, dtype=policy, name="norm")(x)
        features = keras.layers.GlobalAveragePooling2D(data_format="channels_last", dtype=policy, name="pool")(x)
        outputs = features if classes is None else linear(features, classes, spec.head_bias, policy)
        super().__init__(image, features, outputs, spec, classes, class_names, preprocessing, remat, name, policy)


def _layer_counts(*arguments):
    from keras_vit.models.swin_costs import swin_layer_counts

    return swin_layer_counts(*arguments)


SWIN = Family(
    name="Swin",
    title="Swin Transformer",
    tag="swin",
    spec=SwinSpec,
    model=Swin,
    block=layers.SwinBlock,
    encoded="norm",
    names=NAMES,
    parse=parse,
    nearest=nearest_variant,
    variants=SWIN_VARIANTS,
    layer_counts=_layer_counts,
)
