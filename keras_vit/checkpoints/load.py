"""Loading a model from any supported checkpoint, ready for another task: locate, read, parse, build, assign."""

import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import Any, Unpack

import keras
from absl import logging

from keras_vit.checkpoints.formats import bit, google, huggingface, timm, vit_pytorch
from keras_vit.checkpoints.formats.name_map import summary, unpack
from keras_vit.checkpoints.formats.parsed import ParsedCheckpoint
from keras_vit.checkpoints.reading import keras_file, metadata
from keras_vit.checkpoints.reading.files import FileContents, read
from keras_vit.checkpoints.transfer import adapt, transfer
from keras_vit.io.suggest import did_you_mean
from keras_vit.models import BiT, Classifier, ViT, make_bit_spec, make_spec
from keras_vit.models.arguments import Changes

# Tried in this order: the first format that recognises the array names parses the file.
FORMATS = (bit, google, vit_pytorch, huggingface, timm)
# The fields of the spec that array names and shapes determine, in every format.
_FROM_ARRAYS = (
    "patch_size depth width mlp_dim mlp_form heads head_dim class_token distillation_token registers positions pre_logits "
    "qkv_bias qk_norm patch_norm fc_norm stem units width_factor"
).split()


def locate_checkpoint(name: str | os.PathLike) -> tuple[pathlib.Path, dict[str, Any]]:
    """(local path, options of `load`) for a path, an address or a name in the catalogue; downloads into the cache if necessary.

    Raises:
        FileNotFoundError: if it is none of these; the message suggests the nearest name in the catalogue.
        ValueError: if it is a link to nothing.
        ConnectionError: if it cannot be downloaded.
    """
    from keras_vit.checkpoints.fetch.catalogue import CATALOGUE

    text, options, sha256 = os.fspath(name), {}, None
    path = os.path.expanduser(text)
    if os.path.exists(path):
        return pathlib.Path(path), options
    if os.path.islink(path):
        raise ValueError(f'"{text}" is a link to "{os.readlink(path)}", which does not exist.')
    if text in CATALOGUE:
        entry = CATALOGUE[text]
        text, options, sha256 = entry.url, dict(entry.options), entry.sha256
    if text.startswith("hf://"):
        from keras_vit.checkpoints.fetch.hub import download_repository

        return download_repository(text), options
    if text.startswith(("https://", "http://", "gs://")):
        from keras_vit.checkpoints.fetch.download import download

        return download(text, sha256=sha256), options
    raise FileNotFoundError(
        f'"{text}" does not exist, and is not a name in the catalogue.{did_you_mean(text, list(CATALOGUE))} '
        "keras_vit.list_models() lists all names."
    )


def _parse_options(recorded, options):
    """What the `parse` of a format is given: arguments of `load`, and what the metadata of this package records."""
    if recorded is None:
        return options
    known = {"heads": recorded["variant"].get("heads"), "recorded_size": recorded["image_size"], "channels": recorded["channels"]}
    return {**options, **{name: value for name, value in known.items() if value is not None}}


def parse(contents: FileContents, options: dict[str, Any]) -> ParsedCheckpoint:
    """Parses the contents of a file by the first format that recognises its array names.

    Args:
        contents: of a file of arrays.
        options: arguments of `load` that supply what the file does not state: image_size, heads, channels.

    Raises:
        ValueError: if no format recognises the names, or the one that does cannot parse the file.
    """
    names = set(contents.arrays)
    form = next((f for f in FORMATS if f.matches(names, contents.config)), None)
    if form is None:
        raise ValueError(
            f'"{contents.path}" does not contain a supported Vision Transformer or BiT. Its arrays: {summary(names)}. Supported: Google '
            "and big_vision .npz, BiT .npz, timm (DeiT, DINO, DINOv2), Hugging Face (vit, deit, dinov2, siglip), vit-pytorch."
        )
    try:
        return form.parse(contents, _parse_options(contents.metadata, options))
    except ValueError as error:
        raise ValueError(f'"{contents.path}": {error}') from None
    except (KeyError, IndexError, TypeError, AttributeError, ZeroDivisionError, OverflowError) as error:
        raise ValueError(
            f'"{contents.path}" looks like the format {form.__name__.rsplit(".", 1)[-1]}, but is incomplete: {error!r}'
        ) from error


def _recorded_fields(recorded, parsed, path):
    """The fields of the spec, completed by the metadata that this package wrote, which must agree with the arrays.

    Raises:
        ValueError: if the metadata describe a different model than the arrays: sizes are never taken from metadata alone.
    """
    fields, is_bit = recorded["variant"], parsed.family == "bit"
    if ("units" in fields) != is_bit:
        differences = ["ViT instead of BiT" if is_bit else "BiT instead of ViT"]
    else:
        try:
            spec = dataclasses.asdict((make_bit_spec if is_bit else make_spec)(parsed.fields))
        except ValueError as error:
            raise ValueError(f'The arrays of "{path}" describe a model that cannot be built: {error}') from None
        actual = {name: spec[name] for name in _FROM_ARRAYS if name in spec}
        described = {
            name: tuple(fields[name]) if isinstance(fields[name], list) else fields[name] for name in actual if name in fields
        }
        actual.update(image_size=parsed.image_size, classes=parsed.classes, channels=parsed.channels)
        described.update({name: recorded[name] for name in ("image_size", "classes", "channels")})
        differences = [
            f"{name} {value!r} instead of {actual[name]!r}" for name, value in described.items() if value != actual[name]
        ]
    if differences:
        raise ValueError(
            f'The metadata of "{path}" describe a different model than its arrays, so they were altered: {"; ".join(differences)}.'
        )
    return {**parsed.fields, **fields}


