"""Requests that TensorFlow Serving runs before a model is ready: assets.extra/tf_serving_warmup_requests.

The file is a TFRecord of tensorflow.serving.PredictionLog messages, written field by field: the package that defines
them pins its own TensorFlow.
"""

import os

import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

PATH = os.path.join("assets.extra", "tf_serving_warmup_requests")


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited field of a protocol buffer message."""
    size, length = len(content), bytearray()
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes([number << 3 | 2]) + bytes(length) + bytes([size]) + content


def prediction_log(model: str, signature: str, inputs: dict[str, tensor_pb2.TensorProto]) -> bytes:
    """A serialised PredictionLog of one request to a signature.

    Field numbers (tensorflow_serving/apis): PredictionLog.predict_log = 6, PredictLog.request = 1,
    PredictRequest.model_spec = 1 and inputs = 2, ModelSpec.name = 1 and signature_name = 3; a map's entry has key = 1
    and value = 2.
    """
    spec = _field(1, model.encode()) + _field(3, signature.encode())
    entries = [_field(1, name.encode()) + _field(2, tensor.SerializeToString()) for name, tensor in inputs.items()]
    request = _field(1, spec) + b"".join(_field(2, entry) for entry in entries)
    return _field(6, _field(1, request))


def _example(spec, image_shape):
    """One grey image as a signature's input, a TensorProto."""
    if spec.dtype == tf.string:
        png = tf.io.encode_png(tf.fill(image_shape, tf.constant(128, tf.uint8))).numpy()
        return tf.make_tensor_proto([png], tf.string)
    return tf.make_tensor_proto(128, spec.dtype, (1, *spec.shape[1:]))  # one value for all: few bytes


def write(folder: str, name: str, takes: dict[str, tf.TensorSpec], image_shape: tuple) -> None:
    """Writes one request per signature into an export.

    Args:
        folder: of the export.
        name: the model's.
        takes: {signature: its input}.
        image_shape: (h, w, c) of the encoded example.
    """
    path = os.path.join(folder, PATH)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    shape = (*image_shape[:2], image_shape[2] if image_shape[2] in (1, 3) else 3)
    with tf.io.TFRecordWriter(path) as writer:
        for signature, spec in takes.items():
            writer.write(prediction_log(name, signature, {spec.name: _example(spec, shape)}))
