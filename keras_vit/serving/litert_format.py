"""A model as a LiteRT (TensorFlow Lite) file, in floats or int8, and LiteRT to run it."""

import contextlib
import io
import re
import tempfile
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter
from ai_edge_quantizer import calibrator, qtyping, quantizer, recipe_manager
from ai_edge_quantizer.utils import qsv_utils
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from keras_vit.serving.signatures import Signature

_SIGNATURE = "serving_default"  # as TensorFlow calls the one function of a SavedModel


def convert(signature: Signature, path: str) -> None:
    """Writes what `signature` computes, as float32 operations, to `path`.

    Raises:
        ValueError: for a model that LiteRT's operations cannot express.
    """
    function = tf.function(
        signature.function, input_signature=[signature.takes], autograph=False
    ).get_concrete_function()
    names = sorted(function.structured_outputs)
    frozen = convert_variables_to_constants_v2(function)  # weights as constants: LiteRT is slow at variables
    module = tf.Module()
    module.serve = tf.function(
        lambda images: dict(zip(names, frozen(images))), input_signature=[signature.takes], autograph=False
    )
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder, signatures=module.serve.get_concrete_function())
        try:
            model = tf.lite.TFLiteConverter.from_saved_model(folder).convert()
        except Exception as error:  # ConverterError is not public
            missing = sorted(set(re.findall(r"'tf\.(\w+)' op is neither", str(error))))
            if not missing:
                raise
            raise ValueError(
                f"LiteRT lacks operations of this model: {', '.join(missing)}. Token merging (ToMe) needs such: load"
                " the model without it."
            ) from None
    with open(path, "wb") as file:
        file.write(model)


def _outputs(source):
    """The names of the tensors that a file returns."""
    return [tensor["name"] for tensor in Interpreter(model_path=source).get_output_details()]


def _dense(recipe, source, quantization):
    """Adds to a recipe how dense layers are quantised; kernels have a scale for each column."""
    how = {"operation_name": qtyping.TFLOperationName.FULLY_CONNECTED}
    if quantization == "int8_weights":
        recipe.add_weight_only_config(regex=".*", num_bits=8, **how)
        return
    if quantization == "int8_dynamic":
        recipe.add_dynamic_config(regex=".*", num_bits=8, **how)
        return
    recipe.add_static_config(regex=".*", activation_num_bits=8, weight_num_bits=8, **how)
    for output in Interpreter(model_path=source).get_output_details():  # of a static layer it would be bytes
        recipe.add_dynamic_config(regex=f"(^|;){re.escape(output['name'])};", num_bits=8, **how)


def quantize(source: str, path: str, quantization: str, pixels: np.ndarray | None) -> None:
    """Writes the float file `source`, quantised, to `path`; `pixels` (n, h, w, c) calibrate a static quantisation.

    Convolutions and the products inside attention stay in floats: with the products quantised, too, DeiT-Ti/16 has 6 of
    100 ImageNet photographs right in batches of 10, and with all operations LiteRT 2.3 does not run the file.
    """
    recipe, ranges = recipe_manager.RecipeManager(), None
    _dense(recipe, source, quantization)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        if recipe.need_calibration():
            # The quantizer's own calibration takes moving averages: values beyond them would be cut off.
            found = calibrator.Calibrator(source, qsv_update_func=qsv_utils.min_max_update)
            found.calibrate({_SIGNATURE: [{"images": image[None]} for image in pixels]}, recipe)
            ranges = found.get_model_qsvs()
        quantized = quantizer.Quantizer(source, recipe.get_quantization_recipe()).quantize(ranges).quantized_model
    with open(path, "wb") as file:
        file.write(quantized)


def runner(path: str) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    """The function from pixels (b, h, w, c) float32 to the file's outputs by name, run by LiteRT on the CPU."""
    run = Interpreter(model_path=path).get_signature_runner()
    return lambda images: run(images=images)
