"""Export for serving and for transfer learning elsewhere: a process needs only TensorFlow, not this package."""

import os

import keras

from keras_vit.training.files import replacing

FORMATS = ("tf_saved_model",)


def serving_preprocessing(model):
    """The preprocessing text that the exported model replays: the model's own, or a plain resize to its input."""
    height, width = model.image_size
    return model.preprocessing or f"decode({model.channels})|resize({height}, {width})"


def _float32(outputs):
    return {name: keras.ops.cast(value, "float32") for name, value in outputs.items()}


def _pixel_endpoint(model, training):
    """images (b, h, w, c) float32 -> logits and probabilities (b, classes)."""

    def pixels(images):
        logits = model(images, training=training)
        return _float32({"logits": logits, "probabilities": keras.ops.softmax(logits)})

    return pixels


def _feature_endpoint(model, training):
    """images (b, h, w, c) float32 -> features (b, d)."""
    extractor = keras.Model(model.input, model.features)

    def features(images):
        return _float32({"features": extractor(images, training=training)})

    return features


def _bytes_endpoint(model, top_k):
    """encoded images (b,) strings -> the top k's probabilities (b, k) and class names (b, k), best first."""
    import tensorflow as tf

    from keras_vit.data import parse

    preprocess = parse(serving_preprocessing(model))
    names = tf.constant(model.class_names or [str(i) for i in range(model.classes)])
    shape = (*model.image_size, model.channels)

    def serving_default(encoded_images):
        images = tf.map_fn(
            lambda encoded: tf.ensure_shape(preprocess(encoded), shape),
            encoded_images,
            fn_output_signature=tf.TensorSpec(shape, tf.uint8),
        )
        logits = tf.cast(model(tf.cast(images, tf.float32), training=False), tf.float32)
        best = tf.math.top_k(tf.nn.softmax(logits), k=top_k)
        return {"probabilities": best.values, "classes": tf.gather(names, best.indices)}

    return serving_default


def export(model, path, format="tf_saved_model", top_k=5, verbose=False):
    """Writes `model` to the folder `path` as a SavedModel that runs without this package.

    Signatures:
        serving_default: encoded images (b,) strings -> {"probabilities", "classes"}, the top k with names.
        pixels: images (b, h, w, c) float32, 0..255 -> {"logits", "probabilities"}.
        features: the same images -> {"features"}.
        pixels_training, features_training: the same with dropout on, for keras.layers.TFSMLayer's call_training_endpoint.

    Batches are dynamic, outputs float32, variables trainable. A model without head has the features signatures only, and
    features is its serving_default. What stood at `path` is replaced once the new export is whole.

    Args:
        model: a ViT.
        path: a local folder.
        format: "tf_saved_model".
        top_k: how many classes serving_default returns.
        verbose: print the signatures.

    Raises:
        ValueError: for an unknown format, a backend other than TensorFlow, or a path that is a file.
    """
    if format not in FORMATS:
        raise ValueError(
            f'Unknown export format "{format}". Valid: {", ".join(FORMATS)}; keras_vit.save writes weights for other libraries.'
        )
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            "A SavedModel is written on the TensorFlow backend: save the model as .keras, then run keras-vit-export with "
            "KERAS_BACKEND=tensorflow."
        )
    if os.path.isfile(path):
        raise ValueError(f'"{path}" is a file; an export is a folder.')
    import tensorflow as tf

    images = [tf.TensorSpec((None, *model.image_size, model.channels), tf.float32, name="images")]
    archive = keras.export.ExportArchive()
    archive.track(model)
    if model.classes is not None:
        encoded = [tf.TensorSpec((None,), tf.string, name="encoded_images")]
        archive.add_endpoint("serving_default", _bytes_endpoint(model, min(top_k, model.classes)), encoded)
        archive.add_endpoint("pixels", _pixel_endpoint(model, False), images)
        archive.add_endpoint("pixels_training", _pixel_endpoint(model, True), images)
    else:
        archive.add_endpoint("serving_default", _feature_endpoint(model, False), images)
    archive.add_endpoint("features", _feature_endpoint(model, False), images)
    archive.add_endpoint("features_training", _feature_endpoint(model, True), images)
    with replacing(path) as temporary:
        archive.write_out(temporary, verbose=verbose)
