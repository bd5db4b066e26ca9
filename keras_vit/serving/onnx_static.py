"""Static int8 of ONNX files: products with a kernel, as of dense layers, read a quantised input and kernel.

A pair of QuantizeLinear and DequantizeLinear stands before a product's input, and a DequantizeLinear before its kernel;
engines fuse these with the product. The scheme:

- Inputs have one scale and one zero point, for calibrated values from the smallest to the largest, and for given
  ranges symmetric. They are uint8, which ONNX Runtime multiplies 1.4 times as fast on x86 as int8.
- Kernels have a scale per output channel, symmetric, and 7 bits: processors without VNNI add pairs of byte products in
  16 bits, which 8-bit kernels overflow.
- Products of rows (b, c), as of heads, are by (b, 1, c): otherwise ONNX Runtime makes them a Gemm of floats, and their
  kernel floats at every call.
- Products stay in floats where TensorFlow flattens their inputs' axes: OpenVINO refuses quantised ones, or miscomputes
  them. So do convolutions: OpenVINO 2026.4 miscomputes those of a DPT head, and ONNX Runtime gains nothing.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from keras_vit.serving.onnx_format import int8_kernel, read_names
from keras_vit.serving.static_int8 import Layers

_LEVELS = 64  # of kernels, on each side of 0
_AXIS = "second axis"  # name of the constant 1


def _two_dimensional(model):
    """Names of tensors with two axes."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    values = (*inferred.input, *inferred.value_info, *inferred.output)
    return {value.name for value in values if len(value.type.tensor_type.shape.dim) == 2}


def _flattened(model):
    """Names of tensors that a reshape made two-dimensional."""
    reshaped = {node.output[0] for node in model.graph.node if node.op_type == "Reshape"}
    return reshaped & _two_dimensional(model)


