"""Name maps between a format's arrays and our weights, written once and used in both directions.

A name map is a dict {name in the file: Entry}. An Entry names our weights by path; `pack` converts our values to the
file's, `unpack` the file's to ours. Reading and writing share one map, so what is written can be read back.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np


@dataclasses.dataclass(frozen=True)
class Entry:
    """One array of a file.

    Attributes:
        ours: paths of the weights it contains.
        pack: (our arrays...) -> the file's array.
        unpack: (the file's array, shapes of our arrays) -> list of our arrays.
    """

    ours: tuple[str, ...]
    pack: Callable[..., np.ndarray]
    unpack: Callable[[np.ndarray, list], list]


NameMap = dict[str, Entry]


def same(ours: str, shape: tuple | None = None) -> Entry:
    """The same values in the same order; `shape` is the file's, if it differs."""
    return Entry((ours,), lambda a: a if shape is None else a.reshape(shape), lambda a, shapes: [a.reshape(shapes[0])])


def linear(ours: str) -> Entry:
    """torch's linear layer: (out, in) where ours is (in, out)."""
    return Entry((ours,), lambda a: a.T, lambda a, shapes: [a.T])


def conv(ours: str) -> Entry:
    """torch's convolution: (out, in, h, w) where ours is (h, w, in, out)."""
    return Entry((ours,), lambda a: a.transpose(3, 2, 0, 1), lambda a, shapes: [a.transpose(2, 3, 1, 0)])


def enlargement(ours: str) -> Entry:
    """torch's transposed convolution: (in, out, h, w) where ours is (in, h, w, out)."""
    return Entry((ours,), lambda a: a.transpose(0, 3, 1, 2), lambda a, shapes: [a.transpose(0, 2, 3, 1)])


def pointwise(ours: str) -> Entry:
    """torch's 1x1 convolution, (out, in, 1, 1), where ours is a matrix (in, out)."""
    return Entry((ours,), lambda a: a.T[:, :, None, None], lambda a, shapes: [a.reshape(a.shape[:2]).T])


def stacked_linear(*ours: str) -> Entry:
    """Several torch linear layers in one array, stacked along the outputs: (sum of outs, in)."""

    def unpack(a, shapes):
        ends = np.cumsum([shape[1] for shape in shapes])[:-1]
        return [part.T for part in np.split(a, ends)]

    return Entry(ours, lambda *arrays: np.concatenate([a.T for a in arrays]), unpack)


def stacked_bias(*ours: str) -> Entry:
    """The biases of stacked_linear: (sum of outs,)."""
    return Entry(ours, lambda *arrays: np.concatenate(arrays), lambda a, shapes: np.split(a, np.cumsum(shapes)[:-1]))


def biases_without_key(ours: str) -> Entry:
    """The values' bias of an attention without one of keys, which would add the same to all scores of a query."""
    paths = (f"{ours}/value/bias", f"{ours}/key/bias")
    return Entry(paths, lambda value, key: value, lambda a, shapes: [a, np.zeros(shapes[1], a.dtype)])


def grouped(ours: str) -> Entry:
    """Several torch linear layers of one shape: (g, out, in) where ours is (g, in, out)."""
    return Entry((ours,), lambda a: a.transpose(0, 2, 1), lambda a, shapes: [a.transpose(0, 2, 1)])


def positions(ours: str, rows: int, shape: tuple | None = None) -> Entry:
    """A position table (1, prefix + n, d), in the file without its first `rows` rows or in another shape."""

    def pack(a):
        a = a[:, rows:]
        return a if shape is None else a.reshape(shape)

    def unpack(a, shapes):
        a = a.reshape(1, -1, shapes[0][-1])
        return [np.concatenate([np.zeros((1, rows, a.shape[-1]), a.dtype), a], axis=1)]

    return Entry((ours,), pack, unpack)


def torch_dense(theirs: str, ours: str) -> NameMap:
    """Weight and bias of a linear layer in torch's names."""
    return {f"{theirs}.weight": linear(f"{ours}/kernel"), f"{theirs}.bias": same(f"{ours}/bias")}


def torch_norm(theirs: str, ours: str) -> NameMap:
    """Weight and bias of a normalisation in torch's names."""
    return {f"{theirs}.weight": same(f"{ours}/gamma"), f"{theirs}.bias": same(f"{ours}/beta")}


def torch_conv(theirs: str, ours: str, bias: bool = True) -> NameMap:
    """Weight and bias of a convolution in torch's names."""
    entries = {f"{theirs}.weight": conv(f"{ours}/kernel")}
    return {**entries, f"{theirs}.bias": same(f"{ours}/bias")} if bias else entries


def torch_enlargement(theirs: str, ours: str) -> NameMap:
    """Weight and bias of a transposed convolution in torch's names."""
    return {f"{theirs}.weight": enlargement(f"{ours}/kernel"), f"{theirs}.bias": same(f"{ours}/bias")}


def torch_batch_norm(theirs: str, ours: str) -> NameMap:
    """Weights and statistics of a batch normalisation in torch's names, without its counter."""
    names = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
    return {f"{theirs}.{name}": same(f"{ours}/{our}") for name, our in names.items()}


def torch_pointwise(theirs: str, ours: str) -> NameMap:
    """Weight and bias of a 1x1 convolution in torch's names, where ours is a dense layer."""
    return {f"{theirs}.weight": pointwise(f"{ours}/kernel"), f"{theirs}.bias": same(f"{ours}/bias")}


def batch_norm_counters(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """{name: 0} of the counters that torch keeps in each batch normalisation among a file's arrays."""
    counted = [name.removesuffix("running_mean") for name in arrays if name.endswith("running_mean")]
    return {f"{name}num_batches_tracked": np.zeros((), "int64") for name in counted}


def summary(names: Iterable[str], limit: int = 8) -> str:
    """Names for a message: the first few and the count."""
    names = sorted(names)
    return f"{', '.join(names[:limit])}{', ...' if len(names) > limit else ''} ({len(names)})"


def _check_names(name_map: NameMap, names: Collection[str], paths: Collection[str], where: object) -> None:
    """Compares the file's names and the model's paths with the name map; ValueError lists names on one side only."""
    missing, unexpected = name_map.keys() - names, names - name_map.keys()
    if missing or unexpected:
        parts = [
            f"{what}: {summary(names)}" for what, names in (("missing", missing), ("unexpected", unexpected)) if names
        ]
        raise ValueError(
            f'The array names in "{where}" do not match the model that the file seems to contain. {"; ".join(parts)}.'
        )
    mapped = {path for entry in name_map.values() for path in entry.ours}
    if mapped != paths:
        raise ValueError(
            f'The arrays of "{where}" do not match the model that the file itself describes: {summary(mapped ^ paths)}.'
        )


def unpack(
    name_map: NameMap, arrays: Mapping[str, np.ndarray], shapes: Mapping[str, tuple], where: object
) -> dict[str, np.ndarray]:
    """Our weights {path: array} from a file's arrays.

    Args:
        name_map: {name in the file: Entry}.
        arrays: {name in the file: array}.
        shapes: {our path: shape} of the model.
        where: the file's name, for messages.

    Raises:
        ValueError: for missing or unexpected names, or different shapes; lists them, with both shapes.
    """
    _check_names(name_map, arrays.keys(), shapes.keys(), where)
    mismatches = []
    weights = {}
    for name, entry in name_map.items():
        ours = [tuple(shapes[path]) for path in entry.ours]
        # Only the shape matters: broadcast arrays take no memory.
        expected = entry.pack(*(np.broadcast_to(np.float32(0), shape) for shape in ours)).shape
        if arrays[name].shape != expected:
            mismatches.append(f"{name} is {arrays[name].shape} in the file, {expected} in the model")
            continue
        weights.update(zip(entry.ours, entry.unpack(arrays[name], ours), strict=True))
    if mismatches:
        raise ValueError(
            f'Shapes in "{where}" do not match the model: {"; ".join(mismatches[:8])} ({len(mismatches)}).'
        )
    return weights


def pack(name_map: NameMap, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A file's arrays, contiguous, from our weights {path: array}; ValueError if the format has no place for some."""
    mapped = {path for entry in name_map.values() for path in entry.ours}
    if weights.keys() - mapped:
        raise ValueError(f"This format has no place for the weights {summary(weights.keys() - mapped)}.")
    return {
        name: np.ascontiguousarray(entry.pack(*(weights[path] for path in entry.ours)))
        for name, entry in name_map.items()
    }
