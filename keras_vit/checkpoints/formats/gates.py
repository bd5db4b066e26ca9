"""SwiGLU's two dense layers, which some libraries keep apart: the gate and its values, in our order."""

from collections.abc import Mapping

import numpy as np

from keras_vit.checkpoints.formats.shown import need


def join_gates(arrays: Mapping[str, np.ndarray], gate: str, up: str, joined: str) -> dict[str, np.ndarray]:
    """The arrays with each pair of dense layers as one, the gate first.

    Args:
        arrays: {name: array}.
        gate, up, joined: parts of the names, such as ".mlp.gate_proj.".
    """
    gates = [name for name in arrays if gate in name]
    if not gates:
        return dict(arrays)
    pairs = {
        name.replace(gate, joined): np.concatenate(
            [arrays[name], need(arrays, name.replace(gate, up), arrays[name].ndim)]
        )
        for name in gates
    }
    return {**{name: array for name, array in arrays.items() if gate not in name and up not in name}, **pairs}


def split_gates(arrays: Mapping[str, np.ndarray], gate: str, up: str, joined: str) -> dict[str, np.ndarray]:
    """The inverse of `join_gates`."""
    split = {}
    for name, array in arrays.items():
        if joined in name:
            split[name.replace(joined, gate)], split[name.replace(joined, up)] = map(
                np.ascontiguousarray, np.split(array, 2)
            )
        else:
            split[name] = array
    return split
