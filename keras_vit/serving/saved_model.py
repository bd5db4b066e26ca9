"""A TensorFlow SavedModel for servers, with names, warm-up requests, a description."""

import contextlib
import functools
import os
from collections.abc import Sequence

import keras
import tensorflow as tf
from absl import logging
from tensorflow.core.protobuf import saved_model_pb2

from keras_vit.answers import Answer
from keras_vit.io.atomic import replacing
from keras_vit.io.progress import stage
from keras_vit.serving import export_description, warmup
from keras_vit.serving.signatures import Signature, signatures


def _tensors(infos):
    """{name: "dtype (shape)"} of a signature's tensors, as the SavedModel states them."""
    found = {}
    for name, info in sorted(infos.items()):
        sizes = ["b" if dim.size < 0 else str(dim.size) for dim in info.tensor_shape.dim]
        found[name] = f"{tf.as_dtype(info.dtype).name} ({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
    return found


def _title(path):
    """An export's name: its folder's, or that above a version's number."""
    parent, name = os.path.split(os.path.abspath(path))
    return os.path.basename(parent) if name.isdigit() else name


def _stated(folder: str, made: dict[str, Signature]) -> dict:
    """{signature: {"purpose", "inputs", "outputs"}} of an export, from its saved_model.pb."""
    saved = saved_model_pb2.SavedModel()
    with open(os.path.join(folder, "saved_model.pb"), "rb") as file:
        saved.ParseFromString(file.read())
    stated = saved.meta_graphs[0].signature_def
    return {
        name: {
            "purpose": signature.purpose,
            "inputs": _tensors(stated[name].inputs),
            "outputs": _tensors(stated[name].outputs),
        }
        for name, signature in made.items()
    }


@contextlib.contextmanager
def _without_remarks():
    """A context without TensorFlow's remarks, of which it logs many; stages are logged."""
    logger = logging.get_absl_logger()

    def is_wanted(record):
        return record.levelname != "INFO" or record.module == "progress"

    logger.addFilter(is_wanted)
    try:
        yield
    finally:
        logger.removeFilter(is_wanted)


def _announced(name, function):
    """A signature's `function` that announces its tracing. Saving traces it, even if it was traced before."""

    @functools.wraps(function)
    def traced(*inputs):
        with stage(f"Tracing the signature {name}"):
            return function(*inputs)

    return traced


def _save(model, folder, made):
    """Writes the signatures `made`, also as functions of the loaded object, and lists of the model's variables.

    keras.export.ExportArchive would trace every function twice, once before saving.
    """
    exported = tf.__internal__.tracking.AutoTrackable()
    for collection in ("variables", "trainable_variables", "non_trainable_variables"):
        setattr(exported, collection, [variable.value for variable in getattr(model, collection)])
    functions = {
        name: tf.function(_announced(name, signature.function), input_signature=[signature.takes], autograph=False)
        for name, signature in made.items()
    }
    for name, function in functions.items():
        setattr(exported, name, function)
    with stage("Writing the SavedModel"), _without_remarks():
        tf.saved_model.save(exported, folder, signatures=functions)


def write(model: keras.Model, path: str, answers: Sequence[Answer], verbose: bool) -> None:
    """Writes the SavedModel of a model and its bound answers atomically; arguments as in `keras_vit.export`.

    Raises:
        OSError: if writing fails.
    """
    made = signatures(model, answers)
    warm = {name: signature.takes for name, signature in made.items() if not name.endswith("_training")}
    try:
        with replacing(path) as folder:
            _save(model, folder, made)
            stated = _stated(folder, made)
            if verbose:
                for name, signature in stated.items():
                    print(f"{name}: {signature['inputs']} -> {signature['outputs']}, {signature['purpose']}")
            metadata = {**export_description.describe(model, answers), "signatures": stated}
            export_description.write(folder, _title(path), metadata)
            warmup.write(folder, model.name, warm, (*model.image_size, model.channels))
    except tf.errors.OpError as error:
        raise OSError(
            f'The export "{path}" cannot be written: {error.message}. The earlier one is unchanged.'
        ) from error
