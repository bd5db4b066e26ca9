"""All that a training step depends on, as named arrays: weights, seed generators, optimizer with its step and averages.

Keras keeps the seed generators out of `.weights.h5` and of tf.train.Checkpoint; without them a resumed run draws other dropout masks.
"""

import zlib

import numpy as np
import safetensors
import safetensors.numpy


def _variables(model):
    """{name: variable} of the model and its optimizer; names are numbered, since paths may repeat."""
    metrics = {id(v) for v in model.metrics_variables}
    groups = {"model": [v for v in model.variables if id(v) not in metrics], "optimizer": model.optimizer.variables}
    return {f"{group}/{i:05d}/{v.path}": v for group, found in groups.items() for i, v in enumerate(found)}


def collect(model):
    """{name: array} of the state of a compiled model whose optimizer is built."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()
    return {name: np.asarray(v.numpy()) for name, v in _variables(model).items()}


def restore(model, arrays):
    """Puts what `collect` returned back.

    Raises:
        ValueError: if names or shapes are not the model's, listing them.
    """
    variables = _variables(model)
    missing, unexpected = sorted(variables.keys() - arrays.keys()), sorted(arrays.keys() - variables.keys())
    wrong = [
        f"{name}: checkpoint {arrays[name].shape}, model {tuple(v.shape)}"
        for name, v in variables.items()
        if name in arrays and arrays[name].shape != tuple(v.shape)
    ]
    if missing or unexpected or wrong:
        raise ValueError(
            "The checkpoint is of another model or optimizer. "
            f"Missing: {missing[:5]} ({len(missing)}); unexpected: {unexpected[:5]} ({len(unexpected)}); "
            f"other shapes: {wrong[:5]} ({len(wrong)}). Use a new --workdir for another configuration."
        )
    for name, variable in variables.items():
        variable.assign(arrays[name])


def not_finite(arrays):
    """The names of the arrays that hold a NaN or an infinity."""
    return [name for name, array in arrays.items() if not np.isfinite(array).all()]


def checksum(arrays):
    """CRC-32 over names and values of {name: array}, in eight hexadecimal digits; the order does not matter."""
    total = 0
    for name in sorted(arrays):
        total = zlib.crc32(np.ascontiguousarray(arrays[name]).reshape(-1).view("uint8"), zlib.crc32(name.encode(), total))
    return f"{total:08x}"


def to_bytes(arrays):
    """The arrays as one safetensors file with a checksum of names and values."""
    return safetensors.numpy.save(arrays, metadata={"crc32": checksum(arrays)})


def from_bytes(data, name):
    """The arrays of a file's bytes; `name` is the file's, for the message.

    Raises:
        ValueError: if the file is truncated or altered.
    """
    try:
        arrays = safetensors.numpy.load(data)
        size = int.from_bytes(data[:8], "little")
        header = data[8 : 8 + size]
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise ValueError(f"{name} is damaged: {error}") from None
    if f'"crc32":"{checksum(arrays)}"'.encode() not in header:
        raise ValueError(f"{name} is damaged: its checksum does not match.")
    return arrays
