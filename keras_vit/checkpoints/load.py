"""Loading a model from whatever holds one, ready for another task."""

import dataclasses
import os
import pathlib

from absl import logging

from keras_vit.checkpoints import bit, google, huggingface, keras_file, note, timm, vit_pytorch
from keras_vit.checkpoints.files import read
from keras_vit.checkpoints.layout import shown, unpack
from keras_vit.checkpoints.transfer import adapt, transfer
from keras_vit.models import BiT, Classifier, ViT, make_bit_spec, make_spec
from keras_vit.models.spec import nearest

# In this order: the first whose names match reads the file.
FORMATS = (bit, google, vit_pytorch, huggingface, timm)
# The spec's fields that names and shapes tell, in every format.
_TOLD = (
    "patch_size depth width mlp_dim mlp_form heads head_dim class_token distillation_token registers positions pre_logits "
    "qkv_bias qk_norm patch_norm fc_norm stem units width_factor"
).split()


def resolve(name):
    """(local path, options) of a path, an address or a catalogue's name; what is not here is downloaded into the cache.

    Raises:
        FileNotFoundError: if it is none of them, naming the nearest catalogue names.
        ValueError: if it is a link that leads nowhere.
        ConnectionError: if it cannot be fetched.
    """
    from keras_vit.checkpoints.catalogue import CATALOGUE

    text, options, sha256 = os.fspath(name), {}, None
    path = os.path.expanduser(text)
    if os.path.exists(path):
        return pathlib.Path(path), options
    if os.path.islink(path):
        raise ValueError(f'"{text}" is a link to "{os.readlink(path)}", where nothing is.')
    if text in CATALOGUE:
        entry = CATALOGUE[text]
        text, options, sha256 = entry.url, dict(entry.options), entry.sha256
    if text.startswith("hf://"):
        from keras_vit.checkpoints.hub import download_repository

        return download_repository(text), options
    if text.startswith(("https://", "http://", "gs://")):
        from keras_vit.checkpoints.download import download

        return download(text, sha256=sha256), options
    raise FileNotFoundError(
        f'"{text}" does not exist, and is no name of the catalogue.{nearest(text, list(CATALOGUE))} keras_vit.list_models() lists it.'
    )


def _agree(own, source, where):
    """The fields of the model that this package noted in a file, once the arrays are seen to be that model's.

    Raises:
        ValueError: if they tell another model: sizes are never taken from a note.
    """
    fields = own["variant"]
    try:
        told = dataclasses.asdict((make_bit_spec if source.family == "bit" else make_spec)(source.fields))
    except ValueError as error:
        raise ValueError(f'The arrays of "{where}" are of no model that can be built: {error}') from None
    told = {name: told[name] for name in _TOLD if name in told}
    said = {name: tuple(fields[name]) if isinstance(fields[name], list) else fields[name] for name in told if name in fields}
    told.update(image_size=source.image_size, classes=source.classes, channels=source.channels)
    said.update(image_size=own["image_size"], classes=own["classes"], channels=own["channels"])
    differs = [f"{name} {value!r} for {told[name]!r}" for name, value in said.items() if value != told[name]]
    if ("units" in fields) != (source.family == "bit"):
        differs = ["BiT for ViT" if "units" in fields else "ViT for BiT"]
    if differs:
        raise ValueError(f'The metadata of "{where}" were altered, tell another model than its arrays: {"; ".join(differs)}.')
    return {**source.fields, **fields}


def _options(own, given):
    """What a format's reader is told: load's own arguments, and what this package noted in the file."""
    if own is None:
        return given
    known = {"heads": own["variant"].get("heads"), "own_size": own["image_size"], "channels": own["channels"]}
    return {**given, **{name: value for name, value in known.items() if value is not None}}


def understand(contents, given):
    """The Source of a file's contents, by the first format that knows its names.

    Raises:
        ValueError: if none does, or the one that does finds it broken.
    """
    names = set(contents.arrays)
    form = next((f for f in FORMATS if f.matches(names, contents.config)), None)
    if form is None:
        raise ValueError(
            f'"{contents.path}" holds no Vision Transformer or BiT that is known here. Its arrays: {shown(names)}. Known: Google and '
            "big_vision .npz, BiT .npz, timm (DeiT, DINO, DINOv2), Hugging Face (vit, deit, dinov2, siglip), vit-pytorch."
        )
    try:
        return form.understand(contents, _options(contents.own, given))
    except ValueError as error:
        raise ValueError(f'"{contents.path}": {error}') from None
    except (KeyError, IndexError, TypeError, AttributeError, ZeroDivisionError, OverflowError) as error:
        raise ValueError(
            f'"{contents.path}" looks like {form.__name__.rsplit(".", 1)[-1]}, but is not whole: {error!r}'
        ) from error


