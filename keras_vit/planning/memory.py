"""Estimate a training step's memory, and compare it with the memory of this machine or device.

The estimate covers weights, gradients, optimizer variables and activations. docs/performance.md compares it with
measurements.
"""

import dataclasses
import math
import os
from typing import Any

import keras
from absl import logging

from keras_vit.distribution import Strategy
from keras_vit.layers.normalization import batch_normalizations
from keras_vit.layers.similarity import Similarity
from keras_vit.planning import model_counts
from keras_vit.planning.model_counts import counted_layers, trains
from keras_vit.planning.rows_of_text import short

_NEAR = 0.8  # fraction of the memory above which a run warns
_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)
_SHARED = ("one", "mirrored", "multiworker", "data")  # strategies in which each replica has the whole model


@dataclasses.dataclass(frozen=True)
class StepMemory:
    """Bytes of a training step on one device.

    Attributes:
        weights: bytes of all variables, in float32.
        gradients: bytes of the trainable weights' gradients.
        slots: bytes of the optimizer's variables.
        per_image: bytes of activations kept for the gradient, or of a forward pass if larger.
        per_image_remat: `per_image` with every block rematerialised.
        batch_statistics: whether parts of a batch are normalised otherwise than the whole.
        divides: whether a batch can be computed in parts: not where its examples are compared.
    """

    weights: int
    gradients: int
    slots: int
    per_image: int
    per_image_remat: int
    batch_statistics: bool = False
    divides: bool = True

    @property
    def fixed(self) -> int:
        """Bytes independent of the batch."""
        return self.weights + self.gradients + self.slots

    def total(self, images: int) -> int:
        """Bytes of a step with `images` images at a time."""
        return self.fixed + images * self.per_image


def size(variables) -> int:
    """Number of values in variables."""
    return sum(math.prod(v.shape) for v in variables)


def _values_per_image(layers):
    """Number of activations of one image's training step; `layers` are (row, layer) from the first to the last."""
    learn = [trains(layer) for _, layer in layers]
    lowest = next((i for i, learns in enumerate(learn) if learns), len(layers))
    groups = [row.name.partition("/") for row, _ in layers]
    learning = {name for (name, slash, _), learns in zip(groups, learn) if learns and slash}
    # A nested model that does not train, such as a teacher, keeps nothing.
    rows = [row for (row, _), (name, slash, _) in list(zip(layers, groups))[lowest:] if not slash or name in learning]
    below = math.prod(layers[lowest - 1][0].output) if 0 < lowest < len(layers) else 0  # the lowest one's input
    kept = below + (model_counts.training_activations(rows) if rows else 0)
    return max(kept, model_counts.forward_activations([row for row, _ in layers]))


def _is_block(row):
    """Whether a row belongs to a block without rematerialisation."""
    return row.name.rpartition("/")[2].startswith("block_") and not row.recomputed


def step_memory(model: keras.Model, slots_per_weight: int) -> StepMemory | None:
    """The memory of a model's training step; None if the cost of a layer is unknown.

    Args:
        model: model to train, with or without values.
        slots_per_weight: number of values that the optimizer keeps per trainable weight.
    """
    try:
        layers = counted_layers(model)
    except ValueError:
        return None
    if not layers:
        return None
    weights, trained = 4 * size(model.variables), 4 * size(model.trainable_variables)
    itemsize = model_counts.BYTES[model.compute_dtype]
    remat = [(model_counts.as_rematerialised(row) if _is_block(row) else row, layer) for row, layer in layers]
    per_image, with_remat = (itemsize * _values_per_image(rows) for rows in (layers, remat))
    own = bool(batch_normalizations(model)), not any(isinstance(layer, Similarity) for _, layer in layers)
    return StepMemory(weights, trained, trained * slots_per_weight, per_image, with_remat, *own)


def _number(path):
    """The number in a kernel file; None without the file or a limit ("max")."""
    try:
        with open(path) as file:
            text = file.read().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def available_memory() -> int | None:
    """Bytes of main memory still available to this process within its control group. None if unknown."""
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":") for line in file)
        free = 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return None
    for limit, used in _CGROUPS:
        most, current = _number(limit), _number(used)
        if most is not None and current is not None:
            free = min(free, max(0, most - current + _reclaimable(os.path.dirname(limit))))
    return free


