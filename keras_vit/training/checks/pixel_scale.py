"""Whether pixels are on the scale that a model normalises: of arrays, and as TensorFlow operations."""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.training.checks.marked import filled_in
from keras_vit.training.checks.pixel_range import InputRange, Normalisation, doubly_normalised

_LARGEST_NORMALISED = 3.0  # standard deviations
_LEAST_CONTRAST = 6 / 255  # standard deviations between black and the largest pixel
_LARGEST_BYTE = 4 * 255.0  # with room for filters that overshoot
_LOWEST_BYTE = -64.0


def may_be_wrong(dtype: Any, scale: Normalisation) -> bool:
    """Whether a TensorFlow dtype allows pixels on another scale: bytes do not (0 and 1 are never stored so)."""
    if not (dtype.is_floating or dtype.is_integer or dtype.is_bool):
        return False
    return dtype.is_bool or dtype.size > 1 or scale.path.rescales or not scale.of_bytes


def scale_problems(
    scale: Normalisation, low: Any, high: Any, floating: bool, largest: Any = np.inf
) -> Iterator[tuple[Any, str, str]]:
    """(whether it applies, message, remedy) of each possible fault of pixels.

    Args:
        low, high: their range where the model normalises them, numbers or tensors.
        floating: whether they may be fractions there.
        largest: the largest magnitude that the input may have, a number or tensor.
    """
    step = float(np.abs(scale.path.factor).max())
    flat = (low != high) & (largest * step < _LEAST_CONTRAST * float(scale.std.min()))
    finite = (low - low == 0) & (high - high == 0)
    yield ~finite, "contain values that are not finite", "Find out where they come from."
    if not scale.of_bytes:
        theirs = f"This model's mean {scale.mean.tolist()} and std {scale.std.tolist()} are for smaller values"
        yield (
            high > float((scale.mean + 10 * _LARGEST_NORMALISED * scale.std).max()),
            "look like pixels 0..255",
            f"{theirs}: divide the images by 255, or load the model with mean and std on the 0..255 scale.",
        )
        yield flat, "have almost no contrast", "Were they divided by 255 twice?"
        return
    ours = "This model expects pixels 0..255 and normalises them itself."
    if floating:
        yield (
            (low != high) & (low >= -_LARGEST_NORMALISED) & (high <= _LARGEST_NORMALISED),
            "look normalised",
            f"{ours} Multiply images in [0, 1] by 255, or undo the normalisation.",
        )
    else:
        yield (low == 0) & (high == 1), "contain only 0 and 1", f"{ours} Multiply them by 255."
    yield high > _LARGEST_BYTE, "look like 16-bit images", f"{ours} Divide images in 0..65535 by 257."
    yield low < _LOWEST_BYTE, "have negative pixels", f"{ours} Add what was subtracted."
    if scale.path.rescales:
        yield flat, "have almost no contrast", ours


def _layers_of(scale):
    """The layers that change the range before a normalisation, in words."""
    return f"the layer{'s' if len(scale.path.layers) > 1 else ''} {', '.join(scale.path.layers)}"


def _range_message(scale, what, fix):
    """The message for images on another scale, with {} for their ends, then for those where the model normalises."""
    escape = "If they are right, set model.check_pixels = False."
    if not scale.path.rescales:
        return f"The images {what}: the values of the first batch are in [{{}}, {{}}]. {fix} {escape}"
    names = _layers_of(scale)
    instead = "" if scale.is_double else f", or give images {InputRange.of_scale(scale)}"
    return (
        f"The images {what} behind {names} of the model: the values of the first batch are in [{{}}, {{}}], and in"
        f" [{{}}, {{}}] where the model normalises them. Expected there: {scale.there}."
        f" Leave {names} out{instead}. {escape}"
    )


def warn_of_double(model: keras.Model, tensors: Sequence[keras.KerasTensor]) -> None:
    """Warns if layers before the symbolic inputs of a model normalise pixels that the model normalises itself."""
    scale = doubly_normalised(model, tensors)
    if scale is not None:
        warnings.warn(
            f'Leave {_layers_of(scale)} out: "{model.name}" normalises pixels 0..255 itself. keras_vit.Model(inputs,'
            " outputs) and model.with_head(layer) check their data, a plain keras.Model or Sequential only in graphs of"
            f' TensorFlow without XLA. If the pixels are right, set check_pixels = False on "{model.name}" before you'
            " call it.",
            stacklevel=4,
        )


def check_range(images: np.ndarray, scale: Normalisation) -> None:
    """Refuses images (b, h, w, c) on another scale than the model's normalisation: ValueError with their range."""
    one_of_bytes = images.dtype == np.uint8 and len(images) == 1  # which may be black
    if not images.size or images.dtype.kind not in "biuf" or one_of_bytes and not scale.path.rescales:
        return
    floating, rescaled = images.dtype.kind == "f", scale.path.rescales
    axes = tuple(range(images.ndim - 1)) if rescaled else None
    low, high = images.min(axes), images.max(axes)
    ends = float(low.min()), float(high.max())
    there = scale.seen(low.astype("float64"), high.astype("float64")) if rescaled else ends
    largest = max(0 if floating else 255, *map(abs, ends))  # bytes may be dark
    lowest, highest = map(np.float64, there)
    for wrong, what, fix in scale_problems(scale, lowest, highest, floating or rescaled, largest):
        if wrong:
            raise ValueError(_range_message(scale, what, fix).format(*(f"{end:.3g}" for end in (*ends, *there))))


def assert_range(images: Any, scale: Normalisation) -> list:
    """check_range as TensorFlow operations; in a graph they must run before the images are used."""
    import tensorflow as tf

    floating, rescaled, images = images.dtype.is_floating, scale.path.rescales, tf.cast(images, "float32")
    low, high = tf.reduce_min(images), tf.reduce_max(images)
    lowest, highest = _seen(images, scale.path) if rescaled else (low, high)
    largest = tf.maximum(tf.maximum(tf.abs(low), tf.abs(high)), 0.0 if floating else 255.0)  # bytes may be dark
    return [
        tf.debugging.Assert(~wrong, [filled_in(_range_message(scale, what, fix), low, high, lowest, highest)])
        for wrong, what, fix in scale_problems(scale, lowest, highest, floating or rescaled, largest)
    ]


def _seen(images, path):
    """Normalisation.seen of a TensorFlow tensor (b, ..., c)."""
    import tensorflow as tf

    factor, offset = (tf.constant(np.atleast_1d(x), "float32") for x in (path.factor, path.offset))
    channels = images.shape[-1] if images.shape[-1] in (factor.shape[0], None) else None
    axes = list(range(images.shape.rank - (channels is not None)))
    ends = [factor * end(images, axes) + offset for end in (tf.reduce_min, tf.reduce_max)]
    return tf.reduce_min(ends), tf.reduce_max(ends)
