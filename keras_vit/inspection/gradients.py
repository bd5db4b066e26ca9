"""Grad-CAM (Selvaraju et al. 2017, arXiv 1610.02391) on tokens or feature maps: image regions that support a class."""

from typing import Any

import keras
import numpy as np

from keras_vit.fit.checks.inputs import check_images
from keras_vit.models import taps


def grad_cam(features: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    """Grad-CAM: the sum of channels weighted by their mean gradient, with negative values set to 0.

    Args:
        features: (b, h, w, d).
        gradients: (b, h, w, d). Gradients of a class's logit with respect to the features.

    Returns:
        (b, h, w), each map scaled to a maximum of 1, or all 0 if nothing supports the class.
    """
    channels = gradients.mean(axis=(1, 2), keepdims=True)  # (b, 1, 1, d)
    maps = np.maximum((channels * features).sum(-1), 0)  # (b, h, w)
    largest = maps.max(axis=(1, 2), keepdims=True)
    return maps / np.where(largest > 0, largest, 1)


def _gradient(score, x):
    """Gradient of score(x), one number per example, with respect to the tensor x."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.grad(lambda x: keras.ops.sum(score(x)))(x)
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(x)
        total = keras.ops.sum(score(x))
    return tape.gradient(total, x)


def _tap(block):
    """A function from the encoder to the tensor for the gradient; see `class_maps`."""

    def tap(encoder):
        units = taps.blocks(encoder)
        if block is not None and block not in range(-len(units), len(units)):
            raise ValueError(f"block={block}: the model has blocks 0 to {len(units) - 1}.")
        if block is not None:
            return units[block].output
        return units[-1].input if taps.family_in(encoder).spec.has_tokens else taps.encoded(encoder)

    return tap


def _check_classes(model, classes, count):
    """`classes` as integers (b,); ValueError unless there are `count`, all known to the model."""
    chosen = np.broadcast_to(np.asarray(classes), (count,)) if np.ndim(classes) == 0 else np.asarray(classes)
    outputs = model.output_shape[-1]
    if chosen.shape != (count,) or chosen.dtype.kind not in "iu" or not ((chosen >= 0) & (chosen < outputs)).all():
        raise ValueError(
            f"classes={classes!r}: expected one class for all images or one for each of {count}, from 0 to"
            f" {outputs - 1}."
        )
    return chosen


def _on_grid(encoder, values):
    """Tokens (b, n, d) without the prefix as (b, h, w, d); a feature map as is."""
    values = keras.ops.convert_to_numpy(values).astype("float32")
    if values.ndim == 4:
        return values
    h, w = taps.patch_grid(encoder)
    return values[:, -h * w :].reshape(len(values), h, w, -1)  # (b, n, d) -> (b, h, w, d)


def class_maps(
    model: keras.Model, images: Any, classes: Any, block: int | None = None, batch_size: int = 8
) -> np.ndarray:
    """Where the model sees a class in images: Grad-CAM.

    Args:
        model: a model of any family with a head, or built on one, with one input and outputs (b, classes): logits, or
            probabilities, which become log probabilities.
        images: (b, height, width, c). Pixels 0..255.
        classes: class number, or (b,) class numbers of the images.
        block: index of the block to take the output of, negative from the end. None for the input of a ViT's last block
            (after it, a class token has already gathered all that the head reads), or for the last normalised feature
            map of a model without tokens.
        batch_size: images per batch.

    Returns:
        (b, h, w) on the grid of the tokens or of the feature map, each map scaled to a maximum of 1.

    Raises:
        ValueError: outputs that are not (b, classes), an unknown class or block, a block after which no patch reaches
            the output, or images on another scale.
    """
    if len(model.output_shape) != 2:
        raise ValueError(
            f'"{model.name}" returns {model.output_shape}; class maps need one output per class, (b, classes).'
        )
    chosen, maps = _check_classes(model, classes, len(images)), []
    check_images(model, images)
    encoder, _ = taps.encoder_in(model)
    taps.check_whole_grid(encoder)
    front, back = taps.split(model, _tap(block))
    probable = taps.ends_in_probabilities(model)
    for start in range(0, len(images), batch_size):
        rows = keras.ops.one_hot(chosen[start : start + batch_size], model.output_shape[-1])  # (b, classes)
        values = front(np.asarray(images[start : start + batch_size], "float32"), training=False)

        def score(x, rows=rows):
            # (b, classes) -> (b,)
            chosen = keras.ops.sum(rows * keras.ops.cast(back(x, training=False), "float32"), -1)
            return keras.ops.log(chosen) if probable else chosen

        gradients = _on_grid(encoder, _gradient(score, values))
        if not gradients.any():
            raise ValueError(
                f"block={block}: after it, no patch influences the output, which reads only the class token or has a"
                " head of zeros. Use an earlier block, or train the head."
            )
        maps.append(grad_cam(_on_grid(encoder, values), gradients))
    return np.concatenate(maps)
