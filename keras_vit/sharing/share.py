"""Share a model: check everything first, then write the folder, then upload it."""

import os
import tempfile

import keras
from absl import logging

from keras_vit.checkpoints import load
from keras_vit.io.progress import stage
from keras_vit.models.model_and_path import check_model_and_path
from keras_vit.sharing.card import own_words
from keras_vit.sharing.hub_upload import HubRepository
from keras_vit.sharing.licences import checked
from keras_vit.sharing.published_run import is_run, read_run
from keras_vit.sharing.shared_folder import CARD, check_model, write_folder


def find_place(address: str, license: str | None) -> tuple[HubRepository, str]:
    """(repository, licence identifier) of an address, without network access; ValueError if either is unsupported."""
    if not str(address).startswith("hf://"):
        raise ValueError(
            f'"{address}" is not an address for sharing models: expected hf://USER/NAME (Hugging Face). For Kaggle,'
            ' save the model as "FOLDER/model.keras", then call'
            ' kagglehub.model_upload("USER/MODEL/keras/VARIATION", "FOLDER").'
        )
    return HubRepository(str(address)), checked(license)


def _words_at(place, address):
    """The author's own words in the current card; "" if it has no section for them."""
    text = place.card()
    words = "" if text is None else own_words(text, f"{address}, {CARD},")
    if words is None:
        logging.warning(
            "%s: %s has no section for your own words and is replaced entirely; the repository's history keeps it.",
            address,
            CARD,
        )
    return words or ""


def share(
    model: keras.Model | str | os.PathLike,
    address: str,
    license: str | None = None,
    run: str | os.PathLike | None = None,
    private: bool = False,
    images: bool = False,
    untrained: bool = False,
) -> str:
    """Shares a model's files and a card on the Hugging Face hub; returns the page's URL.

    The shared folder contains model.keras; model.safetensors and config.json for transformers, or else timm, if their
    format supports the model; README.md, the card; and pictures of the run. It never contains names of local files.
    `keras_vit.load(address)` loads it. Foreseeable errors are raised before the model is loaded. An upload is one
    atomic commit. The card's section of your own words is kept.

    Args:
        model: a model of this package that takes images, or anything `keras_vit.load` accepts; a run directory also
            serves as `run`.
        address: hf://USER/NAME.
        license: identifier on the hub, such as "apache-2.0", "mit" or "cc-by-4.0".
        run: run directory or output folder of `keras-vit evaluate --output`, for measures, curves and training details.
        private: whether a new repository is private.
        images: whether to share pictures that show images of the data.
        untrained: whether to allow a head of zeros.

    Raises:
        ValueError: an address, licence, model or run that cannot be shared.
        PermissionError: no token with write access.
        ConnectionError: the hub is unreachable, or the upload failed.
    """
    place, licence = find_place(address, license)
    is_path = isinstance(model, (str, os.PathLike))
    run = model if run is None and is_path and is_run(model) else run
    found = None if run is None else read_run(run)
    if not is_path:
        check_model_and_path("share", model, address)
        check_model(model, found, untrained)
    with stage(f"Looking at {address}"):
        place.check(private)
        words = _words_at(place, address)
    if is_path:
        with stage(f"Loading {model}"):
            model = load(model)
    with tempfile.TemporaryDirectory() as temporary:
        folder = os.path.join(temporary, "shared")
        with stage("Writing the card and the files"):
            write_folder(model, folder, address, licence, run, images, untrained, words)
        with stage(f"Uploading to {address}"):
            page = place.upload(folder, f"{model.name}, shared by keras_vit", private)
    logging.info("Shared: %s", page)
    return page
