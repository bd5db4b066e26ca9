"""Read torch's files without torch: zip archives, the older files of several pickles, and plain pickles of state dicts.

A tensor in a pickle is a storage, an offset, a shape and strides; the storages' bytes are outside the pickle.
"""

import contextlib
import dataclasses
import functools
import io
import math
import mmap
import pathlib
import re
import struct
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

from keras_vit.checkpoints.reading.archives import BROKEN, check_archive, check_unpacked
from keras_vit.checkpoints.reading.pickles import Thing, read_pickle

_MAGIC = 0x1950A86A20F9469CFC6C  # the first pickle of a file of torch before 1.6
# {torch's class or dtype: NumPy's dtype}
_DTYPES = {
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "HalfStorage": "float16",
    "BFloat16Storage": ml_dtypes.bfloat16,
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "QInt8Storage": "int8",
    "QUInt8Storage": "uint8",
    "QInt32Storage": "int32",
}


@dataclasses.dataclass(eq=False)
class _Storage:
    """`count` numbers of a dtype (None if NumPy has no such type: `kind` is torch's); `read` returns their bytes."""

    kind: str
    dtype: np.dtype | None
    count: int
    read: Callable[[], bytes] | None = None


@dataclasses.dataclass(eq=False)
class _Tensor:
    """An array that is not read yet; offset and strides count elements of the storage."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def __post_init__(self):
        numbers = (self.offset, *self.shape, *self.strides)
        if any(type(number) is not int or number < 0 for number in numbers) or len(self.shape) != len(self.strides):
            raise ValueError("a tensor has an impossible shape")
        last = self.offset + sum((side - 1) * stride for side, stride in zip(self.shape, self.strides))
        if math.prod(self.shape) and last >= self.storage.count:
            raise ValueError("a tensor is larger than its storage")

    @property
    def dtype(self):
        return self.storage.dtype

    def read(self):
        """The values, in the memory of the storage's bytes."""
        size = self.dtype.itemsize
        flat = np.frombuffer(self.storage.read(), self.storage.dtype)[self.offset :]
        return np.lib.stride_tricks.as_strided(flat, self.shape, [size * s for s in self.strides], writeable=False)


def _storage(kind, count):
    dtype = _DTYPES.get(kind)
    if type(count) is not int or count < 0:
        raise ValueError("a storage has an impossible size")
    return _Storage(kind, None if dtype is None else np.dtype(dtype), count)


def _tensor(storage, offset, shape, strides, *_):
    """Instead of torch._utils._rebuild_tensor and _v2."""
    return _Tensor(storage, offset, shape, strides) if isinstance(storage, _Storage) else Thing("torch.Tensor")


def _tensor_of_dtype(storage, offset, shape, strides, requires_grad, hooks, dtype, *_):
    """Instead of torch._utils._rebuild_tensor_v3, for dtypes without a storage class: NumPy has none of them."""
    return _Tensor(_Storage(dtype.name, None, storage.count), offset, shape, strides)


def _tensor_of_class(function, cls, arguments, *_):
    """Instead of torch._tensor._rebuild_from_type_v2: a tensor with attributes, or of another class."""
    make = _MAKERS.get(function.name)
    return make(*arguments) if make else Thing(function.name)


def _numpy_array(data, dtype, shape, order="C"):
    """Instead of NumPy's function for its own arrays of protocol 5; a Thing for text, objects and the like."""
    code, order_of_bytes = dtype.arguments[0], dtype.state[1]
    if not re.fullmatch(r"[fiu][1248]|b1", code) or order_of_bytes not in "<|":
        return Thing("numpy.ndarray")
    return np.frombuffer(data, code).reshape(shape, order=order)


def _ordered(pairs=()):
    """Instead of OrderedDict; Python 2 lists the pairs, in a list that is used once."""
    items = {key: value for key, value in pairs if isinstance(key, str)}
    if pairs:
        pairs.clear()  # a list named again and again would be copied as often
    return items


@functools.cache
def _encoded(text, _):
    """Instead of _codecs.encode, by which protocol 2 writes bytes; cached, as a text may be named again and again."""
    return text.encode("latin-1")


def _stored(data):
    """Instead of torch.storage._load_from_bytes, in pickles that torch.save did not write."""
    return _read_stream(io.BytesIO(data), {name: make for name, make in _MAKERS.items() if make is not _stored})


def _first(value, *_):
    """Instead of functions that add to a tensor what weights do not need, such as _rebuild_parameter."""
    return value


_MAKERS = {
    "collections.OrderedDict": _ordered,
    "_codecs.encode": _encoded,
    "__builtin__.bytes": lambda: b"",
    "numpy._core.numeric._frombuffer": _numpy_array,
    "numpy.core.numeric._frombuffer": _numpy_array,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_of_dtype,
    "torch._utils._rebuild_parameter": _first,
    "torch._utils._rebuild_parameter_with_state": _first,
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": _first,
    "torch._tensor._rebuild_from_type_v2": _tensor_of_class,
    "torch.storage._load_from_bytes": _stored,
}


