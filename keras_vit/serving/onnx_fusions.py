"""Fuses an ONNX graph into ONNX's own operations, GELU and layer normalisation, and constant shapes.

tf2onnx translates TensorFlow's graph operation by operation: a layer normalisation is eleven nodes, the GELU has an
Erfc, which ONNX lacks, and a reshape of a batch of unknown size computes its own shape.
"""

import math
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

# Patterns: a text is a tensor, the same wherever it recurs; a number is a constant; a tuple is a node's operation and
# inputs.
_GELU = ("Mul", ("Mul", 0.5, "x"), ("Erfc", ("Mul", ("Neg", "x"), math.sqrt(0.5))))
_MEAN = ("ReduceMean", "x", "axes")
_CENTRED = ("Sub", "x", _MEAN)
_SCALE = (
    "Mul",
    ("Reciprocal", ("Sqrt", ("Add", ("ReduceMean", ("Mul", _CENTRED, _CENTRED), "axes"), "epsilon"))),
    "gamma",
)
_SHIFT = ("Mul", ("Neg", _MEAN), _SCALE)
_NORMALISED = ("Add", ("Mul", "x", _SCALE), _SHIFT)
_NORMALISATIONS = (
    ("Add", ("Mul", _CENTRED, _SCALE), "beta"),
    ("Add", ("Mul", "x", _SCALE), ("Add", _SHIFT, "beta")),
    ("Add", ("Mul", "x", _SCALE), ("Sub", "beta", ("Mul", _MEAN, _SCALE))),
    _NORMALISED,
)


class _Graph:
    """Nodes by output, constants by name, and replacements of nodes."""

    def __init__(self, graph):
        self.graph = graph
        self.makers = {name: node for node in graph.node for name in node.output}
        self.constants = {tensor.name: tensor for tensor in graph.initializer}

    def constant(self, name: str) -> np.ndarray | None:
        return numpy_helper.to_array(self.constants[name]) if name in self.constants else None

    def add(self, name: str, value: Any) -> str:
        """The name of a new constant; existing ones stay."""
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(value, name)
            self.graph.initializer.append(self.constants[name])
        return name

    def match(self, name: str, pattern: Any, found: dict) -> dict | None:
        """`found` plus the tensors that the pattern's texts match, if tensor `name` fits the pattern; else None."""
        if isinstance(pattern, str):
            return {**found, pattern: name} if found.get(pattern, name) == name else None
        if isinstance(pattern, float):
            value = self.constant(name)
            return (
                found
                if value is not None and value.size == 1 and math.isclose(value.item(), pattern, rel_tol=1e-6)
                else None
            )
        node = self.makers.get(name)
        if node is None or node.op_type != pattern[0] or len(node.input) != len(pattern) - 1:
            return None
        orders = (pattern[1:], pattern[:0:-1]) if node.op_type in ("Add", "Mul") else (pattern[1:],)
        for order in orders:
            matched: dict | None = found
            for inner, part in zip(node.input, order):
                matched = None if matched is None else self.match(inner, part, matched)
            if matched is not None:
                return matched
        return None


def _gelu(graph, node):
    """x erfc(-x / sqrt 2) / 2 as x (1 + erf(x / sqrt 2)) / 2, in the order that engines expect; else 1 - erf(x)."""
    one = graph.add("keras_vit/one", np.float32(1))
    out = node.output[0]
    if node.op_type == "Erfc":
        return [
            helper.make_node("Erf", [node.input[0]], [f"{out}/erf"]),
            helper.make_node("Sub", [one, f"{out}/erf"], [out]),
        ]
    found = graph.match(out, _GELU, {}) if node.op_type == "Mul" else None
    if found is None:
        return None
    x, root, half = (
        found["x"],
        graph.add("keras_vit/root", np.float32(math.sqrt(2))),
        graph.add("keras_vit/half", np.float32(0.5)),
    )
    return [
        helper.make_node("Div", [x, root], [f"{out}/scaled"]),
        helper.make_node("Erf", [f"{out}/scaled"], [f"{out}/erf"]),
        helper.make_node("Add", [f"{out}/erf", one], [f"{out}/above"]),
        helper.make_node("Mul", [x, f"{out}/above"], [f"{out}/twice"]),
        helper.make_node("Mul", [f"{out}/twice", half], [out]),
    ]


def _normalisation(graph, node):
    """Keras' layer normalisation over the last axis as LayerNormalization."""
    if node.op_type != "Add":
        return None
    for pattern in _NORMALISATIONS:
        found = graph.match(node.output[0], pattern, {})
        values = (
            {} if found is None else {name: graph.constant(tensor) for name, tensor in found.items() if name != "x"}
        )
        if values and all(value is not None for value in values.values()) and values["axes"].tolist() == [-1]:
            break
    else:
        return None
    inputs = [found["x"], graph.add(f"{found['gamma']}/flat", values["gamma"].reshape(-1))]
    if "beta" in found:
        inputs.append(graph.add(f"{found['beta']}/flat", values["beta"].reshape(-1)))
    epsilon = float(values["epsilon"].item())
    return [helper.make_node("LayerNormalization", inputs, node.output, name=node.output[0], axis=-1, epsilon=epsilon)]


def _is_one_size(graph, name):
    """Whether a tensor is one size of a shape: shape[i : i + 1]."""
    node = graph.makers.get(name)
    if node is None or node.op_type != "Slice" or len(node.input) != 4:
        return False
    start, end = graph.constant(node.input[1]), graph.constant(node.input[2])
    return start is not None and end is not None and start.size == 1 and (end - start).tolist() == [1]


def _reshape(graph, node):
    """A reshape to constants and one size known at run time, with -1 for that size."""
    if node.op_type != "Reshape":
        return None
    maker = graph.makers.get(node.input[1])
    while maker is not None and maker.op_type == "Cast":
        maker = graph.makers.get(maker.input[0])
    if maker is None or maker.op_type != "Concat":
        return None
    parts = [graph.constant(name) for name in maker.input]
    unknown = [name for name, part in zip(maker.input, parts) if part is None]
    if len(unknown) != 1 or not _is_one_size(graph, unknown[0]):
        return None
    shape = np.concatenate([[-1] if part is None else part for part in parts]).astype("int64")
    return [helper.make_node("Reshape", [node.input[0], graph.add(f"{node.output[0]}/shape", shape)], node.output)]


def _drop_unused(graph):
    """Drops nodes and constants that no output needs."""
    needed, kept = {output.name for output in graph.output}, []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(node.input)
    constants = [tensor for tensor in graph.initializer if tensor.name in needed]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(reversed(kept))
    graph.initializer.extend(constants)


def fuse(model: onnx.ModelProto) -> None:
    """Rewrites, in place, tf2onnx's graph of a Keras model."""
    for rewrite in (_normalisation, _gelu, _reshape):
        graph = _Graph(model.graph)
        nodes = [replacement for node in model.graph.node for replacement in rewrite(graph, node) or [node]]
        made = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del model.graph.node[:]
        model.graph.node.extend(made)
        _drop_unused(model.graph)
