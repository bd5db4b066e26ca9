"""The files that checkpoints come in: what they hold, read without trusting them.

Nothing is executed: .npz without pickles, safetensors, .pth through torch's weights-only loader. Sizes are checked before anything
is unpacked. All that is wrong with a file is a ValueError that names it.
"""

import collections
import dataclasses
import json
import math
import os
import pathlib
import tokenize
import zipfile
import zlib

import ml_dtypes
import numpy as np

from keras_vit.checkpoints import note
from keras_vit.checkpoints.source import WORDS

# What an archive may unpack to: legitimate ones are hardly compressed; all-zero heads are the exception.
_RATIO, _ALLOWANCE = 10, 2**28
# What zipfile and numpy raise for an archive, or an array's header, that is not as it should be.
BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    tokenize.TokenError,
    ArithmeticError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


@dataclasses.dataclass
class Contents:
    """What was found at a path.

    Attributes:
        path: of the file or folder.
        kind: "keras", "npz", "safetensors" or "torch".
        arrays: {name: float array}; empty for "keras".
        config, preprocessor: config.json and preprocessor_config.json beside the weights, or {}.
        own: the constructor's arguments of the model where this package wrote the file, or None; see note.read.
    """

    path: pathlib.Path
    kind: str
    arrays: dict = dataclasses.field(default_factory=dict)
    config: dict = dataclasses.field(default_factory=dict)
    preprocessor: dict = dataclasses.field(default_factory=dict)
    own: dict | None = None


def parse_json(data, where):
    """A JSON object from bytes or text.

    Raises:
        ValueError: if it is none.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{where} should hold a JSON object, holds {WORDS[type(found)]}.")
    return found


def check_archive(path):
    """The ZipFile's entries, once they are seen to be of a believable size.

    Raises:
        ValueError: for a broken archive, or one that would unpack to far more than its own size.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except BROKEN as error:
        raise ValueError(f'"{path}" is not whole, or no archive at all: {error}') from None
    for name, times in collections.Counter(entry.filename for entry in entries).most_common(1):
        if times > 1:
            raise ValueError(f'"{path}" holds "{name}" {times} times.')
    # numpy and Keras write no others; of these alone does zipfile unpack no more than it is asked for, whatever is declared.
    if any(entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for entry in entries):
        raise ValueError(f'"{path}" is compressed in another way than checkpoints are (stored or deflated).')
    check_unpacked(path, sum(entry.file_size for entry in entries))
    return entries


def check_unpacked(path, total):
    """Refuses a file that would unpack to `total` bytes where that is far more than its own size.

    Raises:
        ValueError: naming both.
    """
    size = os.path.getsize(path)
    if total > _RATIO * size + _ALLOWANCE:
        raise ValueError(f'"{path}" has {size:,} bytes and would unpack to {total:,}: refused as a zip bomb.')


def _as_float(name, array, where):
    """The array as float32 or float64; bfloat16 that numpy stored as void is recognised. Counters and indices stay integers.

    Raises:
        ValueError: for other types, and for values that are not finite.
    """
    if array.dtype == np.dtype("V2"):
        array = array.view(ml_dtypes.bfloat16)
    if array.dtype.kind in "iu" and (array.ndim < 2 or name.endswith("position_ids")):
        return array
    if array.dtype.kind != "f" and array.dtype != ml_dtypes.bfloat16:
        raise ValueError(f'"{where}": array "{name}" holds {array.dtype}, expected floating-point numbers.')
    array = array.astype("float64" if array.dtype.itemsize == 8 else "float32", copy=False)
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite
        finite = np.isfinite(array.astype("float32", copy=False)).all()
    if not finite:
        raise ValueError(
            f'"{where}": array "{name}" has values that are not finite: the file is damaged, or its training diverged.'
        )
    return array


def _check_member(archive, entry):
    """Compares what an .npy header promises with the bytes that are there, before memory is asked for.

    Raises:
        ValueError: if they differ, or the header is none.
    """
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        header = file.tell()
    if dtype.hasobject:
        raise ValueError(f"{entry.filename} holds Python objects (a pickle), which are never loaded")
    if entry.file_size - header != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{entry.filename} has another size than its header says")


def _read_npz(path):
    """(arrays, the comment's JSON or None) of an .npz."""
    entries = check_archive(path)
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in entries:
                _check_member(archive, entry)
                with archive.open(entry) as file:
                    array = np.lib.format.read_array(file, allow_pickle=False)
                    file.read(1)  # the archive compares checksums at an entry's end
                name = entry.filename.removesuffix(".npy")
                if name in arrays:
                    raise ValueError(f'array "{name}" is there twice')
                arrays[name] = array
            comment = archive.comment
    except BROKEN as error:
        raise ValueError(f'"{path}" is no whole .npz of arrays: {type(error).__name__}: {error}') from None
    return arrays, comment.decode("utf-8", "replace") or None


