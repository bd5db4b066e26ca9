"""How a format's arrays relate to our weights, written once and used both ways.

A layout is a dict {name in the file: Entry}. An Entry names our weights by their path and converts: `pack` ours to theirs, `unpack`
theirs to ours. Reading a file and writing one walk the same layout, so that what is written reads back.
"""

import dataclasses
from collections.abc import Callable

import numpy as np


@dataclasses.dataclass(frozen=True)
class Entry:
    """One array of a file.

    Attributes:
        ours: paths of our weights that it holds.
        pack: (our arrays...) -> the file's array.
        unpack: (the file's array, our shapes) -> our arrays, a list.
    """

    ours: tuple
    pack: Callable
    unpack: Callable


def same(ours, shape=None):
    """The same values in the same order; in the file with `shape`, where that differs from ours."""
    return Entry((ours,), lambda a: a if shape is None else a.reshape(shape), lambda a, shapes: [a.reshape(shapes[0])])


def linear(ours):
    """torch's linear layer: (out, in) where ours is (in, out)."""
    return Entry((ours,), lambda a: a.T, lambda a, shapes: [a.T])


def conv(ours):
    """torch's convolution: (out, in, h, w) where ours is (h, w, in, out)."""
    return Entry((ours,), lambda a: a.transpose(3, 2, 0, 1), lambda a, shapes: [a.transpose(2, 3, 1, 0)])


def pointwise(ours):
    """torch's 1x1 convolution, (out, in, 1, 1), where ours is a matrix (in, out)."""
    return Entry((ours,), lambda a: a.T[:, :, None, None], lambda a, shapes: [a.reshape(a.shape[:2]).T])


def stacked_linear(*ours):
    """torch's linear layers as one, stacked along the outputs: (sum of outs, in)."""

    def unpack(a, shapes):
        ends = np.cumsum([shape[1] for shape in shapes])[:-1]
        return [part.T for part in np.split(a, ends)]

    return Entry(ours, lambda *arrays: np.concatenate([a.T for a in arrays]), unpack)


def stacked_bias(*ours):
    """Their biases: (sum of outs,)."""
    return Entry(ours, lambda *arrays: np.concatenate(arrays), lambda a, shapes: np.split(a, np.cumsum(shapes)[:-1]))


def positions(ours, rows, shape=None):
    """A position table (1, prefix + n, d) that in the file lacks its first `rows` rows, or has another shape."""

    def pack(a):
        a = a[:, rows:]
        return a if shape is None else a.reshape(shape)

    def unpack(a, shapes):
        a = a.reshape(1, -1, shapes[0][-1])
        return [np.concatenate([np.zeros((1, rows, a.shape[-1]), a.dtype), a], axis=1)]

    return Entry((ours,), pack, unpack)


def torch_dense(theirs, ours):
    """Weight and bias of a linear layer under torch's names."""
    return {f"{theirs}.weight": linear(f"{ours}/kernel"), f"{theirs}.bias": same(f"{ours}/bias")}


def torch_norm(theirs, ours):
    """Weight and bias of a normalisation under torch's names."""
    return {f"{theirs}.weight": same(f"{ours}/gamma"), f"{theirs}.bias": same(f"{ours}/beta")}


def shown(names, most=8):
    """Names for a message: the first few, and how many there are."""
    names = sorted(names)
    return f"{', '.join(names[:most])}{', ...' if len(names) > most else ''} ({len(names)})"


def unpack(layout, arrays, shapes, where):
    """Our weights from a file's arrays.

    Args:
        layout: {their name: Entry}.
        arrays: {their name: array}.
        shapes: {our path: shape} of the model.
        where: the file's name, for messages.

    Raises:
        ValueError: if names are missing or left over, or shapes differ, listing them with both shapes.
    """
    missing, unexpected = layout.keys() - arrays.keys(), arrays.keys() - layout.keys()
    if missing or unexpected:
        parts = [f"{what}: {shown(names)}" for what, names in (("missing", missing), ("not known", unexpected)) if names]
        raise ValueError(f'The weights of "{where}" are not those of the model that they look like. {"; ".join(parts)}.')
    ours = {path for entry in layout.values() for path in entry.ours}
    if ours != shapes.keys():
        raise ValueError(
            f'The arrays of "{where}" are not those of the model that is described with them: {shown(ours ^ shapes.keys())}.'
        )
    wrong = []
    weights = {}
    for name, entry in layout.items():
        ours = [tuple(shapes[path]) for path in entry.ours]
        # Arrays without memory of their own: only the shape is wanted.
        expected = entry.pack(*(np.broadcast_to(np.float32(0), shape) for shape in ours)).shape
        if arrays[name].shape != expected:
            wrong.append(f"{name} is {arrays[name].shape} in the file, {expected} for the model")
            continue
        weights.update(zip(entry.ours, entry.unpack(arrays[name], ours), strict=True))
    if wrong:
        raise ValueError(f'Shapes of "{where}" do not fit: {"; ".join(wrong[:8])} ({len(wrong)}).')
    return weights


def pack(layout, weights):
    """A file's arrays, contiguous, from our weights {path: array}.

    Raises:
        ValueError: if the format has no place for some of our weights.
    """
    placed = {path for entry in layout.values() for path in entry.ours}
    if weights.keys() - placed:
        raise ValueError(f"This format has no place for the weights {shown(weights.keys() - placed)}.")
    return {name: np.ascontiguousarray(entry.pack(*(weights[path] for path in entry.ours))) for name, entry in layout.items()}