def _model_config(contents, parsed):
    """The constructor's arguments of the model in a file of arrays.

    Raises:
        ValueError: if metadata and arrays disagree, or no such model can be built.
    """
    recorded = contents.metadata or {}
    fields = _recorded_fields(recorded, parsed, contents.path) if recorded else parsed.fields
    try:
        spec = (make_bit_spec if parsed.family == "bit" else make_spec)(fields)
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
        "name": parsed.family,
        "dtype": None,
    }


def _build(config, parsed, path):
    """The model of `config`, without the file's weights yet.

    Raises:
        ValueError: if it would be larger than its file, or cannot be built.
    """
    values = sum(a.size for a in parsed.arrays.values())
    try:
        metadata.check_size(config["variant"], config, len(parsed.arrays), values, path)
        return (BiT if parsed.family == "bit" else ViT)(**config)
    except ValueError as error:
        raise ValueError(f'"{path}" describes a model that cannot be built: {error}') from None


def _report(contents, parsed, dropped):
    """Warns of what was left out and what was assumed."""
    if dropped:
        logging.warning("%s: left out, not part of the image model: %s", contents.path, summary(dropped))
    for assumption in parsed.assumptions if contents.metadata is None else ():
        logging.warning("%s: %s", contents.path, assumption)


def _from_arrays(contents, image_size, classes, class_names, head, resample, changes):
    """A model from a file of arrays: parse, build, assign."""
    weight_arrays = {name: a for name, a in contents.arrays.items() if a.dtype.kind == "f"}
    counters = sorted(contents.arrays.keys() - weight_arrays.keys())
    contents = dataclasses.replace(contents, arrays=weight_arrays)
    options = {"image_size": image_size, **{name: changes[name] for name in ("heads", "channels") if name in changes}}
    parsed = parse(contents, options)
    config = _model_config(contents, parsed)
    model = _build(config, parsed, contents.path)
    shapes = {v.path.removeprefix(f"{model.name}/"): tuple(v.shape) for v in model.weights}
    weights = unpack(parsed.name_map, parsed.arrays, shapes, contents.path)
    _report(contents, parsed, [*parsed.dropped, *counters])
    size = config["image_size"] if image_size is None else image_size
    if parsed.preprocessing is not None and head != "reset" and contents.metadata is None:
        size = (size, size) if isinstance(size, int) else size
        changes = {"preprocessing": parsed.preprocessing(*size), **changes}
    return adapt(config, weights, image_size, classes, class_names, head, resample or parsed.resample, model, **changes)


def load(
    path: str | os.PathLike,
    image_size: int | tuple[int, int] | None = None,
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
    head: str = "keep",
    resample: str | None = None,
    **changes: Unpack[Changes],
) -> keras.Model:
    """Loads a ViT or BiT from any supported checkpoint, or a keras_vit.Model built on one from its `.keras` file.

    The format is recognised automatically: a `.keras` file or a run directory of this package; Google's .npz (2020, AugReg, big_vision,
    hybrids, BiT); safetensors of timm and vit-pytorch; a Hugging Face folder; a `.pth` if torch is installed. The form of GELU, epsilon,
    normalisation and the convention of positions come from the checkpoint; what it does not state is assumed, with a warning.

    Args:
        path: a file or folder; a name in the catalogue (`keras_vit.list_models()`); https://, gs:// or hf://owner/name.
        image_size, classes, class_names, head: see checkpoints.transfer.
        resample: how positions are resampled: "google", "timm", "bicubic", "bilinear" or "flexivit"; None for the method of the code
            that the checkpoint comes from.
        **changes: see checkpoints.transfer: dropout, dtype, channels, patch_size... `heads` and `image_size` also supply what a file
            does not state.

    Raises:
        FileNotFoundError: if there is no such file or name.
        ConnectionError: if it cannot be downloaded.
        ValueError: if the file is damaged or not a supported model, or as in transfer.
    """
    place, options = locate_checkpoint(path)
    trained = options.pop("image_size", None)
    if image_size not in (None, trained):
        options.pop("preprocessing", None)  # it is for the native size
    image_size, resample = image_size or trained, resample or options.pop("resample", None)
    options.pop("resample", None)
    arguments = {**options, **changes}
    contents = read(place)
    if contents.kind == "keras":
        model = keras_file.load(contents.path)
        if not (image_size is None and classes is None and class_names is None and head == "keep" and not arguments):
            if not isinstance(model, Classifier):
                raise ValueError(
                    f'"{contents.path}" holds a keras_vit.Model built on a ViT or BiT, which is loaded only as it is: without image_size, '
                    "classes, head or other changes. Load the ViT or BiT with these changes, then build the model again."
                )
            model = transfer(model, image_size, classes, class_names, head, resample or "google", **arguments)
    else:
        model = _from_arrays(contents, image_size, classes, class_names, head, resample, arguments)
    if head == "keep" and isinstance(model, Classifier) and model.has_zero_head():
        model.refuses_zero_head = True
        logging.warning(
            '%s: the head is all zeros, as in the ImageNet-21k files of 2020. Load it with head="reset" to fine-tune, or with head="drop" '
            "for features; predict is refused.",
            contents.path,
        )
    return model
