"""Sharing a model: what can go wrong first, then the folder, then the upload."""

import os
import tempfile
from collections.abc import Callable
from typing import Protocol

import keras
from absl import logging

from keras_vit.checkpoints import load
from keras_vit.io.progress import stage
from keras_vit.models.checks import check_model_and_path
from keras_vit.sharing.card import own_words
from keras_vit.sharing.folder import CARD, check_model, write_folder
from keras_vit.sharing.hub import HubRepository
from keras_vit.sharing.kaggle import KaggleVariation
from keras_vit.sharing.licences import LICENCES, checked
from keras_vit.sharing.run import is_run, read_run


class Place(Protocol):
    """Where a model can be shared.

    Attributes:
        licences: the identifiers that the place knows; None for all of sharing.licences.
    """

    licences: tuple[str, ...] | None

    def check(self, private: bool) -> None:
        """Refuses what an upload would fail at."""

    def card(self) -> str | None:
        """The text of the README.md that an upload would replace, after `check`; None without one."""

    def upload(self, folder: str | os.PathLike, licence: str, message: str, private: bool) -> str:
        """Uploads a folder, whole or not at all; returns the address of its page."""


_PLACES: dict[str, Callable[[str], Place]] = {"hf": HubRepository, "kaggle": KaggleVariation}


def find_place(address: str, license: str | None) -> tuple[Place, str]:
    """(the place that an address names, the licence's identifier), checked without a network.

    Raises:
        ValueError: for an address where no model can be shared, or a licence that is missing or unknown there.
    """
    scheme, slashes, _ = str(address).partition("://")
    if not slashes or scheme not in _PLACES:
        raise ValueError(
            f'"{address}" is not where a model can be shared: expected hf://USER/NAME (Hugging Face) or'
            " kaggle://USER/MODEL/keras/VARIATION."
        )
    place = _PLACES[scheme](str(address))
    return place, checked(license, place.licences or LICENCES)


def _words_at(place, address):
    """What people have written into the card at a place; "" if there is nothing that can be told from the rest."""
    text = place.card()
    words = "" if text is None else own_words(text, f"{address}, {CARD},")
    if words is None:
        logging.warning(
            "%s: %s has no section for your own words, and is replaced as a whole; the repository's history keeps it.",
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
    """Shares a model on the Hugging Face hub or Kaggle: its files and a card made from it and its run. Returns the
    page's address.

    The folder holds model.keras; model.safetensors and config.json for transformers, or else timm, where their format
    can express the model; README.md, the card; and pictures of the run. Names of files on this machine are in none of
    them. `keras_vit.load(address)` loads it. Whatever can be known to fail fails before the model is loaded. An upload
    is one commit (hub) or version (Kaggle): what was there stays as it was until all of it has arrived. What people
    wrote into the card's section for their own words, on the hub, stays.

    Args:
        model: a model of this package that takes images, or what `keras_vit.load` takes; a run directory is its own
            `run`.
        address: hf://USER/NAME, or kaggle://USER/MODEL/keras/VARIATION.
        license: its identifier on the hub, such as "apache-2.0", "mit" or "cc-by-4.0".
        run: the run directory, or the folder that `keras-vit evaluate --output` wrote: measures, curves, how it was
            trained.
        private: whether a new repository of the hub is private. Kaggle's are, until their page makes them public.
        images: whether pictures that show images of the data may be shared, too.
        untrained: whether a head of zeros may be shared.

    Raises:
        ValueError: for an address, a licence, a model or a run that cannot be shared.
        ImportError: without huggingface_hub or kagglehub.
        PermissionError: without a token that may write there.
        ConnectionError: if the place cannot be reached, or the upload fails.
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
            page = place.upload(folder, licence, f"{model.name}, shared by keras_vit", private)
    logging.info("Shared: %s", page)
    return page
