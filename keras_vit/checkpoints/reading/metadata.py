"""Metadata written next to a model's weights, and read back without trust.

A .keras file contains the model's config where Keras puts it. Other formats carry it as JSON metadata, with a checksum
over config and arrays. Anybody can alter either, so types, ranges and sizes are checked before anything is built.
"""

import ast
import contextlib
import dataclasses
import json
import math
import re
import reprlib
import typing
from collections.abc import Iterator, Mapping

import numpy as np

from keras_vit.fit.losses import ACTIVATIONS
from keras_vit.io.checksum import checksum
from keras_vit.io.suggest import did_you_mean
from keras_vit.layers.arguments import as_named_now
from keras_vit.models import families, fields
from keras_vit.models.without_values import without_values

_ALWAYS = ("variant", "image_size", "classes", "channels", "class_names", "preprocessing", "remat", "name", "dtype")
ARGUMENTS = (*_ALWAYS, "quantization", "lora")  # these two are checked in dense_config.py
# Far above any model. Sizes are also compared with the file, but arithmetic on unbounded numbers takes too long.
_LARGEST = 2**31
_LARGEST_SIDE = 2**16  # pixels
_LARGEST_RESIZE = 2**12  # pixels
_LONGEST_PREPROCESSING = 2000  # characters
_LARGEST_TABLE = 2**27  # values of computed positions, which the file does not bound: it does not store them
_LARGEST_SHARE = 2  # weights per value in the file: some files omit position rows of zeros

_LONGEST_LIST = 2**16
_DTYPE = re.compile(r"(mixed_)?(float16|bfloat16|float32|float64)")


def _crc32(config, arrays):
    return checksum({**arrays, "": np.frombuffer(json.dumps(config, sort_keys=True).encode(), "uint8")})


def write(
    family: str,
    arguments: Mapping[str, typing.Any],
    arrays: Mapping[str, np.ndarray],
    activation: str | None = None,
    labels: bool = True,
) -> str:
    """Metadata as text: what array names and shapes do not determine. Other readers of the format ignore it.

    Args:
        family: the name of the model's. It is beside the config, whose entries earlier versions check.
        arguments: `model.arguments()`.
        arrays: {name: array} of the file, for the checksum.
        activation: `model.activation`.
        labels: whether to include the class names.
    """
    config = {key: value for key, value in arguments.items() if key not in ("name", "dtype", "remat")}
    if not labels:
        config["class_names"] = None
    written = {"family": family, "config": config, "crc32": _crc32(config, arrays)}
    return json.dumps(written if activation is None else {**written, "activation": activation})


def _check(valid, name, expected, value, where):
    if not valid:
        raise ValueError(f"{where}: {name} should be {expected}, got {reprlib.repr(value)}.")


def _is_number(value, kinds=(int, float)):
    return isinstance(value, kinds) and not isinstance(value, bool) and abs(value) < _LARGEST


def _is_positive(value):
    return _is_number(value, int) and value > 0


def _is_bounded(value, depth=2):
    """Whether a JSON value could be a field's: plain, or a list of plain values or pairs, and as small as a model's."""
    if isinstance(value, (list, tuple)):
        return bool(depth) and len(value) <= _LONGEST_LIST and all(_is_bounded(part, depth - 1) for part in value)
    return (
        value is None or isinstance(value, bool) or _is_number(value) or (isinstance(value, str) and len(value) < 100)
    )


def check_fields(values: Mapping[str, typing.Any], form: type, where: str) -> None:
    """Checks a spec's fields by the rows of its class `form`; JSON has lists for tuples. ValueError if invalid."""
    rows = fields.rows(form)
    missing = [name for name, field in rows.items() if field.default is dataclasses.MISSING and name not in values]
    if missing:
        raise ValueError(f"{where} does not contain {', '.join(missing)}.")
    for name, value in values.items():
        if name == "family":
            family = families.find(form).name
            _check(value == family, name, f'"{family}"', value, where)
            continue
        if name not in rows:
            raise ValueError(f'{where} has the unknown field "{name}".{did_you_mean(name, list(rows))}')
        _check(_is_bounded(value), name, fields.takes(rows[name]), value, where)
        try:
            fields.plain(rows[name], value)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None


