"""Static int8 of a converted file: which of its products stay in floats is measured, on inputs that did not calibrate.

All products with a kernel that the format's StaticFile takes are quantised, and the outputs compared with the float
file's. If they differ by more than BOUND, each group of products is quantised alone, and those that change the outputs
most stay in floats: the fewest that bring the difference to the bound.

    difference = |int8 - float| / |float - its mean|, by norm over all held-out inputs, of the output with the largest
"""

import hashlib
import math
import numbers
import os
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import keras
import numpy as np
from absl import logging

from keras_vit.io.progress import Stage, stage
from keras_vit.io.suggest import check_known, counted
from keras_vit.layers.dense import inner_layers
from keras_vit.layers.fake_quantization import KERNEL_STEPS

BOUND = 0.1
_HELD_OUT = 4  # every fourth input does not calibrate
_RANKING = 8  # held-out inputs by which groups are ranked
_BYTES = 2**28  # of outputs kept for comparison
_BATCH = 4

Runner = Callable[[np.ndarray], dict[str, np.ndarray]]
Outputs = dict[str, np.ndarray]


class StaticFile(Protocol):
    """A float file, calibrated, that can be written with its products in int8.

    Attributes:
        groups: {group: names of its products}. A group's products read the same tensor, and share its range.
    """

    groups: Mapping[str, Sequence[str]]

    def write(self, path: str, floats: Collection[str]) -> None:
        """Writes the file with all products in int8 but those of the groups `floats`."""


