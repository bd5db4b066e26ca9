"""Parse a file of arrays: recognise its format, and say which model it contains with which weights."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from keras_vit.checkpoints.formats import keras_layers, own_names, timm, timm_config, vit_pytorch
from keras_vit.checkpoints.formats.common_names import is_vit
from keras_vit.checkpoints.formats.name_map import summary
from keras_vit.checkpoints.formats.parsed import ParsedCheckpoint
from keras_vit.checkpoints.formats.questions import MEANINGS, Options, Unanswered
from keras_vit.checkpoints.formats.recognise import FORMATS, recognise, unwrapped
from keras_vit.checkpoints.locate import Located
from keras_vit.checkpoints.reading import metadata, notes
from keras_vit.checkpoints.reading.files import FileContents
from keras_vit.models import families
from keras_vit.models.fields import WEIGHTS, named

_TIMM_ATTENTION = re.compile(r"(?:^|\.)blocks\.\d+\.(?:\d+\.)?attn\.")  # DINOv2's blocks are in chunks
_ANY_ORDER = (own_names, vit_pytorch, keras_layers, timm)  # the names in other files are of code that normalises first


def _parse_options(contents, options, is_published):
    """Options for a format's `parse`: arguments of `load`, the file's notes, and values of this package's metadata."""
    recorded = contents.metadata
    if recorded is None:
        return Options(options, notes.arguments_in(contents.notes), asks=not is_published)
    known = {
        "heads": recorded["variant"].get("heads"),
        "recorded_size": recorded["image_size"],
        "channels": recorded["channels"],
    }
    known = {name: value for name, value in known.items() if value is not None}
    return Options({**options, **known}, asks=False)


def _form_name(form):
    return form.__name__.rsplit(".", 1)[-1]


def _form(contents, options):
    """The format of a file; ValueError if none recognises the names of its arrays."""
    if contents.kind == "keras_graph":
        return keras_layers
    if options.get("names") is not None:
        return own_names
    names = set(contents.arrays)
    row = FORMATS.get(recognise(names) or "")
    form = row and row.module
    unknown = form is None or (form is timm and not any(map(_TIMM_ATTENTION.search, names)))
    if unknown and is_vit({name: array.ndim for name, array in contents.arrays.items()}):
        return own_names
    if form is None:
        raise ValueError(
            f'"{contents.path}" does not contain a supported Vision Transformer, Swin or BiT. Its arrays:'
            f" {summary(names)}."
            " Supported: Google and big_vision .npz, BiT .npz, timm (DeiT, DINO to DINOv3, Swin, resnetv2_*_bit),"
            " Hugging Face (vit, deit, dinov2, dinov3_vit, siglip, swin, swinv2, dpt, depth_anything, eomt, beit with"
            " UPerNet, yolos, lw_detr, rf_detr), mmsegmentation (SETR, UPerNet), vit-pytorch. A ViT with custom names"
            " is read by rules: names=[(pattern, replacement), ...], see docs/checkpoints.md."
        )
    return form


def parse(contents: FileContents, options: Mapping[str, Any], is_published: bool = False) -> ParsedCheckpoint:
    """Parses a file with the first format that recognises it.

    Args:
        contents: of a file of arrays.
        options: arguments of `load` for values that the file does not state: image_size, names, and those of MEANINGS.
        is_published: whether to take the format's usual values, which published files have, where others are asked for.

    Raises:
        ValueError: if no format recognises the names, the file cannot be parsed, or, Unanswered, it does not show all
            that its model computes.
    """
    form = _form(contents, options)
    stated = contents.metadata is not None or (form is timm and timm_config.is_named(contents.config))
    if options.get("norm_first") is False and (stated or form not in _ANY_ORDER):
        raise ValueError(
            f'"{contents.path}" has the names of the format {_form_name(form)}, which normalises first: leave'
            " norm_first out, or pass names=[], too, if they are the names of your own model."
        )
    asked = _parse_options(contents, options, is_published)
    try:
        parsed = form.parse(contents, asked)
        if asked.open:
            raise Unanswered(contents.path, parsed.assumptions, asked.open, {})
        return notes.described(parsed, contents.notes)
    except Unanswered:
        raise
    except ValueError as error:
        raise ValueError(f'"{contents.path}": {error}') from None
    except (KeyError, IndexError, TypeError, AttributeError, ZeroDivisionError, OverflowError) as error:
        raise ValueError(
            f'"{contents.path}" looks like the format {_form_name(form)}, but is incomplete: {error!r}'
        ) from error


