"""Files as torch.save writes them, written without torch: zip archives, and the pickles of torch before 1.6."""

import collections
import io
import pickle
import struct
import sys
import types
import zipfile

import numpy as np

_CLASSES = {
    "float32": "FloatStorage",
    "float64": "DoubleStorage",
    "float16": "HalfStorage",
    "int64": "LongStorage",
    "bool": "BoolStorage",
}


class Storage:
    """The numbers of an array."""

    def __init__(self, array):
        self.array = np.ascontiguousarray(array)


class Tensor:
    """An array that is pickled as torch pickles a tensor."""

    def __init__(self, array):
        self.storage, self.shape = Storage(array), array.shape

    def __reduce__(self):
        strides = tuple(s // self.storage.array.itemsize for s in self.storage.array.strides)
        function = sys.modules["torch._utils"]._rebuild_tensor_v2
        return function, (self.storage, 0, self.shape, strides, False, collections.OrderedDict())


def _stand_in(module, name):
    """A class or function of torch, by name alone."""
    value = type(name, (), {"__module__": module})
    sys.modules.setdefault(module, types.ModuleType(module))
    setattr(sys.modules[module], name, value)
    return value


def _pickled(value, is_old):
    """(pickle, {key: Storage})."""
    storages, file = {}, io.BytesIO()

    class Pickler(pickle.Pickler):
        def persistent_id(self, item):
            if not isinstance(item, Storage):
                return None
            key = str(len(storages))
            storages[key] = item
            kind = getattr(sys.modules["torch"], _CLASSES[item.array.dtype.name])
            return ("storage", kind, key, "cpu", item.array.size, *([None] if is_old else []))

    Pickler(file, 2).dump(value)
    return file.getvalue(), storages


def save(value, path, is_old=False):
    """Writes a value, whose NumPy arrays become tensors, as torch.save does."""

    def tensors(node):
        if isinstance(node, dict):
            return type(node)((key, tensors(child)) for key, child in node.items())
        return Tensor(node) if isinstance(node, np.ndarray) else node

    before = dict(sys.modules)
    try:
        for name in _CLASSES.values():
            _stand_in("torch", name)
        _stand_in("torch._utils", "_rebuild_tensor_v2")
        data, storages = _pickled(tensors(value), is_old)
    finally:
        for name in sys.modules.keys() - before.keys():
            del sys.modules[name]
    if is_old:
        parts = [pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})]
        parts += [data, pickle.dumps(list(storages), 2)]
        parts += [struct.pack("<q", s.array.size) + s.array.tobytes() for s in storages.values()]
        path.write_bytes(b"".join(parts))
        return
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", data)
        for key, storage in storages.items():
            archive.writestr(f"archive/data/{key}", storage.array.tobytes())
