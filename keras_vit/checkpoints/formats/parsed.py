"""A parsed checkpoint, made by each format's reader: the model, and the map from the file's names to our weights."""

import dataclasses
import math
import typing
from collections.abc import Callable, Sequence

import numpy as np

from keras_vit.checkpoints.formats.name_map import NameMap
from keras_vit.checkpoints.formats.questions import Options
from keras_vit.checkpoints.resample import adapt_constants
from keras_vit.layers.embedding.patches import pair

IMAGENET_MEAN = tuple(255 * m for m in (0.485, 0.456, 0.406))
IMAGENET_STD = tuple(255 * s for s in (0.229, 0.224, 0.225))
IMAGENET = (IMAGENET_MEAN, IMAGENET_STD)
HALF = (127.5, 127.5)
CLIP_MEAN = tuple(255 * m for m in (0.48145466, 0.4578275, 0.40821073))
CLIP_STD = tuple(255 * s for s in (0.26862954, 0.26130258, 0.27577711))
CLIP = (CLIP_MEAN, CLIP_STD)

# {width: heads} of the published models with heads that are not 64 wide; a state dict does not contain the number of
# heads.
_HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16, 4096: 32}


@dataclasses.dataclass(frozen=True)
class Decoder:
    """The decoder in a masked autoencoder's file.

    Attributes:
        fields: its arguments of MaskedAutoencoder.
        name_map, arrays: as in ParsedCheckpoint.
        encoder_positions: "sincos2d_mae" if the encoder's table is MAE's own, or "learned".
        encoder_table: name of that table in the file.
    """

    fields: dict
    name_map: NameMap
    arrays: dict[str, np.ndarray]
    encoder_positions: str
    encoder_table: str


@dataclasses.dataclass(frozen=True)
class Dense:
    """The layers after the encoder in the file of a dense model: neck, head and auxiliary heads.

    Attributes:
        options: of the head.
        classes, class_names, colors, auxiliary: arguments of SegmentationModel; one class for depth.
        name_map, arrays: as in ParsedCheckpoint.
        head: a row of segmentation.heads.segmentation_heads.HEADS, or of another task's.
        instances: whether the head is a row of instances.heads.instance_heads.HEADS.
    """

    options: dict
    classes: int
    class_names: tuple[str, ...] | None
    colors: tuple[tuple[int, ...], ...] | None
    auxiliary: float
    name_map: NameMap
    arrays: dict[str, np.ndarray]
    head: str = "dpt"
    instances: bool = False


@dataclasses.dataclass
class ParsedCheckpoint:
    """The result of a format's `parse`.

    Attributes:
        family: "ViT" or "BiT".
        fields: {field of the spec: value}; missing ones have their defaults.
        image_size: pixels (height, width) of the weights.
        name_map: {name in the file: Entry}, see name_map.py.
        arrays: {name in the file: array}, under the names of name_map.
        classes, channels: of the model; classes is None without a head.
        class_names: if the checkpoint has them.
        dropped: names of arrays outside the image model, left out on purpose.
        assumptions: sentences on assumptions where the file states nothing.
        resample: how the checkpoint's own code resamples positions, a row of resample.METHODS.
        preprocessing: (height, width) -> text of the evaluation preprocessing; None for a resize to the image size.
        decoder: of a masked autoencoder, or None.
        dense: of a model with a class or a depth for every pixel, or None.
        activation: from logits to probabilities, "softmax" or "sigmoid"; None if unstated.
    """

    family: str
    fields: dict
    image_size: tuple[int, int]
    name_map: NameMap
    arrays: dict[str, np.ndarray]
    classes: int | None
    channels: int = 3
    class_names: tuple[str, ...] | None = None
    dropped: list[str] = dataclasses.field(default_factory=list)
    assumptions: list[str] = dataclasses.field(default_factory=list)
    resample: str = "google"
    preprocessing: Callable[[int, int], str] | None = None
    decoder: Decoder | None = None
    dense: Dense | None = None
    activation: str | None = None


def normalisation(
    stated: tuple[tuple, tuple] | None, usual: tuple, channels: int, options: Options, certain: bool = False
) -> dict[str, float | tuple]:
    """mean and std as fields of a spec, on the 0..255 scale: the user's or the checkpoint's; else they are asked for.

    Args:
        stated: (mean, std) that the checkpoint states, or None.
        usual: default (mean, std); RGB values are averaged for one channel, repeated for more.
        channels: of the file's images.
        options: of `parse`. mean and std for another number of channels belong to the adapted model, not to the file
            that states its own.
        certain: whether the usual values are the file's, by its format.

    Raises:
        ValueError: if the checkpoint's constants do not match its channels, and the user passes none.
    """
    passed = {name: options[name] for name in ("mean", "std") if options.get(name) is not None}
    if stated is not None and options.get("channels") not in (None, channels):
        passed = {}
    if len(passed) == 2:
        return passed
    if stated is None:
        defaults = (adapt_constants(values, channels) for values in usual)
        return {name: options.value(name, value, certain=certain) for name, value in zip(("mean", "std"), defaults)}
    if len(stated[0]) != channels:
        raise ValueError(
            f"mean and std in the config have {len(stated[0])} values each, but the arrays are for images of {channels}"
            " channels: pass mean=... and std=..., on the 0..255 scale."
        )
    return {"mean": stated[0], "std": stated[1], **passed}


