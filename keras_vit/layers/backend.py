"""The one module of the layers that depends on the backend: the replica's number, a seed's type, the fused matrix product, preprocessing."""

import importlib.util

import keras
from keras import ops


def replica_id():
    """The replica's number in its strategy; 0 on one device and on the JAX backend (one global program)."""
    if keras.backend.backend() != "tensorflow":
        return 0
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    return context.replica_id_in_sync_group if context is not None else 0


def seed_dtype() -> str:
    """The integer type that the backend's random functions take as a seed."""
    return "uint32" if keras.backend.backend() == "jax" else "int64"


def affine(x, kernel, bias=None, activation=None):
    """activation(x kernel + bias): (b, n, c), (c, d), (d,) -> (b, n, d).

    TensorFlow on a CPU fuses bias and GELU into a product of matrices only when the bias is added by BiasAdd, which `keras.ops`
    does not offer: 5% of ViT-B/16's forward pass. XLA fuses the ordinary form by itself.
    """
    if keras.backend.backend() != "tensorflow":
        y = ops.matmul(x, kernel)
        y = y if bias is None else y + bias
        return y if activation is None else activation(y)
    import tensorflow as tf

    y = tf.matmul(tf.reshape(x, (-1, x.shape[-1])), kernel)  # (b, n, c) -> (b*n, d)
    y = y if bias is None else tf.nn.bias_add(y, bias)
    y = y if activation is None else activation(y)
    sizes = [tf.shape(x)[i] if size is None else size for i, size in enumerate(x.shape[:-1])]
    return tf.reshape(y, (*sizes, y.shape[-1]))  # (b*n, d) -> (b, n, d)


def parse_preprocessing(text: str):
    """The data.ops.text.Preprocess that `text` describes.

    Raises:
        ImportError: without TensorFlow, which decodes and resizes images on every backend.
        ValueError: for text that describes none.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise ImportError(
            "Decoding and resizing images needs TensorFlow, on the JAX backend too, and it is not installed: pip install "
            '"keras-vit[cpu]". Without it, give the model pixels 0..255 of its size: model.predict(images).'
        )
    from keras_vit.data import parse

    return parse(text)


def preprocessed_shape(preprocess, channels: int | None) -> tuple:
    """The shape (height, width, c) of what a Preprocess makes of pixels with so many channels, or with None of encoded images.

    Raises:
        ValueError: if images of different sizes keep different sizes.
    """
    import tensorflow as tf

    given = tf.TensorSpec((), tf.string) if channels is None else tf.TensorSpec((None, None, channels), tf.uint8)
    shape = tuple(tf.function(preprocess.image, autograph=False).get_concrete_function(given).output_shapes)
    if None in shape:
        raise ValueError(
            f'"{preprocess.text}" gives images of different sizes: end it with one size, such as "resize(224, 224)" or "central_crop(224)".'
        )
    return shape


def apply_preprocessing(preprocess, images, shape: tuple, dtype: str):
    """A Preprocess on encoded images, () or (b,), or pixels, (h, w, c) or (b, h, w, c): pixels of `shape`, (height, width, c), or with b before.

    TensorFlow tensors give TensorFlow tensors on every backend, inside tf.data too; arrays give tensors of the backend.
    """
    import tensorflow as tf

    tensor = tf.convert_to_tensor(images)
    if tensor.shape.rank in (0, 3):
        pixels = tf.ensure_shape(preprocess.image(tensor), shape)
    else:
        pixels = tf.map_fn(preprocess.image, tensor, fn_output_signature=tf.TensorSpec(shape, tf.uint8))
    pixels = tf.cast(pixels, dtype)
    return pixels if tf.is_tensor(images) or keras.backend.backend() == "tensorflow" else ops.convert_to_tensor(pixels.numpy())
