"""Malformed files at the level of bytes: archives, headers, pickles, bombs. Files that are intact as files are in
malformed_models.py.

CASES is {name: function(folder, rng)}; the function writes into the folder and returns the path to load. Each case is a
good file, damaged in one way; `rng` is seeded with the case's name.
"""

import functools
import io
import itertools
import json
import os
import pathlib
import pickle
import struct
import tempfile
import zipfile

import h5py
import numpy as np
from golden_files import golden, golden_arrays

import keras_vit

CASES = {}
FORMS = {"keras": "model.keras", "google": "model.npz", "timm": "model.safetensors", "huggingface": "model.safetensors"}
SUFFIXES = (".npz", ".safetensors", ".keras", "")


def each(*values):
    """Registers the decorated function once per combination of values, which precede its arguments folder and rng."""

    def register(build):
        for value in itertools.product(*values):
            name = " ".join([build.__name__, *map(str, value)])
            assert name not in CASES
            CASES[name] = functools.partial(build, *value)
        return build

    return register


@functools.cache
def good(form):
    """{file name: bytes} of an intact checkpoint with random weights; `form`: a row of FORMS, "bit" or "bit keras"."""
    if form.startswith("bit"):
        model = keras_vit.BiT("R50x1", image_size=32, classes=5, units=(1, 1), width_factor=0.5)
    else:
        size = {"depth": 2, "width": 16, "heads": 2, "mlp_dim": 32, "class_names": list("abcde")}
        model = keras_vit.ViT("Ti/4", image_size=8, classes=5, **size)
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(rng.normal(1, 0.2, weight.shape))
    form = {"bit": "google", "bit keras": "keras"}.get(form, form)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, FORMS[form]) if form in ("keras", "google") else pathlib.Path(folder, "model")
        keras_vit.save(model, path, form)
        return {p.name: p.read_bytes() for p in ([path] if path.is_file() else path.iterdir())}


def foreign(name):
    """(arrays, config.json) of a checkpoint as another library writes it."""
    return golden_arrays(name), golden(name)["config"]


def put(folder, files):
    """Writes {name: bytes or JSON} and returns the path to load: the only file, or the folder."""
    for name, content in files.items():
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        (folder / name).write_bytes(data)
    return folder / next(iter(files)) if len(files) == 1 else folder


def damaged(form, folder, damage):
    """The good file, its weights replaced by damage(bytes)."""
    files = dict(good(form))
    name = next(name for name in files if name.startswith("model."))
    return put(folder, {**files, name: bytes(damage(files[name]))})


def zipped(members, **options):
    """The bytes of an archive of {name: bytes}."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", **options) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def npy(header, data=b"", version=b"\x01\x00"):
    """An .npy file with this header, as text or bytes."""
    header = header if isinstance(header, bytes) else header.encode()
    return b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header + data


def tensors(header, data=b""):
    """A safetensors file with this header, as text or JSON."""
    header = (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(header)) + header + data


@each(FORMS, range(2))
def truncated(form, number, folder, rng):
    return damaged(form, folder, lambda data: data[: rng.integers(1, len(data))])


@each(FORMS, range(1))
def cut_out(form, number, folder, rng):
    def damage(data):
        start = rng.integers(100, len(data) - 200)
        return data[:start] + data[start + rng.integers(1, 100) :]

    return damaged(form, folder, damage)


@each(FORMS, ("first", "last"))
def flipped_bit(form, where, folder, rng):
    """In the values of the patch embedding's bias, which is the same in every format."""
    with h5py.File(
        io.BytesIO(zipfile.ZipFile(io.BytesIO(good("keras")["model.keras"])).read("model.weights.h5"))
    ) as file:
        bias = file["layers/patch_encoder/vars/1"][:].tobytes()

    def damage(data):
        offset = data.index(bias) + {"first": 0, "last": len(bias) - 4}[where]
        return data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]  # the lowest bit of a value

    return damaged(form, folder, damage)


DIRECTORY = {"signature": 0, "flags": 8, "compression": 10, "crc": 16, "size": 24, "offset": 42, "name": 46}


@each(("keras", "google"), DIRECTORY)
def zip_directory(form, field, folder, rng):
    def damage(data):
        offset = data.rindex(b"PK\x01\x02") + DIRECTORY[field]
        return data[:offset] + bytes([data[offset] ^ 0x41]) + data[offset + 1 :]

    return damaged(form, folder, damage)


NPY = {
    "noise": b"\xff\x00noise that is no header at all",
    "empty": npy(""),
    "no magic": b"numbers",
    "version 9": npy("{}", version=b"\x09\x00"),
    "no dict": npy("[1, 2]\n"),
    "code": npy("{'descr': __import__('os').mkdir('executed'), 'fortran_order': False, 'shape': ()}\n"),
    "nested": npy("(" * 5000 + ")" * 5000),
    "long": npy("{'descr': '<f4'," + " " * 20000),
    "huge": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }\n", bytes(64)),
    "huge and empty": npy(
        "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 10**30), }\n".replace("10**30", "1" + 30 * "0")
    ),
    "negative": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-4, -4), }\n", bytes(64)),
    "short": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4, 4), }\n", bytes(60)),
    "object": npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n", pickle.dumps([1])),
    "unknown type": npy("{'descr': '<q9', 'fortran_order': False, 'shape': (1,), }\n", bytes(64)),
}


