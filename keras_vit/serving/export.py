"""Export for serving and for transfer learning elsewhere: a process that loads it needs TensorFlow only, not this package."""

import os

import keras

from keras_vit.io.atomic import check_folder, replacing
from keras_vit.io.suggest import did_you_mean
from keras_vit.models import Classifier, features
from keras_vit.models.model_and_path import check_model_and_path
from keras_vit.models.taps import ends_in_probabilities
from keras_vit.training.prediction.classify import probabilities_of
from keras_vit.training.prediction.preprocessing import preprocessing_text

FORMATS = ("tf_saved_model",)
_PARTS = {"saved_model.pb", "fingerprint.pb", "keras_metadata.pb", "variables", "assets", "assets.extra"}  # of a SavedModel


def _float32(outputs):
    return {name: keras.ops.cast(value, "float32") for name, value in outputs.items()}


def _named(outputs):
    """A model's outputs as a dict of tensors: one tensor is "outputs", several of a list "outputs_0"..."""
    if isinstance(outputs, dict):
        return outputs
    if isinstance(outputs, (list, tuple)):
        return {f"outputs_{i}": value for i, value in enumerate(outputs)}
    return {"outputs": outputs}


def _pixel_endpoint(model, training, activation):
    """images (b, h, w, c) float32 -> logits and probabilities (b, classes); outputs, for heads of the user's own."""

    def pixels(images):
        outputs = model(images, training=training)
        results = {} if isinstance(model, Classifier) else _named(outputs)
        if model.classes is not None:
            results = {**results, "logits": outputs, "probabilities": activation(keras.ops.cast(outputs, "float32"))}
        return _float32(results)

    return pixels


def _feature_endpoint(model, tensor, training):
    """images (b, h, w, c) float32 -> features (b, d); `tensor` is the symbolic features."""
    extractor = keras.Model(model.input, tensor)

    def endpoint(images):
        return _float32({"features": extractor(images, training=training)})

    return endpoint


def _bytes_endpoint(model, top_k, activation):
    """Encoded images (b,) strings -> the top k probabilities (b, k) and class names (b, k), best first; or the model's outputs."""
    import tensorflow as tf

    from keras_vit.data import parse

    preprocess = parse(preprocessing_text(model))
    shape = (*model.image_size, model.channels)

    def decoded(encoded_images):
        images = tf.map_fn(
            lambda encoded: tf.ensure_shape(preprocess.image(encoded), shape),
            encoded_images,
            fn_output_signature=tf.TensorSpec(shape, tf.uint8),
        )
        return tf.cast(images, tf.float32)

    if model.classes is None:
        return lambda encoded_images: _float32(_named(model(decoded(encoded_images), training=False)))
    names = tf.constant(model.class_names or [str(i) for i in range(model.classes)])

    def serving_default(encoded_images):
        logits = tf.cast(model(decoded(encoded_images), training=False), tf.float32)
        best = tf.math.top_k(activation(logits), k=min(top_k, model.classes))
        return {"probabilities": best.values, "classes": tf.gather(names, best.indices)}

    return serving_default


def _check_place(path):
    """Refuses a path where an export would replace something else than an export, or where none can be written."""
    if "://" in str(path):
        raise ValueError(f'"{path}" is in a bucket. Export to a local folder, then copy it there.')
    if os.path.isfile(path):
        raise ValueError(f'"{path}" is a file; an export is a folder. Give a new folder.')
    others = sorted(set(os.listdir(path)) - _PARTS) if os.path.isdir(path) else []
    if others:
        raise ValueError(
            f'"{path}" holds other files than an export, which would be lost: {", ".join(others[:5])}{", ..." if others[5:] else ""}. '
            "Give a new or an empty folder."
        )
    check_folder(os.path.dirname(os.path.abspath(path)))