def _resolver(storages):
    """The function from a persistent id to the storage or class that it names; new storages go into `storages`."""

    def resolve(identity):
        kind, cls, key = identity[:3]
        if kind == "module":  # torch before 1.6 adds the module's source code
            return cls
        if not isinstance(key, str):
            raise ValueError("a storage has no name")
        if key not in storages:
            storages[key] = _storage(cls.name.rpartition(".")[2], identity[4])
        return storages[key]

    return resolve


def _read_zip(path, archive):
    """The value in an archive of torch.save; the storages stay in the archive."""
    sizes = {entry.filename: entry.file_size for entry in check_archive(path)}
    (root,) = (name.removesuffix("data.pkl") for name in sizes if name.endswith("data.pkl"))
    storages = {}
    value = read_pickle(io.BytesIO(archive.read(f"{root}data.pkl")), _MAKERS, _resolver(storages))
    if f"{root}byteorder" in sizes and archive.read(f"{root}byteorder") != b"little":
        raise ValueError("it was written on a machine with another order of bytes")
    for key, storage in storages.items():
        name = f"{root}data/{key}"
        if storage.dtype is not None and sizes[name] != storage.count * storage.dtype.itemsize:
            raise ValueError(f"{name} does not have the size that the pickle declares")
        storage.read = functools.cache(functools.partial(archive.read, name))
    return value


def _part(file, start, size):
    file.seek(start)
    return file.read(size)


def _read_stream(file, makers=None):
    """The value in a file of pickles: torch's before 1.6, followed by the storages, or a single one."""
    makers = _MAKERS if makers is None else makers
    value = read_pickle(file, makers)
    if value != _MAGIC:
        return value
    read_pickle(file, {})  # the version
    if not read_pickle(file, {}).get("little_endian"):
        raise ValueError("it was written on a machine with another order of bytes")
    storages = {}
    value = read_pickle(file, makers, _resolver(storages))
    for key in read_pickle(file, {}):
        (count,) = struct.unpack("<q", file.read(8))
        storage, start = storages[str(key)], file.tell()
        if count != storage.count:
            raise ValueError("a storage does not have the size that the pickle declares")
        if storage.dtype is None:
            raise ValueError(f"it contains {storage.kind}, which no reader but torch skips")
        size = count * storage.dtype.itemsize
        file.seek(start + size)
        storage.read = functools.cache(functools.partial(_part, file, start, size))
    return value


@contextlib.contextmanager
def _intact(path):
    """Turns the many errors of a damaged file into a ValueError that names it."""
    try:
        yield
    except (*BROKEN, AttributeError, MemoryError, struct.error) as error:
        if str(path) in str(error):
            raise
        said = f": {error}" if isinstance(error, ValueError) else ""
        raise ValueError(f'"{path}" is damaged, or not a file of torch.save{said}.') from None


def array_like(value: Any) -> Any:
    """What `read_values` reads, with shape and dtype, if a value in a torch file is an array; else None."""
    if isinstance(value, (_Tensor, np.ndarray)):
        return value
    if isinstance(value, Thing) and value.name.endswith("multiarray._reconstruct") and value.state is not None:
        _, shape, dtype, is_fortran, data = value.state
        array = _numpy_array(data, dtype, shape, "F" if is_fortran else "C")
        return array if isinstance(array, np.ndarray) else None
    return None


def read_values(arrays: dict[str, Any], path: pathlib.Path, largest: float = math.inf) -> dict[str, np.ndarray]:
    """{name: array} of {name: array_like}, while the file is open; those of more than `largest` values are zeros.

    Raises:
        ValueError: for types that NumPy lacks.
    """
    for name, array in arrays.items():
        if array.dtype is None:
            kind = array.storage.kind
            raise ValueError(f'"{path}": array "{name}" contains {kind}, expected floating-point numbers.')
    check_unpacked(path, sum(math.prod(array.shape) * array.dtype.itemsize for array in arrays.values()))
    zero, read = np.zeros((), "float32"), {}
    for name, array in arrays.items():
        if math.prod(array.shape) > largest:
            read[name] = np.broadcast_to(zero, array.shape)
        else:
            read[name] = np.asarray(array.read() if isinstance(array, _Tensor) else array, order="C")
    return read


_PROGRAMS = {
    "constants.pkl": ("TorchScript, a program", 'torch.jit.load("{name}").state_dict()'),
    "archive_format": ("an exported program", 'torch.export.load("{name}").state_dict'),
}


def _check_program(path, members):
    """Refuses archives of programs: ValueError with the line that saves their weights."""
    for member, (what, line) in _PROGRAMS.items():
        if any(name.endswith(f"/{member}") for name in members):
            raise ValueError(
                f'"{path}" contains {what}, which is not run. Save its weights in torch, if you trust the file:'
                f' torch.save({line.format(name=path.name)}, "weights.pth").'
            )


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[Any]:
    """A context with the value in a file of torch.save; arrays are read while it lasts.

    Raises:
        ValueError: if the file is damaged, which reading its arrays may show, or a program.
    """
    with _intact(path), contextlib.ExitStack() as stack:
        stack.callback(_encoded.cache_clear)
        if zipfile.is_zipfile(path):
            archive = stack.enter_context(zipfile.ZipFile(path))
            _check_program(path, archive.namelist())
            yield _read_zip(path, archive)
        else:
            file = stack.enter_context(open(path, "rb"))
            yield _read_stream(stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