def _read_safetensors(path):
    """(arrays, the metadata's keras_vit entry or None)."""
    import safetensors

    try:
        with safetensors.safe_open(path, "np") as file:
            for name in file.keys():
                kind = file.get_slice(name).get_dtype()
                if kind == "F4" or kind.startswith(("F6_", "F8_")):  # numpy has none of these
                    raise ValueError(f'array "{name}" holds {kind}, expected floating-point numbers')
            return {name: file.get_tensor(name) for name in file.keys()}, (file.metadata() or {}).get("keras_vit")
    except (safetensors.SafetensorError, OSError, ValueError, TypeError) as error:
        raise ValueError(f'"{path}" is no whole safetensors file: {error}') from None


def _read_sharded(index):
    """(arrays, None) of the files that a model.safetensors.index.json lists."""
    files = parse_json(index.read_bytes(), f'"{index}"').get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise ValueError(f'"{index}" has no weight_map from array names to file names.')
    arrays, found = {}, {}
    for name in sorted(set(files.values())):
        # With folders, it could be any file of this machine.
        if name != os.path.basename(name) or "\\" in name or not os.path.isfile(index.parent / name):
            raise ValueError(f'"{index}" lists "{name}", which is no file beside it.')
        shard = _read_safetensors(index.parent / name)[0]
        arrays.update(shard)
        found.update(dict.fromkeys(shard, name))
    if found != files:
        other = sorted(name for name in found.keys() | files.keys() if found.get(name) != files.get(name))
        raise ValueError(
            f'"{index}" and its files differ in which file holds which array: {", ".join(other[:8])} ({len(other)}).'
        )
    return arrays, None


def _read_torch(path):
    """(arrays, None) of a .pth, the nesting that trainers put around a state dict taken off."""
    try:
        import torch
    except ImportError:
        raise ImportError(
            f'"{path}" is a torch file. Its loader is torch\'s own: pip install torch, or convert the file to safetensors.'
        ) from None
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle, zip and torch have a dozen kinds
        # Not torch's own words, which advise to load it unsafely.
        raise ValueError(
            f'"{path}" is no torch file of weights alone: it is damaged, or holds objects whose loading would run code. Convert it to '
            "safetensors where it was made."
        ) from error
    for key in ("model_ema", "model", "state_dict", "teacher"):
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict):
        raise ValueError(f'"{path}" holds a {type(found).__name__}, expected a state dict.')
    tensors = {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}
    return {name: (t.float() if t.is_floating_point() else t).numpy() for name, t in tensors.items()}, None


def _kind(path):
    """The kind of a file by its first bytes, whatever its name."""
    with open(path, "rb") as file:
        start = file.read(16)
    if start[:4] == b"PK\x03\x04":
        names = {entry.filename for entry in check_archive(path)}
        if "model.weights.h5" in names or "metadata.json" in names:
            return "keras"
        return "torch" if any(name.endswith("data.pkl") for name in names) else "npz"
    if start[8:9] == b"{":
        return "safetensors"
    if start[:1] == b"\x80" and path.suffix in (".pth", ".pt", ".bin"):
        return "torch"
    raise ValueError(
        f'Cannot tell the format of "{path}". Formats: .keras, .npz (Google), .safetensors (timm, Hugging Face, vit-pytorch), .pth, or a '
        "folder with config.json and model.safetensors. An interrupted download or a web page saved in its place looks like this."
    )


_FILES = ("model.keras", "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")


def _inside(folder):
    """The weights' file in a folder: a run directory, or Hugging Face's.

    Raises:
        FileNotFoundError: if there is none.
    """
    for name in _FILES:
        if (folder / name).is_file():
            return folder / name
    if (folder / "config.json").exists() and (folder / "checkpoints").is_dir():
        raise FileNotFoundError(f'"{folder}" holds no model.keras: the run has not ended.')
    raise FileNotFoundError(
        f'"{folder}" holds no model.keras: the run has not ended, or this is no run; nor any of {", ".join(_FILES[1:])}.'
    )


def read(path):
    """What stands at a path, as Contents.

    Raises:
        FileNotFoundError: if nothing does.
        ValueError: if it is no whole, harmless checkpoint.
        ImportError: for a torch file without torch.
    """
    path = pathlib.Path(path).expanduser()
    if not path.exists():
        raise FileNotFoundError(f'"{path}" does not exist.')
    file = _inside(path) if path.is_dir() else path
    if not file.is_file():  # a pipe would be waited for
        raise ValueError(f'"{file}" is neither a file nor a folder.')
    if file.name.endswith(".index.json"):
        kind, (arrays, own) = "safetensors", _read_sharded(file)
    else:
        kind = _kind(file)
        if kind == "keras":
            return Contents(file, kind)
        arrays, own = {"npz": _read_npz, "safetensors": _read_safetensors, "torch": _read_torch}[kind](file)
    if not arrays:
        raise ValueError(f'"{file}" holds no arrays.')
    own = None if own is None else note.read(parse_json(own, f'The metadata of "{file}"'), arrays, file)
    arrays = {name: _as_float(name, array, file) for name, array in arrays.items()}
    if kind == "npz":
        return Contents(file, kind, arrays, own=own)
    beside = [file.parent / name for name in ("config.json", "preprocessor_config.json")]
    config, preprocessor = (parse_json(p.read_bytes(), f'"{p}"') if p.is_file() else {} for p in beside)
    return Contents(file, kind, arrays, config, preprocessor, own)
