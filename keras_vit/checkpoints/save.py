"""Save a model in other formats: Google's .npz, timm, Hugging Face, and our own .keras."""

import contextlib
import dataclasses
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

from keras_vit.checkpoints import dual
from keras_vit.checkpoints.adapt import model_weights
from keras_vit.checkpoints.dense_models import all_weights
from keras_vit.checkpoints.formats import (
    bit_files,
    config_json,
    google,
    huggingface,
    huggingface_beit,
    huggingface_dense,
    huggingface_dinov3,
    huggingface_eomt,
    huggingface_lw_detr,
    huggingface_names,
    huggingface_text,
    huggingface_yolos,
    mae,
    mmsegmentation,
    name_map,
    swin_files,
    timm,
    timm_eva,
    timm_names,
)
from keras_vit.checkpoints.reading import metadata
from keras_vit.checkpoints.torch_writer import save_state_dict
from keras_vit.checkpoints.transfer import check_plain
from keras_vit.detection.detection_model import DetectionModel
from keras_vit.image_text.dual_encoder import DualEncoder
from keras_vit.io.atomic import replacing, write_bytes
from keras_vit.io.suggest import did_you_mean
from keras_vit.models import Classifier, families
from keras_vit.models.headed import HeadedModel
from keras_vit.models.model_and_path import check_model_and_path
from keras_vit.pretraining.masked_autoencoder import MaskedAutoencoder
from keras_vit.segmentation.segmentation_model import SegmentationModel

FORMATS = ("keras", "google", "timm", "huggingface", "mmsegmentation")
_BY_ENDING = {".keras": "keras", ".npz": "google", ".pth": "mmsegmentation"}
_LONGEST_COMMENT = 65_000  # bytes of a zip archive's comment
PLACES = ("hf://", "kaggle://")  # addresses where models are shared


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


def _recorded(model, arrays, arguments=None, labels=True):
    """The metadata of a model's file, as text; `arguments` None for the model's own."""
    arguments = model.arguments() if arguments is None else arguments
    return metadata.write(families.find(model.spec).name, arguments, arrays, model.activation, labels)


def _fold_token_positions(weights, spec):
    """Adds the position rows of class and distillation tokens to these tokens, for formats without such rows."""
    weights = dict(weights)
    table = weights["position_embedding/embedding"].copy()
    tokens = [f"{name}/tokens" for name in ("class_token", "distillation_token") if spec[name]]
    for row, name in enumerate(tokens):
        weights[name] = weights[name] + table[:, row : row + 1]
        table[:, row] = 0.0
    return {**weights, "position_embedding/embedding": table}


def _google_vit(model, weights):
    """The arrays of the .npz."""
    google.CAPABILITIES.check(model)
    spec = dataclasses.asdict(model.spec)
    return google.published_names(name_map.pack(google.name_map(spec, model.classes), weights), spec)


def _google_bit(model, weights):
    bit_files.CAPABILITIES["google"].check(model)
    return name_map.pack(bit_files.name_map(model.spec.units, model.classes, "google"), weights)


def _timm_vit(model, weights):
    """(arrays, config.json) of the folder."""
    if timm_eva.find_structure(model.spec):
        return _timm_eva(model, weights)
    timm.CAPABILITIES.check(model)
    spec, missing_rows = dataclasses.asdict(model.spec), 0
    # timm's positions cover the patches alone with registers, and in DeiT III and FlexiViT, with zero rows here.
    rows = weights["position_embedding/embedding"][:, : model.spec.positioned]
    if model.spec.registers or (rows.size and not rows.any()):
        weights, missing_rows = _fold_token_positions(weights, spec), model.spec.positioned
    arrays = name_map.pack(timm_names.name_map(spec, model.classes, missing_rows), weights)
    return arrays, config_json.timm_vit(model, bool(missing_rows))


def _timm_eva(model, weights):
    timm_eva.CAPABILITIES[timm_eva.find_structure(model.spec)].check(model)
    entries = timm_names.name_map(dataclasses.asdict(model.spec), model.classes, scales=timm_names.EVA_SCALES)
    return timm_eva.file_arrays(name_map.pack(entries, weights), model.spec), config_json.timm_eva(model)