def _check(model, path, format):
    path = check_model_and_path("export", model, path)
    if format not in FORMATS:
        raise ValueError(
            f'Unknown export format "{format}".{did_you_mean(format, FORMATS)} Valid: {", ".join(FORMATS)}. keras_vit.save writes weights for other libraries.'
        )
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "A SavedModel is written on the TensorFlow backend: save the model as .keras, then run keras-vit-export with "
            "KERAS_BACKEND=tensorflow."
        )
    _check_place(path)
    if model.get_encoder() is not model:
        raise ValueError(
            f'"{model.name}" is a model of pre-training, a {type(model).__name__}: fine-tune it first (finetune --config.init=...), or '
            "export its features, keras_vit.export(model.get_encoder(), path)."
        )
    if model.image_size is None:
        raise ValueError(
            f'Expected a model with one input of images (b, h, w, c) of fixed size, got "{model.name}", a {type(model).__name__} with the '
            f"input shape {model.input_shape}."
        )
    if model.classes is not None and ends_in_probabilities(model):
        raise ValueError(
            f'"{model.name}" has classes, so that its outputs should be logits, but it ends in a softmax or sigmoid, and an export would '
            "apply one twice. Leave it out of the model, or set model.classes = None to export the outputs as they are."
        )


def _features_or_none(model):
    """The model's features, symbolic (b, d); None for a model that does not pool, or is built on no ViT or BiT."""
    try:
        return features(model)
    except ValueError:
        return None


def export(
    model: keras.Model,
    path: str | os.PathLike,
    format: str = "tf_saved_model",
    top_k: int = 5,
    verbose: bool = False,
    activation: str | None = None,
) -> None:
    """Writes `model` to the folder `path` as a SavedModel that runs without this package.

    Signatures:
        serving_default: encoded images (b,) strings -> {"probabilities", "classes"}, the top k with names.
        pixels: images (b, h, w, c) float32, 0..255 -> {"logits", "probabilities"}.
        features: the same images -> {"features"}.
        pixels_training, features_training: the same with dropout on, for keras.layers.TFSMLayer's call_training_endpoint.

    Batches are dynamic, outputs float32, variables trainable. A ViT or BiT without a head has the features signatures only, and
    features is its serving_default. A model with a head of the user's own has {"outputs"} in pixels, and in serving_default unless its
    class names are known (see keras_vit.Model). An existing export at `path` is replaced once the new one is complete.

    Args:
        model: a ViT or BiT, or a keras_vit.Model built on one.
        path: a local folder.
        format: "tf_saved_model".
        top_k: how many classes serving_default returns.
        verbose: print the signatures.
        activation: from logits to probabilities, as in `model.classify`: "softmax", "sigmoid", or None for the model's
            own.

    Raises:
        ValueError: for something other than a model of this package and a path, an unknown format, a backend other than TensorFlow, a
            model whose input is not one image, one with classes that returns probabilities, or a path that is a file, in a bucket, or a
            folder of other files.
        OSError: if it cannot be written; what is at `path` is as it was.
    """
    _check(model, path, format)
    import tensorflow as tf

    images = [tf.TensorSpec((None, *model.image_size, model.channels), tf.float32, name="images")]
    encoded = [tf.TensorSpec((None,), tf.string, name="encoded_images")]
    tensor = _features_or_none(model)
    function = None if model.classes is None else probabilities_of(model, activation)
    archive = keras.export.ExportArchive()
    archive.track(model)
    if isinstance(model, Classifier) and model.classes is None:
        archive.add_endpoint("serving_default", _feature_endpoint(model, tensor, False), images)
    else:
        archive.add_endpoint("serving_default", _bytes_endpoint(model, top_k, function), encoded)
        archive.add_endpoint("pixels", _pixel_endpoint(model, False, function), images)
        archive.add_endpoint("pixels_training", _pixel_endpoint(model, True, function), images)
    if tensor is not None:
        archive.add_endpoint("features", _feature_endpoint(model, tensor, False), images)
        archive.add_endpoint("features_training", _feature_endpoint(model, tensor, True), images)
    try:
        with replacing(path) as temporary:
            archive.write_out(temporary, verbose=verbose)
    except tf.errors.OpError as error:
        raise OSError(f'The export "{path}" cannot be written: {error.message}. What was there is as it was.') from error
