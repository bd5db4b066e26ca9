"""Writing a model for others: Google's .npz, timm, Hugging Face, and our own .keras."""

import dataclasses
import json
import os
import zipfile

import numpy as np
import safetensors.numpy
from absl import logging

from keras_vit.checkpoints import bit, configs, google, huggingface, layout, note, timm
from keras_vit.checkpoints.transfer import model_weights
from keras_vit.models import BiT
from keras_vit.training.files import replacing, save_model

FORMATS = ("keras", "google", "timm", "huggingface")
_COMMENT = 65_000  # bytes that a zip archive's comment may have


def _check(spec, limits, form):
    """Refuses a model that the format has no words for.

    Raises:
        ValueError: naming each field with what it is and what it may be.
    """
    wrong = [
        f"{name}={spec[name]!r} (may be {' or '.join(map(repr, valid))})"
        for name, valid in limits.items()
        if spec[name] not in valid
    ]
    if spec["pool"] == "gap" and spec["class_token"] and form == "google":
        wrong.append("a class token beside pool='gap'")
    if wrong:
        raise ValueError(f'The format "{form}" cannot express this model: {"; ".join(wrong)}. "keras" can.')


def _warn(spec, conventions, form):
    """Says where the format's own readers compute something else than the model did."""
    differs = [f"{name} {spec[name]!r}, they take {value!r}" for name, value in conventions.items() if spec[name] != value]
    if differs:
        logging.warning(
            'Readers of the format "%s" other than keras_vit will differ from this model in: %s.', form, "; ".join(differs)
        )


def _fold_class_rows(weights, spec):
    """Position rows of class and distillation token added into the tokens: the same sum, for formats without such rows."""
    weights = dict(weights)
    table = weights["position_embedding/embedding"].copy()
    tokens = [f"{name}/tokens" for name in ("class_token", "distillation_token") if spec[name]]
    for row, name in enumerate(tokens):
        weights[name] = weights[name] + table[:, row : row + 1]
        table[:, row] = 0.0
    return {**weights, "position_embedding/embedding": table}


def _google(model, path):
    """The .npz at `path`."""
    weights, spec = model_weights(model), dataclasses.asdict(model.spec)
    if isinstance(model, BiT):
        arrays = layout.pack(bit.layout(model.spec.units, model.classes, "google"), weights)
    else:
        _check(spec, google.LIMITS, "google")
        _warn(spec, google.CONVENTIONS, "google")
        arrays = google.published_names(layout.pack(google.layout(spec, model.classes), weights), spec)
    comment = note.write(model, arrays).encode()
    comment = comment if len(comment) <= _COMMENT else note.write(model, arrays, labels=False).encode()
    with replacing(path) as temporary:
        np.savez(temporary, **arrays)
        with zipfile.ZipFile(temporary, "a") as archive:
            archive.comment = comment


def _timm(model, path):
    """The folder at `path`: model.safetensors and config.json, as `timm.create_model("local-dir:PATH")` reads it."""
    weights, spec = model_weights(model), dataclasses.asdict(model.spec)
    if isinstance(model, BiT):
        arrays, config = layout.pack(bit.layout(model.spec.units, model.classes, "timm"), weights), configs.timm_bit(model)
    else:
        _check(spec, timm.LIMITS, "timm")
        _warn(spec, timm.CONVENTIONS, "timm")
        lacking = 0
        # timm's register models have no positions for tokens before the patches; DeiT III and FlexiViT, whose rows are zeros here, too.
        rows = weights["position_embedding/embedding"][:, : model.spec.positioned]
        if model.spec.registers or (rows.size and not rows.any()):
            weights, lacking = _fold_class_rows(weights, spec), model.spec.positioned
        arrays = layout.pack(timm.layout(spec, model.classes, lacking), weights)
        config = configs.timm_vit(model, bool(lacking))
    _write_folder(path, arrays, model, {"config.json": config})


def _huggingface(model, path):
    """The folder at `path`: model.safetensors, config.json and preprocessor_config.json, as `from_pretrained(PATH)` reads it."""
    if isinstance(model, BiT):
        raise ValueError('The format "huggingface" is not written for BiT. Use "google" or "timm".')
    weights, spec = model_weights(model), dataclasses.asdict(model.spec)
    _check(spec, huggingface.LIMITS, "huggingface")
    kind, config = configs.huggingface(model)
    arrays = layout.pack(huggingface.layout(spec, model.classes, kind), weights)
    if kind.startswith("dinov2"):  # part of the format, for masked training; zeros as before it
        arrays[f"{kind}.embeddings.mask_token"] = np.zeros((1, model.spec.width), "float32")
    files = {"config.json": config, "preprocessor_config.json": configs.preprocessor(model)}
    _write_folder(path, arrays, model, files)


def _write_folder(path, arrays, model, files):
    """model.safetensors and JSON `files` {name: content}, all or nothing.

    Raises:
        ValueError: if the folder holds other files, which would be lost.
    """
    expected = {"model.safetensors", "config.json", "preprocessor_config.json"}
    if os.path.isfile(path):
        raise ValueError(f'"{path}" is a file; this format is a folder.')
    others = set(os.listdir(path)) - expected if os.path.isdir(path) else set()
    if others:
        raise ValueError(f'"{path}" holds other files, which are kept: {layout.shown(others)}. Give a new or empty folder.')
    with replacing(path) as temporary:
        os.makedirs(temporary)
        metadata = {"format": "pt", "keras_vit": note.write(model, arrays)}
        safetensors.numpy.save_file(arrays, os.path.join(temporary, "model.safetensors"), metadata)
        for name, content in files.items():
            with open(os.path.join(temporary, name), "w") as file:
                json.dump(content, file, indent=2)


def save(model, path, format=None):
    """Writes a model, all or nothing: a crash leaves what stood at `path`, or the whole new file.

    What a format cannot express is refused, never dropped. `load` reads all of them back to an equal model.

    Args:
        model: a ViT or BiT.
        path: a file, .keras or .npz, or for timm and huggingface a folder.
        format: "keras"; "google" (the original ViT's .npz, big_vision's with a MAP head, the hybrids' and BiT's); "timm";
            "huggingface" (ViT, DeiT, DINOv2, SigLIP). None for what the ending says.

    Raises:
        ValueError: for an unknown format, a model that it cannot express, or a path that does not go with it.
    """
    path = os.fspath(path)
    endings = {".keras": "keras", ".npz": "google"}
    ending = os.path.splitext(path)[1]
    format = format or endings.get(ending)
    if format not in FORMATS:
        raise ValueError(f'Unknown format "{format}" for "{path}". Valid: {", ".join(FORMATS)}.')
    if endings.get(ending, format) != format or (format in endings.values() and ending not in endings):
        wanted = {"keras": "a file that ends in .keras", "google": "a file that ends in .npz"}.get(format, "a folder")
        raise ValueError(f'The format "{format}" is {wanted}, got "{path}".')
    if ending == ".safetensors":
        raise ValueError(f'The format "{format}" is a folder with config.json and model.safetensors, got "{path}".')
    {"keras": save_model, "google": _google, "timm": _timm, "huggingface": _huggingface}[format](model, path)