def _timm_bit(model, weights):
    bit_files.CAPABILITIES["timm"].check(model)
    arrays = name_map.pack(bit_files.name_map(model.spec.units, model.classes, "timm"), weights)
    return arrays, config_json.timm_bit(model)


def _timm_swin(model, weights):
    swin_files.CAPABILITIES["timm"].check(model)
    return name_map.pack(swin_files.timm_map(model.spec, model.classes), weights), config_json.timm_swin(model)


def _huggingface_swin(model, weights):
    swin_files.CAPABILITIES["huggingface"].check(model)
    arrays = name_map.pack(swin_files.huggingface_map(model.spec, model.classes), weights)
    return arrays, config_json.huggingface_swin(model)


def _huggingface_vit(model, weights):
    """(arrays, config.json) of the folder."""
    if model.spec.positions == "rope2d":
        return _huggingface_dinov3(model, weights)
    huggingface.CAPABILITIES.check(model)
    kind = huggingface.model_type(model.spec)
    arrays = name_map.pack(huggingface_names.name_map(dataclasses.asdict(model.spec), model.classes, kind), weights)
    if kind.startswith("dinov2"):  # part of the format, for masked training; zeros as at its start
        arrays[f"{kind}.embeddings.mask_token"] = np.zeros((1, model.spec.width), "float32")
    return arrays, config_json.huggingface(model)


def _huggingface_dinov3(model, weights):
    huggingface_dinov3.CAPABILITIES.check(model)
    arrays = name_map.pack(huggingface_dinov3.name_map(dataclasses.asdict(model.spec)), weights)
    return huggingface_dinov3.file_arrays(arrays, model.spec), config_json.huggingface_dinov3(model)


# {format: {family: function of a model and its weights}}.
_WRITERS = {
    "google": {"ViT": _google_vit, "BiT": _google_bit},
    "timm": {"ViT": _timm_vit, "BiT": _timm_bit, "Swin": _timm_swin},
    "huggingface": {"ViT": _huggingface_vit, "Swin": _huggingface_swin},
}


def _writer(format, model):
    """The function of _WRITERS for a model; ValueError if the format does not support its family."""
    name = families.find(model.spec).name
    if name not in _WRITERS[format]:
        others = " or ".join(f'format="{other}"' for other, writers in _WRITERS.items() if name in writers)
        raise ValueError(
            f'The format "{format}" cannot express this model: a {name}{f" (use {others})" if others else ""}.'
            ' format="keras" saves every model.'
        )
    return _WRITERS[format][name]


def _google(model, path):
    """Writes the .npz at `path`."""
    arrays = _writer("google", model)(model, model_weights(model))
    comment, without_names = (_recorded(model, arrays, labels=labels).encode() for labels in (True, False))
    comment = comment if len(comment) <= _LONGEST_COMMENT else without_names
    with replacing(path) as temporary:
        np.savez(temporary, **arrays)
        with zipfile.ZipFile(temporary, "a") as archive:
            archive.comment = comment


def _timm(model, path):
    """Writes the folder with model.safetensors and config.json, for `timm.create_model("local-dir:PATH")`."""
    arrays, config = _writer("timm", model)(model, model_weights(model))
    _write_folder(path, arrays, _recorded(model, arrays), {"config.json": config})


def _huggingface(model, path):
    """Writes the folder with weights, config.json and preprocessor_config.json, for `from_pretrained(PATH)`."""
    arrays, config = _writer("huggingface", model)(model, model_weights(model))
    configs = {"config.json": config, "preprocessor_config.json": config_json.preprocessor(model)}
    _write_folder(path, arrays, _recorded(model, arrays), configs)


def _masked_autoencoder(model, path):
    """Writes the folder for ViTMAEForPreTraining.from_pretrained(PATH)."""
    encoder = model.get_encoder()
    mae.CAPABILITIES.check(encoder)
    fields = {"decoder_positions": model.decoder_positions, "decoder_depth": model.decoder_depth}
    decoder = mae.decoder_map(fields, model.spec.qkv_bias, huggingface_names.IN_FILES["vit"])
    entries = huggingface_names.name_map(dataclasses.asdict(model.spec), None, "vit")
    entries.update({f"decoder.{name}": entry for name, entry in decoder.items()})
    tables = mae.pack_tables(model)
    entries = {name: entry for name, entry in entries.items() if name not in tables}
    arrays = {**name_map.pack(entries, model_weights(model)), **tables}
    configs = {
        "config.json": config_json.masked_autoencoder(model),
        "preprocessor_config.json": config_json.preprocessor(model),
    }
    # The file contains a position table of any kind.
    arguments = {**encoder.arguments(), "variant": {**encoder.arguments()["variant"], "positions": "learned"}}
    _write_folder(path, arrays, _recorded(model, arrays, arguments), configs)


