"""The data set of a file's classes: by the name that its authors published it under, or timm's config."""

import functools
import pathlib
import re

from keras_vit.checkpoints.fetch.catalogue import CATALOGUE
from keras_vit.checkpoints.formats.parsed import setting
from keras_vit.io.class_names import DATA_SETS

_AUGREG = re.compile(r"-i(?:1k|21k)-.*--(imagenet2012|cifar10|cifar100)-steps_")  # in Google's names of files
_TAG = re.compile(r"(?:^|_)in1k(?:_\d+)?$")  # in timm's configs: augreg_in21k_ft_in1k, fb_in1k


@functools.cache
def _published_names() -> dict[str, str | None]:
    """{file or repository of the catalogue: its labels}, without names that models of other data share."""
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
