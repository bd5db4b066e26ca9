"""The architecture of a Swin (arXiv 2103.14030; V2: arXiv 2111.09883): SwinSpec, variants, and the stages' windows."""

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from keras_vit.layers.arguments import integers, number
from keras_vit.layers.embedding.patches import pair
from keras_vit.layers.registration import serializable
from keras_vit.models.families import FAMILIES, Spec, variant_hint
from keras_vit.models.fields import (
    FLAG,
    NOTHING,
    NUMBER,
    PAIR,
    PER_CHANNEL,
    POSITIVE,
    RATE,
    WEIGHTS,
    Kind,
    documented,
    field,
    one_of,
    row,
)

if TYPE_CHECKING:
    from keras_vit.models.overrides import SwinOverrides

# Sizes of both versions, from the papers; a head is 32 wide.
ROWS = {
    "T": {"width": 96, "depths": (2, 2, 6, 2), "heads": 3},
    "S": {"width": 96, "depths": (2, 2, 18, 2), "heads": 3},
    "B": {"width": 128, "depths": (2, 2, 18, 2), "heads": 4},
    "L": {"width": 192, "depths": (2, 2, 18, 2), "heads": 6},
}
VERSIONS = {"Swin": "v1", "SwinV2": "v2"}
SWIN_VARIANTS = tuple(f"{name}-{size}" for name in VERSIONS for size in ROWS)
WINDOWS = {"v1": 7, "v2": 8}  # of the versions' models for images of 224 and 256 pixels
ROLLS = ("after_padding", "before_padding")
EPSILON = 1e-5  # of all normalisations
NAMES = re.compile(r"(Swin(?:V2)?)-([TSBL])")
_NEAR = re.compile(r"(swin(?:[^a-z0-9]?v2|2)?)(?:[^a-z0-9]|transformer)*(tiny|small|base|large|[tsbl])(?![a-z])", re.I)


def _pairs(value, name):
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError(f"{name} must be one window per stage, such as (12, 12, 12, 6), got {value!r}.")
    return tuple(pair(each, name) for each in value)


def _ratio(value, name):
    if number(value, name) <= 0:
        raise ValueError(f"{name} must be above 0, got {value!r}.")
    return number(value, name)


_WINDOWS = Kind(_pairs, "numbers or pairs (rows, columns)", accepts="Sequence[int | Sequence[int]] | None")


@serializable
@documented
@dataclasses.dataclass(frozen=True)
class SwinSpec(Spec):
    """The complete architecture of a Swin of either version."""

    version: str = dataclasses.field(
        metadata=row(
            one_of(tuple(VERSIONS.values())),
            "The paper's: v2 normalises after each branch, and attends by cosines with a continuous position bias.",
            WEIGHTS,
        )
    )
    width: int = dataclasses.field(metadata=row(POSITIVE, "Channels of the first stage; each doubles them.", WEIGHTS))
    depths: tuple[int, ...] = dataclasses.field(
        metadata=row(
            Kind(functools.partial(integers, example=(2, 2, 6, 2)), "positive integers"), "Blocks per stage.", WEIGHTS
        )
    )
    heads: int = dataclasses.field(
        metadata=row(POSITIVE, "Attention heads in the first stage; each doubles them.", WEIGHTS)
    )
    window: int | None = field(
        None,
        POSITIVE,
        "Rows and columns of a window, at most those of the map; None for the paper's, 7 in v1 and 8 in v2. Loading"
        " resamples v1's tables for another one, and computes v2's bias again.",
    )
    pretrained_windows: tuple[tuple[int, int], ...] | None = field(
        None,
        _WINDOWS,
        "v2: the stages' windows that the weights were trained with, the unit of the continuous bias; None for the"
        " model's, which it then keeps when it is loaded with other windows.",
    )
    roll: str = field(
        ROLLS[0],
        one_of(ROLLS),
        "When shifted maps are rolled, relative to their padding to whole windows: after it, as in the original and in"
        " transformers, or before it, as in timm. Also the library with the rule for windows on small maps.",
    )
    patch_size: tuple[int, int] = field((4, 4), PAIR, "Pixels of a patch.")
    mlp_ratio: float = field(
        4, Kind(_ratio, "a number above 0"), "Hidden width of an MLP, relative to the map's width.", WEIGHTS
    )
    qkv_bias: bool = field(True, FLAG, "Whether query, key and value have biases; v2's keys never have.", WEIGHTS)
    dropout: float = field(0.0, RATE, "Rate after patches, attention and every dense layer of the MLPs.", NOTHING)
    attention_dropout: float = field(0.0, RATE, "Rate on the attention weights.", NOTHING)
    drop_path: float = field(
        0.0, RATE, "Stochastic depth: the last block's rate; rates grow linearly from 0 at the first block.", NOTHING
    )
    head_bias: float = field(0.0, NUMBER, "Initial value of the head's bias.", NOTHING)
    mean: float | tuple[float, ...] = field(127.5, PER_CHANNEL, "Mean of the normalisation, on the 0..255 scale.")
    std: float | tuple[float, ...] = field(
        127.5, PER_CHANNEL, "Standard deviation of the normalisation, on the 0..255 scale."
    )

    has_attention_maps = True
    lacks = "no attention across the whole image"

    def __post_init__(self):
        super().__post_init__()
        if self.window is None:
            object.__setattr__(self, "window", WINDOWS[self.version])
        if not self.depths or self.width % self.heads:
            raise ValueError(
                f"A Swin needs stages with a width that divides into heads, got depths={self.depths},"
                f" width={self.width}, heads={self.heads}."
            )
        windows = self.pretrained_windows
        if windows is not None and (self.version == "v1" or len(windows) != len(self.depths)):
            raise ValueError(
                f"pretrained_windows are for v2, one for each of the {len(self.depths)} stages, got {windows} for"
                f" {self.version}."
            )

    @property
    def stage_of_block(self) -> tuple[int, ...]:
        """The stage of each block, from 0."""
        return tuple(stage for stage, blocks in enumerate(self.depths) for _ in range(blocks))

    @property
    def strides(self) -> tuple[tuple[int, int], ...]:
        p, q = self.patch_size
        return tuple((p * 2**stage, q * 2**stage) for stage in self.stage_of_block)

    @property
    def repeated(self) -> int:
        return sum(self.depths)

    @property
    def in_words(self) -> str:
        windows = f"windows of {self.window}x{self.window}"
        return f"{'-'.join(map(str, self.depths))} blocks, {self.width} channels in the first stage, {windows}"

    def offset_tables(self, image_size):
        stages = make_stages(self, image_size) if self.version == "v1" else []
        tables = {i: stages[stage].window for i, stage in enumerate(self.stage_of_block) if stages}
        return {f"block_{i:02d}/attention/relative2d/bias": window for i, window in tables.items()}


