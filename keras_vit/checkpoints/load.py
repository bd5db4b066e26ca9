"""Load a model from any supported checkpoint, ready for another task: locate, read, parse, build, assign."""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import keras
import numpy as np
from absl import logging

from keras_vit.checkpoints.dense import moved, segmentation_model
from keras_vit.checkpoints.formats import (
    bit,
    google,
    huggingface,
    huggingface_beit,
    huggingface_dense,
    huggingface_eomt,
    keras_layers,
    mae,
    mmsegmentation,
    own_names,
    timm,
    vit_pytorch,
)
from keras_vit.checkpoints.formats.common_names import is_vit
from keras_vit.checkpoints.formats.evaluation_steps import of_channels
from keras_vit.checkpoints.formats.name_map import summary, unpack
from keras_vit.checkpoints.formats.parsed import ParsedCheckpoint
from keras_vit.checkpoints.formats.recognise import recognise, unwrapped
from keras_vit.checkpoints.locate import Located, locate_checkpoint
from keras_vit.checkpoints.masked import masked_autoencoder
from keras_vit.checkpoints.reading import keras_file, metadata
from keras_vit.checkpoints.reading.files import FileContents, read
from keras_vit.checkpoints.transfer import adapt, describe, transfer
from keras_vit.io.class_names import DATA_SETS
from keras_vit.io.logs import log_once
from keras_vit.io.suggest import did_you_mean, nearest
from keras_vit.layers.arguments import as_named_now
from keras_vit.layers.embedding.patches import pair
from keras_vit.models import Classifier, DetectionModel, SegmentationModel, families
from keras_vit.models.arguments import Changes
from keras_vit.models.fields import WEIGHTS, named
from keras_vit.training.model_metadata import register_loader

_TIMM_ATTENTION = re.compile(r"(?:^|\.)blocks\.\d+\.(?:\d+\.)?attn\.")  # DINOv2's blocks are in chunks
FORMATS = {  # names as in `recognise`
    "bit": bit,
    "google": google,
    "vit_pytorch": vit_pytorch,
    "mae": mae,
    "mmsegmentation": mmsegmentation,
    "huggingface_beit": huggingface_beit,
    "huggingface_dense": huggingface_dense,
    "huggingface_eomt": huggingface_eomt,
    "huggingface": huggingface,
    "own_names": own_names,
    "timm": timm,
}
# Arguments that may also supply what a file does not state.
_TOLD = (
    *("heads", "channels", "mean", "std", "epsilon", "mlp_activation", "pre_logits", "pre_logits_activation", "pool"),
    "norm_first",
)
_ARGUMENTS = ("path", "image_size", "classes", "class_names", "head", "resample", "names", "key")
_HINTS = {
    "path": " The weights are those of `path`, the first argument.",
    "head": ' head="drop" gives a model without a head, head="reset" with classes=... one with a new head.',
}


def _parse_options(recorded, options):
    """Options for a format's `parse`: arguments of `load`, and what this package's metadata record."""
    if recorded is None:
        return options
    known = {
        "heads": recorded["variant"].get("heads"),
        "recorded_size": recorded["image_size"],
        "channels": recorded["channels"],
    }
    return {**options, **{name: value for name, value in known.items() if value is not None}}


def _form_name(form):
    return form.__name__.rsplit(".", 1)[-1]


def _form(contents, options):
    """The format of a file; ValueError if none recognises the names of its arrays."""
    if contents.kind == "keras_graph":
        return keras_layers
    if options.get("names") is not None:
        return own_names
    names = set(contents.arrays)
    form = FORMATS.get(recognise(names) or "")
    unknown = form is None or (form is timm and not any(map(_TIMM_ATTENTION.search, names)))
    if unknown and is_vit({name: array.ndim for name, array in contents.arrays.items()}):
        return own_names
    if form is None:
        raise ValueError(
            f'"{contents.path}" does not contain a supported Vision Transformer or BiT. Its arrays: {summary(names)}.'
            " Supported: Google and big_vision .npz, BiT .npz, timm (DeiT, DINO, DINOv2), Hugging Face (vit, deit,"
            " dinov2, siglip, dpt, depth_anything, beit with UPerNet), mmsegmentation (SETR, UPerNet), vit-pytorch. A"
            " ViT with custom names is read by rules: names=[(pattern, replacement), ...], see docs/checkpoints.md."
        )
    return form


def parse(contents: FileContents, options: dict[str, Any]) -> ParsedCheckpoint:
    """Parses a file with the first format that recognises it.

    Args:
        contents: of a file of arrays.
        options: arguments of `load` for what the file does not state: image_size, names, and those of _TOLD.

    Raises:
        ValueError: if no format recognises the names, or the file cannot be parsed.
    """
    form = _form(contents, options)
    if form not in (own_names, vit_pytorch, keras_layers) and options.get("norm_first") is False:
        raise ValueError(
            f'"{contents.path}" has the names of the format {_form_name(form)}, whose models normalise first: leave'
            " norm_first out, or pass names=[], too, if they are the names of your own model."
        )
    try:
        return form.parse(contents, _parse_options(contents.metadata, options))
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
    try:
        spec = families.FAMILIES[parsed.family].make_spec(fields)
    except ValueError as error:
        raise ValueError(f'"{contents.path}" describes a model that cannot be built: {error}') from None
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


