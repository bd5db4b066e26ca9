"""Sources over arrays in memory."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data.objects import complete
from keras_vit.data.ops.decode_mask import is_png, png_bits
from keras_vit.data.sources.base import RandomAccess
from keras_vit.data.sources.image_files import in_known_format
from keras_vit.data.sources.mask_files import identity_mapping, with_classes
from keras_vit.io.target_values import void_value


def _check_pixels(images, name):
    """Raises ValueError for pixels outside 0..255 or scaled to 0..1, which rounding to uint8 would lose."""
    if images.dtype == bool or not np.issubdtype(images.dtype, np.number) or np.iscomplexobj(images):
        raise ValueError(f"{name}: expected pixels as numbers 0..255, got {images.dtype}.")
    if not images.size:
        return
    low, high = images.min(), images.max()
    if not np.isfinite([low, high]).all():
        raise ValueError(f"{name}: expected pixels 0..255, got NaN or infinity.")
    # Floats that are all 0.0 or 1.0 lose nothing.
    fractions = 0 <= low and high <= 1 and (images != np.round(images)).any()
    if fractions or low < -0.5 or high >= 255.5:
        fix = "multiply them by 255" if fractions else "undo their normalization, or clip or scale them"
        raise ValueError(
            f"{name}: expected pixels 0..255, got {low:g} to {high:g}: {fix}. The model normalizes pixels itself."
        )


def _images(images, name):
    """Checks images and returns them as a uint8 tensor (b, h, w, c), or encoded ones as a string tensor (b,)."""
    if isinstance(images, list | tuple) and images and all(isinstance(image, bytes) for image in images):
        return tf.constant(images)
    try:
        images = np.asarray(images)
    except ValueError:
        raise ValueError(f"{name}: the images differ in shape: resize them, or pass encoded images (bytes).") from None
    if images.ndim != 4:
        hint = " Grey images need a last axis: images[..., None]." if images.ndim == 3 else ""
        raise ValueError(
            f"{name}: expected images (b, h, w, c) or a list of encoded images (bytes), got shape {images.shape}.{hint}"
        )
    if images.shape[1] in (1, 3) and images.shape[3] > 4:
        raise ValueError(
            f"{name}: expected images (b, h, w, c), got channels first, {images.shape}: use np.moveaxis(images, 1, -1)."
        )
    if images.dtype.kind == "V":  # bfloat16, which NumPy does not treat as a number
        images = images.astype("float32")
    if images.dtype != np.uint8:
        _check_pixels(images, name)
        images = np.clip(np.round(images), 0, 255).astype("uint8")
    return tf.constant(images)


def _integers(labels, name):
    """Converts integers or integral floats to int64.

    Raises:
        ValueError: for text, NaN and fractions.
    """
    if labels.dtype == bool or np.issubdtype(labels.dtype, np.integer):
        return labels.astype("int64")
    if not np.issubdtype(labels.dtype, np.floating):
        raise ValueError(
            f"{name}: expected integer labels, got {labels.dtype}: pass names as class_names, their numbers as labels."
        )
    wrong = labels[labels != np.round(labels)]  # NaN is unequal to itself
    if len(wrong) or not np.isfinite(labels).all():
        raise ValueError(f"{name}: expected integer labels, got {wrong[0] if len(wrong) else 'infinity'}.")
    return labels.astype("int64")


def _labels(labels, class_names, size, name):
    """Checks labels and returns (labels (b,) int64, class names)."""
    labels = np.asarray(labels)
    if not size:
        raise ValueError(f"{name} has no images.")
    if labels.ndim != 1 or len(labels) != size:
        hint = " For one-hot rows use labels.argmax(-1)." if labels.ndim == 2 and labels.shape[1] > 1 else ""
        raise ValueError(f"{name}: expected one label per image, ({size},), got shape {labels.shape}.{hint}")
    labels = _integers(labels, name)
    if class_names is None:
        class_names = [str(i) for i in range(int(labels.max()) + 1)]
    if isinstance(class_names, str):
        raise ValueError(f'{name}: expected class_names as a list of names, got "{class_names}".')
    class_names = tuple(map(str, class_names))
    if len(set(class_names)) < len(class_names):
        raise ValueError(f"{name}: class_names contains a name twice.")
    low, high = labels.min(), labels.max()
    if low < 0 or high >= len(class_names):
        hint = " Subtract 1: classes start at 0." if (low, high) == (1, len(class_names)) else ""
        raise ValueError(
            f"{name}: the labels range from {low} to {high}, but class_names has {len(class_names)} names.{hint}"
        )
    return labels, class_names


def _rows(values):
    """Stacks one value per example into a tensor, ragged if the lengths differ."""
    if isinstance(values, list | tuple) and any(isinstance(value, str | bytes) for value in values):
        return tf.constant(values)
    parts = [np.asarray(value) for value in values]
    kinds = [part.dtype for part in parts if part.size]  # an empty list has no informative dtype
    parts = [part.astype(np.result_type(*kinds)) for part in parts] if kinds else parts
    if len({part.shape for part in parts}) <= 1:
        return tf.constant(np.stack(parts)) if parts else tf.zeros((0,))
    if len({part.shape[1:] for part in parts}) > 1 or parts[0].ndim == 0:
        raise ValueError(
            f"expected shapes that differ only in the first axis, got {sorted({part.shape for part in parts})[:5]}"
        )
    return tf.RaggedTensor.from_row_lengths(np.concatenate(parts), [len(part) for part in parts])


def _check_boxes(boxes):
    values = boxes.flat_values if isinstance(boxes, tf.RaggedTensor) else boxes
    if boxes.shape[-1] != 4 or boxes.shape.rank != 3:
        raise ValueError(f"expected boxes (b, m, 4), got {tuple(boxes.shape)}")
    if tf.size(values) and not (tf.reduce_min(values) >= 0 and tf.reduce_max(values) <= 1):
        raise ValueError(
            "expected boxes as fractions of the image's height and width, from 0 to 1: divide pixels by the size"
        )


def _check_mask(mask, images):
    if mask.dtype == tf.string:
        return
    if not mask.dtype.is_integer or mask.shape.rank != 4 or mask.shape[-1] != 1:
        raise ValueError(
            f"expected integer masks (b, h, w, 1) or encoded masks (bytes), got {mask.dtype.name} {tuple(mask.shape)}"
        )
    if images.dtype != tf.string and mask.shape[1:3] != images.shape[1:3]:
        raise ValueError(
            f"expected masks of the images' size, {tuple(images.shape[1:3])}, got {tuple(mask.shape[1:3])} pixels"
        )


def _classes_of_pixels(masks, class_names, name):
    """Converts integer masks to the dtype that fits void; encoded masks stay.

    Raises:
        ValueError: for values that are neither a class nor void.
    """
    if masks.dtype == tf.string:
        return masks
    void = void_value(len(class_names))
    values = tf.cast(masks, tf.int64)
    fits = (values >= 0) & (values < len(class_names)) | (values == void)
    if not tf.reduce_all(fits):
        wrong = tf.boolean_mask(values, ~fits)[0]
        raise ValueError(
            f"{name}: a mask has the value {wrong}; expected 0 to {len(class_names) - 1} for the {len(class_names)}"
            f" class_names, or {void} for void."
        )
    return tf.cast(values, tf.uint8 if void < 256 else tf.int32)


def _padding_void(masks):
    """Returns the value that pads masks without class names, a scalar of their dtype once decoded."""
    if masks.dtype == tf.string:
        wide = any(int(png_bits(mask)) == 16 for mask in masks if is_png(mask))
        return tf.constant(void_value(65535 if wide else 0), tf.int32)
    values = tf.cast(getattr(masks, "flat_values", masks), tf.int64)
    classes = tf.boolean_mask(values, (values != void_value(0)) & (values != void_value(65535)))
    void = void_value(int(tf.reduce_max(classes)) + 1 if tf.size(classes) else 0)
    return tf.constant(min(void, masks.dtype.max), masks.dtype)


def _lengths(rows):
    """Returns the length of each example's first axis, (b,)."""
    return rows.row_lengths().numpy() if isinstance(rows, tf.RaggedTensor) else np.full(*rows.shape[:2])