def _recorded_fields(recorded, parsed, path):
    """The spec's fields, completed by this package's metadata, which must agree with the arrays.

    Raises:
        ValueError: if they describe a different model: sizes are never taken from metadata alone.
    """
    fields, family = recorded["variant"], families.FAMILIES[parsed.family]
    if (other := families.find(fields)) is not family:
        differences = [f"{other.name} instead of {family.name}"]
    else:
        try:
            spec = dataclasses.asdict(family.make_spec(parsed.fields))
        except ValueError as error:
            raise ValueError(f'The arrays of "{path}" describe a model that cannot be built: {error}') from None
        # A numeric layer_scale only states the initial value.
        of_arrays = {"patch_size", *named(family.spec, WEIGHTS)} - {"layer_scale"}
        actual = {name: value for name, value in spec.items() if name in of_arrays}
        described = {
            name: tuple(fields[name]) if isinstance(fields[name], list) else fields[name]
            for name in actual
            if name in fields
        }
        actual.update(image_size=parsed.image_size, classes=parsed.classes, channels=parsed.channels)
        described.update({name: recorded[name] for name in ("image_size", "classes", "channels")})
        differences = [
            f"{name} {value!r} instead of {actual[name]!r}"
            for name, value in described.items()
            if value != actual[name]
        ]
    if differences:
        raise ValueError(
            f'The metadata of "{path}" describe a different model than its arrays, so they were altered:'
            f" {'; '.join(differences)}."
        )
    return {**parsed.fields, **fields}


def _model_config(contents, parsed):
    """The constructor's arguments of the model in a file of arrays; ValueError if no such model can be built."""
    recorded = contents.metadata or {}
    fields = _recorded_fields(recorded, parsed, contents.path) if recorded else parsed.fields
    with metadata.built_from(contents.path):
        spec = families.FAMILIES[parsed.family].make_spec(fields)
    return {
        "variant": spec,
        "image_size": parsed.image_size,
        "classes": parsed.classes,
        "channels": parsed.channels,
        "class_names": recorded.get("class_names", parsed.class_names),
        "preprocessing": recorded.get("preprocessing"),
        "remat": False,
        "name": parsed.family.lower(),
        "dtype": None,
    }


def parsed_arrays(
    contents: FileContents, located: Located, image_size: Any, names: Any, key: str | None, changes: Mapping[str, Any]
) -> tuple[FileContents, ParsedCheckpoint, dict[str, Any], list[str]]:
    """(contents without other arrays, parsed, the model's arguments, names of arrays left out).

    Args:
        contents: of a file of arrays.
        located: where it is.
        image_size, names, key, changes: of `load`.

    Raises:
        ValueError: as `load`.
    """
    weight_arrays = {name: a for name, a in contents.arrays.items() if a.dtype.kind == "f"}
    counters = sorted(contents.arrays.keys() - weight_arrays.keys())
    counters = [name for name in counters if not name.endswith(".num_batches_tracked")]  # every batch normalisation's
    contents = dataclasses.replace(contents, arrays=weight_arrays)
    if names is not None and contents.metadata is not None:
        raise ValueError(f'"{contents.path}" was written by this package, which knows its names: leave names out.')
    is_graph = contents.kind == "keras_graph"
    if is_graph and (names is not None or key is not None):
        raise ValueError(f'"{contents.path}" contains a whole Keras model: leave names and key out.')
    outside = contents.left_out
    if names is None and contents.metadata is None and not is_graph:
        try:
            arrays, others = unwrapped(contents.arrays, key)
        except ValueError as error:
            raise ValueError(f'"{contents.path}": {error}') from None
        contents, outside = dataclasses.replace(contents, arrays=arrays), [*outside, *others]
    answers = {name: changes[name] for name in (*MEANINGS, "head") if name in changes}
    parsed = parse(contents, {**answers, "image_size": image_size, "names": names}, located.is_published)
    if contents.metadata is not None:
        parsed.activation = contents.metadata["activation"]
    return contents, parsed, _model_config(contents, parsed), [*parsed.dropped, *counters, *outside]
