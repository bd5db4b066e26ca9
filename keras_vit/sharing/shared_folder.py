"""The shared folder: model.keras, files for another library if its format allows, the card and its pictures."""

import json
import os
import pathlib
import zipfile

import keras
from absl import logging

from keras_vit.checkpoints.save import save, save_model
from keras_vit.io.atomic import check_folder, replacing
from keras_vit.io.json_files import read_json
from keras_vit.models.model_and_path import check_model_and_path
from keras_vit.sharing.card import card, own_words
from keras_vit.sharing.card_pictures import pictures
from keras_vit.sharing.facts import gather
from keras_vit.sharing.licences import checked
from keras_vit.sharing.published_run import Run, read_run

CARD, MODEL, PICTURES = "README.md", "model.keras", "pictures"
OURS = (CARD, MODEL, "model.safetensors", "config.json", "preprocessor_config.json", PICTURES)


def check_model(model: keras.Model, run: Run | None = None, untrained: bool = False) -> None:
    """Raises ValueError for an unusable model, or one that does not match its run."""
    encoder = model.get_encoder()  # the model itself, unless it pre-trains an encoder
    if encoder.image_size is None or len(encoder.inputs) > 1:
        raise ValueError(
            f'Expected a model with a single input, images (b, h, w, c) of fixed size, got "{model.name}", a'
            f" {type(model).__name__} with the input shape {model.input_shape}."
        )
    if not untrained and model.has_zero_head():
        raise ValueError(
            f'The head of "{model.name}" is all zeros, as before training: it gives every image the same answer. To'
            " share it anyway, pass untrained=True (--untrained); to share it without a head, use"
            ' keras_vit.checkpoints.transfer(model, head="drop").'
        )
    names = run and run.evaluation and run.evaluation.details.get("classes")
    if isinstance(names, list) and model.class_names is not None and list(map(str, names)) != list(model.class_names):
        raise ValueError(
            f'"{run.path}" is not the run of this model: it was evaluated on the classes'
            f" {', '.join(map(str, names[:5]))}..., but the model has {', '.join(model.class_names[:5])}... Pass the"
            " model's run, or none."
        )


def _words_in(folder):
    """The author's own words in a folder's card; None without a card of ours."""
    path = pathlib.Path(folder, CARD)
    return own_words(path.read_text("utf-8", "replace"), f'"{path}"') if path.exists() else None


def check_output(folder: str | os.PathLike) -> None:
    """Raises ValueError or OSError for a folder with files from elsewhere, which would be lost."""
    if os.path.isfile(folder):
        raise ValueError(f'"{folder}" is a file; expected a new folder.')
    there = set(os.listdir(folder)) if os.path.isdir(folder) else set()
    others = sorted(there - set(OURS))
    if there and not others and (MODEL not in there or _words_in(folder) is None):
        others = sorted(there)  # other libraries use these file names, too
    if others:
        raise ValueError(
            f'"{folder}" contains other files, which would be lost: {", ".join(others[:5])}. Pass a new or empty'
            " folder."
        )
    check_folder(os.path.dirname(os.path.abspath(folder)))


def _write_for_others(model, folder):
    """Writes files for transformers, or else timm: (format, transformers class or None); None if neither fits."""
    reasons = []
    for form in ("huggingface", "timm"):
        try:
            save(model, folder, format=form)
        except ValueError as error:
            reasons.append(str(error))
            continue
        return form, (read_json(os.path.join(folder, "config.json")).get("architectures") or [None])[0]
    logging.info("No model.safetensors for other libraries. %s", " ".join(reasons))
    os.makedirs(folder)
    return None


def _texts(folder):
    """(name, text) of all text in a folder: cards, JSON, and configs inside checkpoints."""
    for path in sorted(pathlib.Path(folder).rglob("*")):
        if path.suffix in (".md", ".json"):
            yield path.name, path.read_text("utf-8")
        elif path.suffix == ".keras":
            with zipfile.ZipFile(path) as archive:
                yield (
                    path.name,
                    "".join(archive.read(name).decode() for name in archive.namelist() if name.endswith(".json")),
                )
        elif path.suffix == ".safetensors":
            with open(path, "rb") as file:
                yield path.name, file.read(int.from_bytes(file.read(8), "little")).decode()


def _check_private(folder, run):
    """Raises ValueError if a shared text contains the name of a local file."""
    private = {os.path.expanduser("~")} - {"/"} | (run.private() if run else set())
    for name, text in _texts(folder):
        found = sorted(secret for secret in private if secret in text or json.dumps(secret)[1:-1] in text)
        if found:
            raise ValueError(
                f'{name} would contain "{found[0]}", the name of a local file. Change it at its source: the class'
                " names, the model's preprocessing, or the model's name."
            )


def _write(model, folder, address, licence, run, images, words):
    """Writes all files to a new folder."""
    other = _write_for_others(model, folder)
    save_model(model, os.path.join(folder, MODEL))
    try:
        drawn = pictures(run, images)
    except ImportError as error:
        logging.warning("The card has no pictures: %s", error)
        drawn = {}
    if drawn:
        os.makedirs(os.path.join(folder, PICTURES))
    for name, (_, data) in drawn.items():
        pathlib.Path(folder, PICTURES, name).write_bytes(data)
    shown = {f"{PICTURES}/{name}": what for name, (what, _) in drawn.items()}
    text = card(gather(model, address, licence, run, other, shown), words)
    pathlib.Path(folder, CARD).write_text(text, "utf-8")
    _check_private(folder, run)


def write_folder(
    model: keras.Model,
    folder: str | os.PathLike,
    address: str,
    license: str,
    run: str | os.PathLike | None = None,
    images: bool = False,
    untrained: bool = False,
    words: str | None = None,
) -> None:
    """Writes the folder that `share` uploads, all or nothing, without uploading it, such as to preview the card.

    Args:
        model: a model of this package that takes images.
        folder: local folder, new, empty, or written by an earlier call.
        address, license, run, images, untrained: as in `share`.
        words: Markdown for the card's section of your own words; None keeps the section of the folder's current card.

    Raises:
        ValueError, OSError: as in `share` before its upload, or the folder contains other files.
    """
    folder = check_model_and_path("write_folder", model, folder)
    licence, found = checked(license), None if run is None else read_run(run)
    check_model(model, found, untrained)
    check_output(folder)
    words = _words_in(folder) if words is None else words
    with replacing(folder) as temporary:
        _write(model, temporary, address, licence, found, images, words)
