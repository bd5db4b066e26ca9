"""A model as a LiteRT (TensorFlow Lite) file, in floats or int8, and LiteRT to run it."""

import contextlib
import io
import re
import tempfile
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter
from ai_edge_quantizer import qtyping, quantizer
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from keras_vit.serving.signatures import Signature


def convert(signature: Signature, path: str) -> None:
    """Writes what `signature` computes, as float32 operations, to `path`.

    Raises:
        ValueError: for a model that LiteRT's operations cannot express.
    """
    function = tf.function(signature.function, input_signature=[signature.takes], autograph=False).get_concrete_function()
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
                f"LiteRT lacks operations of this model: {', '.join(missing)}. Token merging (ToMe) needs such: load the model without it."
            ) from None
    with open(path, "wb") as file:
        file.write(model)


def quantize(source: str, path: str, quantization: str, pixels: np.ndarray | None) -> None:
    """Writes the float file `source` to `path` with "int8_weights" or "int8_dynamic"; `pixels` are for formats that calibrate.

    Kernels have a scale for each column. Convolutions and the products inside attention stay in floats.
    """
    maker = quantizer.Quantizer(source)
    add = maker.add_weight_only_config if quantization == "int8_weights" else maker.add_dynamic_config
    add(regex=".*", operation_name=qtyping.TFLOperationName.FULLY_CONNECTED, num_bits=8)
    with contextlib.redirect_stdout(io.StringIO()), open(path, "wb") as file:
        file.write(maker.quantize().quantized_model)


def runner(path: str) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    """The function from pixels (b, h, w, c) float32 to the file's outputs by name, run by LiteRT on the CPU."""
    run = Interpreter(model_path=path).get_signature_runner()
    return lambda images: run(images=images)
