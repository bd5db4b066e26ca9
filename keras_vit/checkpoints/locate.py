"""Locates a checkpoint: a path, an address, which is downloaded, or a name in the catalogue; and the data set of its
classes.
"""

import dataclasses
import functools
import hashlib
import os
import pathlib
import re
from collections.abc import Callable
from typing import Any

from keras_vit.checkpoints.formats.settings import setting
from keras_vit.io.class_names import DATA_SETS
from keras_vit.io.suggest import did_you_mean

_AUGREG = re.compile(r"-i(?:1k|21k)-.*--(imagenet2012|cifar10|cifar100)-steps_")  # in Google's names of files
_TIMM = re.compile(r"(?:vit|deit3?|flexivit|eva02|swin(?:v2)?|resnetv2)_\w*\d\w*(?:\.\w+)?")  # timm's names: NAME.TAG
_TAG = re.compile(r"(?:^|_)in1k(?:_\d+)?$")  # in timm's configs: augreg_in21k_ft_in1k, fb_in1k
# Kaggle's names: USER/MODEL/FRAMEWORK/VARIATION, and perhaps a version.
_KAGGLE = re.compile(r"[\w-]+/[\w.-]+/(?:keras|pyTorch|tensorFlow2|jax|flax|transformers|other)/[\w.-]+(?:/\d+)?")


def _letters(name):
    """A name without case, punctuation and "vit": "ViT-B/16" and "vit_b16" are "b16"."""
    return re.sub(r"[^a-z0-9+]", "", name.lower()).removeprefix("vit")


def _published_like(text, catalogue):
    """A hint: the first published models of an architecture such as "B/16" or "vit_b16"; may be empty."""
    like = [name for name in catalogue if _letters(text) in map(_letters, re.split("[/-]", name))]
    return f" Published models of that kind: {', '.join(like[:3])}, ..." if like else ""


def _timm_hint(text, catalogue):
    """A hint: the address of the model that has this name in timm; may be empty."""
    if not _TIMM.fullmatch(text):
        return ""
    known = (entry.url for entry in catalogue.values() if entry.url.startswith(f"hf://timm/{text}."))
    address = f"hf://timm/{text}" if "." in text else next(known, f"hf://timm/{text}.TAG")
    return f' It looks like a model of timm: keras_vit.load("{address}") downloads it.'


def _kaggle_hint(text):
    """A hint: the line that downloads and loads a model of Kaggle; may be empty."""
    if not text.startswith("kaggle://") and not _KAGGLE.fullmatch(text):
        return ""
    name = text.removeprefix("kaggle://")
    return f' kagglehub downloads models of Kaggle: keras_vit.load(kagglehub.model_download("{name}")).'


@dataclasses.dataclass(frozen=True)
class Located:
    """A checkpoint on this machine, with the catalogue's facts that its file does not state.

    Attributes:
        path: file or folder; None if it is not on this machine.
        image_size: pixels, side or (height, width) of the images where the weights fit any; None where the file
            determines it.
        preprocessing: text of the evaluation preprocessing at the checkpoint's own size; None for the file's.
        class_names: key of class_names.DATA_SETS for a classifier of that data set, or None.
        resample: how to resample positions; None for the format's method.
        fields: of the spec: mean, std, patch_size.
        is_published: whether it is in the catalogue, so that a value that its file does not state is its format's.
    """

    path: pathlib.Path | None
    image_size: int | tuple[int, int] | None = None
    preprocessing: str | None = None
    class_names: str | None = None
    resample: str | None = None
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)
    is_published: bool = False


def _fetched(address, sha256):
    """The local path of an address, downloaded unless cached; None if it is not an address."""
    if address.startswith("hf://"):
        from keras_vit.checkpoints.fetch.hub import download_repository

        return download_repository(address)
    if address.startswith(("https://", "http://", "gs://")):
        from keras_vit.checkpoints.fetch.download import download

        return download(address, sha256=sha256)
    return None


def _constants(entry):
    """The normalisation that the catalogue gives for a model."""
    return {name: value for name in ("mean", "std") if (value := getattr(entry, name)) is not None}


def _has_checksum(path, sha256):
    """Whether a file has a SHA-256 that starts so; any file has None."""
    if sha256 is None:
        return True
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest().startswith(sha256)