def _build(config, parsed, path):
    """The model of `config`, without weights yet; ValueError if it would outgrow its file or cannot be built."""
    values = sum(a.size for a in parsed.arrays.values())
    try:
        metadata.check_size(config["variant"], config, len(parsed.arrays), values, path)
        return families.build(**config)
    except ValueError as error:
        raise ValueError(f'"{path}" describes a model that cannot be built: {error}') from None


def _report(contents, parsed, dropped):
    """Warns about what was left out and what was assumed."""
    if dropped:
        logging.warning("%s: left out, not part of the image model: %s", contents.path, summary(dropped))
    if contents.metadata is None and parsed.assumptions:
        log_once(
            logging.WARNING,
            f'{contents.path}: {" ".join(parsed.assumptions)} A copy saved by keras_vit.save(model, "model.keras")'
            " states it and brings no warning.",
        )


def _preprocessing(contents, parsed, located, size, image_size, head):
    """The checkpoint's evaluation preprocessing as text, for images of `image_size`, or None.

    Args:
        size, image_size: pixels (height, width): the checkpoint's own, and the size to load for.

    Raises:
        ValueError: for implausible sizes in the config next to the file.
    """
    if located.preprocessing is not None and image_size == size:
        return located.preprocessing
    if parsed.preprocessing is None or head == "reset" or contents.metadata is not None:
        return None
    text = parsed.preprocessing(*image_size)
    metadata.check_preprocessing(text, size, f'The config next to "{contents.path}"')
    return text


