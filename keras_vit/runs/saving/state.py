"""Everything that a training step depends on, as named arrays: weights, seed generators, the optimizer with its step and averages.

Keras leaves the seed generators out of `.weights.h5` and of tf.train.Checkpoint; without them a resumed run would use other dropout
masks.
"""

from collections.abc import Mapping

import keras
import numpy as np
import safetensors
import safetensors.numpy

from keras_vit.io.checksum import checksum

Arrays = Mapping[str, np.ndarray]


class Diverged(FloatingPointError):
    """The loss or the weights are no longer finite.

    Args:
        what: a sentence that says what is not finite, and at which step.
        last: a sentence that names the last good checkpoint.
    """

    def __init__(self, what: str, last: str):
        super().__init__(
            f"{what} {last} The same command would fail here again: use a new --workdir with a lower learning rate, a longer warm-up, "
            "gradient clipping (clip_norm=1) or another seed. If that does not help, check the data."
        )


def _variables(model):
    """{name: variable} of the model and its optimizer; the names are numbered because paths may repeat."""
    metrics = {id(v) for v in model.metrics_variables}
    groups = {"model": [v for v in model.variables if id(v) not in metrics], "optimizer": model.optimizer.variables}
    return {f"{group}/{i:05d}/{v.path}": v for group, variables in groups.items() for i, v in enumerate(variables)}


def collect(model: keras.Model) -> dict[str, np.ndarray]:
    """The state of a compiled model whose optimizer is built: {name: array}."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()
    return {name: np.asarray(v.numpy()) for name, v in _variables(model).items()}


def restore(model: keras.Model, arrays: Arrays) -> None:
    """Restores the state that `collect` returned.

    Raises:
        ValueError: if names or shapes differ from those of the model, listing the differences.
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
            "The checkpoint belongs to a different model or optimizer. "
            f"Missing: {missing[:5]} ({len(missing)}); unexpected: {unexpected[:5]} ({len(unexpected)}); "
            f"different shapes: {wrong[:5]} ({len(wrong)}). Use a new --workdir for a different configuration."
        )
    for name, variable in variables.items():
        variable.assign(arrays[name])


def not_finite(arrays: Arrays) -> list[str]:
    """The names of the arrays that contain a NaN or an infinity."""
    return [name for name, array in arrays.items() if not np.isfinite(array).all()]


def to_bytes(arrays: Arrays) -> bytes:
    """The arrays as a safetensors file with a checksum of names and values."""
    return safetensors.numpy.save(dict(arrays), metadata={"crc32": checksum(arrays)})


def from_bytes(data: bytes, name: str) -> dict[str, np.ndarray]:
    """The arrays in the bytes of a file that `to_bytes` wrote; `name` is the name of the file, for the message.

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
