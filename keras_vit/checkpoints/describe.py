"""The model in a checkpoint, from its header, for plans: no large array is read, and nothing is downloaded."""

import json
import os
import pathlib
import zipfile
from collections.abc import Mapping
from typing import Any

from keras_vit.checkpoints.fetch.catalogue import CATALOGUE
from keras_vit.checkpoints.locate import locate_checkpoint
from keras_vit.checkpoints.parse import parsed_arrays
from keras_vit.checkpoints.reading.files import read
from keras_vit.layers.embedding.patches import pair
from keras_vit.models import families

_LARGEST = 2**20  # values of the arrays that are read: position tables, to find their kind


def arguments_in(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments of the ViT or BiT that a model with this config is fine-tuned as, with its spec under "variant".

    None for other models, and for quantised ones and LoRA, which are not adapted.
    """
    for part in ("encoder", "student"):  # the part that DINO and distillation keep
        config = config.get(part, {}).get("config", config)
    if {"quantization", "lora"} & config.keys():
        return None
    spec, headless = config.get("variant"), {"classes": None, "class_names": None}
    if isinstance(config.get("spec"), dict) and config.get("layers"):  # another head on a ViT
        spec = config["spec"].get("config")
        *size, channels = config["layers"][0]["config"]["batch_shape"][1:]
        config = {**headless, "image_size": size, "channels": channels, "preprocessing": config.get("preprocessing")}
    if spec is None and isinstance(config.get("encoder"), dict):  # a SegmentationModel's
        spec = config["encoder"]
        config = {**config, **headless}
    if not isinstance(spec, dict):
        return None
    return {**headless, **config, "variant": families.find(spec).make_spec(spec)}


def _cached(address, sha256):
    """The local path of an address that was downloaded, or None."""
    if address.startswith("hf://"):
        from keras_vit.checkpoints.fetch.hub import cached_repository

        return cached_repository(address)
    if address.startswith(("https://", "http://", "gs://")):
        from keras_vit.checkpoints.fetch.download import cached_path

        path = pathlib.Path(cached_path(address))
        return path if path.exists() else None
    return None


def _read_arguments(located, changes):
    """The arguments of the model in a file or folder."""
    contents = read(located.path, largest=_LARGEST)
    if contents.kind != "keras":
        _, parsed, config, _ = parsed_arrays(contents, located, located.image_size, None, None, changes)
        return {**config, **(parsed.decoder.fields if parsed.decoder else {})}
    if contents.path.is_dir():
        config = json.loads((contents.path / "config.json").read_bytes())
    else:
        with zipfile.ZipFile(contents.path) as archive:
            config = json.loads(archive.read("config.json"))
    return arguments_in(config.get("config", {}))


def describe_checkpoint(name: str | os.PathLike, **changes: Any) -> tuple[dict[str, Any] | None, str]:
    """(arguments of the model that `load(name)` returns, or None; a remark on where they are from, or why not).

    Args:
        name: as `load` takes it.
        **changes: arguments of `load`, of which some supply values that a file does not state.

    Raises:
        ValueError: for a file that `load` refuses.
    """
    try:
        located = locate_checkpoint(name, _cached)
    except FileNotFoundError as error:
        return None, str(error)
    published = CATALOGUE.get(os.fsdecode(name))
    if located.path is None and published is not None:
        family = families.find(published.variant)
        stated = {field: getattr(published, field) for field in ("mean", "std") if getattr(published, field)}
        spec, size = family.make_spec(published.variant, **{**published.fields, **stated}), published.image_size
        about = {
            "classes": None if published.head else published.classes,
            "class_names": None,
            "preprocessing": published.preprocessing,
        }
        options = {"remat": False, "name": family.name.lower(), "dtype": None}
        arguments = {"variant": spec, "image_size": pair(size, "image_size"), "channels": 3}
        return {**arguments, **about, **options}, "by the catalogue: it is not downloaded yet"
    if located.path is None:
        return None, f"{name} is not downloaded yet"
    try:
        described = _read_arguments(located, {**located.fields, **changes})
    except FileNotFoundError as error:
        return None, str(error)
    return described, "" if described else f"{name} contains another kind of model"
