"""Models as LiteRT (TensorFlow Lite) files, in floats or int8, and LiteRT to run them."""

import collections
import contextlib
import io
import re
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter
from ai_edge_quantizer import qtyping, quantizer, recipe_manager
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2


def convert(function: Any, takes: tf.TensorSpec, path: str) -> None:
    """Writes `function`, a tf.function of `takes`, as float32 operations to `path`.

    Raises:
        ValueError: for a model that LiteRT's operations cannot express.
    """
    graph = function.get_concrete_function()
    names = sorted(graph.structured_outputs)
    frozen = convert_variables_to_constants_v2(graph)  # LiteRT is slow at variables
    module = tf.Module()
    module.serve = tf.function(
        lambda images: dict(zip(names, frozen(images))), input_signature=[takes], autograph=False
    )
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)  # a frozen function's cannot be saved
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder, signatures=module.serve.get_concrete_function(), options=options)
        try:
            model = tf.lite.TFLiteConverter.from_saved_model(folder).convert()
        except Exception as error:  # ConverterError is not public
            missing = sorted(set(re.findall(r"'tf\.(\w+)' op is neither", str(error))))
            if not missing:
                raise
            raise ValueError(
                f"LiteRT lacks operations of this model: {', '.join(missing)}. Token merging (ToMe) needs these: load"
                f" the model without it."
            ) from None
    with open(path, "wb") as file:
        file.write(model)


def quantize(source: str, path: str, quantization: str) -> None:
    """Quantises the dense layers of `source` to `path`: int8_weights or int8_dynamic; litert_static.py has int8_static.

    A kernel has one scale per column.
    """
    recipe = recipe_manager.RecipeManager()
    add = recipe.add_weight_only_config if quantization == "int8_weights" else recipe.add_dynamic_config
    add(regex=".*", operation_name=qtyping.TFLOperationName.FULLY_CONNECTED, num_bits=8)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        quantized = quantizer.Quantizer(source, recipe.get_quantization_recipe()).quantize().quantized_model
    with open(path, "wb") as file:
        file.write(quantized)


def _quantized(x, tensor):
    """Floats as the integers of a tensor with a scale."""
    scale, zero = tensor["quantization"]
    ends = np.iinfo(tensor["dtype"])
    return np.clip(np.round(x / scale) + zero, ends.min, ends.max).astype(tensor["dtype"])


def _dequantized(x, tensor):
    """Integers with a scale as floats; other values as they are."""
    scale, zero = tensor["quantization"]
    return (x.astype("float32") - zero) * np.float32(scale) if scale else x


def runner(path: str) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    """Returns pixels (b, h, w, c) float32 -> the file's outputs by name, run by LiteRT on the CPU.

    Files in integers get bytes, one image at a time, and their outputs are floats again.
    """
    run = Interpreter(model_path=path).get_signature_runner()
    takes, gives = run.get_input_details()["images"], run.get_output_details()
    if takes["shape_signature"][0] != 1:
        return lambda images: run(images=images)

    def one_by_one(images):
        if takes["quantization"][0]:
            images = _quantized(images, takes)
        found = [run(images=image[None]) for image in images]
        return {name: _dequantized(np.concatenate([one[name] for one in found]), gives[name]) for name in gives}

    return one_by_one


def operations(path: str) -> dict[str, dict[str, int]]:
    """{"integers", "floats": {operation: count}} of a file; an operation is in floats if it reads or writes any."""
    interpreter = Interpreter(model_path=path)
    floats = {tensor["index"] for tensor in interpreter.get_tensor_details() if tensor["dtype"] == np.float32}
    counts: dict[str, collections.Counter[str]] = {kind: collections.Counter() for kind in ("integers", "floats")}
    for node in interpreter._get_ops_details():  # no public name lists operations
        kind = "floats" if floats & {*node["inputs"], *node["outputs"]} else "integers"
        counts[kind][node["op_name"]] += 1
    return {kind: dict(sorted(found.items())) for kind, found in counts.items()}


def _described(tensor):
    scale, zero = tensor["quantization"]
    about = {"dtype": tensor["dtype"].__name__, "shape": tensor["shape_signature"].tolist()}
    return about | {"scale": scale, "zero_point": zero} if scale else about


def integer_tensors(path: str) -> dict[str, Any]:
    """The description of a file in integers: its "pixels", "inputs" and "outputs", (integer - zero_point) * scale."""
    run = Interpreter(model_path=path).get_signature_runner()
    return {
        "pixels": "bytes 0..255, not normalised: the model does that itself",
        "inputs": {name: _described(tensor) for name, tensor in run.get_input_details().items()},
        "outputs": {name: _described(tensor) for name, tensor in run.get_output_details().items()},
    }
