"""Operations of a float LiteRT file that lack integer kernels, as others that have them and compute the same.

`naming_outputs` repairs what the quantizer makes of such a file.
"""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
from ai_edge_litert.tools import flatbuffer_utils
from ai_edge_quantizer import qtyping

_Operations = qtyping.BuiltinOperator
_TYPES = {np.dtype("float32"): qtyping.TensorType.FLOAT32, np.dtype("int32"): qtyping.TensorType.INT32}
_LARGEST_OLD = 127  # the code of later operations in the field for old readers


class _Graph:
    """A file's graph, to be edited; `operations` are in the order of execution."""

    def __init__(self, source: str):
        self.file = flatbuffer_utils.read_model(source)
        if len(self.file.subgraphs) > 1:
            raise ValueError("it has loops or conditions.")
        [graph] = self.file.subgraphs
        self.operations, self._tensors = graph.operators, graph.tensors

    def kind(self, operation: Any) -> int:
        return self.file.operatorCodes[operation.opcodeIndex].builtinCode

    def shape(self, tensor: int) -> list[int]:
        return list(self._tensors[tensor].shape)

    def integers(self, tensor: int) -> np.ndarray:
        """A constant tensor's values."""
        return np.frombuffer(bytes(self.file.buffers[self._tensors[tensor].buffer].data), "int32")

    def _add(self, tensor):
        tensor.name = f"rewritten_{len(self._tensors)}".encode()
        self._tensors.append(tensor)
        return len(self._tensors) - 1

    def like(self, tensor: int) -> int:
        """A new tensor of another's type and shape."""
        return self._add(copy.copy(self._tensors[tensor]))

    def constant(self, value: np.ndarray) -> int:
        """A new constant tensor of float32 or int32."""
        buffer, tensor = qtyping.BufferT(), qtyping.TensorT()
        buffer.data = np.frombuffer(value.tobytes(), "uint8")
        self.file.buffers.append(buffer)
        tensor.type, tensor.shape, tensor.buffer = _TYPES[value.dtype], list(value.shape), len(self.file.buffers) - 1
        return self._add(tensor)

    def make(self, name: str, inputs: list[int], output: int) -> Any:
        """A new operation, such as "Mul"."""
        kind, options = getattr(_Operations, name.upper()), f"{name}Options"
        codes = [code.builtinCode for code in self.file.operatorCodes]
        if kind not in codes:
            code = qtyping.OperatorCodeT()
            code.builtinCode, code.deprecatedBuiltinCode, code.version = kind, min(kind, _LARGEST_OLD), 1
            self.file.operatorCodes.append(code)
            codes.append(kind)
        made = qtyping.OperatorT()
        made.opcodeIndex, made.inputs, made.outputs = codes.index(kind), inputs, [output]
        made.builtinOptionsType = getattr(qtyping.BuiltinOptions, options)
        made.builtinOptions = getattr(flatbuffer_utils.schema_fb, f"{options}T")()
        return made


def _squared_difference(graph, operation):
    """(x - y)^2 as the product of differences: SQUARED_DIFFERENCE has an integer kernel, but of 8 bits."""
    [output] = operation.outputs
    difference = graph.like(output)
    return [graph.make("Sub", list(operation.inputs), difference), graph.make("Mul", [difference] * 2, output)]


def _square(graph, operation):
    """x * x"""
    return [graph.make("Mul", [operation.inputs[0]] * 2, operation.outputs[0])]


def _zeros_like(graph, operation):
    """x - x"""
    return [graph.make("Sub", [operation.inputs[0]] * 2, operation.outputs[0])]


def _neg(graph, operation):
    """-1 * x"""
    return [graph.make("Mul", [operation.inputs[0], graph.constant(np.float32([-1]))], operation.outputs[0])]


def _split_v(graph, operation):
    """Parts of several sizes, such as shifted windows exchange, as slices."""
    x, sizes, axis = operation.inputs
    [axis], begin = graph.integers(axis), 0
    slices = []
    for size, output in zip(graph.integers(sizes), operation.outputs):
        shape = np.int32(graph.shape(output))
        begins = np.int32(np.arange(len(shape)) == axis) * np.int32(begin)
        slices.append(graph.make("Slice", [x, graph.constant(begins), graph.constant(shape)], output))
        begin += size
    return slices


_REWRITES: dict[int, Callable[[_Graph, Any], list[Any]]] = {
    _Operations.SQUARED_DIFFERENCE: _squared_difference,
    _Operations.SQUARE: _square,
    _Operations.ZEROS_LIKE: _zeros_like,
    _Operations.NEG: _neg,
    _Operations.SPLIT_V: _split_v,
}


def rewritten(source: str) -> bytearray:
    """The float file `source` with operations that have integer kernels."""
    graph = _Graph(source)
    operations = []
    for operation in graph.operations:
        rewrite = _REWRITES.get(graph.kind(operation))
        operations += rewrite(graph, operation) if rewrite else [operation]
    graph.operations[:] = operations
    return flatbuffer_utils.convert_object_to_bytearray(graph.file)


def naming_outputs(quantized: bytes, source: bytes) -> bytearray:
    """The quantised file of `source` with the names of outputs on what the graph returns.

    The quantizer leaves them on the tensors in front of an output that it quantises again, whose memory others use.
    """
    before, after = (flatbuffer_utils.read_model_from_bytearray(bytearray(file)) for file in (source, quantized))
    returned = dict(zip(before.subgraphs[0].outputs, after.subgraphs[0].outputs))
    for old, new in zip(before.signatureDefs[0].outputs, after.signatureDefs[0].outputs):
        new.name, new.tensorIndex = old.name, returned[old.tensorIndex]
    return flatbuffer_utils.convert_object_to_bytearray(after)
