"""decode|random_resized_crop as one op that decodes only the window of a JPEG.

Pixels equal those of the two ops, except in one or two columns at the window's border, where colour is not interpolated
across it. A window at least twice the target is decoded at a half, a quarter or an eighth of its size, which JPEG's
blocks allow; its borders then lie on a coarser grid.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_vit.data.ops.branches import outlined
from keras_vit.data.ops.decode import decode, header, not_cut_short
from keras_vit.data.ops.decode_mask import decode_mask, depth_of_size, mask_of_size
from keras_vit.data.ops.geometry import as_size, crop_and_resize, random_resized_crop, resized_window, sampled_window
from keras_vit.data.ops.op_registry import AS_MASKS, fused


def _read_window(encoded, begin, extent, channels, fraction=1):
    """Decodes a JPEG's window, with sides divided by `fraction`: 1, 2, 4 or 8."""
    window = tf.concat([begin // fraction, extent // fraction], 0)
    # Exact, as in decode.py: faster transforms gain nothing measurable here.
    return tf.image.decode_and_crop_jpeg(
        encoded, window, channels=channels, ratio=fraction, dct_method="INTEGER_ACCURATE"
    )


@outlined
def _read_smaller(encoded, begin, extent, channels, times):
    """Decodes a window `times` (2 or more) the target at the smallest size not below the target."""

    def read(fraction):
        return lambda: _read_window(encoded, begin, extent, channels, fraction)

    return tf.case([(times >= fraction, read(fraction)) for fraction in (8, 4)], default=read(2))


@fused("decode", "random_resized_crop")
def decode_and_crop(decode_arguments: dict[str, Any], crop_arguments: dict[str, Any]) -> Callable:
    """Returns (example with an encoded image or pixels, seed) -> example with the crop, its mask and boxes moved.

    Args:
        decode_arguments, crop_arguments: dicts. Parameters of the two ops, defaults included.
    """
    channels = decode_arguments["channels"]
    size = as_size(crop_arguments["height"], crop_arguments["width"])
    scale, ratio, method = (crop_arguments[name] for name in ("scale", "ratio", "method"))
    whole, crop = decode(**decode_arguments), random_resized_crop(**crop_arguments)

    def from_jpeg(example, shape, seed):
        encoded = example["image"]
        begin, extent = sampled_window(shape, seed, scale, ratio)
        times = tf.reduce_min(extent // size)

        def smaller():
            return _read_smaller(encoded, begin, extent, channels, times)

        window = tf.cond(times >= 2, smaller, lambda: _read_window(encoded, begin, extent, channels))
        image = resized_window(tf.ensure_shape(window, (None, None, channels)), size, method)
        if "mask" in example:
            example = {**example, "mask": mask_of_size(decode_mask(example["mask"]), shape[:2])}
        if "depth" in example:
            example = {**example, "depth": depth_of_size(example["depth"], shape[:2])}
        if "segments" in example:
            example = {**example, "segments": mask_of_size(example["segments"], shape[:2])}
        return crop_and_resize(example, image, shape, begin, extent, size)

    def separately(example, seed):
        decoded = whole({key: example[key] for key in ("image", "mask", *AS_MASKS) if key in example})
        return crop({**example, **decoded}, seed)

    def apply(example, seed):
        encoded = example["image"]
        if encoded.dtype != tf.string:
            return separately(example, seed)

        def none():
            return (tf.zeros((3,), tf.int32), tf.constant(0), tf.constant(False))

        shape, _, simple = tf.cond(tf.io.is_jpeg(encoded), lambda: header(not_cut_short(encoded)), none)
        return tf.cond(simple, lambda: from_jpeg(example, shape, seed), lambda: separately(example, seed))

    return apply
