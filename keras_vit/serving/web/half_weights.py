"""ONNX files with weights in float16, which are half as large and compute in float32."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_FEWEST = 1024  # numbers of a tensor; smaller ones, such as biases and scales, keep their precision
_LARGEST = float(np.finfo("float16").max)


def _halves(tensor):
    """The tensor's values in float16; None for one that stays."""
    if tensor.data_type != TensorProto.FLOAT or int(np.prod(tensor.dims)) < _FEWEST:
        return None
    values = numpy_helper.to_array(tensor)
    return values.astype("float16") if np.abs(values).max() <= _LARGEST else None


def halve(model: onnx.ModelProto) -> None:
    """Stores a model's large float32 weights in float16, in place, each cast back where it is used.

    Engines fold the casts when they load the file, so it takes the memory and time of float32. Weights beyond float16's
    range stay.
    """
    graph, casts = model.graph, []
    for tensor in graph.initializer:
        values = _halves(tensor)
        if values is not None:
            name, stored = tensor.name, f"{tensor.name}/float16"
            tensor.CopyFrom(numpy_helper.from_array(values, stored))
            casts.append(helper.make_node("Cast", [stored], [name], to=TensorProto.FLOAT, name=f"{name}/cast"))
    nodes = [*casts, *(onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.node)]
    del graph.node[:]
    graph.node.extend(nodes)
