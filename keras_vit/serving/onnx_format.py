"""Models as ONNX files, in floats or int8, and ONNX Runtime to run them."""

import contextlib
import gc
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tf2onnx
from onnx import helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from tf2onnx.constants import ENV_TF2ONNX_CATCH_ERRORS as _CATCH

from keras_vit.models.finetuning.quantization_aware import Learned
from keras_vit.serving.onnx_fusions import fuse
from keras_vit.serving.onnx_tokens import keep_tokens

_OPSET = 18  # layer normalisation needs 17, and tf2onnx supports 18 at most
# Both symmetric: TensorRT's only form, and OpenVINO's fastest.
_SYMMETRIC = {"ActivationSymmetric": True, "WeightSymmetric": True}


@contextlib.contextmanager
def _without_copies() -> Iterator[None]:
    """A context that stops tf2onnx from copying the whole graph, with weights, before each of its dozens of passes."""
    before = os.environ.get(_CATCH)
    os.environ[_CATCH] = "FALSE"
    try:
        yield
    finally:
        os.environ.pop(_CATCH) if before is None else os.environ.update({_CATCH: before})


def _inputs(graph):
    """The names that a graph's nodes and outputs read, in its subgraphs too."""
    yield from (value.name for value in graph.output)
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _inputs(inner)


def _drop_unused(graph):
    """Removes constants that no node reads, about which ONNX Runtime warns."""
    used = set(_inputs(graph))
    for i in reversed(range(len(graph.initializer))):
        if graph.initializer[i].name not in used:
            del graph.initializer[i]


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
    _drop_unused(model.graph)
    model.producer_name, model.producer_version = "keras_vit", ""
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


class _Reader(CalibrationDataReader):
    """Images one by one, for ONNX Runtime's calibration."""

    def __init__(self, pixels: np.ndarray):
        self.images: Iterator[np.ndarray] = iter(pixels)

    def get_next(self) -> dict | None:
        image = next(self.images, None)
        return None if image is None else {"images": image[None]}


def _products(path):
    """Names of matrix products with weights: not the patch embedding, convolutions and attention's products."""
    graph = onnx.load(path).graph
    weights = {tensor.name for tensor in graph.initializer}
    return [node.name for node in graph.node if node.op_type == "MatMul" and weights.intersection(node.input)]


def _int8(kernel):
    """(integers of a kernel (d, m), scales (m,)), symmetric: each column's largest is 127."""
    scales = np.maximum(np.abs(kernel).max(0), np.finfo("float32").tiny * 127) / 127
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


def _kernels(products):
    """Kernels get 7 bits: processors without VNNI add pairs of byte products in 16 bits, which 8 bits overflow."""
    return {"per_channel": True, "reduce_range": True, "weight_type": QuantType.QInt8, "nodes_to_quantize": products}


def _static(products):
    return {**_kernels(products), "activation_type": QuantType.QInt8}


def quantize(source: str, path: str, quantization: str, pixels: np.ndarray | None) -> None:
    """Quantises the float file `source` to `path`; pixels (n, h, w, c) calibrate a static quantisation.

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
    if quantization == "int8_dynamic":
        quantize_dynamic(source, path, **_kernels(products), extra_options={"MatMulConstBOnly": True})
        return
    quantize_static(source, path, _Reader(pixels), **_static(products), extra_options=_SYMMETRIC)


def _values(kernel):
    """What a kernel contains, in any order of its axes: converters transpose kernels, and rename them."""
    return np.sort(kernel, axis=None).tobytes()


def quantize_learned(source: str, path: str, layers: Mapping[str, Learned]) -> None:
    """Quantises the float file `source` to `path` as the model was trained: static, with the ranges of its layers.

    Raises:
        ValueError: if the file does not contain the kernel of a layer.
    """
    graph = onnx.load(source).graph
    by_kernel: dict[bytes, tuple[str, float]] = {}
    for name, layer in layers.items():
        values = _values(layer.kernel)
        by_kernel[values] = (name, max(layer.range, by_kernel.get(values, (name, 0.0))[1]))
    inside = {tensor.name: _values(numpy_helper.to_array(tensor)) for tensor in graph.initializer}
    products, scales, found = [], {}, set()
    for node in graph.node:
        values = inside.get(node.input[1]) if node.op_type in ("MatMul", "Conv") else None
        if values in by_kernel:
            products.append(node.name)
            found.add(by_kernel[values][0])
            scales[node.input[0]] = {
                "scale": np.array(by_kernel[values][1] / 127, "float32"),
                "zero_point": np.array(0, "int8"),
            }
    missing = {name for name, _ in by_kernel.values()} - found
    if missing:
        raise ValueError(f"The file has no products of these layers: {', '.join(sorted(missing))}.")
    takes = graph.input[0].type.tensor_type.shape.dim
    pixels = np.zeros((1, *(dim.dim_value for dim in takes[1:])), "float32")  # ONNX Runtime wants some
    given = {
        **_SYMMETRIC,
        "TensorQuantOverrides": {tensor: [scale] for tensor, scale in scales.items()},
        "OpTypesToExcludeOutputQuantization": ["MatMul", "Conv"],
    }
    quantize_static(source, path, _Reader(pixels), **_static(products), extra_options=given)


def runner(path: str) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    """Returns the input, such as pixels (b, h, w, c) float32 -> the outputs by name, by ONNX Runtime on the CPU."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    names, [takes] = [output.name for output in session.get_outputs()], session.get_inputs()
    return lambda images: dict(zip(names, session.run(None, {takes.name: images})))
