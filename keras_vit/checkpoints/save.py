"""Save a model in other formats: Google's .npz, timm, Hugging Face, and our own .keras."""

import contextlib
import json
import os
import pathlib
import tempfile
import zipfile
from collections.abc import Mapping
from typing import TypedDict, Unpack

import keras
import numpy as np
import safetensors.numpy

from keras_vit.checkpoints.adapt import model_weights
from keras_vit.checkpoints.dense_models import all_weights
from keras_vit.checkpoints.formats.name_map import summary
from keras_vit.checkpoints.formats.recognise import writers
from keras_vit.checkpoints.reading import metadata
from keras_vit.checkpoints.torch_writer import save_state_dict
from keras_vit.checkpoints.transfer import check_plain
from keras_vit.image_text.dual_encoder import DualEncoder
from keras_vit.io.atomic import replacing, write_bytes
from keras_vit.io.suggest import did_you_mean
from keras_vit.models import Classifier, families
from keras_vit.models.headed import HeadedModel
from keras_vit.models.model_and_path import check_model_and_path
from keras_vit.pretraining.masked_autoencoder import MaskedAutoencoder

FORMATS = ("keras", "google", "timm", "huggingface", "mmsegmentation")
_BY_ENDING = {".keras": "keras", ".npz": "google", ".pth": "mmsegmentation"}
_LONGEST_COMMENT = 65_000  # bytes of a zip archive's comment
PLACES = ("hf://", "kaggle://")  # addresses, for keras_vit.sharing


class Sharing(TypedDict, total=False):
    """The options of keras_vit.sharing.share, for type checkers."""

    license: str
    run: str | os.PathLike | None
    private: bool
    images: bool
    untrained: bool


@contextlib.contextmanager
def _uncompiled(model):
    """A context in which `model` counts as not compiled: Keras ignores include_optimizer for compiled models."""
    if not model.compiled:
        yield
        return
    optimizer = model.optimizer
    model.optimizer, model.compiled = None, False
    try:
        yield
    finally:
        model.optimizer, model.compiled = optimizer, True


def save_model(model, path: str | os.PathLike) -> None:
    """Writes `model` as a `.keras` file without its optimizer, atomically, to a local path or a bucket (gs://)."""
    with _uncompiled(model):
        if "://" in str(path):
            with tempfile.TemporaryDirectory() as folder:
                local = os.path.join(folder, os.path.basename(str(path)))
                model.save(local)
                write_bytes(path, pathlib.Path(local).read_bytes())
            return
        with replacing(path) as temporary:
            model.save(temporary)


def _recorded(model, arrays, format, labels=True):
    """The metadata of a model's file, as text: those of its encoder; None for two encoders."""
    if isinstance(model, DualEncoder):
        return None
    arguments = model.arguments() if isinstance(model, Classifier) else model.get_encoder().arguments()
    variant = arguments["variant"]
    if isinstance(model, HeadedModel):
        arguments["preprocessing"] = model.preprocessing
    if isinstance(model, MaskedAutoencoder):  # the file contains a position table of any kind
        arguments["variant"] = {**variant, "positions": "learned"}
    if format == "mmsegmentation":
        arguments["variant"] = {**variant, "final_norm": bool(model.decoder.normalised)}
    return metadata.write(families.find(model.spec).name, arguments, arrays, model.activation, labels)


def _kinds(model):
    """What `writers` calls a model, the most specific name first: its head, or its family with rotary positions."""
    if isinstance(model, HeadedModel):
        return [model.head_name]
    if not isinstance(model, Classifier):
        return [cls.__name__ for cls in type(model).__mro__]
    family, rotations = families.find(model.spec).name, getattr(model.spec, "inner_positions", None)
    return [f"{family} of {rotations}", family] if rotations else [family]


def _packed(model, format):
    """(arrays, {config file: content}) of a model's file; ValueError if the format does not support its kind."""
    check_plain(model, f'The format "{format}"')
    kinds, packers = _kinds(model), writers(format)
    kind = next((kind for kind in kinds if kind in packers), None)
    if kind is None:
        others = " or ".join(f'format="{name}"' for name in FORMATS if {*kinds} & writers(name).keys())
        raise ValueError(
            f'The format "{format}" cannot express this {type(model).__name__} ({kinds[0]}), only'
            f' {", ".join(packers)}{f" (use {others})" if others else ""}. format="keras" saves every model.'
        )
    if isinstance(model, DualEncoder):
        weights = {"image": model_weights(model.image_encoder), "text": model_weights(model.text_encoder)}
        return packers[kind](model, weights)
    return packers[kind](model, (all_weights if isinstance(model, HeadedModel) else model_weights)(model))


def _google(path, arrays, recorded):
    """Writes the .npz; `recorded` are its metadata with class names and without, of which the first that fits goes."""
    comment = next((text.encode() for text in recorded if text and len(text.encode()) <= _LONGEST_COMMENT), b"")
    with replacing(path) as temporary:
        np.savez(temporary, **arrays)
        with zipfile.ZipFile(temporary, "a") as archive:
            archive.comment = comment


