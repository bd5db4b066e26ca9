"""Text encoders and text towers for serving: token ids to features or embeddings, as a SavedModel or an ONNX file."""

import json
import os
import tempfile
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_vit.io.atomic import replacing
from keras_vit.serving import single_file
from keras_vit.serving.same_outputs import compare
from keras_vit.version import __version__

FORMATS = ("tf_saved_model", "onnx")
_TOKENS = "tokens"  # the name of the input


def takes_texts(model: keras.Model) -> bool:
    """Whether a model's only input is token ids (b, n), as of a TextEncoder and of a DualEncoder's text tower."""
    return len(model.inputs) == 1 and model.inputs[0].dtype == "int32" and len(model.inputs[0].shape) == 2


def _token_ids(model, calibration):
    """Calibration texts as token ids (n, length) int32.

    Raises:
        ValueError: for fewer than 16 texts, another length, or ids outside the vocabulary.
    """
    ids, length = np.asarray(calibration), model.inputs[0].shape[1]
    if ids.ndim != 2 or ids.shape[1] != length or ids.dtype.kind not in "iu":
        raise ValueError(
            f'calibration: "{model.name}" takes token ids, integers (n, {length}), got {ids.dtype} of shape'
            f" {ids.shape}. Make them with the model's tokenizer."
        )
    if len(ids) < single_file.FEWEST:
        raise ValueError(f"calibration: expected at least {single_file.FEWEST} texts, got {len(ids)}.")
    tables = [layer.input_dim for layer in model._flatten_layers() if isinstance(layer, keras.layers.Embedding)]
    vocabulary = max(tables, default=2**31)
    if ids.min() < 0 or ids.max() >= vocabulary:
        raise ValueError(
            f'calibration: "{model.name}" takes token ids from 0 to {vocabulary - 1}, got some from {ids.min()} to'
            f" {ids.max()}. Make them with the model's tokenizer."
        )
    return ids.astype("int32")


def _write_onnx(model, path, quantization, ids, ranges):
    """Writes the file and PATH.json; ValueError if ONNX Runtime computes other outputs."""
    import tensorflow as tf

    from keras_vit.serving import onnx_format

    length, name = model.inputs[0].shape[1], "embeddings" if model.name.endswith("_tower") else "features"
    takes = tf.TensorSpec((None, length), tf.int32, _TOKENS)
    function = tf.function(
        lambda tokens: {name: model(tokens, training=False)}, input_signature=[takes], autograph=False
    )
    about = {
        "keras_vit": __version__,
        "model": model.name,
        "parameters": int(model.count_params()),
        "inputs": {_TOKENS: {"dtype": "int32", "shape": ["b", length]}},
        "outputs": {name: {"dtype": "float32", "shape": ["b", model.outputs[0].shape[1]]}},
    }
    with (
        replacing(path) as file,
        replacing(f"{path}.json") as beside,
        tempfile.TemporaryDirectory() as folder,
    ):
        whole = os.path.join(folder, "float.onnx") if quantization else file
        with single_file.quiet():
            onnx_format.convert(function, takes, whole)
        report = None
        if quantization:
            report = single_file.quantize(model, "onnx", whole, file, quantization, ids, (), ranges)
        run, exact = onnx_format.runner(file), not quantization
        examples = (np.tile(np.arange(length, dtype="int32") % 2, (3, 1)), np.zeros((1, length), "int32"))
        for one in examples if ids is None else (ids[:3], ids[:1]):
            expected = {key: np.asarray(value) for key, value in function(one).items()}
            compare(expected, run(one), "ONNX Runtime", exact=exact)
        with open(beside, "w", encoding="utf-8") as out:
            json.dump({**about, "quantization": quantization, **({"int8": report} if report else {})}, out, indent=2)


def export_texts(
    model: keras.Model,
    path: str,
    format: str,
    options: dict[str, Any],
    quantization: str | None = None,
    calibration: Any = None,
    ranges: Mapping[str, float] | None = None,
) -> None:
    """Exports a model of token ids; arguments as in `keras_vit.export`, of which `options` are set.

    `calibration` are token ids (n, length), 16 or more.

    Raises:
        ValueError: for another format, options, or ONNX on another backend than TensorFlow.
    """
    given = [name for name, value in options.items() if value not in (None, False)]
    if given:
        raise ValueError(f'{", ".join(given)}: without effect for "{model.name}", which takes texts. Leave them out.')
    if format not in FORMATS:
        raise ValueError(f'"{model.name}" takes texts, which format="{format}" does not. Valid: {", ".join(FORMATS)}.')
    single_file.check_quantization(format, quantization, calibration, ranges)
    single_file.check_ranges(model, format, quantization, calibration, ranges)
    if format == "tf_saved_model":
        return keras.Model.export(model, os.fspath(path), format=format, verbose=False)
    if keras.backend.backend() != "tensorflow":
        raise ValueError("Text encoders become ONNX files on the TensorFlow backend: set KERAS_BACKEND=tensorflow.")
    single_file.check(model, path, format)
    _write_onnx(model, path, quantization, None if calibration is None else _token_ids(model, calibration), ranges)
