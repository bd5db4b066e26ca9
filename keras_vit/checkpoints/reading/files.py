"""Read checkpoint files without trusting them.

Nothing in a file is executed: .npz without pickles, safetensors, .pth by our own reader. Sizes are checked before
unpacking. Any fault raises a ValueError that names the file.
"""

import dataclasses
import json
import math
import os
import pathlib
import re
import zipfile

import ml_dtypes
import numpy as np

from keras_vit.checkpoints.formats.name_map import summary
from keras_vit.checkpoints.formats.settings import WORDS, setting
from keras_vit.checkpoints.reading import keras_graph, metadata
from keras_vit.checkpoints.reading.archives import BROKEN, check_archive
from keras_vit.checkpoints.reading.foreign import HDF5, description
from keras_vit.checkpoints.reading.state_dicts import read_meta, read_state_dict


@dataclasses.dataclass
class FileContents:
    """The contents of a checkpoint file.

    Attributes:
        path: of the file with the weights.
        kind: "keras", "keras_graph" (a model of Keras' own layers), "npz", "safetensors" or "torch".
        arrays: {name: float array}; empty for "keras".
        config, preprocessor: config.json and the image processor's settings next to the weights, or {}; the graph of a
            "keras_graph".
        meta: plain values under "meta" in a torch file, or {}.
        notes: plain values next to a torch file's state dict, such as class names and settings, or {}.
        metadata: the model's constructor arguments and activation if this package wrote the file, or None; see
            metadata.read.
        left_out: names of arrays outside the state dict.
    """

    path: pathlib.Path
    kind: str
    arrays: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    config: dict = dataclasses.field(default_factory=dict)
    preprocessor: dict = dataclasses.field(default_factory=dict)
    meta: dict = dataclasses.field(default_factory=dict)
    metadata: dict | None = None
    left_out: list[str] = dataclasses.field(default_factory=list)
    notes: dict = dataclasses.field(default_factory=dict)


def parse_json(data: bytes | str, where: str) -> dict:
    """A JSON object from bytes or text; ValueError, naming `where`, for anything else."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{where} should be a JSON object, got {WORDS[type(value)]}.")
    return value


def _as_float(name, array, where):
    """The array as float32 or float64, also from bfloat16 that numpy stored as void; counters, indices and masks stay.

    Raises:
        ValueError: for other types, and for values that are not finite.
    """
    if array.dtype == np.dtype("V2"):
        array = array.view(ml_dtypes.bfloat16)
    if array.dtype.kind in "iub" and (array.ndim < 2 or name.endswith(("position_ids", "index", "mask"))):
        return array
    if array.dtype.kind != "f" and array.dtype != ml_dtypes.bfloat16:
        raise ValueError(f'"{where}": array "{name}" contains {array.dtype}, expected floating-point numbers.')
    array = array.astype("float64" if array.dtype.itemsize == 8 else "float32", copy=False)
    with np.errstate(over="ignore"):  # values beyond float32 become infinite
        finite = np.isfinite(array.astype("float32", copy=False)).all()
    if not finite:
        raise ValueError(
            f'"{where}": array "{name}" has values that are not finite: the file is damaged, or the training diverged.'
        )
    return array


def placeholder(shape: tuple[int, ...], is_float: bool) -> np.ndarray:
    """Zeros that take no memory and stand for values that are not read."""
    return np.broadcast_to(np.zeros((), "float32" if is_float else "int8"), shape)


def _check_member(archive, entry):
    """(shape, dtype) of an .npy; compares its header's size with its entry's before memory is allocated.

    Raises:
        ValueError: if they differ, or it contains a pickle.
    """
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        header = file.tell()
    if dtype.hasobject:
        raise ValueError(f"{entry.filename} contains Python objects (a pickle), which are never loaded")
    if entry.file_size - header != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{entry.filename} does not have the size that its header declares")
    return shape, dtype


def _read_npz(path, largest):
    """(arrays, metadata as text or None) of an .npz; the metadata are the archive's comment."""
    entries = check_archive(path)
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in entries:
                shape, dtype = _check_member(archive, entry)
                if math.prod(shape) > largest:
                    array = placeholder(shape, dtype.kind in "fV")
                else:
                    with archive.open(entry) as file:
                        array = np.lib.format.read_array(file, allow_pickle=False)
                        file.read(1)  # zipfile compares checksums at the end of an entry
                name = entry.filename.removesuffix(".npy")
                if name in arrays:
                    raise ValueError(f'array "{name}" occurs twice')
                arrays[name] = array
            comment = archive.comment
    except BROKEN as error:
        raise ValueError(f'"{path}" is not an intact .npz of arrays: {type(error).__name__}: {error}') from None
    return arrays, comment.decode("utf-8", "replace") or None