def any_size(stated: typing.Any, options: Options, usual: int, certain: bool = False) -> tuple[int, int]:
    """The image size (height, width) of weights that fit any: as stated, else the user's, else it is asked for.

    Args:
        stated: by the checkpoint, pixels or (height, width), or None.
        options: of `parse`.
        usual: pixels.
        certain: whether to take the usual size without asking.
    """
    stated = options.get("recorded_size") or stated
    return pair(options.value("image_size", usual, stated, certain), "image_size")


def colors_in(rows: typing.Any, classes: int) -> tuple[tuple[int, ...], ...] | None:
    """(red, green, blue) from 0 to 255 of each class in a file's list; None for anything else."""

    def is_color(row):
        return isinstance(row, list) and len(row) == 3 and all(type(c) is int and 0 <= c <= 255 for c in row)

    is_valid = isinstance(rows, list) and len(rows) == classes and all(map(is_color, rows))
    return tuple(map(tuple, rows)) if is_valid else None


def heads(
    width: int, options: Options, stated: int | None = None, inner: int | None = None, certain: bool = False
) -> tuple[int, int | None]:
    """(heads, head_dim) of a model.

    Args:
        width: of the model.
        options: of `parse`.
        stated: number of heads by the checkpoint, or None.
        inner: total width of the heads; None for `width`.
        certain: whether a missing number is that of the published models of this width.

    Raises:
        ValueError: if the heads do not divide the inner width, or differ from those passed.
    """
    inner = inner or width
    usual = _HEADS.get(width) or max(inner // 64, 1)
    k = known_heads(options, stated, usual if inner % usual == 0 else 1, certain)
    if type(k) is not int or k < 1 or inner % k:
        raise ValueError(f"{inner} query channels do not divide into {k} heads: pass heads=...")
    return k, (None if inner == width else inner // k)


def known_heads(options: Options, stated: int | None, usual: int = 1, certain: bool = False) -> int:
    """The number of heads, which the user or the checkpoint states; else the usual one, asked for unless certain.

    Raises:
        ValueError: if they differ: any divisor of the width would load, but compute something else.
    """
    passed = options.get("heads")
    if passed is not None and stated is not None and passed != stated:
        raise ValueError(
            f"heads={passed} was passed, but config.json says {stated}. Leave heads out, or correct config.json."
        )
    return options.value("heads", usual, stated, certain)


class Hint(typing.NamedTuple):
    """Facts about a patch grid besides its number of tokens; certain if the checkpoint itself states them."""

    h: int
    w: int
    is_certain: bool


def hint_grid(options: Options, stride: tuple, config_size: Sequence | int | None = None) -> Hint | None:
    """The patch grid of an image size: the checkpoint's, or else the user's, which may be another size.

    Args:
        options: of `parse`: "recorded_size" comes from our metadata, "image_size" from the user.
        stride: pixels (height, width) from token to token.
        config_size: image size in the checkpoint's config, a number or a pair.

    Returns:
        a Hint, or None if nothing is known.
    """
    stated = options.get("recorded_size") or config_size
    size = stated or options.noted.get("image_size") or options.get("image_size")
    return (
        None if size is None else Hint(*(s // t for s, t in zip(pair(size, "image_size"), stride)), stated is not None)
    )


def grid(tokens: int, hint: Hint | None = None, options: Options | None = None) -> tuple[int, int]:
    """The patch grid (h, w) of that many tokens: by a certain hint, else a square, else any hint, else ValueError.

    With `options` and without a hint, image_size is asked for, and the grid is one row for now.
    """
    side = math.isqrt(max(tokens, 0))
    square = tokens > 0 and side * side == tokens
    if hint is not None and hint.h * hint.w == tokens and (hint.is_certain or not square):
        return hint.h, hint.w
    if not square and hint is None and options is not None and options.asks and tokens > 0:
        options.value("image_size", None)
        return 1, tokens
    if not square:
        stated = (
            f", and the config's image size gives a grid of {hint.h}x{hint.w}"
            if hint is not None and hint.is_certain
            else ""
        )
        raise ValueError(
            f"{tokens} position embeddings do not form a square grid{stated}: for a rectangular checkpoint pass the"
            " image_size that it was trained at. Of a longer table, save only the rows in use."
        )
    return side, side


def is_grid(tokens: int, hint: Hint | None = None) -> bool:
    """Whether `grid` would accept the arguments."""
    return tokens > 0 and (math.isqrt(tokens) ** 2 == tokens or (hint is not None and hint.h * hint.w == tokens))


def pixels(grid_shape: tuple, stride: tuple) -> tuple[int, int]:
    """The image size (height, width) of a patch grid."""
    return tuple(int(g * s) for g, s in zip(grid_shape, stride))


def table_size(rows: int, patch: tuple, stated: Sequence | None, options: Options) -> tuple[int, int]:
    """The image size (height, width) of a position table with a row per patch; `stated` by a config, or None."""
    return pixels(grid(rows, hint_grid(options, patch, stated), options), patch)
