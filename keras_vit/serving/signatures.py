"""An exported model's signatures: from encoded images or pixels to classes, features and attention."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_vit.data import parse
from keras_vit.inspection.attention import attention_map_function
from keras_vit.models import Classifier, features
from keras_vit.serving.decoding import decoder
from keras_vit.serving.description import OK
from keras_vit.serving.mask_signature import masks_of_bytes
from keras_vit.training.checks.pixel_range import InputRange
from keras_vit.training.prediction.preprocessing import preprocessing_text
from keras_vit.training.prediction.segment import estimates_depth, is_dense, segments


class Signature(NamedTuple):
    """A function of one tensor, its tensor spec, and its purpose in words."""

    function: Callable[[Any], dict[str, Any]]
    takes: tf.TensorSpec
    purpose: str


def _float32(outputs):
    """Outputs in float32; integers stay."""
    integers = {name for name, value in outputs.items() if keras.backend.is_int_dtype(value.dtype)}
    return {name: value if name in integers else keras.ops.cast(value, "float32") for name, value in outputs.items()}


def named_outputs(outputs: Any) -> dict[str, Any]:
    """A model's outputs as a dict: one tensor is "outputs", a list "outputs_0"..."""
    if isinstance(outputs, dict):
        return outputs
    if isinstance(outputs, (list, tuple)):
        return {f"outputs_{i}": value for i, value in enumerate(outputs)}
    return {"outputs": outputs}


def pixel_classes(logits: Any, activation: Callable) -> dict[str, Any]:
    """Logits (b, h, w, k) as {"ids": numbers of the best classes (b, h, w) int32, "probabilities": like the logits}."""
    logits = keras.ops.cast(logits, "float32")
    # Not keras.ops.argmax, whose test for negative zeros LiteRT lacks.
    return {"ids": tf.argmax(logits, axis=-1, output_type=tf.int32), "probabilities": activation(logits)}


def depths(outputs: Any) -> dict[str, Any]:
    """Outputs (b, h, w, 1) of a model for depth as {"depth": (b, h, w) float32}."""
    return {"depth": keras.ops.cast(outputs[..., 0], "float32")}


def _named(model, activation, outputs):
    """A model's outputs by name: logits and probabilities; `pixel_classes`; `depths`; "outputs" for custom heads."""
    if segments(model):
        return pixel_classes(outputs, activation)
    if estimates_depth(model):
        return depths(outputs)
    results = {} if isinstance(model, Classifier) or is_dense(model) else named_outputs(outputs)
    if model.classes is not None:
        results = {**results, "logits": outputs, "probabilities": activation(keras.ops.cast(outputs, "float32"))}
    return _float32(results)


def _scores(model, activation, training):
    """images (b, h, w, c) -> the model's outputs by name."""
    return lambda images: _named(model, activation, model(images, training=training))


def _trained(model, activation):
    """`_scores` with dropout; of every pixel the logits, which losses take."""
    if segments(model):
        return lambda images: _float32({"logits": model(images, training=True)})
    return _scores(model, activation, True)


def _best(model, scores, top_k):
    """images (b, h, w, c) -> the top k probabilities and class names (b, k), best first; or the model's outputs."""
    if model.classes is None or is_dense(model):
        return scores
    names = tf.constant(model.class_names or [str(i) for i in range(model.classes)])

    def best(images):
        found = tf.math.top_k(scores(images)["probabilities"], k=min(top_k, model.classes))
        return {"probabilities": found.values, "classes": tf.gather(names, found.indices)}

    return best


def _features(model, tensor, training):
    """images (b, h, w, c) -> features (b, d); `tensor` is the symbolic features."""
    extractor = keras.Model(model.input, tensor)
    return lambda images: _float32({"features": extractor(images, training=training)})


def _from_bytes(decode, function):
    """`function` of images as one of encoded images (b,) strings, with a status (b,); bad images have empty rows."""

    def emptied(value, status):
        """`value` (b, ...) with zeros, or empty strings, in the rows of undecoded images."""
        decoded = tf.reshape(status == OK, (-1, *(1 for _ in value.shape[1:])))
        return tf.where(decoded, value, tf.zeros((), value.dtype) if value.dtype != tf.string else tf.constant(""))

    def encoded(encoded_images):
        images, status = decode(encoded_images)
        results = function(images)
        return {**{name: emptied(value, status) for name, value in results.items()}, "status": status}

    return encoded


