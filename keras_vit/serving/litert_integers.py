"""Full-integer LiteRT files, for chips without floats: bytes in, integers between operations, integers out.

Kernels have 8 bits and a scale per output channel. In full_int8, products, softmax and GELU read and return 8 bits;
residual sums and normalisation, whose ranges 8 bits do not cover, 16. In full_int16 all operations read and return 16.
Operations without an integer kernel stay in floats, and are listed.
"""

from typing import Any

import numpy as np
from absl import logging
from ai_edge_quantizer import calibrator, qtyping, quantizer, recipe_manager
from ai_edge_quantizer.utils import qsv_utils

from keras_vit.fit.checks.pixels import InputRange
from keras_vit.io.progress import stage
from keras_vit.io.suggest import counted
from keras_vit.serving.litert_format import Interpreter, operations, runner
from keras_vit.serving.litert_rewrites import naming_outputs, rewritten
from keras_vit.serving.litert_static import SIGNATURE, float_constant, silent
from keras_vit.serving.static_int8 import fitting, measured, outputs, split

_Name = qtyping.TFLOperationName
_SUMS = (_Name.ADD, _Name.SUB, _Name.MUL, _Name.MEAN, _Name.RSQRT)  # residual sums and normalisation
_LARGEST = 1e6  # constant summand
_BOUND = 0.5  # of the difference: such a file is useless


def _check_sums(source):
    """Refuses sums with huge numbers, as of causal masks: in their range others are 0, and LiteRT ends the process."""
    interpreter = Interpreter(model_path=source)
    added = [index for node in interpreter._get_ops_details() if node["op_name"] == "ADD" for index in node["inputs"]]
    for value in (float_constant(interpreter, index) for index in added):
        if value is not None and not np.abs(value).max(initial=0) < _LARGEST:
            raise ValueError(f"it adds {value.flat[np.abs(value).argmax()]:.0e}, as in a causal mask")


def _recipe(wide):
    recipe = recipe_manager.RecipeManager()
    bits = 16 if wide else 8
    recipe.add_static_config(".*", _Name.ALL_SUPPORTED, activation_num_bits=bits, weight_num_bits=8)
    for operation in _SUMS:
        recipe.add_static_config(".*", operation, activation_num_bits=16, weight_num_bits=8)
    pixels = qtyping.TensorQuantizationConfig(num_bits=8, symmetric=False, dtype=qtyping.TensorDataType.UINT)
    kernels = qtyping.TensorQuantizationConfig(num_bits=8, granularity=qtyping.QuantGranularity.CHANNELWISE)
    integers = qtyping.OpQuantizationConfig(
        pixels, kernels, qtyping.ComputePrecision.INTEGER, explicit_dequantize=False
    )
    recipe.add_quantization_config(".*", _Name.INPUT, integers)
    return recipe


def _quantize(source, path, inputs, pixels, wide):
    [images] = Interpreter(model_path=source).get_input_details()
    low, high = (pixels.of_bytes(np.full((1, 1, 1, 1), byte, "float32")) for byte in (0, 255))
    with silent():
        model, recipe = rewritten(source), _recipe(wide)
        found = calibrator.Calibrator(model, qsv_update_func=qsv_utils.min_max_update)
        found.calibrate({SIGNATURE: [{"images": image[None]} for image in inputs]}, recipe)
        ranges = found.get_model_qsvs() | {images["name"]: {"min": low, "max": high}}
        quantized = quantizer.Quantizer(model, recipe.get_quantization_recipe()).quantize(ranges).quantized_model
    with open(path, "wb") as file:
        file.write(naming_outputs(quantized, model))


def _log(report):
    integers, floats = report["operations"]["integers"], report["operations"]["floats"]
    done, left = sum(integers.values()), ", ".join(f"{name} ({count})" for name, count in floats.items())
    logging.info(
        "integers: %s of %s. On %s the outputs differ from the float file's by %.1f%%%s.",
        *(done, counted(done + sum(floats.values()), "operation")),
        *(counted(report["held_out"], "held-out input"), 100 * report["difference"]),
        f"; in floats stay {left}" if left else "",
    )


def write(source: str, path: str, inputs: np.ndarray, pixels: InputRange, wide: bool) -> dict[str, Any]:
    """Writes the float file `source` of one image to `path` in integers, and logs what that costs; a report, JSON.

    Args:
        inputs: (n, h, w, c), of which every fourth does not calibrate but measures.
        pixels: the range of the model's inputs, which become bytes.
        wide: whether all operations read and return 16 bits.

    Raises:
        ValueError: for a model that integers cannot express, or only with large differences.
    """
    used, held_out = split(inputs)
    try:
        with stage(f"Calibrating on {counted(len(used), 'input')}, and quantising"):
            _check_sums(source)
            _quantize(source, path, used, pixels, wide)
        whole, found = runner(source), runner(path)
        found(held_out[:1])
    except (ValueError, RuntimeError) as error:  # the quantizer's and LiteRT's, too
        raise ValueError(
            f"LiteRT's integers cannot express this model: {str(error).rstrip('.')}. Take int8_static, which needs"
            " floats."
        ) from error
    held_out = fitting(held_out, whole)
    with stage(f"Measuring on {counted(len(held_out), 'held-out input')}"):
        differs = measured(outputs(whole, held_out), outputs(found, held_out))
    if not differs["difference"] <= _BOUND:  # also for NaN
        raise ValueError(
            f"LiteRT's integers cannot express this model: on {counted(len(held_out), 'held-out input')} the outputs"
            f" differ from the float file's by {differs['difference']:.0%}; at most {_BOUND:.0%} is accepted."
            " Calibrate with more images, or take int8_static, which needs floats."
        )
    report = {"calibrated_on": len(used), "held_out": len(held_out), "operations": operations(path), **differs}
    _log(report)
    return report
