"""What this package writes about a model beside its weights, and how it is read back without trusting it.

A .keras file has the model's config where Keras puts it; the other formats carry it as a JSON note, with a checksum over itself
and the arrays. Anyone can alter either, so types, ranges and sizes are checked before anything is built.
"""

import dataclasses
import json
import math
import re
import reprlib
import typing

import numpy as np

from keras_vit.checkpoints.source import WORDS
from keras_vit.layers.patches import grid_size
from keras_vit.models import BiTSpec, ViTSpec
from keras_vit.models.spec import nearest
from keras_vit.training.state import checksum

ARGUMENTS = ("variant", "image_size", "classes", "channels", "class_names", "preprocessing", "remat", "name", "dtype")
# Far above any model; sizes are compared with the file besides, but arithmetic on numbers without bound takes time itself.
_LARGEST = 2**31
_LARGEST_SIDE = 2**16  # pixels
_LARGEST_TABLE = 2**27  # values of positions that are computed, not stored: the file does not bound them
_MAY_BE_ZERO = {"registers"}
_DTYPE = re.compile(r"(mixed_)?(float16|bfloat16|float32|float64)")


def _crc32(config, arrays):
    return checksum({**arrays, "": np.frombuffer(json.dumps(config, sort_keys=True).encode(), "uint8")})


def write(model, arrays, labels=True):
    """The note as text: what names and shapes do not tell. Readers of the format itself do not see it.

    Args:
        model: a ViT or BiT.
        arrays: {name: array} of the file, for the checksum.
        labels: whether the class names are in it.
    """
    config = {key: value for key, value in model.get_config().items() if key not in ("name", "dtype", "remat")}
    if not labels:
        config["class_names"] = None
    return json.dumps({"config": config, "crc32": _crc32(config, arrays)})


def _check(right, what, expected, value, where):
    if not right:
        raise ValueError(f"{where}: {what} should be {expected}, is {reprlib.repr(value)}.")


def _is_number(value, kinds=(int, float)):
    return isinstance(value, kinds) and not isinstance(value, bool) and abs(value) < _LARGEST


def _is_positive(value):
    return _is_number(value, int) and value > 0


def check_fields(fields, form, where):
    """Compares a spec's fields with their types in ViTSpec or BiTSpec, as JSON has them: lists for tuples.

    Raises:
        ValueError: for a field that is missing or unknown, another type, or a number that no model has.
    """
    types = {field.name: typing.get_args(field.type) or (field.type,) for field in dataclasses.fields(form)}
    lacking = [f.name for f in dataclasses.fields(form) if f.default is dataclasses.MISSING and f.name not in fields]
    if lacking:
        raise ValueError(f"{where} lacks {', '.join(lacking)}.")
    for name, value in fields.items():
        if name not in types:
            raise ValueError(f'{where} has the unknown field "{name}".{nearest(name, list(types))}')
        kinds = types[name]
        words = " or ".join(WORDS[kind] for kind in kinds)
        if value is None or isinstance(value, (bool, str)):
            _check(type(value) in kinds, name, words, value, where)
        elif isinstance(value, (list, tuple)):
            _check(tuple in kinds and all(map(_is_number, value)), name, words, value, where)
        else:
            numbers = (int, float) if float in kinds else (int,) if int in kinds else ()
            _check(_is_number(value, numbers), name, words, value, where)
            if int in kinds:
                _check(value > 0 or (value == 0 and name in _MAY_BE_ZERO), name, "positive", value, where)
    if "epsilon" in fields:
        _check(0 < fields["epsilon"] < 1, "epsilon", "a small positive number", fields["epsilon"], where)


def arguments(config, where):
    """A model's constructor arguments from its config, checked; "variant" stays a dict of a spec's fields.

    Raises:
        ValueError: if the config is not what this package writes, naming the argument.
    """
    if not isinstance(config, dict) or not isinstance(config.get("variant"), dict):
        raise ValueError(f"{where} holds no model's config: it was altered.")
    for name in sorted(config.keys() - set(ARGUMENTS)):
        raise ValueError(f'{where} has the unknown argument "{name}".{nearest(name, ARGUMENTS)}')
    for name in sorted({"image_size", "classes", "channels"} - config.keys()):
        raise ValueError(f"{where} lacks {name}.")
    check_fields(config["variant"], BiTSpec if "units" in config["variant"] else ViTSpec, where)
    size, classes, channels = (config.get(name) for name in ("image_size", "classes", "channels"))
    sides = size if isinstance(size, (list, tuple)) else ()
    right = len(sides) == 2 and all(_is_positive(side) and side <= _LARGEST_SIDE for side in sides)
    _check(right, "image_size", f"two positive integers, {_LARGEST_SIDE} at most", size, where)
    _check(classes is None or _is_positive(classes), "classes", "a positive integer or null", classes, where)
    _check(_is_positive(channels), "channels", "a positive integer", channels, where)
    names = config.get("class_names")
    right = names is None or (isinstance(names, (list, tuple)) and all(isinstance(name, (str, int)) for name in names))
    _check(right and (names is None or len(names) == classes), "class_names", f"a list of {classes} names or null", names, where)
    for name in ("preprocessing", "name"):
        _check(isinstance(config.get(name), str | None), name, "text", config.get(name), where)
    remat = config.get("remat")
    right = isinstance(remat, bool | None) or (isinstance(remat, list) and all(isinstance(block, int) for block in remat))
    _check(right, "remat", "true, false or a list of block numbers", remat, where)
    return {**config, "image_size": tuple(sides), "remat": remat, "dtype": _dtype(config.get("dtype"), where)}