def _or_none(make, model):
    """make(model); None if the model does not pool, has no attention, or holds no ViT or BiT."""
    try:
        return make(model)
    except ValueError:
        return None


def signatures(model: keras.Model, top_k: int, activation: Callable | None) -> dict[str, Signature]:
    """A model's signatures by name; `activation` maps logits to probabilities, None for a model without classes."""
    encoded = tf.TensorSpec((None,), tf.string, name="encoded_images")
    images = tf.TensorSpec((None, *model.image_size, model.channels), tf.float32, name="images")
    bytes_like = tf.TensorSpec(images.shape, tf.uint8, name="images")
    found: dict[str, Signature] = {}
    pixels = InputRange.of(model)

    def own(images):
        """Pixels 0..255, uint8, as the model's, float32."""
        return tf.cast(pixels.of_bytes(images), tf.float32)

    def add(name, function, takes, purpose):
        found[name] = Signature(function, takes, purpose)

    def once(function, takes=images):
        """`function` as a graph that several signatures call: traced and stored once."""
        return tf.function(function, input_signature=[takes], autograph=False)

    decoded = decoder(parse(preprocessing_text(model)).image, tuple(images.shape[1:]))

    def decoded_pixels(encoded_images):
        of_bytes, status = decoded(encoded_images)
        return own(of_bytes), status

    decode = once(decoded_pixels, encoded)
    tensor, attention = _or_none(features, model), _or_none(attention_map_function, model)
    if isinstance(model, Classifier) and model.classes is None:
        add("serving_default", _features(model, tensor, False), images, "the features of images")
    else:
        what = "the model's outputs" if model.classes is None else "the most probable classes, best first"
        if is_dense(model):
            what = f"the {'depth' if estimates_depth(model) else 'class'} of every pixel of the model's size"
        scores = once(_scores(model, activation, False))
        add("serving_default", _from_bytes(decode, _best(model, scores, top_k)), encoded, f"{what}, of encoded images")
        add("pixels", scores, images, f"all outputs, of pixels {pixels} of the model's size")
        add(
            "pixels_uint8",
            lambda images: scores(own(images)),
            bytes_like,
            "the same, of bytes: a quarter of the traffic",
        )
        add("pixels_training", _trained(model, activation), images, "the same with dropout, to train on")
    if segments(model):
        what = "masks as PNG files of class numbers, of encoded images, each at its image's own size"
        add("encoded_masks", masks_of_bytes(model, pixels), encoded, what)
    if tensor is not None:
        pooled = once(_features(model, tensor, False))
        add("features", pooled, images, "the input of the head: for search, clustering and your own heads")
        add("encoded_features", _from_bytes(decode, pooled), encoded, "the same, of encoded images")
        add("features_training", _features(model, tensor, True), images, "the same with dropout, to train on")
    if attention is not None:
        mapped = once(lambda images: {"attention": attention(images)})
        add("attention", mapped, images, "where the model looked: attention rollout on the grid of patches, 1 at most")
        add("encoded_attention", _from_bytes(decode, mapped), encoded, "the same, of encoded images")
    return found


def own_outputs(model: keras.Model) -> Signature:
    """The model's outputs alone, by name, from pixels."""
    takes = tf.TensorSpec((None, *model.image_size, model.channels), tf.float32, name="images")
    return Signature(
        lambda images: _float32(named_outputs(model(images, training=False))), takes, "the model's outputs"
    )


def all_outputs(model: keras.Model, activation: Callable | None) -> Signature:
    """All outputs from pixels, computed once: the model's outputs by name and, if it pools, its features."""
    tensor = _or_none(features, model)
    parts = {"outputs": model.output, **({} if tensor is None else {"features": tensor})}
    whole = keras.Model(model.input, parts)

    def everything(images):
        results = whole(images, training=False)
        pooled = {"features": results["features"]} if tensor is not None else {}
        return _float32({**pooled, **_named(model, activation, results["outputs"])})

    takes = tf.TensorSpec((None, *model.image_size, model.channels), tf.float32, name="images")
    return Signature(everything, takes, f"all outputs, of pixels {InputRange.of(model)} of the model's size")
