"""An exported model's signatures: from encoded images or pixels to classes, features and attention."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_vit.classification.classify import probability_function
from keras_vit.data import parse
from keras_vit.detection.detect import finds_objects
from keras_vit.fit.checks.pixels import InputRange
from keras_vit.inspection.attention import attention_map_function
from keras_vit.models import Classifier, features
from keras_vit.prediction.preprocessing import preprocessing_text
from keras_vit.segmentation.segment import estimates_depth, is_dense, segments
from keras_vit.serving.decoding import decoder
from keras_vit.serving.detection_signature import detections_of, detections_of_bytes
from keras_vit.serving.export_description import OK
from keras_vit.serving.mask_signature import masks_of_bytes


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
    # Not keras.ops.argmax: LiteRT lacks its test for negative zeros.
    return {"ids": tf.argmax(logits, axis=-1, output_type=tf.int32), "probabilities": activation(logits)}


def depths(outputs: Any) -> dict[str, Any]:
    """Outputs (b, h, w, 1) of a model for depth as {"depth": (b, h, w) float32}."""
    return {"depth": keras.ops.cast(outputs[..., 0], "float32")}


def answers(model: keras.Model, activation: str | None, finding: Mapping[str, float]) -> Callable | None:
    """From a model's outputs to its answers: detections, or probabilities of logits; None for a model without classes.

    Args:
        activation: as in `keras_vit.export`.
        finding: a detector's options.
    """
    if finds_objects(model):
        return detections_of(model, finding)
    return None if model.classes is None else probability_function(model, activation)


def _named(model, answer, outputs):
    """A model's outputs by name: logits and probabilities; `pixel_classes`; `depths`; detections; "outputs" for custom
    heads.
    """
    if finds_objects(model):
        return answer(outputs)
    if segments(model):
        return pixel_classes(outputs, answer)
    if estimates_depth(model):
        return depths(outputs)
    results = {} if isinstance(model, Classifier) or is_dense(model) else named_outputs(outputs)
    if model.classes is not None:
        results = {**results, "logits": outputs, "probabilities": answer(keras.ops.cast(outputs, "float32"))}
    return _float32(results)


def _scores(model, answer, training):
    """images (b, h, w, c) -> the model's outputs by name."""
    return lambda images: _named(model, answer, model(images, training=training))


def _trained(model, answer):
    """`_scores` with dropout; of every pixel or candidate the outputs that losses take."""
    if finds_objects(model):
        return lambda images: _float32(model(images, training=True))
    if segments(model):
        return lambda images: _float32({"logits": model(images, training=True)})
    return _scores(model, answer, True)


def _best(model, scores, top_k):
    """images (b, h, w, c) -> the top k probabilities and class names (b, k), best first; or the model's outputs."""
    if model.classes is None or is_dense(model) or finds_objects(model):
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
    """make(model); None if the model does not pool, has no attention, or contains no ViT or BiT."""
    try:
        return make(model)
    except ValueError:
        return None


_ENCODED = tf.TensorSpec((None,), tf.string, name="encoded_images")


def _images(model, dtype=tf.float32):
    """The tensor spec of batches of images of the model's size."""
    return tf.TensorSpec((None, *model.image_size, model.channels), dtype, name="images")


def _once(function, takes):
    """`function` as a graph that several signatures call: traced and stored once."""
    return tf.function(function, input_signature=[takes], autograph=False)


def _decoder(model, own):
    """Encoded images (b,) -> the model's images and their status, as a graph."""
    decoded = decoder(parse(preprocessing_text(model)).graph("image"), (*model.image_size, model.channels))

    def decoded_pixels(encoded_images):
        of_bytes, status = decoded(encoded_images)
        return own(of_bytes), status

    return _once(decoded_pixels, _ENCODED)