def split(inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(inputs to calibrate on, held-out inputs): every fourth is held out."""
    held_out = np.arange(len(inputs)) % _HELD_OUT == _HELD_OUT - 1
    return inputs[~held_out], inputs[held_out]


class Fingerprint(NamedTuple):
    """What identifies a kernel in a file, which renames layers, and scales outputs by factors that follow them."""

    shape: tuple[int, ...]
    digest: str

    @classmethod
    def of(cls, kernel: Any) -> "Fingerprint":
        """Of a kernel (..., d), by the sizes of its weights in steps of the largest one of the same output."""
        sizes = np.abs(kernel).reshape(-1, kernel.shape[-1])  # (c, d)
        steps = np.round(sizes / np.maximum(sizes.max(0), np.finfo("float32").tiny) * KERNEL_STEPS)
        return cls(steps.shape, hashlib.sha256(steps.astype("uint8").tobytes()).hexdigest())


def _kernels(model):
    """{path inside the model: kernel} of the layers with one."""
    kernels = {path: getattr(layer, "kernel", None) for path, layer in inner_layers(model).items()}
    return {path: kernel for path, kernel in kernels.items() if kernel is not None}


def check_ranges(model: keras.Model, ranges: Mapping[str, float]) -> None:
    """Raises ValueError unless `ranges` are {path of a layer with a kernel: a number above 0}."""
    if not isinstance(ranges, Mapping):
        raise ValueError(f"ranges: expected {{path of a layer: largest absolute value of its input}}, got {ranges!r}.")
    known = list(_kernels(model))
    for path, largest in ranges.items():
        check_known(path, "ranges: layer", known)
        if not (isinstance(largest, numbers.Real) and 0 < largest < math.inf):
            raise ValueError(f"ranges: expected a number above 0 for {path}, got {largest!r}.")


class Layers(NamedTuple):
    """What is known of a model's layers with a kernel, by the kernel's fingerprint.

    Attributes:
        names: paths of layers.
        ranges: largest absolute values of layers' inputs; the others are calibrated.
    """

    names: dict[Fingerprint, str]
    ranges: dict[Fingerprint, float]

    @classmethod
    def of(cls, model: keras.Model, ranges: Mapping[str, float] | None) -> "Layers":
        """Of a model, and {path of a layer: largest absolute value of its input}.

        `check_ranges` checks the ranges.
        """
        found = {path: Fingerprint.of(keras.ops.convert_to_numpy(kernel)) for path, kernel in _kernels(model).items()}
        given: dict[Fingerprint, float] = {}
        for path, largest in (ranges or {}).items():  # layers with equal kernels, which a file cannot tell apart, share
            given[found[path]] = max(given.get(found[path], 0.0), float(largest))
        return cls({print_: path for path, print_ in found.items()}, given)

    def find(self, kernel: np.ndarray, name: str) -> tuple[str, float]:
        """(the path of the layer with a kernel (..., d), or else `name`; the given range of its input, or 0)."""
        print_ = Fingerprint.of(kernel)
        return self.names.get(print_, name), self.ranges.get(print_, 0.0)


def _short(value):
    return float(f"{value:.4g}")


def outputs(run: Runner, inputs: np.ndarray) -> Outputs:
    """All outputs of all inputs, computed in small batches."""
    parts = [run(inputs[i : i + _BATCH]) for i in range(0, len(inputs), _BATCH)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def fitting(inputs: np.ndarray, run: Runner) -> np.ndarray:
    """The first of the inputs, so many that their outputs fit into memory."""
    size = sum(value.nbytes for value in run(inputs[:1]).values())
    return inputs[: max(_BATCH, _BYTES // max(1, size))]


def in_any_order(found: Outputs) -> Outputs:
    """Outputs of floats (b, n, ...) sorted along n: close decisions put a detector's queries in another order."""
    return {
        name: np.sort(value, axis=1) if value.ndim > 2 and value.dtype.kind == "f" else value
        for name, value in found.items()
    }


def _difference(expected, found):
    """Of floats the norm of the difference, relative to the norm of the deviations from the mean; None for integers."""
    if expected.dtype.kind != "f":
        return None
    spread = np.linalg.norm((expected - expected.mean()).ravel())
    return float(np.linalg.norm((found - expected).ravel()) / max(spread, np.finfo("float32").tiny))


def differences(expected: Outputs, found: Outputs) -> dict[str, float]:
    """The relative difference of each output of floats."""
    every = {name: _difference(value, found[name]) for name, value in expected.items()}
    return {name: value for name, value in every.items() if value is not None}


def agreement(expected: Outputs, found: Outputs) -> dict[str, float]:
    """The share of equal values of each output of integers, and of equal largest probabilities."""
    best = {name: value.argmax(-1) for name, value in expected.items() if name.endswith("probabilities")}
    same = {name: np.mean(value == found[name].argmax(-1)) for name, value in best.items()}
    same |= {name: np.mean(value == found[name]) for name, value in expected.items() if value.dtype.kind in "iu"}
    return {name: float(value) for name, value in same.items()}


def measured(expected: Outputs, found: Outputs) -> dict[str, Any]:
    """A report's entries on how the outputs differ: JSON."""
    differs = {name: _short(value) for name, value in differences(expected, found).items()}
    same = {name: _short(value) for name, value in agreement(expected, found).items()}
    return {"difference": max(differs.values()), "differences": differs, "same": same}


def _fewest(order: Sequence[str], error: Callable[[Collection[str]], float], bound: float) -> int:
    """The smallest n for which the groups order[:n] in floats bring the error to the bound, by bisection."""
    low, high = 1, len(order)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if error(order[:middle]) <= bound else (middle + 1, high)
    return low


class Choice(NamedTuple):
    """The groups in floats with the difference that each causes alone, and the difference with all in int8."""

    floats: dict[str, float]
    all_int8: float


def choose(groups: Sequence[str], error: Callable[..., float], work: Stage) -> Choice:
    """Which groups stay in floats.

    Args:
        groups: those that may.
        error: (groups in floats, number of inputs or None for all) -> difference on held-out inputs.
        work: advances by one for each group that is measured.
    """
    whole = error((), None)
    if whole <= BOUND or not groups:
        return Choice({}, whole)
    alone = {}
    for group in groups:
        alone[group] = error([other for other in groups if other != group], _RANKING)
        work.advance()
    order = sorted(alone, key=lambda group: -alone[group])
    count = _fewest(order, lambda floats: error(floats, None), BOUND)
    return Choice({group: alone[group] for group in order[:count]}, whole)


def _sorted(run: Runner) -> Runner:
    """`run` with outputs in the order of `in_any_order`."""
    return lambda inputs: in_any_order(run(inputs))


def _sorting(runner: Callable[[str], Runner]) -> Callable[[str], Runner]:
    return lambda path: _sorted(runner(path))


def _choose_measured(
    file: StaticFile,
    groups: Sequence[str],
    path: str,
    runner: Callable[[str], Runner],
    expected: Outputs,
    held_out: np.ndarray,
) -> Choice:
    """Which of `groups` stay in floats, measured on files named like `path`."""
    with tempfile.TemporaryDirectory() as folder:
        place = os.path.join(folder, os.path.basename(path))

        def error(floats, count):
            file.write(place, floats)
            reference = {name: value[:count] for name, value in expected.items()}
            return max(differences(reference, outputs(runner(place), held_out[:count])).values())

        with stage("Measuring products in int8", len(groups), "groups of products") as work:
            return choose(groups, error, work)


def write(
    make: Callable[[str, np.ndarray, Layers], StaticFile],
    runner: Callable[[str], Runner],
    source: str,
    path: str,
    inputs: np.ndarray,
    layers: Layers,
    derived: Collection[str],
    any_order: bool = False,
    trained: Collection[str] = (),
    reference: Runner | None = None,
) -> dict[str, Any]:
    """Writes the float file `source` to `path` in int8, with the fewest products in floats; returns a report, JSON.

    Args:
        make: the format's StaticFile.
        runner: makes a function of inputs from a file of the format.
        source, path: the float file, and the one to write.
        inputs: (n, ...), of which every fourth does not calibrate.
        layers: names and given ranges.
        derived: outputs that follow from others by close decisions, and are not compared.
        any_order: whether outputs are compared by `in_any_order`.
        trained: layers that stay in int8, because they were trained for it.
        reference: computes the outputs to compare with; None for the float file.

    Raises:
        ValueError: for a model without products with a kernel.
    """
    used, held_out = split(inputs)
    with stage(f"Calibrating on {counted(len(used), 'input')}"):
        file = make(source, used, layers)
    if not file.groups:
        raise ValueError(
            'quantization="int8_static" quantises dense layers and convolutions, and this model has none: leave'
            " quantization out."
        )
    whole = reference or runner(source)
    if any_order:
        whole, runner = _sorted(whole), _sorting(runner)
    held_out = fitting(held_out, whole)
    expected = {name: value for name, value in outputs(whole, held_out).items() if name not in derived}
    groups = [group for group, products in file.groups.items() if not set(products) & set(trained)]
    choice = _choose_measured(file, groups, path, runner, expected, held_out)
    file.write(path, choice.floats)
    found = outputs(runner(path), held_out)
    return {"calibrated_on": len(used), **_report(file, choice, expected, found)}


def _report(file, choice, expected, found):
    """What was chosen and measured: JSON."""
    return {
        "held_out": len(next(iter(expected.values()))),
        "products": sum(map(len, file.groups.values())),
        "floats": [
            {"products": list(file.groups[group]), "difference": _short(alone)}
            for group, alone in choice.floats.items()
        ],
        "bound": BOUND,
        "difference_all_int8": _short(choice.all_int8),
        **measured(expected, found),
    }


def log(report: Mapping[str, Any]) -> None:
    """Logs what stayed in floats, and what it gained."""
    kept = [name for group in report["floats"] for name in group["products"]]
    gained = ""
    if kept:
        gained = f" ({report['difference_all_int8']:.1%} with all in int8); {', '.join(kept)} stay in floats"
    logging.info(
        "int8: %s of %s. On %s the outputs differ from the model's by %.1f%%%s.",
        *(report["products"] - len(kept), counted(report["products"], "product")),
        *(counted(report["held_out"], "held-out input"), 100 * report["difference"], gained),
    )
