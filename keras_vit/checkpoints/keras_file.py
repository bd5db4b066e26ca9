"""This package's own .keras files: Keras' container, but nothing in one is built other than a ViT or BiT from plain values."""

import io
import math
import zipfile

import h5py
import numpy as np

from keras_vit.checkpoints import note
from keras_vit.checkpoints.files import BROKEN, check_archive, check_unpacked, parse_json
from keras_vit.checkpoints.transfer import model_weights
from keras_vit.models import BiT, ViT, make_bit_spec, make_spec

_CLASSES = {"keras_vit>ViT": (ViT, make_spec), "keras_vit>BiT": (BiT, make_bit_spec)}


def _shapes(weights, path):
    """The shapes of the layers' arrays in an HDF5 file.

    Raises:
        ValueError: if it is none, or promises far more than it holds.
    """
    shapes = []

    def visit(name, found):
        if name.startswith("layers/") and isinstance(found, h5py.Dataset):
            if found.dtype.kind not in "fiuV":
                raise ValueError(f'array "{name}" holds {found.dtype}, expected numbers')
            shapes.append(found.shape)

    try:
        with h5py.File(io.BytesIO(weights)) as file:
            file.visititems(visit)
    except (OSError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f'The weights in "{path}" are no whole HDF5 file: {error}') from None
    check_unpacked(path, 4 * sum(map(math.prod, shapes)))
    return shapes


def _member(archive, name):
    """A member's bytes. With its size given, no more is unpacked than was declared; read() alone would unpack all there is."""
    with archive.open(name) as file:
        return file.read(archive.getinfo(name).file_size)


def _unpack(path):
    """(the config's bytes, the shapes of the layers' arrays) of a .keras file.

    Raises:
        ValueError: if it is not whole: read to the end, each part is compared with its checksum.
    """
    check_archive(path)
    try:
        with zipfile.ZipFile(path) as archive:
            config, weights = (_member(archive, name) for name in ("config.json", "model.weights.h5"))
    except BROKEN as error:
        raise ValueError(f'"{path}" is no whole .keras file: {error}') from None
    return config, _shapes(weights, path)


def load(path):
    """The model of a .keras file.

    Raises:
        ValueError: if the file is not whole, was altered, or holds another model.
    """
    data, shapes = _unpack(path)
    where = f'The config of "{path}"'
    config = parse_json(data, where)
    name = config.get("registered_name")
    if not isinstance(name, str) or name not in _CLASSES:
        raise ValueError(f'"{path}" holds a {config.get("class_name") or name}, not a keras_vit.ViT or BiT.')
    constructor, make = _CLASSES[name]
    # Plain values for our own constructor; Keras would follow any class that the file names.
    arguments = note.arguments(config.get("config"), where)
    values = sum(map(math.prod, shapes))
    try:
        note.check_size(make(arguments["variant"]), arguments, len(shapes), values, path)
        model = constructor(**arguments)
    except ValueError as error:
        raise ValueError(f"{where} describes no model that can be built: {error}") from None
    _fill(model, path, values)
    return model


def _fill(model, path, values):
    """Puts the weights of a .keras file, which has so many numbers in all, into its model.

    Raises:
        ValueError: if they are another model's, or not finite.
    """
    try:
        model.load_weights(path)
    except Exception as error:  # h5py and Keras have a dozen kinds
        raise ValueError(f'The weights in "{path}" are not those of the model in its config: {error}') from error
    found = model_weights(model)
    needed = sum(a.size for a in found.values())
    if needed != values:
        raise ValueError(f'The weights in "{path}" are {values:,} numbers, the model in its config has {needed:,}.')
    wrong = [name for name, a in found.items() if not np.isfinite(a).all()]
    if wrong:
        raise ValueError(f'"{path}": the weights {", ".join(wrong[:8])} ({len(wrong)}) are not finite: its training diverged.')
