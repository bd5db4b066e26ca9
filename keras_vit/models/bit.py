"""BiT (arXiv 1912.11370), the ViT paper's convolutional baseline: ResNet v2, group norm, weight standardisation.

"R50x1" has 50 layers and 64 channels times 1 in its root.
"""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import keras
from keras import ops

from keras_vit import layers
from keras_vit.layers.arguments import integers
from keras_vit.layers.convolutions import GROUPS, group_norm
from keras_vit.layers.registration import serializable
from keras_vit.models.checks import blocks_to_remat, class_count, float_policy, image_input, model_name, plain_remat
from keras_vit.models.classifier import Classifier
from keras_vit.models.families import FAMILIES, Family, Spec, variant_hint
from keras_vit.models.fields import NOTHING, NUMBER, PER_CHANNEL, WEIGHTS, Kind, documented, field, row
from keras_vit.models.heads.label_head import linear

if TYPE_CHECKING:
    from keras_vit.models.overrides import BiTOverrides

# Residual units per stage, by the number of layers.
DEPTHS = {26: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_NAMES = re.compile(r"R(\d+)x(\d+)")
_NEAR = re.compile(r"(?:^|[^a-z])(?:r|resnet|resnetv2_)(\d+)x(\d+)", re.IGNORECASE)  # other libraries' names
# The published models: table 2 of the ViT paper, and the BiT paper.
BIT_VARIANTS = ("R50x1", "R50x2", "R50x3", "R101x1", "R101x3", "R152x1", "R152x2", "R152x4")


@serializable
@documented
@dataclasses.dataclass(frozen=True)
class BiTSpec(Spec):
    """The complete architecture of a BiT."""

    units: tuple[int, ...] = dataclasses.field(
        metadata=row(
            Kind(functools.partial(integers, example=(3, 4, 6, 3)), "positive integers"),
            "Residual units per stage.",
            WEIGHTS,
        )
    )
    width_factor: float = field(
        1, NUMBER, "Multiplies every width; the root has 64 channels times this factor.", WEIGHTS
    )
    head_bias: float = field(0.0, NUMBER, "Initial value of the head's bias.", NOTHING)
    mean: float | tuple[float, ...] = field(127.5, PER_CHANNEL, "Mean of the normalisation, on the 0..255 scale.")
    std: float | tuple[float, ...] = field(
        127.5, PER_CHANNEL, "Standard deviation of the normalisation, on the 0..255 scale."
    )

    def __post_init__(self):
        super().__post_init__()
        if not self.units:
            raise ValueError("units must be the residual units per stage, such as (3, 4, 6, 3), got ().")
        if self.width_factor <= 0 or self.width % GROUPS:
            raise ValueError(
                f"width_factor {self.width_factor} gives {64 * self.width_factor:g} channels, not a multiple of 32."
            )

    @property
    def width(self) -> int:
        """Channels of the root."""
        return int(64 * self.width_factor)

    @property
    def strides(self) -> tuple[tuple[int, int], ...]:
        return tuple((4 * 2**stage,) * 2 for stage, units in enumerate(self.units) for _ in range(units))

    @property
    def repeated(self) -> int:
        return sum(self.units)

    @property
    def in_words(self) -> str:
        return f"{'-'.join(map(str, self.units))} bottleneck units, {self.width_factor} times as wide as a ResNet"


def make_bit_spec(variant: str | BiTSpec | Mapping[str, Any], **overrides: "Unpack[BiTOverrides]") -> BiTSpec:
    """The BiTSpec of `variant` with `overrides` applied.

    Args:
        variant: name such as "R50x1", BiTSpec, or its to_dict().
        **overrides: any field of BiTSpec.

    Raises:
        ValueError: for an unknown variant or field.
    """
    return FAMILIES["BiT"].make_spec(variant, **overrides)


def _parse(variant):
    """The fields of a name such as "R50x1"."""
    match = _NAMES.fullmatch(variant)
    if not match or int(match[1]) not in DEPTHS:
        depths = ", ".join(f"R{depth}" for depth in DEPTHS)
        raise ValueError(
            f'Unknown BiT "{variant}".{variant_hint(variant, "BiT")} A BiT is a depth ({depths}) and a width factor: '
            f"{', '.join(BIT_VARIANTS)}."
        )
    return {"units": DEPTHS[int(match[1])], "width_factor": int(match[2])}


def _nearest(text):
    """The variant that another library's name, such as "resnetv2_50x1_bit", probably means."""
    match = _NEAR.search(text)
    return match and f"R{match[1]}x{match[2]}"


@serializable
class ZeroPaddedMaxPooling(keras.layers.Layer):
    """BiT's zero-padded 3x3 max-pooling with stride 2: (b, h, w, c) -> (b, h/2, w/2, c), rounded up."""

    def call(self, x):
        x = ops.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        return ops.max_pool(x, 3, 2, "valid", data_format="channels_last")

    def compute_output_shape(self, input_shape):
        b, h, w, c = input_shape
        return (b, -(-h // 2), -(-w // 2), c)

    def get_config(self):  # Keras requires it of layers that are given a dtype policy
        return super().get_config()


@serializable
class BiT(Classifier):
    """A BiT: ResNet v2 with group normalisation and weight standardisation.

    Args:
        variant: name such as "R50x1", or BiTSpec.
        image_size, classes, channels, class_names, preprocessing, name, dtype: as in ViT.
        remat: rematerialise all residual units (True), or those with these numbers, to save memory in training.
        **overrides: any field of BiTSpec.

    Input: pixels 0..255, (b, height, width, channels); output: logits (b, classes). Residual units are named
    `block_00`...

    Raises:
        ValueError: for an unknown variant or argument.
    """

    spec: BiTSpec

    def __init__(
        self,
        variant: str | BiTSpec | Mapping[str, Any],
        image_size: int | tuple[int, int] = 224,
        classes: int | None = 1000,
        channels: int = 3,
        class_names: Sequence[str] | None = None,
        preprocessing: str | None = None,
        remat: bool | Sequence[int] = False,
        name: str | None = "bit",
        dtype: str | keras.DTypePolicy | None = None,
        **overrides: "Unpack[BiTOverrides]",
    ):
        spec = make_bit_spec(variant, **overrides)
        policy, classes, remat = float_policy(dtype), class_count(classes), plain_remat(remat)
        name = model_name(name, "bit")
        image = image_input(image_size, channels, name, "bit")
        rematerialised = blocks_to_remat(remat, sum(spec.units))
        x = layers.PixelNormalization(spec.mean, spec.std, dtype=policy, name="normalization")(image)
        x = layers.StdConv2D(spec.width, 7, 2, "fixed", "variance", dtype=policy, name="stem_conv")(x)
        x = ZeroPaddedMaxPooling(dtype=policy, name="stem_pool")(x)
        block = 0
        for i, units in enumerate(spec.units):
            for j in range(units):
                strides = 2 if i and not j else 1
                unit = layers.BottleneckUnit(
                    spec.width * 2**i, strides, True, block in rematerialised, dtype=policy, name=f"block_{block:02d}"
                )
                x = unit(x)
                block += 1
        x = group_norm(1e-5, policy, "norm")(x)
        x = keras.layers.Activation("relu", dtype=policy, name="relu")(x)
        features = keras.layers.GlobalAveragePooling2D(data_format="channels_last", dtype=policy, name="pool")(x)
        outputs = features if classes is None else linear(features, classes, spec.head_bias, policy)
        super().__init__(image, features, outputs, spec, classes, class_names, preprocessing, remat, name, policy)


BIT = Family(
    name="BiT",
    title="BiT (a ResNet with group normalisation)",
    tag="bit",
    spec=BiTSpec,
    model=BiT,
    block=layers.BottleneckUnit,
    encoded="relu",
    names=_NAMES,
    parse=_parse,
    nearest=_nearest,
    variants=BIT_VARIANTS,
)
