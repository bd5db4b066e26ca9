"""A parsed checkpoint: the model that its arrays belong to, and the map from their names to our weights. Every format's reader makes one."""

import dataclasses
import math
import re
import reprlib
import typing
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from keras_vit.checkpoints.formats.name_map import NameMap
from keras_vit.io.suggest import did_you_mean
from keras_vit.layers.patches import pair

IMAGENET_MEAN = tuple(255 * m for m in (0.485, 0.456, 0.406))
IMAGENET_STD = tuple(255 * s for s in (0.229, 0.224, 0.225))

# {width: heads} of the published models whose heads are not 64 wide; a state dict does not contain the number of heads.
_HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16}


@dataclasses.dataclass
class ParsedCheckpoint:
    """What the `parse` of a format returns.

    Attributes:
        family: "vit" or "bit".
        fields: {field of ViTSpec or BiTSpec: value}; those that are missing have their defaults.
        image_size: pixels (height, width) that the weights are for.
        name_map: {name in the file: Entry}, see name_map.py.
        arrays: {name in the file: array}, under the names of name_map.
        classes, channels: of the model; classes is None without a head.
        class_names: if the checkpoint has them.
        dropped: names of arrays that do not belong to the image model and are left out on purpose.
        assumptions: sentences on what was assumed because the file does not state it.
        resample: how the code that the checkpoint comes from resamples positions, a row of resample.METHODS.
        preprocessing: a function (height, width) -> text of the evaluation preprocessing; None for a resize to the image size.
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


def need(arrays: Mapping[str, np.ndarray], name: str, rank: int) -> np.ndarray:
    """arrays[name], which must exist, have `rank` axes and not be empty.

    Raises:
        ValueError: if it does not; the message suggests the nearest name.
    """
    if name not in arrays:
        raise ValueError(f'The array "{name}" is missing.{did_you_mean(name, list(arrays))}')
    if arrays[name].ndim != rank:
        raise ValueError(f'The array "{name}" should have {rank} axes, but has shape {arrays[name].shape}.')
    if not arrays[name].size:
        raise ValueError(f'The array "{name}" is empty: it has shape {arrays[name].shape}.')
    return arrays[name]


def renamed(arrays: Mapping[str, np.ndarray], new_name: Callable[[str], str]) -> dict[str, np.ndarray]:
    """The arrays under new names; `new_name` is a function of the old name.

    Raises:
        ValueError: if two arrays would get the same name.
    """
    names, result = {}, {}
    for name, array in arrays.items():
        new = new_name(name)
        if new in result:
            raise ValueError(f'The arrays "{names[new]}" and "{name}" are two versions of the same array, "{new}".')
        names[new], result[new] = name, array
    return result


# What JSON calls Python's types.
WORDS = {
    bool: "true or false",
    dict: "an object",
    float: "a number",
    int: "an integer",
    list: "a list",
    str: "text",
    tuple: "a list of numbers",
    type(None): "null",
}


def setting(config: Mapping, name: str, *kinds: type) -> typing.Any:
    """config[name] of a JSON config; None if it is missing or null.

    Raises:
        ValueError: if it has none of the types `kinds`.
    """
    value = config.get(name)
    if value is None or type(value) in kinds:
        return value
    raise ValueError(f'"{name}" in the config should be {" or ".join(WORDS[k] for k in kinds)}, got {reprlib.repr(value)}.')


def constants(config: Mapping, names: tuple[str, str]) -> tuple[tuple, tuple] | None:
    """(mean, std) on the 0..255 scale from a config that has them on the 0..1 scale under `names`; None if it has not.

    Raises:
        ValueError: if they are not one finite number per channel, or a std is not positive.
    """
    mean, std = (setting(config, name, list) for name in names)
    if mean is None or std is None:
        return None
    valid = all(type(value) in (int, float) and abs(value) < 1e6 for value in (*mean, *std))
    if not valid or not mean or len(mean) != len(std) or min(std) <= 0:
        raise ValueError(
            f"{names[0]} and {names[1]} in the config should be one number per channel, std positive, got {reprlib.repr((mean, std))}."
        )
    return tuple(255 * float(value) for value in mean), tuple(255 * float(value) for value in std)


def depth(names: Iterable[str], pattern: str) -> int:
    """The number of blocks; `pattern` has one group, the number of a block.

    Raises:
        ValueError: if there are no blocks, or one in between is missing.
    """
    numbers = {int(match.group(1)) for match in map(re.compile(pattern).match, names) if match}
    if numbers != set(range(len(numbers))) or not numbers:
        raise ValueError(f"Expected blocks numbered from 0 without a gap, got {sorted(numbers)[:50]}.")
    return len(numbers)


def heads(width: int, known: int | None, inner: int | None = None) -> tuple[int, int | None]:
    """(heads, head_dim) of a model.

    Args:
        width: of the model.
        known: the number of heads, from the user or a config; None for that of the published models of this width.
        inner: width of all heads together; None for `width`.

    Raises:
        ValueError: if the heads do not divide the inner width.
    """
    inner = inner or width
    k = (_HEADS.get(width) or max(inner // 64, 1)) if known is None else known
    if type(k) is not int or k < 1 or inner % k:
        raise ValueError(f"{inner} query channels do not divide into {k} heads: pass heads=...")
    return k, (None if inner == width else inner // k)


class Hint(typing.NamedTuple):
    """What is known about a patch grid besides its number of tokens; it is certain if the checkpoint itself states it."""

    h: int
    w: int
    is_certain: bool


def hint_grid(options: Mapping, stride: tuple, config_size: int | list | None = None) -> Hint | None:
    """The patch grid of an image size: the size that the checkpoint states, or else the user's, which may be another size.

    Args:
        options: of `parse`: "recorded_size" comes from the metadata that this package wrote, "image_size" from the user.
        stride: pixels (height, width) from token to token.
        config_size: the image size in the checkpoint's config, a number or a pair.

    Returns:
        a Hint, or None if nothing is known.
    """
    stated = options.get("recorded_size") or config_size
    size = stated or options.get("image_size")
    return None if size is None else Hint(*(s // t for s, t in zip(pair(size, "image_size"), stride)), stated is not None)


def grid(tokens: int, hint: Hint | None = None) -> tuple[int, int]:
    """The patch grid (h, w) of that many tokens: a hint that is certain, or a square, or any other hint.

    Raises:
        ValueError: if none of them has so many tokens.
    """
    side = math.isqrt(max(tokens, 0))
    square = tokens > 0 and side * side == tokens
    if hint is not None and hint.h * hint.w == tokens and (hint.is_certain or not square):
        return hint.h, hint.w
    if not square:
        raise ValueError(
            f"{tokens} position embeddings do not form a square grid: for a rectangular checkpoint pass the image_size that it was trained at."
        )
    return side, side


def is_grid(tokens: int, hint: Hint | None = None) -> bool:
    """Whether `grid` would accept the arguments."""
    return tokens > 0 and (math.isqrt(tokens) ** 2 == tokens or (hint is not None and hint.h * hint.w == tokens))


def pixels(grid_shape: tuple, stride: tuple) -> tuple[int, int]:
    """The image size (height, width) of a patch grid."""
    return tuple(int(g * s) for g, s in zip(grid_shape, stride))