def _read_safetensors(path, largest):
    """(arrays, metadata as text or None) of a safetensors file; the metadata are its header's "keras_vit"."""
    import safetensors

    try:
        with safetensors.safe_open(path, "np") as file:
            arrays = {}
            for name in file.keys():
                part = file.get_slice(name)
                kind, shape = part.get_dtype(), part.get_shape()
                if kind == "F4" or kind.startswith(("F6_", "F8_")):  # numpy has no such types
                    raise ValueError(f'array "{name}" contains {kind}, expected floating-point numbers')
                is_large = math.prod(shape) > largest
                arrays[name] = placeholder(shape, "F" in kind) if is_large else file.get_tensor(name)
            return arrays, (file.metadata() or {}).get("keras_vit")
    except (safetensors.SafetensorError, OSError, ValueError, TypeError) as error:
        raise ValueError(f'"{path}" is not an intact safetensors file: {error}') from None


def _read_sharded(index, largest):
    """The arrays of the files listed in a model.safetensors.index.json or pytorch_model.bin.index.json."""
    weight_map = parse_json(index.read_bytes(), f'"{index}"').get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ValueError(f'"{index}" has no "weight_map" from array names to file names.')
    arrays, actual = {}, {}
    for name in sorted(set(weight_map.values())):
        # A name with folders could be any file on this machine.
        if name != os.path.basename(name) or "\\" in name or not os.path.isfile(index.parent / name):
            raise ValueError(f'"{index}" lists "{name}", which is not a file next to it.')
        file = index.parent / name
        is_safe = name.endswith(".safetensors")
        shard = _read_safetensors(file, largest)[0] if is_safe else read_state_dict(file, None, largest)[0]
        arrays.update(shard)
        actual.update(dict.fromkeys(shard, name))
    if actual != weight_map:
        wrong = sorted(name for name in actual.keys() | weight_map.keys() if actual.get(name) != weight_map.get(name))
        raise ValueError(
            f'"{index}" and its files disagree about which file contains which array: {", ".join(wrong[:8])}'
            f" ({len(wrong)})."
        )
    return arrays


def _kind(path):
    """The kind of a file by its first bytes."""
    with open(path, "rb") as file:
        start = file.read(16)
    if start[:4] == b"PK\x03\x04":
        names = {entry.filename for entry in check_archive(path)}
        if "model.weights.h5" in names or "metadata.json" in names:
            return "keras"
        if any(name.endswith(("data.pkl", "/archive_format")) for name in names):
            return "torch"
        if not any(name.endswith(".npy") for name in names):
            raise ValueError(
                f'"{path}" is an archive of {summary(names, 3)}: unpack it, and pass the file with the weights.'
            )
        return "npz"
    if start[8:9] == b"{":
        return "safetensors"
    if start[:1] == b"\x80" and start[1:2] in b"\2\3\4\5":  # pickles
        return "torch"
    if start.startswith(HDF5):
        return "hdf5"
    if (what := description(path, start)) is not None:
        raise ValueError(f'"{path}" {what}')
    raise ValueError(
        f'Cannot tell the format of "{path}". Formats: .keras, .npz (Google), .safetensors (timm, Hugging Face,'
        " vit-pytorch), .pth, or a folder with config.json and model.safetensors. Perhaps a download was interrupted."
    )


def _keras_contents(path, kind):
    """The arrays and config in a Keras file with a model of one of Keras' own classes."""
    graph = keras_graph.read(path)
    if graph is None and kind == "hdf5":
        raise ValueError(f'"{path}" {description(path, HDF5)}')
    if graph is None:
        return FileContents(path, kind)
    config, arrays = graph
    floats = {name: _as_float(name, array, path) for name, array in arrays.items() if array.dtype.kind in "fV"}
    return FileContents(path, "keras_graph", floats, config)