def _checked_objects(tensors, class_names, name):
    """Checks boxes and labels and returns the largest number of objects in one image.

    Raises:
        ValueError: if the numbers of boxes and labels differ, or labels are not classes.
    """
    if "boxes" not in tensors:
        raise ValueError(f'{name}: features["labels"], the labels of objects, need features["boxes"].')
    boxes, labels = (_lengths(tensors[key]) for key in ("boxes", "labels"))
    wrong = np.flatnonzero(boxes != labels)
    if len(wrong):
        i = wrong[0]
        raise ValueError(f"{name}: image {i} has {boxes[i]} boxes and {labels[i]} labels.")
    values = tf.reshape(getattr(tensors["labels"], "flat_values", tensors["labels"]), [-1]).numpy()
    if values.size and not (0 <= values.min() and values.max() < len(class_names)):
        raise ValueError(
            f"{name}: the labels of objects range from {values.min()} to {values.max()}; expected 0 to"
            f" {len(class_names) - 1} for the {len(class_names)} class_names."
        )
    return int(boxes.max())


def _feature(key, values, images):
    """Checks one further feature and returns it as a tensor.

    Raises:
        ValueError: for a reserved key, a wrong number of examples, or malformed masks and boxes.
    """
    if key in ("image", "label"):
        raise ValueError("pass images and labels as the first two arguments")
    if len(values) != len(images):
        raise ValueError(f"expected one value per image, {len(images)}, got {len(values)}")
    rows = _rows(values)
    if key == "boxes":
        rows = tf.cast(rows, tf.float32)
        _check_boxes(rows)
    if key == "mask":
        _check_mask(rows, images)
    if key == "labels" and not rows.dtype.is_integer:
        raise ValueError(f"expected integers (m,) per image, one per object, got {rows.dtype.name}")
    return rows