def _write_folder(
    path: str, arrays: Mapping[str, np.ndarray], recorded: str | None, configs: Mapping[str, dict | str]
) -> None:
    """Writes model.safetensors with the metadata `recorded`, and `configs`, {JSON file: content}, atomically.

    ValueError if the folder contains other files, which would be lost.
    """
    expected = {"model.safetensors", *configs}
    if os.path.isfile(path):
        raise ValueError(f'"{path}" is a file, but this format is a folder.')
    others = set(os.listdir(path)) - expected if os.path.isdir(path) else set()
    if others:
        raise ValueError(
            f'"{path}" contains other files, which would be lost: {summary(others)}. Pass a new or an empty folder.'
        )
    with replacing(path) as temporary:
        os.makedirs(temporary)
        header = {"format": "pt"} if recorded is None else {"format": "pt", "keras_vit": recorded}
        # Written here, so that an error is an OSError, unlike safetensors' own.
        with open(os.path.join(temporary, "model.safetensors"), "wb") as file:
            file.write(safetensors.numpy.save(dict(arrays), header))
        for name, content in configs.items():
            with open(os.path.join(temporary, name), "w", encoding="utf-8") as file:
                file.write(content if isinstance(content, str) else json.dumps(content, indent=2))


def _share(model, address, format, sharing):
    """Shares a model at an address of PLACES; ValueError if a format is given, or as in keras_vit.sharing.share."""
    if format is not None:
        raise ValueError(f'"{address}" gets the model in every format that others read: leave format="{format}" out.')
    from keras_vit.sharing import share

    share(model, address, **sharing)


def _choose_format(path, format):
    """The format to save in; ValueError if it is unknown or does not suit the path."""
    ending = os.path.splitext(path)[1]
    if format is None and ending not in _BY_ENDING:
        raise ValueError(
            f'"{path}" does not say in which format to save: end it in .keras (this package), .npz (google) or .pth'
            f' (mmsegmentation), or pass format="timm" or "huggingface" for a folder. Valid: {", ".join(FORMATS)}.'
        )
    format = format or _BY_ENDING[ending]
    if format not in FORMATS:
        raise ValueError(
            f'Unknown format "{format}" for "{path}".{did_you_mean(format, FORMATS)} Valid: {", ".join(FORMATS)}.'
        )
    of_format = next((suffix for suffix, name in _BY_ENDING.items() if name == format), None)
    if ending != of_format and (of_format or ending in _BY_ENDING):
        expected = f"a file that ends in {of_format}" if of_format else "a folder"
        raise ValueError(f'The format "{format}" is {expected}, got "{path}".')
    if of_format and os.path.isdir(path):
        raise ValueError(f'"{path}" is a folder, and the format "{format}" is a file. Give the path of a new file.')
    if ending == ".safetensors":
        raise ValueError(f'The format "{format}" is a folder with config.json and model.safetensors, got "{path}".')
    return format


def save(model: keras.Model, path: str | os.PathLike, format: str | None = None, **sharing: Unpack[Sharing]) -> None:
    """Writes a model atomically: a crash leaves either the old content of `path` or the whole new file.

    Fields that a format cannot express are refused, never dropped. `load` reads every format back as an equal model.

    An address on the Hugging Face hub, hf://USER/NAME, uploads the model with a card:
    save(model, "hf://anna/flowers", license="apache-2.0", run="runs/flowers").

    Args:
        model: a ViT or BiT; for "keras" also a keras_vit.Model built on one.
        path: a file that ends in .keras, .npz or .pth; for timm and huggingface a folder.
        format: "keras"; "google" (the .npz of the original ViT, of big_vision with a MAP head, of hybrids and BiT);
            "timm"; "huggingface" (ViT, DeiT, DINOv2, DINOv3, SigLIP, MAE; of segmentation models DPT, Depth
            Anything, EoMT and BEiT with UPerNet); "mmsegmentation" (SETR and UPerNet on a ViT, a .pth).
            None chooses by the path's ending.
        **sharing: for an address: license (required), run, private, images, untrained; see keras_vit.sharing.share.

    Raises:
        ValueError: for another kind of model or path, an unknown format, a path that does not suit it, or a model it
            cannot express, such as one quantised or with LoRA (.keras has both).
    """
    path = check_model_and_path("save", model, path)
    if path.startswith(PLACES):
        return _share(model, path, format, sharing)
    if sharing:
        raise ValueError(f'{", ".join(sharing)}: only for an address, {PLACES[0]}..., got the path "{path}".')
    format = _choose_format(path, format)
    if format == "keras":
        return save_model(model, path)
    arrays, configs = _packed(model, format)
    recorded = _recorded(model, arrays, format)
    if format == "google":
        return _google(path, arrays, (recorded, recorded and _recorded(model, arrays, format, labels=False)))
    if format == "mmsegmentation":
        with replacing(path) as temporary:
            return save_state_dict(temporary, arrays, {**configs, "keras_vit": recorded})
    return _write_folder(path, arrays, recorded, configs)