def _report(contents, source):
    """Says what was left out and what was assumed."""
    if source.dropped:
        logging.warning("%s: left out, no part of the image model: %s", contents.path, shown(source.dropped))
    for assumed in source.notes if contents.own is None else ():
        logging.warning("%s: %s", contents.path, assumed)


def _from_arrays(contents, image_size, classes, class_names, head, resample, changes):
    """A model from a file of arrays."""
    whole = {name: a for name, a in contents.arrays.items() if a.dtype.kind == "f"}
    counters = sorted(contents.arrays.keys() - whole.keys())
    contents.arrays = whole
    source = understand(contents, {"image_size": image_size, **{k: changes[k] for k in ("heads", "channels") if k in changes}})
    source.dropped = [*source.dropped, *counters]
    own, is_bit = contents.own or {}, source.family == "bit"
    config = {
        "image_size": source.image_size,
        "classes": source.classes,
        "channels": source.channels,
        "class_names": own.get("class_names", source.class_names),
        "preprocessing": own.get("preprocessing"),
        "remat": False,
        "name": source.family,
        "dtype": None,
    }
    fields = _agree(own, source, contents.path) if own else source.fields
    try:
        config["variant"] = spec = (make_bit_spec if is_bit else make_spec)(fields)
        values = sum(a.size for a in source.arrays.values())
        note.check_size(spec, config, len(source.arrays), values, contents.path)
        model = (BiT if is_bit else ViT)(**config)
    except ValueError as error:
        raise ValueError(f'"{contents.path}" describes no model that can be built: {error}') from None
    shapes = {v.path.removeprefix(f"{model.name}/"): tuple(v.shape) for v in model.weights}
    weights = unpack(source.layout, source.arrays, shapes, contents.path)
    _report(contents, source)
    size = config["image_size"] if image_size is None else image_size
    if source.preprocessing is not None and head != "reset" and contents.own is None:
        size = (size, size) if isinstance(size, int) else size
        changes = {"preprocessing": source.preprocessing(*size), **changes}
    return adapt(config, weights, image_size, classes, class_names, head, resample or source.resample, model, **changes)


def load(path, image_size=None, classes=None, class_names=None, head="keep", resample=None, **changes):
    """Loads a ViT or BiT, whatever wrote it.

    The format is recognised by itself: a `.keras` file or a run directory of this package; Google's .npz (2020, AugReg, big_vision,
    hybrids, BiT); timm's and vit-pytorch's safetensors; a Hugging Face folder; a `.pth` where torch is installed. Form of GELU, epsilon,
    normalisation and the convention of positions are set from the source; what it does not say is assumed, and said.

    Args:
        path: a file or folder; a name of the catalogue (`keras_vit.list_models()`); https://, gs:// or hf://owner/name.
        image_size, classes, class_names, head: see checkpoints.transfer.
        resample: how positions are resampled: "google", "timm", "bicubic", "bilinear" or "flexivit"; None for what the code does that
            the checkpoint comes from.
        **changes: see checkpoints.transfer: dropout, dtype, channels, patch_size... `heads` and `image_size` also tell what a file
            leaves out.

    Raises:
        FileNotFoundError: if there is no such file, or name.
        ConnectionError: if it cannot be downloaded.
        ValueError: if it is broken, not a model that is known here, or as transfer says.
    """
    place, options = resolve(path)
    trained = options.pop("image_size", None)
    if image_size not in (None, trained):
        options.pop("preprocessing", None)  # it is for the native size
    image_size, resample = image_size or trained, resample or options.pop("resample", None)
    options.pop("resample", None)
    changes = {**options, **changes}
    contents = read(place)
    if contents.kind == "keras":
        model = keras_file.load(contents.path)
        if not (image_size is None and classes is None and class_names is None and head == "keep" and not changes):
            model = transfer(model, image_size, classes, class_names, head, resample or "google", **changes)
    else:
        model = _from_arrays(contents, image_size, classes, class_names, head, resample, changes)
    assert isinstance(model, Classifier)
    if head == "keep" and model.has_zero_head():
        model.refuses_zero_head = True
        logging.warning(
            '%s: the head is all zeros, as in the ImageNet-21k files of 2020. Load it with head="reset" to fine-tune, or head="drop" for '
            "features; predict is refused.",
            contents.path,
        )
    return model
