"""Records of objects, tf.train.Examples with the keys of TensorFlow's object detection, by this package or others.

image/encoded                                   bytes
image/object/bbox/{ymin,xmin,ymax,xmax}         floats, fractions of the image
image/object/class/label                        integers, from 1 unless this package wrote them
image/object/class/text                         names, optional; as are is_crowd, difficult and area
image/object/mask                               COCO's compressed run lengths, with the keys order, image/height and
                                                image/width; only in this package's records of instances
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.data.annotations.image_size import upright_size
from keras_vit.data.annotations.rasterise import painted, text_spans
from keras_vit.data.errors import DESCRIBED_WRONGLY
from keras_vit.data.mapping import EXAMPLES
from keras_vit.data.objects import complete
from keras_vit.data.sources.classes_file import warn_about_names
from keras_vit.data.sources.image_files import in_known_format
from keras_vit.io.cache import cached_answer
from keras_vit.io.paths import THREADS

_SIDES = ("ymin", "xmin", "ymax", "xmax")
_TEXT = "image/object/class/text"
ORDER = "image/object/order"  # the place of each object in the order of drawing
_SIZE = ("image/height", "image/width")
_EDGE = 0.01  # of the image: by how much boxes of others may leave it


def _sides(features):
    return [f"{features['boxes']}/{side}" for side in _SIDES]


def _sequence(dtype):
    return tf.io.FixedLenSequenceFeature((), dtype, allow_missing=True)


def has_objects(keys: Sequence[str], features: Mapping[str, str]) -> bool:
    """Whether an Example with these keys has boxes, under any of the keys of their sides."""
    return any(side in keys for side in _sides(features))


def _count(files, features):
    """The records of `files` described for JSON: how often each key, the most objects, labels, and their names."""
    sides, label = _sides(features), features["labels"]
    expected = {
        **{side: _sequence(tf.float32) for side in sides},
        label: _sequence(tf.int64),
        _TEXT: _sequence(tf.string),
    }

    def counted(record):
        example = tf.io.parse_single_example(record, expected)
        return tf.stack([tf.size(example[key]) for key in (*sides, label)]), example[label], example[_TEXT]

    records = tf.data.TFRecordDataset(files, num_parallel_reads=THREADS).map(counted, num_parallel_calls=EXAMPLES)
    total, most, labels, names = np.zeros(5, "int64"), 0, set(), {}
    for sizes, numbers, texts in records.as_numpy_iterator():
        total, most = total + sizes, max(most, int(sizes[0]))
        labels |= set(numbers.tolist())
        if len(texts) == len(numbers):
            names |= {str(number): text.decode(errors="replace") for number, text in zip(numbers.tolist(), texts)}
    keys = dict(zip((*sides, label), total.tolist()))
    return {"keys": keys, "most": most, "labels": sorted(labels), "names": names}


def count_objects(pattern: str, files: Sequence[str], features: Mapping[str, str]) -> dict[str, Any]:
    """{"most": objects in an image, "labels": all of them, "names": {label as text: name}} of others' records.

    Reads all records of the files, once.

    Raises:
        ValueError: if no record has boxes or, with boxes, a side of them or their labels.
    """
    logging.info("Reading the boxes of %d files, once.", len(files))
    found = cached_answer(f"objects of {sorted(features.items())}", files, lambda: _count(files, features))
    empty = [key for key, count in found["keys"].items() if not count]
    if empty:
        has = [key for key in found["keys"] if key not in empty]
        beside = f' They have "{has[0]}".' if has else ""
        raise ValueError(
            f'The records of "{pattern}" have no "{empty[0]}", which objects need.{beside} Expected'
            f" {', '.join(found['keys'])}, as TensorFlow's object detection writes them; ?boxes=PREFIX and ?labels=KEY"
            " name others."
        )
    return found


def names_of_objects(pattern: str, found: Mapping[str, Any], first: int) -> tuple[str, ...]:
    """The class names in what `count_objects` found: the records' own, or their labels as text.

    Raises:
        ValueError: for a label below the first, or a name of two labels.
    """
    low, high = found["labels"][0], found["labels"][-1]
    if low < first:
        raise ValueError(
            f'The records of "{pattern}" have the label {low}, but classes are numbered from {first}:'
            ' pass the label of the first class, "?first_label=NUMBER".'
        )
    names = tuple(found["names"].get(str(label), str(label)) for label in range(first, high + 1))
    twice = [name for name in names if names.count(name) > 1] if len(set(names)) < len(names) else []
    if twice:
        raise ValueError(
            f'The records of "{pattern}" name several labels "{twice[0]}": give class names, ?classes=FILE.'
        )
    warn_about_names(pattern, names, needs_classes=False)
    return names


def _checked(boxes, labels, first, classes):
    """(boxes (m, 4) inside the image, labels (m,) from 0); fails for others than fractions and known classes."""
    fits = tf.reduce_all((boxes >= -_EDGE) & (boxes <= 1 + _EDGE))  # not NaN either
    fractions = tf.debugging.Assert(fits, ["Boxes should be fractions of the image, from 0 to 1, and are", boxes])
    numbers = labels - first
    known = tf.reduce_all((numbers >= 0) & (numbers < classes))
    message = f"{DESCRIBED_WRONGLY} it has {classes} classes from {first} to {first + classes - 1}, and the labels"
    fix = "here. classes= sets their names, first_label= the label of the first."
    with tf.control_dependencies([fractions, tf.debugging.Assert(known, [message, labels, fix])]):
        return tf.clip_by_value(boxes, 0.0, 1.0), tf.identity(numbers)


def _segments(texts, order, size):
    """Draws masks, as run lengths (m,), in their order: (h, w, 2) int32, the topmost and the lowest object's number."""
    region, start, end = text_spans(texts)
    height, width = tf.unstack(size)
    inside = tf.reduce_all(end <= height * width)
    message = ["The masks are not compressed run lengths of an image of", size]
    fits = (tf.size(order) == tf.size(texts)) & inside
    with tf.control_dependencies([tf.debugging.Assert(fits, message)]):
        numbers = tf.argsort(order) + 1
    return painted(tf.gather(order, region), start, end, numbers, 0, height, width, lowest=True)