def _products(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """The nodes that multiply by a kernel, and can be quantised."""
    kernels = {tensor.name for tensor in model.graph.initializer if len(tensor.dims) == 2}
    flattened = _flattened(model)
    for node in model.graph.node:
        if node.op_type == "MatMul" and node.input[1] in kernels and node.input[0] not in flattened | kernels:
            yield node


class Range(NamedTuple):
    """The values of a tensor that 8 bits express."""

    low: float
    high: float

    @classmethod
    def symmetric(cls, largest: float) -> "Range":
        """The range with the scale largest / 127, and 0 in the middle of the bytes."""
        return cls(-largest * 128 / 127, largest)

    @property
    def scale(self) -> np.float32:
        return np.float32(max(self.high - self.low, np.finfo("float32").tiny * 255) / 255)

    @property
    def zero(self) -> np.uint8:
        """The byte of the value 0."""
        return np.uint8(np.clip(np.round(-self.low / self.scale), 0, 255))


def _session(model: onnx.ModelProto, tensors: Sequence[str]) -> onnxruntime.InferenceSession:
    """A session of the model that can also return inner tensors."""
    tapped = onnx.ModelProto()
    tapped.CopyFrom(model)
    there = {output.name for output in model.graph.output}
    tapped.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in tensors if name not in there)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(tapped.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _ranges(model: onnx.ModelProto, tensors: Sequence[str], inputs: np.ndarray) -> dict[str, Range]:
    """The smallest range with 0 that contains all values of each tensor, for inputs one by one."""
    takes = model.graph.input[0].name
    inner = [name for name in tensors if name != takes]
    session = _session(model, inner)
    found = {takes: Range(min(0.0, float(inputs.min())), float(inputs.max())), **dict.fromkeys(inner, Range(0.0, 0.0))}
    for i in range(len(inputs)):
        for name, value in zip(inner, session.run(inner, {takes: inputs[i : i + 1]})):
            low, high = found[name]
            found[name] = Range(min(low, float(value.min())), max(high, float(value.max())))
    return found


class StaticFile:
    """A float ONNX file with the ranges of its products' inputs, to be written in int8.

    Args:
        source: the file.
        inputs: (n, ...), to calibrate on.
        layers: the model's layers, with ranges that replace calibrated ones.

    Attributes:
        groups: {tensor: names of the products that read it}.
        ranges: {tensor: Range}.
    """

    def __init__(self, source: str, inputs: np.ndarray, layers: Layers):
        self.model = onnx.load(source)
        kernels = {tensor.name: tensor for tensor in self.model.graph.initializer}
        self.groups: dict[str, list[str]] = {}
        self._rows = _two_dimensional(self.model)
        self._kernels: dict[str, np.ndarray] = {}
        given: dict[str, float] = {}
        for node in _products(self.model):
            tensor, kernel = node.input[:2]
            self._kernels[kernel] = numpy_helper.to_array(kernels[kernel])
            name, largest = layers.find(self._kernels[kernel], node.name or node.output[0])
            self.groups.setdefault(tensor, []).append(name)
            if largest:
                given[tensor] = max(given.get(tensor, 0.0), largest)
        symmetric = {tensor: Range.symmetric(largest) for tensor, largest in given.items()}
        self.ranges = {**_ranges(self.model, list(self.groups), inputs), **symmetric}

    def _quantized_input(self, tensor: str) -> tuple[list[onnx.NodeProto], list[Any]]:
        """(nodes, constants) that quantise a tensor and give it back, as TENSOR/quantized."""
        found = self.ranges[tensor]
        parts: dict[str, np.ndarray] = {
            f"{tensor}/scale": np.asarray(found.scale),
            f"{tensor}/zero": np.asarray(found.zero),
        }
        before, source = [], tensor
        if tensor in self._rows:
            source = f"{tensor}/3d"
            before = [helper.make_node("Unsqueeze", [tensor, _AXIS], [source], f"{tensor}/unsqueeze")]
        nodes = [
            *before,
            helper.make_node("QuantizeLinear", [source, *parts], [f"{tensor}/bytes"], f"{tensor}/quantize"),
            helper.make_node(
                "DequantizeLinear", [f"{tensor}/bytes", *parts], [f"{tensor}/quantized"], f"{tensor}/dequantize"
            ),
        ]
        return nodes, [numpy_helper.from_array(value, name) for name, value in parts.items()]

    def _quantized_kernel(self, name: str) -> tuple[list[onnx.NodeProto], list[Any]]:
        """The same of a kernel."""
        integers, scales = int8_kernel(self._kernels[name], _LEVELS)
        parts = {f"{name}/int8": integers, f"{name}/scale": scales, f"{name}/zero": np.zeros(len(scales), "int8")}
        node = helper.make_node("DequantizeLinear", list(parts), [f"{name}/quantized"], f"{name}/dequantize", axis=1)
        return [node], [numpy_helper.from_array(value, key) for key, value in parts.items()]

    def write(self, path: str, floats: Collection[str]) -> None:
        """Writes the file with all products in int8 but those of the groups `floats`."""
        products = {node.output[0] for node in _products(self.model) if node.input[0] not in set(floats)}
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        nodes: list[onnx.NodeProto] = []
        constants: list[Any] = []
        made: set[str] = set()
        for node in model.graph.node:
            after: list[onnx.NodeProto] = []
            if node.output[0] in products:
                tensor, kernel = node.input[:2]
                parts = {tensor: self._quantized_input(tensor)} if tensor not in made else {}
                if kernel not in made:
                    parts[kernel] = self._quantized_kernel(kernel)
                made |= parts.keys()
                for before, values in parts.values():
                    nodes += before
                    constants += values
                node.input[0], node.input[1] = f"{tensor}/quantized", f"{kernel}/quantized"
                if tensor in self._rows:
                    output = node.output[0]
                    node.output[0] = f"{output}/3d"
                    after = [helper.make_node("Squeeze", [node.output[0], _AXIS], [output], f"{output}/squeeze")]
            nodes += [node, *after]
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del model.graph.node[:]
        model.graph.node.extend(nodes)
        used = set(read_names(model.graph))
        kept = [tensor for tensor in self.model.graph.initializer if tensor.name in used]
        del model.graph.initializer[:]
        axis = [numpy_helper.from_array(np.array([1]), _AXIS)] if _AXIS in used else []
        model.graph.initializer.extend([*kept, *constants, *axis])
        onnx.save(model, path)