_UNZIPPED = "model.weights.h5"  # next to config.json, in a folder of Keras' model.save(..., zipped=False)
_FILES = (
    "model.keras",
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_ENDINGS = (".keras", ".npz", ".safetensors", ".pth", ".pt", ".ckpt", ".bin", ".pkl", ".h5", ".msgpack")


def _inside(folder):
    """The weights' file in a run directory, or in a folder of timm or Hugging Face; FileNotFoundError without one."""
    for name in _FILES:
        if (folder / name).is_file():
            return folder / name
    if (folder / _UNZIPPED).is_file() and (folder / "config.json").is_file():
        return folder / _UNZIPPED
    if (folder / "config.json").exists() and (folder / "checkpoints").is_dir():
        raise FileNotFoundError(
            f'"{folder}" contains no model.keras: the run has not ended. The command that started it continues it.'
        )
    if (folder / "saved_model.pb").exists():
        raise FileNotFoundError(
            f'"{folder}" is an export, a SavedModel, which TensorFlow Serving or tf.saved_model.load loads. Pass the'
            " model that it was made from."
        )
    if (folder / "_METADATA").is_file():
        raise FileNotFoundError(
            f'"{folder}" is an Orbax checkpoint. Save it as .npz where orbax and flax are installed:'
            ' numpy.savez("weights.npz", **flax.traverse_util.flatten_dict('
            f'orbax.checkpoint.StandardCheckpointer().restore("{folder.resolve()}"), sep="/")).'
        )
    others = [file.name for file in folder.iterdir() if file.name.endswith(_ENDINGS)]
    raise FileNotFoundError(
        f'"{folder}" contains no model.keras: the run has not ended, or this is not a run directory. Nor does it'
        f" contain {' or '.join(_FILES[1:])}.{f' Pass the file with the weights: {summary(others)}.' if others else ''}"
    )


def _under(arrays, key, file):
    """The arrays with names that begin with a key, without it; ValueError if there are none."""
    names = {name: name[len(key) + 1 :] for name in arrays if name.startswith((f"{key}.", f"{key}/"))}
    if not names:
        first = sorted({re.split(r"[./]", name)[0] for name in arrays})
        raise ValueError(f'"{file}" has no names that begin with key="{key}"; they begin with {summary(first)}.')
    return {new: arrays[name] for name, new in names.items()}


def _configs_beside(file):
    """The contents of config.json and preprocessor_config.json in the file's folder, {} if missing."""
    names = ("config.json", "preprocessor_config.json", "processor_config.json")
    config, preprocessor, processor = (
        parse_json(p.read_bytes(), f'"{p}"') if p.is_file() else {} for p in (file.parent / name for name in names)
    )
    # transformers 5 writes the images' part into the processor's own file if there is also a text tower.
    return config, preprocessor or setting(processor, "image_processor", dict) or {}


def read(path: str | os.PathLike, key: str | None = None, largest: float = math.inf) -> FileContents:
    """Reads a checkpoint file, or the one in a folder.

    Args:
        path: of the file or folder.
        key: which of several state dicts in the file: the dotted path to it, or the start of its names.
        largest: number of values. Larger arrays are not read, but are placeholders, and checksums are not compared.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if it is not an intact, harmless checkpoint, or has nothing under the key.
    """
    path = pathlib.Path(path).expanduser()
    if not path.exists():
        raise FileNotFoundError(f'"{path}" does not exist.')
    file = _inside(path) if path.is_dir() else path
    if not file.is_file():  # reading a pipe would wait forever
        raise ValueError(f'"{file}" is neither a file nor a folder.')
    if path.is_dir() and file.name == _UNZIPPED:
        return _keras_contents(path, "keras")
    text, left_out, meta, notes = None, [], {}, {}
    kind = "safetensors" if file.name.endswith(".index.json") else _kind(file)
    if kind in ("keras", "hdf5"):
        return _keras_contents(file, kind)
    if kind == "torch":
        arrays, left_out, key = read_state_dict(file, key, largest)
        meta, notes = read_meta(file)
        text = setting(meta, "keras_vit", str)
    elif file.name.endswith(".index.json"):
        arrays = _read_sharded(file, largest)
    else:
        arrays, text = {"npz": _read_npz, "safetensors": _read_safetensors}[kind](file, largest)
    if not arrays:
        raise ValueError(f'"{file}" contains no arrays.')
    recorded = parse_json(text, f'The metadata of "{file}"') if text is not None else None
    if recorded is not None:
        recorded = metadata.read(recorded, arrays if largest == math.inf else None, file)
    arrays = {
        name: array if array.size > largest else _as_float(name, array, file)
        for name, array in (_under(arrays, key, file) if key else arrays).items()
    }
    config, preprocessor = ({}, {}) if kind == "npz" else _configs_beside(file)
    return FileContents(file, kind, arrays, config, preprocessor, meta, recorded, left_out, notes)