def _numbers(node):
    """The numbers in a call with literal arguments; ValueError for other arguments."""
    values = [ast.literal_eval(argument) for argument in (*node.args, *(keyword.value for keyword in node.keywords))]
    while values:
        value = values.pop()
        if isinstance(value, (list, tuple)):
            values.extend(value)
        elif isinstance(value, (int, float)):
            yield value


def check_preprocessing(text: typing.Any, sizes: tuple, where: str) -> None:
    """Refuses invalid preprocessing text, and images far larger than any model's. Ops are looked up where they run.

    Args:
        text: ops joined by "|", or None.
        sizes: of the model's images, and its number of classes: with _LARGEST_RESIZE the bounds of the text's numbers.
        where: the file's name, for messages.

    Raises:
        ValueError: with the text.
    """
    _check(isinstance(text, str | None), "preprocessing", "text", text, where)
    largest = max(_LARGEST_RESIZE, *sizes)
    try:
        if text is not None and len(text) > _LONGEST_PREPROCESSING:
            raise ValueError
        for part in filter(None, (part.strip() for part in (text or "").split("|"))):
            node = ast.parse(part, mode="eval").body
            if isinstance(node, ast.Name):
                continue
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            if not is_call or not all(abs(number) <= largest for number in _numbers(node)):
                raise ValueError
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        expected = f'ops such as "resize(256)" joined by "|", with numbers up to {largest}'
        _check(False, "preprocessing", expected, text, where)


def check_description(config: Mapping[str, typing.Any], image_size: tuple, where: str) -> None:
    """Checks classes, class_names and preprocessing in a model's config, each optional; ValueError if impossible."""
    classes, names = config.get("classes"), config.get("class_names")
    _check(classes is None or _is_positive(classes), "classes", "a positive integer or null", classes, where)
    valid = names is None or (isinstance(names, (list, tuple)) and all(isinstance(name, (str, int)) for name in names))
    _check(
        valid and (names is None or len(names) == classes),
        "class_names",
        f"a list of {classes} names or null",
        names,
        where,
    )
    check_preprocessing(config.get("preprocessing"), (*image_size, classes or 0), where)


def arguments(config: typing.Any, where: str, family: typing.Any = None) -> dict[str, typing.Any]:
    """A model's constructor arguments, from its config, checked; "variant" stays a dict, as of Spec.to_dict.

    Args:
        config: as written.
        where: the file's name, for messages.
        family: name of the model's, if it is beside the config.

    Raises:
        ValueError: for a config that this package does not write, with the argument.
    """
    if not isinstance(config, dict) or not isinstance(config.get("variant"), dict):
        raise ValueError(f"{where} does not contain the config of a model, so it was altered.")
    for name in sorted(config.keys() - set(ARGUMENTS)):
        raise ValueError(f'{where} has the unknown argument "{name}".{did_you_mean(name, ARGUMENTS)}')
    for name in sorted({"image_size", "classes", "channels"} - config.keys()):
        raise ValueError(f"{where} does not contain {name}.")
    variant = as_named_now(config["variant"])
    row = families.find(variant if family is None else {"family": family})
    check_fields(variant, row.spec, where)
    size, channels = config.get("image_size"), config.get("channels")
    sides = size if isinstance(size, (list, tuple)) else ()
    valid = len(sides) == 2 and all(_is_positive(side) and side <= _LARGEST_SIDE for side in sides)
    _check(valid, "image_size", f"two positive integers, {_LARGEST_SIDE} at most", size, where)
    _check(_is_positive(channels), "channels", "a positive integer", channels, where)
    check_description(config, sides, where)
    _check(isinstance(config.get("name"), str | None), "name", "text", config.get("name"), where)
    remat = config.get("remat")
    valid = isinstance(remat, bool | None) or (
        isinstance(remat, list) and all(isinstance(block, int) for block in remat)
    )
    _check(valid, "remat", "true, false or a list of block numbers", remat, where)
    return {
        **config,
        "variant": {"family": row.name, **variant},
        "image_size": tuple(sides),
        "remat": remat,
        "dtype": _dtype(config.get("dtype"), where),
    }