def parsed_arrays(
    contents: FileContents, located: Located, image_size: Any, names: Any, key: str | None, changes: Mapping[str, Any]
) -> tuple[FileContents, ParsedCheckpoint, dict[str, Any], list[str]]:
    """(contents without what is not the model's, parsed, the model's arguments, names of what is left out).

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
        raise ValueError(f'"{contents.path}" holds a whole Keras model: leave names and key out.')
    outside = contents.left_out
    if names is None and contents.metadata is None and not is_graph:
        try:
            arrays, others = unwrapped(contents.arrays, key)
        except ValueError as error:
            raise ValueError(f'"{contents.path}": {error}') from None
        contents, outside = dataclasses.replace(contents, arrays=arrays), [*outside, *others]
    told = {name: changes[name] for name in _TOLD if name in changes}
    parsed = parse(contents, {"image_size": image_size, "names": names, **told})
    return contents, parsed, _model_config(contents, parsed), [*parsed.dropped, *counters, *outside]


def _from_arrays(contents, located, image_size, classes, class_names, head, resample, names, key, changes):
    """A model from a file of arrays: parse, build, assign."""
    image_size = located.image_size if image_size is None else image_size
    contents, parsed, config, left_out = parsed_arrays(contents, located, image_size, names, key, changes)
    told = {name: changes[name] for name in _TOLD if name in changes}
    # Arguments by which the file was read are no change.
    used = {
        name
        for name in ("mean", "std", "heads", "pre_logits", "norm_first")
        if name in told and np.array_equal(getattr(config["variant"], name, None), told[name])
    }
    changes = {name: value for name, value in changes.items() if name not in used}
    own, wanted = (
        pair(config["image_size"] if s is None else s, "image_size") for s in (located.image_size, image_size)
    )
    text = of_channels(
        _preprocessing(contents, parsed, located, own, wanted, head), changes.get("channels", config["channels"])
    )
    changes = changes if text is None else {"preprocessing": text, **changes}
    if parsed.decoder is not None and head == "keep" and classes is None and class_names is None:
        _report(contents, parsed, left_out)
        sized = changes if image_size is None else {**changes, "image_size": image_size}
        return masked_autoencoder(parsed, config, contents.path, sized)
    activation = (contents.metadata or {}).get("activation", parsed.activation)
    if parsed.dense is not None and head == "keep" and classes in (None, parsed.dense.classes):
        _report(contents, parsed, left_out)
        resample = resample or parsed.resample
        return segmentation_model(
            parsed, config, contents.path, image_size, class_names, resample, activation, **changes
        )
    model = _build(config, parsed, contents.path)
    shapes = {v.path.removeprefix(f"{model.name}/"): tuple(v.shape) for v in model.weights}
    weights = unpack(parsed.name_map, parsed.arrays, shapes, contents.path)
    _report(contents, parsed, left_out)
    resample = resample or located.resample or parsed.resample
    return adapt(config, weights, image_size, classes, class_names, head, resample, model, activation, **changes)


def _from_keras(path, image_size, classes, class_names, head, resample, names, key, changes):
    """The model of a .keras file, adapted if anything is to change."""
    if names is not None or key is not None:
        raise ValueError(f'"{path}" is a .keras file, which knows its names: leave names and key out.')
    model = keras_file.load(path)
    same = image_size is None and classes in (None, model.classes) and head == "keep"
    if same and class_names is None and not changes:
        return model
    named = class_names is None or model.classes is not None
    if same and named and changes.keys() <= {"preprocessing"} and model.get_encoder() is model:
        describe(model, class_names, **changes)  # in place: also for quantised models and custom heads
        return model
    if isinstance(model, (SegmentationModel, DetectionModel)) and head == "keep" and classes in (None, model.classes):
        return moved(model, image_size, class_names, resample or "google", **changes)
    return transfer(model, image_size, classes, class_names, head, resample or "google", **changes)


def _check_arguments(changes):
    """Refuses unknown arguments before anything is read: ValueError with the nearest name, or our word for it."""
    of_models = [name for name in metadata.ARGUMENTS if name != "variant"]
    valid = tuple(dict.fromkeys([*_ARGUMENTS, *of_models, *families.fields()]))
    for name in changes:
        if name not in valid:
            meant = nearest(name, valid)
            hint = _HINTS.get(meant[0], "") if meant else ""
            raise ValueError(
                f'load has no argument "{name}".{did_you_mean(name, valid)}{hint} Valid: {", ".join(valid)}.'
            )


def _name_classes(model, located, contents):
    """Names the classes of a classifier of a well-known data set, if the catalogue or the file says that it is one."""
    from keras_vit.checkpoints.fetch.labels import declared_labels

    if model.class_names is not None or not isinstance(model, Classifier):
        return
    labels = located.class_names
    if labels is None and contents.metadata is None and contents.kind != "keras":
        labels = declared_labels(contents.path, contents.config, model.classes)
    if labels and len(names := DATA_SETS[labels]()) == model.classes:
        model.class_names = names


@register_loader
def load(
    path: str | os.PathLike,
    image_size: int | tuple[int, int] | None = None,
    classes: int | None = None,
    class_names: Sequence[str] | str | os.PathLike | None = None,
    head: str = "keep",
    resample: str | None = None,
    names: Sequence[tuple[str, str | None]] | None = None,
    key: str | None = None,
    **changes: Unpack[Changes],
) -> keras.Model:
    """Loads a ViT or BiT from any supported checkpoint, or a keras_vit.Model built on one from its `.keras` file.

    The format is recognised automatically: a `.keras` file or run directory of this package; Google's .npz (2020,
    AugReg, big_vision, hybrids, BiT); safetensors, `.pth`, `.pt` or `.ckpt` of timm and vit-pytorch; a Hugging Face
    folder; a `.keras` or `.h5` file of a ViT of Keras' own layers. GELU's form, epsilon, normalisation and position
    convention come from the checkpoint; what it does not state is assumed, with a warning. Published ImageNet-1k models
    know their class names.

    Args:
        path: file, folder, name in the catalogue (`keras_vit.list_models()`), or address: https://, gs://,
            hf://owner/name, kaggle://owner/model/keras/variation.
        image_size, classes, class_names, head: see checkpoints.transfer.
        resample: "google", "timm", "bicubic", "bilinear" or "flexivit". How to resample positions; None for the method
            of the checkpoint's own code.
        names: rules for a state dict with custom names, applied in order: (pattern, replacement) as for re.sub, towards
            the names listed in docs/checkpoints.md, or (pattern, None) to leave arrays out; [] if no rule is needed.
            Requires heads, mean and std; norm_first=True, mlp_activation and epsilon default to torch's.
        key: which state dict of several in the file, such as "model_ema", "state_dict.teacher", or what the names of
            one of several models begin with. None for the only one.
        **changes: see checkpoints.transfer: dropout, dtype, channels, patch_size... `heads`, `image_size`, `mean` and
            `std` also supply what a file does not state.

    Raises:
        FileNotFoundError: for an unknown file or name.
        ConnectionError: if the download fails.
        ValueError: if the file is damaged or not a supported model, or as in transfer.
    """
    changes = as_named_now(changes)
    _check_arguments(changes)
    if not isinstance(key, str | None):
        raise ValueError(f'key should be text, such as key="model_ema", got {key!r}.')
    located = locate_checkpoint(path)
    arguments = {**located.fields, **changes}
    arguments = {name: value.item() if isinstance(value, np.generic) else value for name, value in arguments.items()}
    contents = read(located.path, key)
    if contents.kind == "keras":
        model = _from_keras(contents.path, image_size, classes, class_names, head, resample, names, key, arguments)
    else:
        model = _from_arrays(contents, located, image_size, classes, class_names, head, resample, names, key, arguments)
    if class_names is None and head == "keep":
        _name_classes(model, located, contents)
    if head == "keep" and isinstance(model, Classifier) and model.has_zero_head():
        model.refuses_zero_head = True
        logging.warning(
            '%s: the head is all zeros, as in the ImageNet-21k files of 2020. Load it with head="reset" to fine-tune,'
            ' or with head="drop" for features; predict is refused.',
            contents.path,
        )
    return model