def object_parser(features: Mapping[str, str], first: int, classes: int) -> Callable[[Any], dict[str, Any]]:
    """Returns serialized record -> an example of objects, as detection takes it.

    Args:
        features: keys of the image, the boxes (a prefix), the labels and, optionally, the masks.
        first: the label of the first class.
        classes: number of classes.
    """
    image, sides = features["image"], _sides(features)
    integers = ("is_crowd", "difficult", "image_size")
    expected = {image: tf.io.FixedLenFeature((), tf.string), features["labels"]: _sequence(tf.int64)}
    expected |= {key: _sequence(tf.float32) for key in (*sides, "image/object/area")}
    expected |= {f"image/object/{key}": _sequence(tf.int64) for key in integers}
    masks = features.get("masks")
    if masks:
        expected |= {masks: _sequence(tf.string), ORDER: _sequence(tf.int64)}
        expected |= {side: tf.io.FixedLenFeature((), tf.int64) for side in _SIZE}

    def parse(record):
        example = tf.io.parse_single_example(record, expected)
        count = tf.size(example[features["labels"]])
        even = tf.reduce_all(tf.stack([tf.size(example[side]) for side in sides]) == count)
        with tf.control_dependencies([tf.debugging.Assert(even, ["Boxes and labels differ in number."])]):
            boxes = tf.stack([example[side] for side in sides], 1)
        boxes, labels = _checked(boxes, example[features["labels"]], first, classes)
        crowd, difficult, size = (example[f"image/object/{key}"] for key in integers)
        encoded = in_known_format(example[image])
        found = {
            "image": encoded,
            "boxes": boxes,
            "labels": labels,
            "crowd": _or_zeros(crowd, count),
            "difficult": _or_zeros(difficult, count),
            "size": tf.cond(tf.size(size) == 2, lambda: tf.cast(size, tf.int32), lambda: upright_size(encoded)),
        }
        found = complete({**found, "size": tf.ensure_shape(found["size"], (2,))})
        if masks:
            shape = tf.cast(tf.stack([example[side] for side in _SIZE]), tf.int32)
            found["segments"] = _segments(example[masks], tf.cast(example[ORDER], tf.int32), shape)
        area = example["image/object/area"]
        return {**found, "area": tf.cond(tf.size(area) == count, lambda: area, lambda: found["area"])}

    return parse


def _or_zeros(values, count):
    """Integers (m,), zeros for a key that the record lacks."""
    return tf.cond(tf.size(values) == count, lambda: values, lambda: tf.zeros([count], values.dtype))
