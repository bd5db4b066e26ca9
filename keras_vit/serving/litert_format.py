"""Models as LiteRT (TensorFlow Lite) files, in floats or int8, and LiteRT to run them."""

import contextlib
import io
import re
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter
from ai_edge_quantizer import calibrator, qtyping, quantizer, recipe_manager
from ai_edge_quantizer.utils import qsv_utils
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

_SIGNATURE = "serving_default"  # TensorFlow's name for a SavedModel's only function


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


def _outputs(source):
    """Names of the tensors that a file returns."""
    return [tensor["name"] for tensor in Interpreter(model_path=source).get_output_details()]


def _dense(recipe, source, quantization):
    """Adds the quantisation of dense layers, one scale per kernel column, to a recipe."""
    how = {"operation_name": qtyping.TFLOperationName.FULLY_CONNECTED}
    if quantization == "int8_weights":
        recipe.add_weight_only_config(regex=".*", num_bits=8, **how)
        return
    if quantization == "int8_dynamic":
        recipe.add_dynamic_config(regex=".*", num_bits=8, **how)
        return
    recipe.add_static_config(regex=".*", activation_num_bits=8, weight_num_bits=8, **how)
    for output in Interpreter(model_path=source).get_output_details():  # a static layer would return bytes
        recipe.add_dynamic_config(regex=f"(^|;){re.escape(output['name'])};", num_bits=8, **how)


def quantize(source: str, path: str, quantization: str, pixels: np.ndarray | None) -> None:
    """Quantises the float file `source` to `path`; pixels (n, h, w, c) calibrate a static quantisation.

    Convolutions and the products inside attention stay in floats: with quantised products, DeiT-Ti/16 classifies 6 of
    100 ImageNet photographs correctly in batches of 10; with all operations quantised, LiteRT 2.3 cannot run the file.
    """
    recipe, ranges = recipe_manager.RecipeManager(), None
    _dense(recipe, source, quantization)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        if recipe.need_calibration():
            # The quantizer's own calibration uses moving averages, which would clip larger values.
            found = calibrator.Calibrator(source, qsv_update_func=qsv_utils.min_max_update)
            found.calibrate({_SIGNATURE: [{"images": image[None]} for image in pixels]}, recipe)
            ranges = found.get_model_qsvs()
        quantized = quantizer.Quantizer(source, recipe.get_quantization_recipe()).quantize(ranges).quantized_model
    with open(path, "wb") as file:
        file.write(quantized)


def runner(path: str) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    """Returns pixels (b, h, w, c) float32 -> the file's outputs by name, run by LiteRT on the CPU."""
    run = Interpreter(model_path=path).get_signature_runner()
    return lambda images: run(images=images)