class Stage(NamedTuple):
    """A stage: sizes of its map (h, w) and windows (rows, columns), shift (down, right) of every second block."""

    size: tuple[int, int]
    window: tuple[int, int]
    shift: tuple[int, int]


def _windows(spec, stage, grid, size):
    """(window, shift) of a stage: a window as large as the map or larger becomes the map, and does not shift."""
    k, half = spec.window, spec.window // 2
    if spec.roll == "before_padding":  # timm: each axis for itself
        return tuple(min(k, side) for side in size), tuple(half if side > k else 0 for side in size)
    # The original: by the smaller axis. transformers' V2: by the height alone, rounded down.
    side = min(size) if spec.version == "v1" else max(grid[0] // 2**stage, 1)
    return (min(k, side),) * 2, (half if side > k else 0,) * 2


def make_stages(spec: SwinSpec, image_size: tuple[int, int]) -> list[Stage]:
    """The stages for images of (height, width) pixels, of any size: maps are rounded up."""
    (height, width), (p, q) = image_size, spec.patch_size
    size = grid = -(-height // p), -(-width // q)
    stages = []
    for i in range(len(spec.depths)):
        stages.append(Stage(size, *_windows(spec, i, grid, size)))
        size = -(-size[0] // 2), -(-size[1] // 2)
    return stages


def make_swin_spec(variant: str | SwinSpec | Mapping[str, Any], **overrides: "Unpack[SwinOverrides]") -> SwinSpec:
    """The SwinSpec of `variant` with `overrides` applied.

    Args:
        variant: name such as "Swin-T" or "SwinV2-B", SwinSpec, or its to_dict().
        **overrides: any field of SwinSpec.

    Raises:
        ValueError: for an unknown variant or field.
    """
    return FAMILIES["Swin"].make_spec(variant, **overrides)


def parse(variant):
    """The fields of a name such as "SwinV2-T"."""
    match = NAMES.fullmatch(variant)
    if not match:
        raise ValueError(f'Unknown Swin "{variant}".{variant_hint(variant, "Swin")} Valid: {", ".join(SWIN_VARIANTS)}.')
    return {"version": VERSIONS[match[1]], **ROWS[match[2]]}


def nearest_variant(text):
    """The variant that another library's name, such as "swinv2_tiny_window8_256", probably means."""
    match = _NEAR.search(text)
    return match and f"{'SwinV2' if '2' in match[1] else 'Swin'}-{match[2][0].upper()}"