def _mmsegmentation(model, path):
    """Writes the .pth with `state_dict` and `meta`, from which mmsegmentation's init_model builds the same model."""
    if not isinstance(model, SegmentationModel):
        raise ValueError(
            f'The format "mmsegmentation" is for a SegmentationModel, got a {type(model).__name__}. Use "timm" for a'
            " ViT alone, which mmsegmentation's VisionTransformer does not read."
        )
    mmsegmentation.check(model)
    arrays, arguments = mmsegmentation.to_arrays(model, all_weights(model)), model.get_encoder().arguments()
    variant = {**arguments["variant"], "final_norm": bool(model.decoder.normalised)}
    arguments = {**arguments, "variant": variant, "preprocessing": model.preprocessing}
    meta = {**mmsegmentation.to_meta(model), "keras_vit": _recorded(model, arrays, arguments)}
    with replacing(path) as temporary:
        save_state_dict(temporary, arrays, meta)


def _with_head(model, path):
    """Writes the folder for Hugging Face's class of models with that head."""
    forms = {"upernet": huggingface_beit, "eomt": huggingface_eomt, "yolos": huggingface_yolos}
    forms |= dict.fromkeys(("lw_detr", "rf_detr"), huggingface_lw_detr)
    if isinstance(model, DetectionModel) and model.head_name not in forms:
        raise ValueError(
            f'The format "huggingface" cannot express the head "{model.head_name}", of detectors only "yolos",'
            ' "lw_detr" and "rf_detr".'
            ' format="keras" saves every model.'
        )
    form = forms.get(model.head_name, huggingface_dense)
    form.check(model)
    arrays = form.to_arrays(model, all_weights(model))
    configs = {"config.json": form.to_config(model), "preprocessor_config.json": form.to_preprocessor(model)}
    arguments = {**model.get_encoder().arguments(), "preprocessing": model.preprocessing}
    _write_folder(path, arrays, _recorded(model, arrays, arguments), configs)


def _dual_encoder(model, path, format):
    """Writes both towers: an .npz of big_vision, or a folder for SiglipModel or CLIPModel.from_pretrained(PATH)."""
    arrays = dual.to_arrays(model, format)
    if format == "google":
        with replacing(path) as temporary:
            np.savez(temporary, **arrays)
        return
    configs = {
        "config.json": huggingface_text.to_config(model),
        "preprocessor_config.json": config_json.preprocessor(model.image_encoder),
    }
    _write_folder(path, arrays, None, {**configs, **dual.tokenizer_files(model)})


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
            f'"{path}" contains other files, which would be lost: {name_map.summary(others)}. Pass a new or an empty'
            " folder."
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

    An address, hf://USER/NAME on the Hugging Face hub or kaggle://USER/MODEL/keras/VARIATION, uploads the model with a
    card: save(model, "hf://anna/flowers", license="apache-2.0", run="runs/flowers").

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
        raise ValueError(f'{", ".join(sharing)}: only for an address, {" or ".join(PLACES)}..., got the path "{path}".')
    format = _choose_format(path, format)
    if format != "keras":
        check_plain(model, f'The format "{format}"')
    if format == "huggingface" and isinstance(model, MaskedAutoencoder):
        return _masked_autoencoder(model, path)
    if format in dual.FORMATS and isinstance(model, DualEncoder):
        return _dual_encoder(model, path, format)
    if format == "huggingface" and isinstance(model, HeadedModel):
        return _with_head(model, path)
    if format == "mmsegmentation":
        return _mmsegmentation(model, path)
    if format != "keras" and not isinstance(model, Classifier):
        raise ValueError(
            f'The format "{format}" is for a {families.any_name()}, got a {type(model).__name__} built on one. Use'
            f' "keras", or save the {families.any_name()}.'
        )
    {"keras": save_model, "google": _google, "timm": _timm, "huggingface": _huggingface}[format](model, path)
