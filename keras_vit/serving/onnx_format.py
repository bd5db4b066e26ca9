"""Models as ONNX files, in floats or int8, and ONNX Runtime to run them."""

import contextlib
import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tf2onnx
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from tf2onnx.constants import ENV_TF2ONNX_CATCH_ERRORS as _CATCH

from keras_vit.serving.onnx_fusions import fuse
from keras_vit.serving.onnx_tokens import keep_tokens

_OPSET = 18  # layer normalisation needs 17, and tf2onnx supports 18 at most


@contextlib.contextmanager
def _without_copies() -> Iterator[None]:
    """A context that stops tf2onnx from copying the whole graph, with weights, before each of its dozens of passes."""
    before = os.environ.get(_CATCH)
    os.environ[_CATCH] = "FALSE"
    try:
        yield
    finally:
        os.environ.pop(_CATCH) if before is None else os.environ.update({_CATCH: before})


def read_names(graph: onnx.GraphProto) -> Iterator[str]:
    """The names that a graph's nodes and outputs read, in its subgraphs too."""
    yield from (value.name for value in graph.output)
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from read_names(inner)


def _drop_unused(graph):
    """Removes constants that no node reads, about which ONNX Runtime warns."""
    used = set(read_names(graph))
    for i in reversed(range(len(graph.initializer))):
        if graph.initializer[i].name not in used:
            del graph.initializer[i]


def _copy_unchanged_states(graph):
    """Lets loops return a copy of each state that they only read: OpenVINO refuses a state that is its own output."""
    bodies = [attribute.g for node in graph.node if node.op_type == "Loop" for attribute in node.attribute]
    for body in bodies:
        states = {state.name for state in body.input}
        for output in body.output:
            if output.name in states:
                body.node.append(helper.make_node("Identity", [output.name], [f"{output.name}/unchanged"]))
                output.name = f"{output.name}/unchanged"


def convert(function: Any, takes: Any, path: str) -> None:
    """Writes `function`, a tf.function of the tensor spec `takes`, as float32 operations to `path`.

    Raises:
        ValueError: for a model that ONNX's operations cannot express.
    """
    kept = (lambda *_: None, [])  # unchanged: `fuse` rewrites it
    with _without_copies():
        model, _ = tf2onnx.convert.from_function(
            function, input_signature=[takes], opset=_OPSET, custom_op_handlers={"Erfc": kept}
        )
    gc.collect()  # frees graphs with all weights in reference cycles
    fuse(model)
    missing = sorted({node.op_type for node in model.graph.node if not onnx.defs.has(node.op_type, node.domain)})
    if missing:
        raise ValueError(
            f"ONNX lacks operations of this model: {', '.join(missing)}. Token merging (ToMe) needs these: load the"
            f" model without it."
        )
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "b"
    keep_tokens(model)
    _copy_unchanged_states(model.graph)
    _drop_unused(model.graph)
    model.producer_name, model.producer_version = "keras_vit", ""
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def _products(path):
    """Names of matrix products with weights: not the patch embedding, convolutions and attention's products."""
    graph = onnx.load(path).graph
    weights = {tensor.name for tensor in graph.initializer}
    return [node.name for node in graph.node if node.op_type == "MatMul" and weights.intersection(node.input)]


def int8_kernel(kernel: np.ndarray, largest: int = 127) -> tuple[np.ndarray, np.ndarray]:
    """(integers of a kernel (d, m), scales (m,)), symmetric: each column's largest is `largest`."""
    scales = np.maximum(np.abs(kernel).max(0), np.finfo("float32").tiny * largest) / largest
    return np.round(kernel / scales).astype("int8"), scales.astype("float32")


def _quantize_weights(source, path, names):
    """Writes `source` to `path` with the kernels of the products `names` in int8, one scale per column.

    They become floats again where they are used.
    """
    model = onnx.load(source)
    kernels = {node.input[1] for node in model.graph.node if node.name in names}
    kept, added, nodes = [], [], []
    for tensor in model.graph.initializer:
        if tensor.name not in kernels:
            kept.append(tensor)
            continue
        integers, scales = int8_kernel(numpy_helper.to_array(tensor))
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


def quantize(source: str, path: str, quantization: str) -> None:
    """Quantises the float file `source` to `path`: int8_weights or int8_dynamic; onnx_static.py has int8_static.

    Raises:
        ValueError: for a model without weighted products, such as a BiT without a head.
    """
    products = _products(source)
    if not products:
        raise ValueError(
            f'quantization="{quantization}" quantises dense layers, and this model has none: leave quantization out.'
        )
    if quantization == "int8_weights":
        _quantize_weights(source, path, products)
        return
    quantize_dynamic(
        source,
        path,
        per_channel=True,
        reduce_range=True,  # 7-bit kernels, as in onnx_static.py
        weight_type=QuantType.QInt8,
        nodes_to_quantize=products,
        extra_options={"MatMulConstBOnly": True},
    )


def runner(path: str) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    """Returns the input, such as pixels (b, h, w, c) float32 -> the outputs by name, by ONNX Runtime on the CPU."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    names, [takes] = [output.name for output in session.get_outputs()], session.get_inputs()
    return lambda images: dict(zip(names, session.run(None, {takes.name: images})))