def _dtype(value, where):
    """The name of a floating-point dtype policy, else ValueError; Keras itself would build any class named there."""
    policy = value.get("config") if isinstance(value, dict) and value.get("class_name") == "DTypePolicy" else None
    name = policy.get("name") if isinstance(policy, dict) else None
    valid = value is None or (isinstance(name, str) and _DTYPE.fullmatch(name))
    _check(valid, "dtype", "a DTypePolicy of floating-point numbers, such as float32 or mixed_bfloat16", value, where)
    return name


def read(
    metadata: Mapping[str, typing.Any], arrays: Mapping[str, np.ndarray] | None, where: typing.Any
) -> dict[str, typing.Any]:
    """The model's constructor arguments in the metadata, and its "activation", or None.

    Args:
        metadata: written by `write`, parsed from JSON.
        arrays: {name: array} as stored in the file; None not to compare the checksum.
        where: the file's name, for messages.

    Raises:
        ValueError: for metadata that this package does not write, or another checksum.
    """
    recorded = arguments(metadata.get("config"), f'The metadata of "{where}"', metadata.get("family"))
    if arrays is not None and "crc32" in metadata and metadata["crc32"] != _crc32(metadata["config"], arrays):
        raise ValueError(
            f'"{where}" is damaged: its arrays and metadata no longer have the checksum with which they were written.'
        )
    activation = metadata.get("activation")
    _check(
        activation in (None, *ACTIVATIONS),
        "activation",
        " or ".join(ACTIVATIONS),
        activation,
        f'The metadata of "{where}"',
    )
    return {**recorded, "activation": activation}


@contextlib.contextmanager
def built_from(path: typing.Any, is_changed: bool = False) -> Iterator[None]:
    """A context in which a ValueError blames the file at `path`, unless the model `is_changed` on request."""
    try:
        yield
    except ValueError as error:
        if is_changed:
            raise
        raise ValueError(f'"{path}" describes a model that cannot be built: {error}') from None


def check_size(
    spec: families.Spec, config: Mapping[str, typing.Any], arrays: int, values: int | None, where: typing.Any
) -> None:
    """Refuses to build a model larger than its file.

    Args:
        spec: of the model.
        config: with image_size, classes and channels.
        arrays, values: the file's number of arrays, and of values in them; None if their shapes gave the spec.
        where: the file's name, for messages.

    Raises:
        ValueError: if the model has more blocks than the file arrays, or more weights than the file values.
    """
    if max(config["image_size"]) > _LARGEST_SIDE:
        raise ValueError(
            f'"{where}" describes a model for images of {config["image_size"]} pixels, which is too large.'
        )
    if spec.repeated > arrays:  # keeps counting as fast as reading the file
        raise ValueError(f'"{where}" describes a model of {spec.repeated:,} blocks, but contains {arrays:,} arrays.')
    size, classes, channels = (config[name] for name in ("image_size", "classes", "channels"))
    tokens = math.prod(side // stride for side, stride in zip(size, spec.strides[0]))
    if spec.has_attention and tokens * spec.width > _LARGEST_TABLE:
        raise ValueError(
            f'"{where}" describes a model of {tokens:,} tokens, each {spec.width} wide, which is too large.'
        )
    if values is None:
        return
    with without_values():
        model = families.build(variant=spec, image_size=size, classes=classes, channels=channels, name="described")
    least = model.count_params() // _LARGEST_SHARE
    if least > values:
        raise ValueError(f'"{where}" describes a model of more than {least:,} weights, but contains {values:,}.')
