"""The training state as named arrays: weights, seed generators, the optimizer with its step and averages.

Keras leaves seed generators out of `.weights.h5` and tf.train.Checkpoint; a resumed run would use other dropout masks.
An epoch's running metrics are saved too, so that a resumed run logs the same as an uninterrupted one. A model's
`fixed_variables`, such as a teacher's, have their own file and never change: the state has only their checksum.
"""

import dataclasses
import json
import math
import weakref
from collections.abc import Mapping

import keras
import numpy as np
import safetensors
import safetensors.numpy

from keras_vit.io.checksum import checksum
from keras_vit.optim.wrappers import averaging

Arrays = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class RunningMetrics:
    """A model's accumulated metrics.

    Attributes:
        since: int. The first step they include.
        values: nested lists. The values of `model.metrics_variables`, in order.
    """

    since: int
    values: list


class Diverged(FloatingPointError):
    """The loss or the weights are no longer finite.

    Args:
        what: a sentence on what is not finite, and at which step.
        last: a sentence naming the last good checkpoint.
    """

    def __init__(self, what: str, last: str):
        super().__init__(
            f"{what} {last} The same command would fail here again: use a new --workdir with a lower learning rate, a"
            " longer warm-up, gradient clipping (clip_norm=1) or another seed. If that does not help, check the data."
        )


_FIXED = "fixed/crc32"  # the array with the checksum of a model's fixed variables
_CHECKSUMS = weakref.WeakKeyDictionary()  # {model: that array}, cached: it may cover gigabytes


def _fixed(model):
    """{_FIXED: array (1,)} for a model with fixed variables, {} for others."""
    variables = getattr(model, "fixed_variables", [])
    if variables and model not in _CHECKSUMS:
        crc32 = checksum({f"{i:05d}": np.asarray(v.numpy()) for i, v in enumerate(variables)})
        _CHECKSUMS[model] = np.array([int(crc32, 16)], "uint32")
    return {_FIXED: _CHECKSUMS[model]} if variables else {}


def _variables(model):
    """{name: variable} of the model and its optimizer; names are numbered because paths may repeat."""
    others = {id(v) for v in [*model.metrics_variables, *getattr(model, "fixed_variables", [])]}
    groups = {"model": [v for v in model.variables if id(v) not in others], "optimizer": model.optimizer.variables}
    return {f"{group}/{i:05d}/{v.path}": v for group, variables in groups.items() for i, v in enumerate(variables)}


def collect(model: keras.Model) -> dict[str, np.ndarray]:
    """{name: array}, the state of a compiled model with a built optimizer."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()
    return {**{name: np.asarray(v.numpy()) for name, v in _variables(model).items()}, **_fixed(model)}


def collect_weights(model: keras.Model) -> dict[str, np.ndarray]:
    """{name: array} of a model's weights alone, without its optimizer's state."""
    return {name: array for name, array in collect(model).items() if name.startswith("model/")}


def restore_weights(model: keras.Model, arrays: Arrays) -> None:
    """Restores what `collect_weights` returned, also in place of averages of the weights, if there are any."""
    variables = _variables(model)
    for name, array in arrays.items():
        variables[name].assign(array)
    optimizer = averaging(model.optimizer)
    pairs = zip(optimizer._trainable_variables, optimizer._model_variables_moving_average) if optimizer else ()
    for variable, average in pairs:
        if average is not None:
            average.assign(variable)


def size(model: keras.Model) -> int:
    """Bytes of the state of a compiled model with a built optimizer."""
    return sum(math.prod(v.shape) * np.dtype(v.dtype).itemsize for v in _variables(model).values())


def collect_metrics(model: keras.Model, since: int) -> RunningMetrics:
    """A compiled model's running metrics since that step. Every worker must call this: each has part of the sums."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()
    return RunningMetrics(since, [np.asarray(v.numpy()).tolist() for v in model.metrics_variables])


def restore_metrics(model: keras.Model, running: RunningMetrics) -> bool:
    """Restores what `collect_metrics` returned; returns False, without changes, if the model's metrics differ."""
    variables = model.metrics_variables
    if [tuple(v.shape) for v in variables] != [np.shape(value) for value in running.values]:
        return False
    for variable, value in zip(variables, running.values):
        variable.assign(np.asarray(value, variable.dtype))
    return True


def _check_fixed(model, arrays):
    """Refuses fixed variables that differ from those the run began with; ValueError says what may have happened."""
    before = arrays.get(_FIXED)
    if before is not None and not np.array_equal(before, _fixed(model).get(_FIXED)):
        raise ValueError(
            "The run began with other weights of the teacher: the file that config.objective.teacher names has changed"
            " since. Restore that file, or use a new --workdir."
        )


def restore(model: keras.Model, arrays: Arrays) -> None:
    """Restores the state that `collect` returned; ValueError lists different names, shapes or fixed variables."""
    _check_fixed(model, arrays)
    variables, arrays = _variables(model), {name: array for name, array in arrays.items() if name != _FIXED}
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
    """The names of arrays with a NaN or an infinity."""
    return [name for name, array in arrays.items() if not np.isfinite(array).all()]


def to_bytes(arrays: Arrays, running: RunningMetrics | None = None) -> bytes:
    """The arrays as a safetensors file; its metadata contain a checksum of names and values, and the running metrics.

    The same arguments give the same bytes. safetensors orders metadata arbitrarily, so there is only one entry.
    """
    about = {"crc32": checksum(arrays), "running_metrics": None if running is None else dataclasses.asdict(running)}
    return safetensors.numpy.save(dict(arrays), metadata={"keras_vit": json.dumps(about)})


def _metadata(data):
    """What `to_bytes` wrote about the arrays; version 0.3 wrote only the checksum."""
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__") or {}
    return json.loads(metadata["keras_vit"]) if "keras_vit" in metadata else metadata


def from_bytes(data: bytes, name: str) -> dict[str, np.ndarray]:
    """The arrays of a file that `to_bytes` wrote; ValueError, naming `name`, if it is truncated or altered."""
    try:
        arrays = safetensors.numpy.load(data)
        expected = _metadata(data).get("crc32")
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise ValueError(f"{name} is damaged: {error}") from None
    if expected != checksum(arrays):
        raise ValueError(f"{name} is damaged: its checksum does not match.")
    return arrays


def running_in(data: bytes) -> RunningMetrics | None:
    """The running metrics in an intact file that `to_bytes` wrote; None without any."""
    running = _metadata(data).get("running_metrics")
    return None if running is None else RunningMetrics(**running)
