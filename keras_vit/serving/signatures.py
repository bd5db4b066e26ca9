"""An exported model's signatures: from encoded images or pixels to its answers, features and attention."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_vit.answers.answer import Answer, as_float32, named_outputs
from keras_vit.data import parse
from keras_vit.fit.checks.pixels import InputRange
from keras_vit.inspection.attention import attention_map_function
from keras_vit.models import features
from keras_vit.prediction.decoding_in_graph import decoder, with_status
from keras_vit.prediction.preprocessing import preprocessing_text


class Signature(NamedTuple):
    """A function of one tensor, its tensor spec, and its purpose in words."""

    function: Callable[[Any], dict[str, Any]]
    takes: tf.TensorSpec
    purpose: str


_ENCODED = tf.TensorSpec((None,), tf.string, name="encoded_images")


def _images(model, dtype=tf.float32):
    """The tensor spec of batches of images of the model's size."""
    return tf.TensorSpec((None, *model.image_size, model.channels), dtype, name="images")


def _once(function, takes):
    """`function` as a graph that several signatures call: traced and stored once."""
    return tf.function(function, input_signature=[takes], autograph=False)


def _or_none(make, model):
    """make(model); None if the model does not pool, has no attention, or contains no ViT or BiT."""
    try:
        return make(model)
    except ValueError:
        return None


def _decoder(model, own):
    """Encoded images (b,) -> the model's images and their status, as a graph."""
    decoded = decoder(parse(preprocessing_text(model)).graph("image"), (*model.image_size, model.channels))

    def decoded_pixels(encoded_images):
        of_bytes, status = decoded(encoded_images)
        return own(of_bytes), status

    return _once(decoded_pixels, _ENCODED)


def _answer_signatures(model, answer, own, decode):
    """The signatures of an answer."""
    images = _images(model)
    named = _once(lambda images: answer.named(model(images, training=False)), images)
    pixels = f"all outputs, of pixels {InputRange.of(model)} of the model's size"
    further = {name: Signature(function, _ENCODED, what) for name, (function, what) in answer.further().items()}
    return {
        "serving_default": Signature(answer.of_encoded(decode, named), _ENCODED, f"{answer.what}, of encoded images"),
        "pixels": Signature(named, images, pixels),
        "pixels_uint8": Signature(
            lambda images: named(own(images)), _images(model, tf.uint8), "the same, of bytes: a quarter of the traffic"
        ),
        "pixels_training": Signature(
            lambda images: answer.trained(model(images, training=True)), images, "the same with dropout, to train on"
        ),
        **further,
    }


def _feature_signatures(model, tensor, decode):
    """The signatures of the model's features, the symbolic `tensor`."""
    extractor, images = keras.Model(model.input, tensor), _images(model)

    def pooled(training):
        return lambda images: as_float32({"features": extractor(images, training=training)})

    once = _once(pooled(False), images)
    what = "the input of the head: for search, clustering and your own heads"
    return {
        "features": Signature(once, images, what),
        "encoded_features": Signature(with_status(decode, once), _ENCODED, "the same, of encoded images"),
        "features_training": Signature(pooled(True), images, "the same with dropout, to train on"),
    }


def _attention_signatures(model, attention, decode):
    """The signatures of the model's attention map."""
    mapped = _once(lambda images: {"attention": attention(images)}, _images(model))
    what = "where the model looked: attention rollout on the grid of patches, 1 at most"
    return {
        "attention": Signature(mapped, _images(model), what),
        "encoded_attention": Signature(with_status(decode, mapped), _ENCODED, "the same, of encoded images"),
    }


def signatures(model: keras.Model, answers: Sequence[Answer]) -> dict[str, Signature]:
    """A model's signatures by name, of its bound answers, its features and its attention."""
    pixels = InputRange.of(model)

    def own(images):
        """Pixels 0..255, uint8, as the model's, float32."""
        return tf.cast(pixels.of_bytes(images), tf.float32)

    decode = _decoder(model, own)
    tensor, attention = _or_none(features, model), _or_none(attention_map_function, model)
    found: dict[str, Signature] = {}
    for answer in answers:
        if not answer.is_by_product:
            found |= _answer_signatures(model, answer, own, decode)
    if tensor is not None:
        found |= _feature_signatures(model, tensor, decode)
        found.setdefault("serving_default", found["features"]._replace(purpose="the features of images"))
    if attention is not None:
        found |= _attention_signatures(model, attention, decode)
    return found


def own_outputs(model: keras.Model) -> Signature:
    """The model's outputs alone, by name, from pixels."""
    return Signature(
        lambda images: as_float32(named_outputs(model(images, training=False))), _images(model), "the model's outputs"
    )


def all_outputs(model: keras.Model, answers: Sequence[Answer]) -> Signature:
    """All outputs from pixels, computed once: those of the model's answers by name and, if it pools, its features."""
    tensor = _or_none(features, model)
    parts = {"outputs": model.output, **({} if tensor is None else {"features": tensor})}
    whole = keras.Model(model.input, parts)

    def everything(images):
        results = whole(images, training=False)
        named = {} if tensor is None else as_float32({"features": results["features"]})
        for answer in answers:
            if not answer.is_by_product:
                named |= answer.in_files(results["outputs"])
        return named

    return Signature(everything, _images(model), f"all outputs, of pixels {InputRange.of(model)} of the model's size")
