"""Keeps dense layers of an ONNX graph on tokens (b, n, d), which TensorFlow flattens to (b * n, d) and back.

OpenVINO refuses quantised products between such reshapes, or miscomputes them, and no engine needs them.
"""

import numpy as np
import onnx
from onnx import numpy_helper

# Operations that agree on (b, n, d) and (b * n, d): products with a kernel, divided columns, and elementwise ones.
_ELEMENTWISE = {"Add", "Sub", "Mul", "Div", "Neg", "Erf", "Sigmoid", "Tanh"}


def _axes(split):
    """The attributes of the axis that a Split divides: one, or none for the first axis."""
    return [attribute for attribute in split.attribute if attribute.name == "axis"]


class _Graph:
    """Producers and consumers of tensors, constants, and the shapes that ONNX infers."""

    def __init__(self, model: onnx.ModelProto):
        inferred = onnx.shape_inference.infer_shapes(model).graph
        self.constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        self.outputs = {output.name for output in model.graph.output}
        self.makers = {name: node for node in model.graph.node for name in node.output}
        self.takers: dict[str, list[onnx.NodeProto]] = {}
        for node in model.graph.node:
            for name in set(node.input):
                self.takers.setdefault(name, []).append(node)
        self.shapes = {
            value.name: [dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim]
            for value in (*inferred.input, *inferred.value_info)
        }

    def is_entry(self, node: onnx.NodeProto | None) -> bool:
        """Whether a node flattens (b, ..., d) to (-1, d)."""
        if node is None or node.op_type != "Reshape" or node.input[1] not in self.constants:
            return False
        target, shape = self.constants[node.input[1]].tolist(), self.shapes.get(node.input[0], [])
        return len(target) == 2 < len(shape) and target[0] == -1 and target[1] == shape[-1]

    def name_last_axes(self) -> None:
        """Lets a Split of columns, as in a SwiGLU, count axes from the end: it then divides tokens, too."""
        for node in self.makers.values():
            if node.op_type == "Split" and len(self.shapes.get(node.input[0], [])) == 2:
                for axis in _axes(node):
                    axis.i = -1 if axis.i == 1 else axis.i

    def is_exit(self, node: onnx.NodeProto) -> bool:
        """Whether a node's reshape does not depend on its input's shape."""
        return node.op_type == "Reshape" and node.input[1] in self.constants and 0 not in self.constants[node.input[1]]

    def is_inner(self, node: onnx.NodeProto | None) -> bool:
        if node is None:
            return False
        constants = [self.constants[name] for name in node.input if name in self.constants]
        if node.op_type == "MatMul":
            return node.input[1] in self.constants and constants[-1].ndim == 2
        if node.op_type == "Split":
            return any(axis.i == -1 for axis in _axes(node))
        return node.op_type in _ELEMENTWISE and all(np.ndim(value) < 2 for value in constants)

    def entries(self, entry: onnx.NodeProto) -> list[onnx.NodeProto]:
        """The nodes that flatten values combined with `entry`'s output; none if anything there needs two axes."""
        entries: dict[str, onnx.NodeProto] = {}
        seen: set[str] = set()
        waiting = [entry.output[0]]
        while waiting:
            name = waiting.pop()
            if name in seen or name in self.constants:
                continue
            seen.add(name)
            maker, takers = self.makers.get(name), self.takers.get(name, [])
            if self.is_entry(maker):
                entries[name] = maker
            elif self.is_inner(maker):
                waiting += maker.input
            else:
                return []
            inner = [node for node in takers if not self.is_exit(node)]
            if name in self.outputs or not all(map(self.is_inner, inner)):
                return []
            waiting += [tensor for node in inner for tensor in (*node.input, *node.output)]
        leading = {tuple(map(str, self.shapes[node.input[0]][:-1])) for node in entries.values()}
        return list(entries.values()) if len(leading) == 1 else []


def keep_tokens(model: onnx.ModelProto) -> None:
    """Rewrites, in place, dense layers on flattened tokens; other reshapes stay."""
    graph = _Graph(model)
    graph.name_last_axes()
    whole: dict[str, str] = {}
    for node in model.graph.node:
        if graph.is_entry(node) and node.output[0] not in whole:
            whole.update((entry.output[0], entry.input[0]) for entry in graph.entries(node))
    for node in [node for node in model.graph.node if node.output[0] in whole]:
        model.graph.node.remove(node)
    for node in model.graph.node:
        node.input[:] = [whole.get(name, name) for name in node.input]
    del model.graph.value_info[:]  # the flat shapes
