"""A checkpoint understood: which model it is of, and where its arrays belong. What every format's reader fills in."""

import dataclasses
import math
import re
import reprlib
import typing

from keras_vit.layers.patches import pair
from keras_vit.models.spec import nearest

IMAGENET_MEAN = tuple(255 * m for m in (0.485, 0.456, 0.406))
IMAGENET_STD = tuple(255 * s for s in (0.229, 0.224, 0.225))

# Where a state dict does not tell the number of heads: width -> heads, of the published models.
_HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16}


@dataclasses.dataclass
class Source:
    """What a format's `understand` returns.

    Attributes:
        family: "vit" or "bit".
        fields: the spec's fields; for "vit" also the stem's.
        image_size: pixels (height, width) that the weights are for.
        layout: {name: Entry}, see layout.py.
        arrays: {name: array}, under the layout's names.
        classes, channels: of the model; classes None without head.
        class_names: where the checkpoint has them.
        dropped: names that are no part of the image model, left out on purpose.
        notes: what was assumed because the file does not say it.
        resample: the method of the code that the checkpoint comes from.
        preprocessing: (height, width) -> evaluation preprocessing text, or None for a plain resize.
    """

    family: str
    fields: dict
    image_size: tuple
    layout: dict
    arrays: dict
    classes: int | None
    channels: int = 3
    class_names: tuple | None = None
    dropped: list = dataclasses.field(default_factory=list)
    notes: list = dataclasses.field(default_factory=list)
    resample: str = "google"
    preprocessing: object = None


def need(arrays, name, rank):
    """arrays[name], which must be there and have that many axes.

    Raises:
        ValueError: if not, naming the nearest name.
    """
    if name not in arrays:
        raise ValueError(f'The array "{name}" is missing.{nearest(name, list(arrays))}')
    if arrays[name].ndim != rank:
        raise ValueError(f'The array "{name}" should have {rank} axes, has shape {arrays[name].shape}.')
    if not arrays[name].size:
        raise ValueError(f'The array "{name}" is empty, has shape {arrays[name].shape}.')
    return arrays[name]


def renamed(arrays, new_name):
    """The arrays under new names; `new_name` is a function of the old one.

    Raises:
        ValueError: if two would have the same.
    """
    names, result = {}, {}
    for name, array in arrays.items():
        new = new_name(name)
        if new in result:
            raise ValueError(f'The arrays "{names[new]}" and "{name}" are the same one, "{new}".')
        names[new], result[new] = name, array
    return result


# Types as JSON's users know them.
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


def setting(config, name, *kinds):
    """config[name] of a config.json or the like; None where it is missing or null.

    Raises:
        ValueError: if it is of none of the types `kinds`.
    """
    value = config.get(name)
    if value is None or type(value) in kinds:
        return value
    raise ValueError(f'"{name}" in the config should be {" or ".join(WORDS[k] for k in kinds)}, is {reprlib.repr(value)}.')


def constants(config, names):
    """(mean, std) on the 0..255 scale from a config that has them on the 0..1 scale under `names`; None where it does not.

    Raises:
        ValueError: if they are not one finite number a channel each, std positive.
    """
    mean, std = (setting(config, name, list) for name in names)
    if mean is None or std is None:
        return None
    right = all(type(value) in (int, float) and abs(value) < 1e6 for value in (*mean, *std))
    if not right or not mean or len(mean) != len(std) or min(std) <= 0:
        raise ValueError(f"{names[0]} and {names[1]} in the config should be one number a channel: {reprlib.repr((mean, std))}.")
    return tuple(255 * float(value) for value in mean), tuple(255 * float(value) for value in std)


def depth(names, pattern):
    """How many blocks there are: `pattern` has one group, the block's number.

    Raises:
        ValueError: if there are none, or one is missing among them.
    """
    found = {int(match.group(1)) for match in map(re.compile(pattern).match, names) if match}
    if found != set(range(len(found))) or not found:
        raise ValueError(f"Expected blocks numbered from 0 without a gap, found {sorted(found)[:50]}.")
    return len(found)


def heads(width, given, inner=None):
    """(heads, head_dim) of a model whose file does not tell: `given` by the user, or as in published models of that width.

    Raises:
        ValueError: if they do not divide the width of the queries.
    """
    inner = inner or width
    k = (_HEADS.get(width) or max(inner // 64, 1)) if given is None else given
    if type(k) is not int or k < 1 or inner % k:
        raise ValueError(f"{inner} query channels do not divide into {k} heads: give heads=...")
    return k, (None if inner == width else inner // k)


class Hint(typing.NamedTuple):
    """What is known of a patch grid beside its number of tokens; `sure` where the checkpoint itself says it."""

    h: int
    w: int
    sure: bool


def hint_grid(options, stride, said=None):
    """The grid that an image size has: the one that the checkpoint says, else the user's, which may be that of another grid.

    Args:
        options: load's own: "own_size" from this package's note, "image_size" the user's.
        stride: pixels (height, width) from token to token.
        said: the image size in the checkpoint's config, a number or a pair.

    Returns:
        a Hint, or None where nothing is known.
    """
    said = options.get("own_size") or said
    size = said or options.get("image_size")
    return None if size is None else Hint(*(s // t for s, t in zip(pair(size, "image_size"), stride)), said is not None)


def grid(tokens, hint=None):
    """The patch grid (h, w) of that many tokens: `hint` where the checkpoint says it, a square, or the user's hint.

    Raises:
        ValueError: if none fits.
    """
    side = math.isqrt(max(tokens, 0))
    square = tokens > 0 and side * side == tokens
    if hint is not None and hint.h * hint.w == tokens and (hint.sure or not square):
        return hint.h, hint.w
    if not square:
        raise ValueError(
            f"{tokens} position embeddings are no square grid: for a rectangular checkpoint give its own image_size, then load again."
        )
    return side, side


def is_grid(tokens, hint=None):
    """Whether `grid` would accept."""
    return tokens > 0 and (math.isqrt(tokens) ** 2 == tokens or (hint is not None and hint.h * hint.w == tokens))


def pixels(grid_shape, stride):
    """The image (height, width) of a grid."""
    return tuple(int(g * s) for g, s in zip(grid_shape, stride))