def _reclaimable(folder):
    """Bytes of a control group's file cache, which the kernel can reclaim."""
    try:
        with open(os.path.join(folder, "memory.stat")) as file:
            values = dict(line.split() for line in file)
    except (OSError, ValueError):
        return 0
    return int(values.get("inactive_file", values.get("total_inactive_file", 0)))


def device_memory() -> tuple[int | None, bool]:
    """(bytes still available to training, or None if unknown; whether they are main memory)."""
    if keras.backend.backend() == "jax":
        import jax

        device = jax.local_devices()[0]
        if device.platform != "cpu":
            stats = device.memory_stats() or {}
            limit = stats.get("bytes_limit")
            return (limit and limit - stats.get("bytes_in_use", 0)), False
        return available_memory(), True
    import tensorflow as tf

    # TensorFlow does not report the size of a GPU's memory.
    return (None, False) if tf.config.list_physical_devices("GPU") else (available_memory(), True)


_IN_PARTS = {
    False: "which computes the same step in parts",
    True: "which normalises each part by its own statistics, so the step differs",
}


def _advice(step, usable, batch_size, micro_batches, replicas, examples):
    """Suggests how to fit a step into `usable` bytes, with no batch larger than `examples`, unless None."""
    share = batch_size // replicas
    fits, found = int((usable - step.fixed) // step.per_image), []
    if fits >= 1:
        parts = next(parts for parts in range(1, share + 1) if share % parts == 0 and share // parts <= fits)
        most = fits * micro_batches * replicas
        found.append(f"--batch_size={most if examples is None else min(most, examples)}")
        if step.divides:
            found.append(f"--config.micro_batches={parts}, {_IN_PARTS[step.batch_statistics]}")
    if step.per_image_remat < _NEAR * step.per_image:
        needed = step.fixed + share // micro_batches * step.per_image_remat
        size = f"{short(needed, 'B')} instead" if needed <= usable else f"{short(needed, 'B')}: not enough alone"
        found.append(f"--config.model.remat=True, which computes each block twice ({size})")
    return "; ".join(found or ["a smaller model, or smaller images (--image_size)"])


def check_fit(
    step: StepMemory, free: int, batch_size: int, micro_batches: int, replicas: int = 1, examples: int | None = None
) -> tuple[str, bool]:
    """(warning if a step may not fit into memory, or ""; whether it does not fit).

    Args:
        step: memory of the step on one device.
        free: bytes available on the device.
        batch_size, micro_batches: as in the config.
        replicas: number of devices that share a batch.
        examples: size of the training split, the largest batch to suggest.
    """
    needed = step.total(batch_size // replicas // micro_batches)
    if needed <= _NEAR * free:
        return "", False
    problem = "does not fit" if needed > free else "may not fit"
    return (
        f"A training step {problem} into memory: it needs about {short(needed, 'B')} ({short(step.per_image, 'B')} per"
        f" image, and {short(step.fixed, 'B')} for weights, gradients and the optimizer), and {short(free, 'B')} are"
        f" free. Try {_advice(step, _NEAR * free, batch_size, micro_batches, replicas, examples)}."
    ), needed > free


def check_memory(model: keras.Model, config: Any, strategy: Strategy, examples: int | None = None) -> None:
    """Raises ValueError if a training step does not fit into this machine's or device's memory; warns near the limit.

    Args:
        model: the run's compiled model, with weights and optimizer already in memory.
        config: the run's ConfigDict.
        strategy: the run's strategy.
        examples: size of the training split.

    Raises:
        ValueError: the step does not fit; the message suggests options.
    """
    if strategy.name not in _SHARED:
        return
    weights = size(model.trainable_variables)
    step = step_memory(model, (size(model.optimizer.variables) // weights) if weights else 0)
    free, is_main = device_memory()
    if step is None or free is None:
        return
    here = max(1, strategy.replicas // strategy.hosts) if is_main else 1  # replicas that share the memory
    free = free // here + step.weights + step.slots
    sentence, too_much = check_fit(step, free, config.batch_size, config.micro_batches, strategy.replicas, examples)
    if too_much:
        raise ValueError(f"{sentence} To start anyway, pass --check_memory=False.")
    if sentence:
        logging.warning("%s", sentence)