def _dtype(found, where):
    """The policy's name from its config; Keras would build whatever class it names.

    Raises:
        ValueError: if it is none of floating point.
    """
    policy = found.get("config") if isinstance(found, dict) and found.get("class_name") == "DTypePolicy" else None
    name = policy.get("name") if isinstance(policy, dict) else None
    right = found is None or (isinstance(name, str) and _DTYPE.fullmatch(name))
    _check(right, "dtype", "a DTypePolicy of floating-point numbers, such as float32 or mixed_bfloat16", found, where)
    return name


def read(note, arrays, where):
    """The constructor's arguments of the model that a note tells of.

    Args:
        note: what `write` wrote, parsed.
        arrays: {name: array} as they stand in the file.
        where: the file's name, for messages.

    Raises:
        ValueError: if it is not what this package writes, or has a checksum that is not the arrays'.
    """
    found = arguments(note.get("config"), f'The metadata of "{where}"')
    if "crc32" in note and note["crc32"] != _crc32(note["config"], arrays):
        raise ValueError(f'"{where}" is damaged: its arrays and metadata have another checksum than when they were written.')
    return found


def _least_values(spec, tokens, classes, channels):
    """A number of weights that such a model surpasses: its large matrices, and all that a single number can blow up."""
    head = classes or 0
    if isinstance(spec, BiTSpec):
        units = sum(n * (spec.width * 2**stage) ** 2 for stage, n in enumerate(spec.units))
        return units + spec.width * (49 * channels + head)
    inner = spec.heads * (spec.head_dim or spec.width // spec.heads)
    blocks = spec.depth * spec.width * (4 * inner + 2 * spec.mlp_dim)
    widths = [channels, *spec.conv_stem]
    pixels = math.prod(spec.patch_size) * (widths[-1] if spec.stem is None else spec.stem_width)
    rest = spec.registers + (spec.pre_logits or 0) + pixels + (tokens if spec.positions == "learned" else 0)
    stem = sum(9 * a * b for a, b in zip(widths, widths[1:]))
    if spec.stem is not None:
        stem = sum(n * (spec.stem_width * 2**stage) ** 2 for stage, n in enumerate(spec.stem)) + 49 * channels * spec.stem_width
    return blocks + spec.width * rest + stem + head * (spec.pre_logits or spec.width)


def check_size(spec, config, arrays, values, where):
    """Refuses to build a model that is larger than its file.

    Args:
        spec: a ViTSpec or BiTSpec.
        config: with image_size, classes, channels.
        arrays, values: how many arrays the file has, and how many numbers in them.
        where: the file's name, for messages.

    Raises:
        ValueError: if the model has more blocks than the file arrays, or more weights than it numbers.
    """
    if max(config["image_size"]) > _LARGEST_SIDE:
        raise ValueError(f'"{where}" describes a model for images of {config["image_size"]} pixels, too large to be built.')
    bit = isinstance(spec, BiTSpec)
    blocks = sum(spec.units) if bit else spec.depth + sum(spec.stem or ()) + len(spec.conv_stem)
    if blocks > arrays:
        raise ValueError(f'"{where}" describes a model of {blocks:,} blocks, but holds {arrays:,} arrays.')
    tokens = 0 if bit else math.prod(grid_size(config["image_size"], spec.stride))
    least = _least_values(spec, tokens, config["classes"], config["channels"])
    if least > values:
        raise ValueError(f'"{where}" describes a model of more than {least:,} weights, but holds {values:,}.')
    if not bit and tokens * spec.width > _LARGEST_TABLE:
        raise ValueError(f'"{where}" describes a model of {tokens:,} tokens, each {spec.width} wide: too many to be built.')
