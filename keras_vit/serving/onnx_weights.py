"""Weights of an ONNX file in int8, each column with a scale of its own, that become floats again where they are
used.
"""

import numpy as np
import onnx
from onnx import helper, numpy_helper


def _int8(kernel):
    """(integers of a kernel (d, m), scales (m,)): symmetric, the largest of a column is 127."""
    scales = np.maximum(np.abs(kernel).max(0), np.finfo("float32").tiny * 127) / 127
    return np.round(kernel / scales).astype("int8"), scales.astype("float32")


def quantize_weights(source: str, path: str, names: list[str]) -> None:
    """Writes the file `source` to `path`, with the kernels of the matrix products `names` in int8."""
    model = onnx.load(source)
    kernels = {node.input[1] for node in model.graph.node if node.name in names}
    kept, added, nodes = [], [], []
    for tensor in model.graph.initializer:
        if tensor.name not in kernels:
            kept.append(tensor)
            continue
        integers, scales = _int8(numpy_helper.to_array(tensor))
        parts = {f"{tensor.name}/int8": integers, f"{tensor.name}/scale": scales}
        added += [numpy_helper.from_array(value, name) for name, value in parts.items()]
        nodes.append(helper.make_node("DequantizeLinear", list(parts), [tensor.name], axis=1))
    nodes += model.graph.node
    nodes, tensors = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes], [*kept, *added]
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(tensors)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
