"""Identify files that this package does not read, and say how to load their weights."""

import pathlib

import h5py

from keras_vit.checkpoints.reading.archives import BROKEN

HDF5 = b"\x89HDF\r\n\x1a\n"
_FLAX = (
    "contains Flax parameters (msgpack). Save them as .npz where flax is installed:"
    ' numpy.savez("weights.npz", **flax.traverse_util.flatten_dict(flax.serialization.msgpack_restore(open("{name}",'
    ' "rb").read()), sep="/")). For a Hugging Face model, load the safetensors or pytorch_model.bin.'
)
_TENSORFLOW = (
    "is part of a TensorFlow checkpoint, which only the program that wrote it can name: restore it there (load_weights,"
    ' or tf.train.Checkpoint), then save the model: model.save("model.keras").'
)
_PROGRAM = "is {what}, a program for inference: pass the model that it was made from."
_ARCHIVE = "is a compressed archive: unpack it, and pass the file with the weights."
# (beginning of the file in lower case, its kind)
_STARTS = (
    (b"version https://", "is a Git LFS pointer, not the file itself: run git lfs pull, or download the file."),
    (b"<!doctype", "is a web page, not the file itself: download from the address of the file."),
    (b"<html", "is a web page, not the file itself: download from the address of the file."),
    (b"\x1f\x8b", _ARCHIVE),
    (b"bzh", _ARCHIVE),
    (b"\xfd7zxz", _ARCHIVE),
)
# (part of the name, its kind)
_NAMES = (
    (".msgpack", _FLAX),
    (".index", _TENSORFLOW),
    (".data-0", _TENSORFLOW),
    (".onnx", _PROGRAM.format(what="ONNX")),
    (".tflite", _PROGRAM.format(what="a LiteRT model")),
    (".tar", _ARCHIVE),
)


def _weights_of_keras(path):
    """The content of an HDF5 file without a graph of Keras' layers, in words."""
    with h5py.File(path) as file:
        own = "a model of a custom class" if "model_config" in file.attrs else "the weights of a Keras model"
    return (
        f"contains {own} without its architecture: build that model, then"
        ' model.load_weights("{name}"); model.save("model.keras").'
    )


def description(path: pathlib.Path, start: bytes) -> str | None:
    """A file's kind and the next step, to follow its name in a message; None if unknown.

    Args:
        path: of the file.
        start: its first bytes, 16 or fewer.
    """
    if start.startswith(HDF5):
        try:
            return _weights_of_keras(path).format(name=path.name)
        except BROKEN:
            return "is HDF5, but damaged or not Keras'."
    text = next((text for first, text in _STARTS if start.lower().startswith(first)), None)
    text = text or next((text for part, text in _NAMES if part in path.name), None)
    return None if text is None else text.format(name=path.name)