@each(NPY)
def npy_header(sort, folder, rng):
    members = {f"{name}.npy": npy_bytes(array) for name, array in golden_arrays("vit_token").items()}
    return put(folder, {"model.npz": zipped({**members, "embedding/kernel.npy": NPY[sort]})})


def npy_bytes(array):
    file = io.BytesIO()
    np.lib.format.write_array(file, array)
    return file.getvalue()


@each((0, 7, 2**20, 2**63, 2**64 - 1))
def header_length(length, folder, rng):
    return damaged("timm", folder, lambda data: struct.pack("<Q", length) + data[8:])


ARRAY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
HEADERS = {
    "no json": '{"a": ',
    "list": "[1]",
    "no utf-8": '{"\\ud800": 1}',
    "nested": '{"a":' + "[" * 100_000,
    "empty": "{}",
    "number": {"a": 5},
    "float8": {"a": {**ARRAY, "dtype": "F8_E4M3", "shape": [8]}},
    "unknown dtype": {"a": {**ARRAY, "dtype": "P32"}},
    "negative": {"a": {**ARRAY, "shape": [-2]}},
    "huge": {"a": {**ARRAY, "shape": [2**40, 2**40]}},
    "many axes": {"a": {**ARRAY, "shape": [1] * 99 + [2]}},
    "beyond the end": {"a": {**ARRAY, "shape": [2000], "data_offsets": [0, 8000]}},
    "overlap": {"a": ARRAY, "b": ARRAY},
    "hole": {"a": {**ARRAY, "data_offsets": [4, 12]}},
    "twice": json.dumps({"a": ARRAY, "b": {**ARRAY, "data_offsets": [8, 16]}}).replace('"b"', '"a"'),
    "metadata list": {"__metadata__": [], "a": ARRAY},
    "metadata number": {"__metadata__": {"keras_vit": 5}, "a": ARRAY},
}


@each(HEADERS)
def header_json(sort, folder, rng):
    return put(folder, {"model.safetensors": tensors(HEADERS[sort], bytes(8))})


NOISE = {
    "empty": lambda rng: b"",
    "one byte": lambda rng: b"P",
    "zeros": lambda rng: bytes(1000),
    "noise": lambda rng: rng.bytes(1000),
    "noise as a zip": lambda rng: b"PK\x03\x04" + rng.bytes(1000),
    "noise as tensors": lambda rng: rng.bytes(8) + b"{" + rng.bytes(1000),
    "empty zip": lambda rng: zipped({}),
    "zip of text": lambda rng: zipped({"readme.txt": b"not an array"}),
    "page": lambda rng: (
        b"<!DOCTYPE html><html><head><title>404 Not Found</title></head><body>No such file.</body></html>"
    ),
    "text": lambda rng: "Das Modell ist leider nicht verfügbar.\n".encode() * 20,
    "pointer": lambda rng: b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 346293852\n",
}


@each(NOISE, SUFFIXES)
def noise(sort, suffix, folder, rng):
    return put(folder, {f"model{suffix}": NOISE[sort](rng)})


class Payload:
    """Unpickled, it makes a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder / "executed"),)


@each(SUFFIXES, (0, 2, 4))
def pickled(suffix, protocol, folder, rng):
    return put(folder, {f"model{suffix}": pickle.dumps({"weights": Payload(folder)}, protocol)})


@each(("head/kernel", "other"))
def object_array(name, folder, rng):
    np.savez(folder / "model.npz", **{**golden_arrays("vit_token"), name: np.array([Payload(folder)])})
    return folder / "model.npz"


@functools.cache
def bomb():
    """300 MB of zeros, deflated."""
    file = io.BytesIO()
    options = {"compression": zipfile.ZIP_DEFLATED, "compresslevel": 1}
    with zipfile.ZipFile(file, "w", **options) as archive:
        with archive.open("model.weights.h5", "w") as member:
            member.write(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (75000000,), }\n"))
            for _ in range(300):
                member.write(bytes(10**6))
        archive.writestr("config.json", "{}")
    return file.getvalue()


@each(("weights.npy", "model.weights.h5"), ("", "declared as 64 bytes", "declared as 16 TB"))
def zip_bomb(member, lie, folder, rng):
    data = bomb().replace(b"model.weights.h5", member.ljust(16, "x").encode())
    if lie:
        declared = 64 if "64" in lie else 2**32 - 2
        offset = data.index(b"PK\x01\x02") + 24
        data = data[:offset] + struct.pack("<I", declared) + data[offset + 4 :]
    return put(folder, {"model.npz": data})


@each((zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
def compression_that_unpacks_at_once(method, folder, rng):
    arrays = {f"{name}.npy": npy_bytes(array) for name, array in golden_arrays("vit_token").items()}
    return put(folder, {"model.npz": zipped(arrays, compression=method)})


@each(("same name", "npy"))
def member_twice(sort, folder, rng):
    path = folder / "model.npz"
    np.savez(path, **golden_arrays("vit_token"))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(
            "head/kernel.npy" if sort == "same name" else "head/kernel", npy_bytes(np.zeros((16, 5), "float32"))
        )
    return path
