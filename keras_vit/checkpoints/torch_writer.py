"""Write a state dict as torch.save does, without torch: an archive of a pickle and of each array's bytes."""

import os
import struct
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

_STORAGES = {
    "float32": "FloatStorage",
    "float64": "DoubleStorage",
    "float16": "HalfStorage",
    "bfloat16": "BFloat16Storage",
    "int64": "LongStorage",
}
_ROOT = "archive"


def _tuple(*items: bytes) -> bytes:
    return b"(" + b"".join(items) + b"t"


def _plain(value: Any) -> bytes:
    """The opcodes that push a value of text, numbers, lists and dicts, as in a pickle of protocol 2."""
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if isinstance(value, int):
        size = value.bit_length() // 8 + 1
        return b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    if isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")
        return b"X" + struct.pack("<I", len(data)) + data
    if isinstance(value, dict):
        return b"}(" + b"".join(_plain(key) + _plain(item) for key, item in value.items()) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(_plain, value)) + b"e"
    return _tuple(*map(_plain, value))


def _name(module: str, name: str) -> bytes:
    """The opcode that names a class or function, which is not imported here."""
    return b"c" + f"{module}\n{name}\n".encode()


def _tensor(array: np.ndarray, key: str) -> bytes:
    """The opcodes that rebuild a tensor from the bytes stored under `key`."""
    strides = tuple(stride // array.itemsize for stride in array.strides)
    kind = _name("torch", _STORAGES[array.dtype.name])
    storage = _tuple(_plain("storage"), kind, _plain(key), _plain("cpu"), _plain(array.size)) + b"Q"
    hooks = _name("collections", "OrderedDict") + b")R"
    arguments = (storage, _plain(0), _plain(array.shape), _plain(strides), _plain(False), hooks)
    return _name("torch._utils", "_rebuild_tensor_v2") + _tuple(*arguments) + b"R"


def save_state_dict(path: str | os.PathLike, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
    """Writes {"meta": meta, "state_dict": arrays} at `path`, as torch.load reads it.

    Args:
        arrays: {name: array}, of floats or int64.
        meta: text, numbers, lists and dicts.
    """
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    tensors = [_plain(name) + _tensor(array, str(i)) for i, (name, array) in enumerate(arrays.items())]
    state = b"}(" + b"".join(tensors) + b"u"  # a dict, a mark, names and tensors, and the opcode that fills it
    whole = b"\x80\x02}(" + _plain("meta") + _plain(dict(meta)) + _plain("state_dict") + state + b"u."
    with zipfile.ZipFile(path, "w") as archive:  # stored, not compressed
        archive.writestr(f"{_ROOT}/data.pkl", whole)
        archive.writestr(f"{_ROOT}/byteorder", "little")
        for i, array in enumerate(arrays.values()):
            archive.writestr(f"{_ROOT}/data/{i}", array.tobytes())
        archive.writestr(f"{_ROOT}/version", "3\n")
