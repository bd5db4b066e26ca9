"""A model's forward pass, from pixels to outputs, by OpenVINO, which is faster on CPUs than TensorFlow.

    run = keras_vit.serving.runner(model, "openvino")
    logits = run(pixels)

OpenVINO reads the graph that TensorFlow traces; nothing is written to disk.
"""

import functools
import logging
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import keras
import numpy as np

from keras_vit.fit.checks.inputs import check_images
from keras_vit.fit.checks.pixels import InputRange
from keras_vit.io.suggest import check_known
from keras_vit.serving.same_outputs import check_float32, compare

# OpenVINO's precision. By default it is bfloat16 wherever the processor has it.
ENGINES = {"openvino": "f32", "openvino_bfloat16": "bf16"}


def import_openvino() -> ModuleType:
    """OpenVINO, imported without its telemetry, which would fork this process at each conversion to send its options
    to Google Analytics. An import before this one decides for the whole process. The logs keep their form, too.
    """
    telemetry = "openvino_telemetry"
    if telemetry in sys.modules:
        import openvino

        return openvino
    sys.modules[telemetry] = None  # as if it were not installed: OpenVINO does without it
    handlers = [*logging.root.handlers]
    try:
        import openvino
    finally:
        del sys.modules[telemetry]
        logging.root.handlers[:] = handlers  # OpenVINO removes absl's
    return openvino


@functools.cache
def openvino_core() -> Any:
    """OpenVINO's Core, one for the process.

    Each Core installs a stack for signal handlers and removes it at its end. Once two have overlapped, the stack may be
    gone, and the next signal, such as SIGTERM, kills the process (seen with OpenVINO 2026.4.1).
    """
    return import_openvino().Core()


def _openvino(engine):
    """(the library, its Core), for an available engine.

    Raises:
        ValueError, ImportError: saying what to do instead.
    """
    check_known(engine, "engine", ENGINES, ", or None for the one that Keras computes with")
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f'engine="{engine}" reads the graphs of TensorFlow, and Keras computes with {keras.backend.backend()} here:'
            " start Python with KERAS_BACKEND=tensorflow, or leave the engine out."
        )
    try:
        openvino = import_openvino()
    except ImportError:
        raise ImportError(f'engine="{engine}" needs OpenVINO: pip install openvino.') from None
    core = openvino_core()
    if ENGINES[engine] == "bf16" and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise ValueError(
            f'engine="{engine}": this processor has no instructions for bfloat16, and would compute in float32: write'
            ' engine="openvino".'
        )
    return openvino, core


def _traced(model):
    """The graph from images to the model's outputs in order, as {"output_0": float32 tensor, ...}."""
    import tensorflow as tf

    def forward(images):
        outputs = keras.tree.flatten(model(images, training=False))
        return {f"output_{i}": tf.cast(value, tf.float32) for i, value in enumerate(outputs)}

    takes = tf.TensorSpec((None, *model.input.shape[1:]), tf.float32, name="images")
    return tf.function(forward, input_signature=[takes], autograph=False).get_concrete_function()


def _converted(openvino, graph, name):
    """The graph as OpenVINO's, with copies of the weights: by default it would share them.

    Raises:
        ValueError: naming the operations without an OpenVINO form.
    """
    try:
        return openvino.convert_model(graph, share_weights=False)
    except Exception as error:  # of the conversion's own kinds
        lines = str(error).strip().splitlines()
        why = next((line.removeprefix("-- ") for line in lines if line.startswith("-- ")), lines[0])
        raise ValueError(f'OpenVINO cannot compute "{name}": {why}. Leave the engine out.') from None


def runner(model: keras.Model, engine: str) -> Callable[[np.ndarray], Any]:
    """Returns pixels (b, height, width, c), 0..255 -> the model's outputs as float32 arrays, in the model's structure.

    It is checked against the model on two images, copies the current weights, and is thread-safe. Like `predict`, it
    refuses images on another scale unless model.check_pixels is False.

    Args:
        model: a keras_vit.Model, or any functional model with one image input of fixed size.
        engine: "openvino" in float32, or "openvino_bfloat16" on a processor with such instructions.

    Raises:
        ValueError: for an engine that is unknown or unavailable on this machine or backend, or a model with another
            input, in another precision, or with outputs that differ in OpenVINO.
        ImportError: if OpenVINO is not installed.
    """
    openvino, core = _openvino(engine)
    if len(model.inputs) != 1 or len(model.inputs[0].shape) != 4 or None in model.inputs[0].shape[1:]:
        raise ValueError(
            f'engine="{engine}" takes a model with one input of images of fixed size, got the input'
            f" {model.input_shape}."
        )
    check_float32(
        model,
        f'engine="{engine}"',
        "Load the model in floats; an ONNX file can be int8: keras_vit.export(quantization=...).",
    )
    graph = _traced(model)
    converted = _converted(openvino, graph, model.name)
    options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": ENGINES[engine]}
    compiled = core.compile_model(converted, "CPU", options)
    names = [f"output_{i}" for i in range(len(graph.structured_outputs))]

    def arrays(images):
        found = compiled.infer_new_request({"images": np.asarray(images, "float32")})
        return {name: found[name] for name in names}

    drawn = np.random.default_rng(0).uniform(0, 255, (2, *model.input.shape[1:])).astype("float32")
    pixels = InputRange.of(model).of_bytes(drawn)
    expected = {name: value.numpy() for name, value in graph(images=keras.ops.convert_to_tensor(pixels)).items()}
    compare(expected, arrays(pixels), "OpenVINO", exact=ENGINES[engine] == "f32", advice="Leave the engine out.")

    def run(images):
        check_images(model, np.asarray(images))
        return keras.tree.pack_sequence_as(model.output, list(arrays(images).values()))

    return run