def from_arrays(
    images: Any,
    labels: Any = None,
    class_names: Sequence[str] | None = None,
    name: str = "arrays",
    features: dict[str, Any] | None = None,
    colors: Sequence[tuple[int, int, int]] | None = None,
) -> RandomAccess:
    """Makes a source from arrays.

    Args:
        images: (b, h, w, c), or a list of bytes. Pixels 0..255, with floats rounded to uint8, or encoded images.
        labels: (b,) integers or integral floats, or None for examples without a class.
        class_names: sequence of str, in label order; by default "0", "1", ... Without labels they name the values of
            masks, with void 255 (65535 for 255 classes or more), or the classes of objects, features["labels"].
        name: str. Name in messages.
        features: dict of one value per example. "mask", integers (b, h, w, 1) or a list of encoded PNGs, which ops pad
            with void; "boxes", (m, 4) per example, as fractions of height and width; "labels", (m,) per example;
            "id"... Arrays in a list may differ in their first axis.
        colors: sequence of (red, green, blue). Colour of each class in pictures of masks; None for default colours.

    Raises:
        ValueError: for wrong shapes, unequal lengths, pixels outside 0..255, or labels and mask values without a name.
    """
    images, tensors = _images(images, name), {}
    if labels is not None:
        labels, class_names = _labels(labels, class_names, len(images), name)
    elif class_names is not None and not {"mask", "labels"} & set(features or {}):
        raise ValueError(f"{name}: class_names needs labels, but labels is None.")
    elif not len(images):
        raise ValueError(f"{name} has no images.")
    for key, values in (features or {}).items():
        try:
            tensors[key] = _feature(key, values, images)
        except ValueError as error:
            raise ValueError(f'{name}: features["{key}"]: {error}.') from None

    names, count = tuple(class_names or ()), len(images)
    unnamed = {}
    if "mask" in tensors and "void" not in tensors and (labels is not None or not names):
        unnamed["void"] = _padding_void(tensors["mask"])

    def lookup(i):
        image = in_known_format(images[i]) if images.dtype == tf.string else images[i]
        return {"image": image, **{key: rows[i] for key, rows in tensors.items()}, **unnamed}

    if labels is not None or not names:
        return RandomAccess(name, names, labels, lookup, count=count)
    if "mask" not in tensors:
        most = _checked_objects(tensors, names, name)
        return RandomAccess(name, names, None, lookup, count=count, parse=complete, most_objects=most)
    tensors["mask"] = _classes_of_pixels(tensors["mask"], names, name)
    mapping = identity_mapping(names, colors)
    void, parse = mapping.void, with_classes(mapping)
    return RandomAccess(name, names, None, lookup, count=count, void=void, colors=mapping.colors, parse=parse)