def _of_outputs(model, top_k, answer, own, decode):
    """The signatures of the model's outputs."""
    images, scores = _images(model), _once(_scores(model, answer, False), _images(model))
    what = "the model's outputs" if model.classes is None else "the most probable classes, best first"
    if is_dense(model):
        what = f"the {'depth' if estimates_depth(model) else 'class'} of every pixel of the model's size"
    best = _from_bytes(decode, _best(model, scores, top_k))
    if finds_objects(model):
        what, best = "objects, highest score first", detections_of_bytes(model, own, scores)
    pixels = f"all outputs, of pixels {InputRange.of(model)} of the model's size"
    return {
        "serving_default": Signature(best, _ENCODED, f"{what}, of encoded images"),
        "pixels": Signature(scores, images, pixels),
        "pixels_uint8": Signature(
            lambda images: scores(own(images)), _images(model, tf.uint8), "the same, of bytes: a quarter of the traffic"
        ),
        "pixels_training": Signature(_trained(model, answer), images, "the same with dropout, to train on"),
    }


def _of_features(model, tensor, decode):
    """The signatures of the model's features, the symbolic `tensor`."""
    images, pooled = _images(model), _once(_features(model, tensor, False), _images(model))
    what = "the input of the head: for search, clustering and your own heads"
    training = _features(model, tensor, True)
    return {
        "features": Signature(pooled, images, what),
        "encoded_features": Signature(_from_bytes(decode, pooled), _ENCODED, "the same, of encoded images"),
        "features_training": Signature(training, images, "the same with dropout, to train on"),
    }


def _of_attention(model, attention, decode):
    """The signatures of the model's attention map."""
    mapped = _once(lambda images: {"attention": attention(images)}, _images(model))
    what = "where the model looked: attention rollout on the grid of patches, 1 at most"
    return {
        "attention": Signature(mapped, _images(model), what),
        "encoded_attention": Signature(_from_bytes(decode, mapped), _ENCODED, "the same, of encoded images"),
    }


def signatures(model: keras.Model, top_k: int, answer: Callable | None) -> dict[str, Signature]:
    """A model's signatures by name; `answer` is what `answers` returns."""
    pixels = InputRange.of(model)

    def own(images):
        """Pixels 0..255, uint8, as the model's, float32."""
        return tf.cast(pixels.of_bytes(images), tf.float32)

    decode = _decoder(model, own)
    tensor, attention = _or_none(features, model), _or_none(attention_map_function, model)
    if isinstance(model, Classifier) and model.classes is None:
        found = {
            "serving_default": Signature(_features(model, tensor, False), _images(model), "the features of images")
        }
    else:
        found = _of_outputs(model, top_k, answer, own, decode)
    if segments(model):
        what = "masks as PNG files of class numbers, of encoded images, each at its image's own size"
        found["encoded_masks"] = Signature(masks_of_bytes(model, pixels), _ENCODED, what)
    if tensor is not None:
        found |= _of_features(model, tensor, decode)
    if attention is not None:
        found |= _of_attention(model, attention, decode)
    return found


def own_outputs(model: keras.Model) -> Signature:
    """The model's outputs alone, by name, from pixels."""
    return Signature(
        lambda images: _float32(named_outputs(model(images, training=False))), _images(model), "the model's outputs"
    )


def all_outputs(model: keras.Model, answer: Callable | None) -> Signature:
    """All outputs from pixels, computed once: the model's outputs by name and, if it pools, its features.

    A detector's are its detections, and "logits" and "candidates", the boxes from which they were chosen.
    """
    tensor = _or_none(features, model)
    parts = {"outputs": model.output, **({} if tensor is None else {"features": tensor})}
    whole = keras.Model(model.input, parts)

    def everything(images):
        results = whole(images, training=False)
        others = {"features": results["features"]} if tensor is not None else {}
        outputs = results["outputs"]
        if finds_objects(model):
            others |= {"logits": outputs["logits"], "candidates": outputs["boxes"]}
        return _float32({**others, **_named(model, answer, outputs)})

    return Signature(everything, _images(model), f"all outputs, of pixels {InputRange.of(model)} of the model's size")
