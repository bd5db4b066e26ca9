"""Static int8 of LiteRT files: dense layers and convolutions, with the ranges of their inputs and outputs in the file.

Kernels have a symmetric scale per output channel and 8 bits; those that training rounded to 7 bits keep these. The
products inside attention stay in floats: in int8, which LiteRT 2.3 does not accelerate, DeiT-Ti/16 is slower than in
float32. litert_integers.py has all operations in integers.
"""

import contextlib
import io
import re
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter
from ai_edge_quantizer import calibrator, qtyping, quantizer, recipe_manager
from ai_edge_quantizer.algorithm_manager import AlgorithmName
from ai_edge_quantizer.utils import qsv_utils

from keras_vit.io.logs import quiet
from keras_vit.layers.fake_quantization import KERNEL_STEPS
from keras_vit.serving.static_int8 import Layers

SIGNATURE = "serving_default"  # TensorFlow's name for a SavedModel's only function
_ROUNDED = 1e-3  # how far from a step, in steps, the weights of a rounded kernel can be
_OPERATIONS = {
    "FULLY_CONNECTED": qtyping.TFLOperationName.FULLY_CONNECTED,
    "CONV_2D": qtyping.TFLOperationName.CONV_2D,
}


def float_constant(interpreter: Interpreter, index: int) -> np.ndarray | None:
    """The tensor `index` if it is a constant of floats, else None."""
    try:
        value = interpreter.get_tensor(index)
    except ValueError:
        return None
    return value if value.dtype == np.float32 else None


def _symmetric(largest):
    """The range with the scale `largest` / 127 in 8 bits, and 0 in the middle."""
    return {"min": np.full((1, 1), -largest * 128 / 127, "float32"), "max": np.full((1, 1), largest, "float32")}


def _trained_range(kernel):
    """The range of a kernel (d, ...) in which 8 bits have the steps of the 7 that training rounded it to, or None."""
    largest = np.abs(kernel).max(axis=tuple(range(1, kernel.ndim)), keepdims=True)
    scale = np.maximum(largest, np.finfo("float32").tiny) / KERNEL_STEPS
    if np.abs(kernel / scale - np.round(kernel / scale)).max() > _ROUNDED:
        return None
    return {"min": -127 * scale, "max": 127 * scale}


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """A context that hides the quantizer's remarks and bars."""
    with quiet(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


class StaticFile:
    """A float LiteRT file with the ranges of its tensors, to be written in int8.

    Args:
        source: the file.
        inputs: (n, h, w, c), to calibrate on.
        layers: the model's layers, with ranges that replace calibrated ones.

    Attributes:
        groups: {tensor: names of the products that read it}.
    """

    def __init__(self, source: str, inputs: np.ndarray, layers: Layers):
        self._source = source
        interpreter = Interpreter(model_path=source)
        names = {tensor["index"]: tensor["name"] for tensor in interpreter.get_tensor_details()}
        self.groups: dict[str, list[str]] = {}
        self._made: dict[str, list[tuple[Any, str]]] = {}  # {tensor: (operation, output) of each product}
        given: dict[str, float] = {}
        kernels: dict[str, dict[str, np.ndarray]] = {}
        for node in interpreter._get_ops_details():  # no public name lists operations
            kernel = float_constant(interpreter, node["inputs"][1]) if node["op_name"] in _OPERATIONS else None
            if kernel is None:
                continue
            tensor, output = names[node["inputs"][0]], names[node["outputs"][0]]
            name, largest = layers.find(np.moveaxis(kernel, 0, -1), output.partition(";")[0])
            self.groups.setdefault(tensor, []).append(name)
            self._made.setdefault(tensor, []).append((_OPERATIONS[node["op_name"]], output))
            if largest:
                given[tensor] = max(given.get(tensor, 0.0), largest)
            if trained := _trained_range(kernel):
                kernels[names[node["inputs"][1]]] = trained
        self._returned = {tensor["name"] for tensor in interpreter.get_output_details()}
        self._ranges = {
            **self._calibrated(inputs),
            **{tensor: _symmetric(largest) for tensor, largest in given.items()},
            **kernels,
        }

    def _recipe(self, floats):
        recipe = recipe_manager.RecipeManager()
        for operation in _OPERATIONS.values():
            recipe.add_static_config(".*", operation_name=operation, activation_num_bits=8, weight_num_bits=8)
        for tensor, products in self._made.items():
            for operation, output in products:
                regex = f"(^|;){re.escape(output)};"
                if tensor in floats:
                    recipe.add_quantization_config(regex, operation, algorithm_key=AlgorithmName.NO_QUANTIZE)
                elif output in self._returned:  # a static layer would return bytes
                    recipe.add_dynamic_config(regex, operation, num_bits=8)
        return recipe

    def _calibrated(self, inputs):
        """The quantizer's ranges; its own calibration uses moving averages, which would clip larger values."""
        with silent():
            found = calibrator.Calibrator(self._source, qsv_update_func=qsv_utils.min_max_update)
            found.calibrate({SIGNATURE: [{"images": image[None]} for image in inputs]}, self._recipe(()))
        return found.get_model_qsvs()

    def write(self, path: str, floats: Collection[str]) -> None:
        """Writes the file with all products in int8 but those of the groups `floats`."""
        recipe = self._recipe(set(floats)).get_quantization_recipe()
        with silent():
            quantized = quantizer.Quantizer(self._source, recipe).quantize(self._ranges).quantized_model
        with open(path, "wb") as file:
            file.write(quantized)