def _on_disk(path):
    """A file or folder, published if it has the name of one, and the checksum where the catalogue knows it."""
    from keras_vit.checkpoints.fetch.catalogue import CATALOGUE

    folders = {parent.name for parent in path.absolute().parents}
    for entry in CATALOGUE.values():
        files = ((entry.url, entry.sha256), (entry.original, entry.original_sha256))
        sums = [total for address, total in files if address and address.rpartition("/")[2] == path.name]
        in_hub = f"models--{entry.url.removeprefix('hf://').replace('/', '--')}" in folders
        if in_hub or (path.is_file() and any(_has_checksum(path, total) for total in sums)):
            return Located(path, fields=_constants(entry), is_published=True)
    return Located(path)


def locate_checkpoint(
    name: str | os.PathLike, find: Callable[[str, str | None], pathlib.Path | None] = _fetched
) -> Located:
    """Locates the checkpoint of a path, an address or a name in the catalogue; downloads it unless cached.

    Args:
        name: as `load` takes it.
        find: (address, sha256) -> local path, or None, which is then the result's path.

    Raises:
        FileNotFoundError: for an unknown name, with the nearest one in the catalogue.
        ValueError: if the name is not text or a path, is a dangling link, or an address of Kaggle.
        ConnectionError: if the download fails.
    """
    from keras_vit.checkpoints.fetch.catalogue import CATALOGUE

    if not isinstance(name, (str, bytes, os.PathLike)):
        kind = f"the class {name.__name__}" if isinstance(name, type) else f"a {type(name).__name__}"
        raise ValueError(f"load expected a path, an address or a name of keras_vit.list_models(), got {kind}.")
    text = os.fsdecode(name)
    path = os.path.expanduser(text)
    for existing in (path, f"{path}.index"):  # TensorFlow's checkpoints are called by what their files begin with
        if os.path.exists(existing):
            return _on_disk(pathlib.Path(existing))
    if os.path.islink(path):
        raise ValueError(f'"{text}" is a link to "{os.readlink(path)}", which does not exist.')
    if (entry := CATALOGUE.get(text)) is not None:
        place = find(entry.url, entry.sha256)
        return Located(
            place,
            entry.chosen_size,
            entry.preprocessing,
            entry.labels,
            entry.resample,
            dict(entry.fields_to_load),
            True,
        )
    if text.startswith("kaggle://"):
        raise ValueError(f'"{text}" is not an address that load downloads.{_kaggle_hint(text)}')
    if "://" in text:
        place = find(text, None)
        published = next((e for e in CATALOGUE.values() if text in (e.url, e.original)), None)
        if published is None:
            return Located(place)
        return Located(place, class_names=published.labels, fields=_constants(published), is_published=True)
    hint = _published_like(text, CATALOGUE) or _timm_hint(text, CATALOGUE) or did_you_mean(text, CATALOGUE)
    hint = hint or _kaggle_hint(text)
    raise FileNotFoundError(
        f'"{text}" does not exist, and is not a name in the catalogue.{hint} keras_vit.list_models() lists all names.'
    )


@functools.cache
def _published_names() -> dict[str, str | None]:
    """{file or repository of the catalogue: its labels}, without names that models of other data share."""
    from keras_vit.checkpoints.fetch.catalogue import CATALOGUE

    found: dict[str, set] = {}
    for entry in CATALOGUE.values():
        for address in filter(None, (entry.url, entry.original)):
            found.setdefault(address.rpartition("/")[2], set()).add(entry.labels)
    return {name: labels.pop() for name, labels in found.items() if len(labels) == 1}


def _by_name(path):
    """The data set by the names of a file, its folder, or the hub's cache: models--OWNER--NAME/snapshots/COMMIT."""
    path = pathlib.Path(path)
    cached = path.parent.parent.parent.name.rpartition("--")[2]
    for name in (path.name, path.parent.name, cached):
        if name in _published_names():
            return _published_names()[name]
        if match := _AUGREG.search(name):
            return match[1].replace("imagenet2012", "imagenet")
    return None


def declared_labels(path: str | pathlib.Path, config: dict, classes: int | None) -> str | None:
    """A key of DATA_SETS, or None if the file does not say, or has another number of classes.

    Args:
        path: of the file with the weights.
        config: config.json next to it, or {}.
        classes: of the model.
    """
    evaluation = setting(config, "pretrained_cfg", dict) or {}
    tagged = _TAG.search(setting(evaluation, "tag", str) or "")
    labels = _by_name(path) or ("imagenet" if tagged else None)
    return labels if labels and len(DATA_SETS[labels]()) == classes else None
