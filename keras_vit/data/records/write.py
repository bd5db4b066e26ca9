"""Writes a source as TFRecord files of equal size and a dataset.json, for "tfrecord:FOLDER".

The files are written to a temporary folder inside the output and moved into place at the end, dataset.json last: a
killed process or a full disk leaves the output as it was.
"""

import contextlib
import dataclasses
import graphlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.data.annotations import run_lengths
from keras_vit.data.annotations.image_size import size_in_file
from keras_vit.data.objects import object_rows, pack
from keras_vit.data.ops.decode_mask import mask_of_size
from keras_vit.data.ops.op_registry import as_uint8
from keras_vit.data.records.description import (
    FEATURES,
    FEATURES_OF_BOXES,
    FEATURES_OF_INSTANCES,
    FEATURES_OF_MASKS,
    NAME,
    Description,
    read_description,
    write_description,
)
from keras_vit.data.records.object_records import ORDER
from keras_vit.data.scan import scan
from keras_vit.data.source_names import KINDS, with_kind
from keras_vit.data.sources.base import RandomAccess, Source
from keras_vit.data.sources.examine import warn_of_files
from keras_vit.data.sources.repeated_images import real_paths
from keras_vit.data.sources.written_table import image_files
from keras_vit.io.atomic import sync_all, write_bytes
from keras_vit.io.lock import owned
from keras_vit.io.paths import locate
from keras_vit.io.progress import stage
from keras_vit.io.suggest import counted
from keras_vit.io.target_values import CROWD, DIFFICULT, PADDING


def _shrunk(image, side):
    """uint8 pixels with the shorter side resized to `side`."""
    size = tf.cast(tf.shape(image)[:2], tf.float64)
    target = tf.cast(tf.round(size * side / tf.reduce_min(size)), tf.int32)
    return as_uint8(tf.image.resize(image, target, method="bicubic", antialias=True))


def _mask_png(mask, whole, size):
    """A mask (h, w, 1) of an image of `whole` size as a PNG of `size`."""
    mask = mask_of_size(mask, whole)
    mask = tf.cond(tf.reduce_all(size == whole), lambda: mask, lambda: tf.image.resize(mask, size, method="nearest"))
    return tf.io.encode_png(mask if mask.dtype == tf.uint8 else tf.cast(mask, tf.uint16))


def _segments_png(segments, whole, size):
    """Numbers of objects (h, w, 2) of an image of `whole` size as a PNG of `size`, with the second as alpha channel."""
    segments = mask_of_size(segments, whole)
    same = tf.reduce_all(size == whole)
    segments = tf.cond(same, lambda: segments, lambda: tf.image.resize(segments, size, method="nearest"))
    return tf.io.encode_png(tf.cast(segments, tf.uint16))


_OF_OBJECTS = {"image", "boxes", "labels", "crowd", "area", "size"}


def _target(example, size, new_size, most_objects):
    """A label, a mask as a PNG, shrunk like the image from `size` to `new_size`, or packed objects."""
    if "label" in example:
        return example["label"]
    if "mask" in example:
        return _mask_png(example["mask"], size, new_size)
    if "segments" not in example:
        return pack(example, most_objects)
    rows = object_rows(example)  # numbered by segments, so that none may be left out
    return tf.pad(rows, [[0, most_objects - tf.shape(rows)[0]], [0, 0]], constant_values=PADDING)


def encoder(
    resize: int | None = None, quality: int = 95, most_objects: int | None = None, named: bool = True
) -> Callable:
    """Returns the `work` of data.scan.scan that makes a record's contents.

    An encoded image keeps its bytes unless its shorter side exceeds `resize`: then a JPEG becomes a smaller JPEG of
    that quality, any other format a smaller PNG. Arrays and (uncompressed) BMPs become PNGs.

    Args:
        resize: as above; None to keep the size.
        quality: of JPEGs.
        most_objects: the source's.
        named: whether the source names classes, which masks need.

    Returns:
        (example, pixels) -> (encoded bytes, height, width, is it a JPEG, was it shrunk, target, original size,
        segments): the target is the label, the mask of classes as a PNG, shrunk like the image, or the rows of objects,
        as data/objects.py packs them; segments are a PNG, too, or empty. Raises ValueError for examples with more than
        an image and one of these.
    """

    def encode(example, pixels):
        valid = (
            {"image", "label"},
            {"image", "mask", "void"} if named else set(),
            _OF_OBJECTS,
            _OF_OBJECTS | {"segments"},
        )
        if set(example) not in valid:
            raise ValueError(
                "TFRecord files need examples with an image and a label, a mask of named classes, or boxes of named"
                f" classes; these have: {', '.join(example)}. Nothing is left out silently: use a source without"
                " further keys, or read this one directly."
            )
        image = example["image"]
        is_encoded = image.dtype == tf.string
        whole = pixels if is_encoded else image
        stored = size_in_file(image, pixels) if is_encoded else tf.shape(image)[:2]
        is_jpeg = tf.io.is_jpeg(image) if is_encoded else tf.constant(False)
        shrinks = tf.reduce_min(tf.shape(whole)[:2]) > resize if resize else tf.constant(False)
        small = tf.cond(shrinks, lambda: _shrunk(whole, resize), lambda: whole) if resize else whole

        def jpeg():
            return tf.image.encode_jpeg(small, quality=quality)

        def png():
            return tf.image.encode_png(small)

        def smaller():
            return tf.cond(is_jpeg, jpeg, png)

        def kept_or_smaller():
            is_bmp = tf.strings.substr(image, 0, 2) == b"BM"
            return tf.cond(shrinks | is_bmp, smaller, lambda: image)

        encoded = kept_or_smaller() if is_encoded else png()
        size = tf.where(shrinks, tf.shape(small)[:2], stored)
        original = example.get("size", stored)
        target = _target(example, stored, size, most_objects)
        segments = _segments_png(example["segments"], stored, size) if "segments" in example else tf.constant("")
        return encoded, size[0], size[1], is_jpeg, shrinks, target, original, segments

    return encode


def _feature(value):
    """A tf.train.Feature of text, bytes, an integer, a list of texts, or an array of integers or floats."""
    if isinstance(value, list):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode() for text in value]))
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "f":
            return tf.train.Feature(float_list=tf.train.FloatList(value=value))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=value))
    if isinstance(value, int):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value.encode() if isinstance(value, str) else value]))


def _suffix(encoded, is_jpeg):
    """tf-slim's name of the format."""
    return "JPEG" if is_jpeg else {b"\x89P": "PNG", b"BM": "BMP", b"GI": "GIF", b"RI": "WEBP"}.get(encoded[:2], "")


def _of_objects(rows, size):
    """The features, as TensorFlow's object detection names them, of rows (m, 7) of objects in an image of `size`."""
    rows = rows[rows[:, 4] != PADDING]
    labels, crowd = rows[:, 4].astype("int64"), rows[:, 5].astype("int64")
    top, left, bottom, right = rows[:, :4].T
    boxes = FEATURES_OF_BOXES["boxes"]
    return {
        f"{boxes}/ymin": top,
        f"{boxes}/xmin": left,
        f"{boxes}/ymax": bottom,
        f"{boxes}/xmax": right,
        FEATURES_OF_BOXES["labels"]: labels,
        "image/object/is_crowd": (crowd == CROWD).astype("int64"),
        "image/object/difficult": (crowd == DIFFICULT).astype("int64"),
        "image/object/area": rows[:, 6],
        "image/object/image_size": np.asarray(size, "int64"),
    }


def _of_masks(segments, count):
    """The features of the masks of `count` objects, in the PNG `segments`: run lengths, and the order of drawing."""
    numbers = tf.io.decode_png(segments, dtype=tf.uint16).numpy().astype("int32")
    pairs = np.unique(numbers.reshape(-1, 2), axis=0)  # (h * w, 2) -> (pairs, 2): (top, lowest)
    below = {number: [low for top, low in pairs.tolist() if top == number != low] for number in range(1, count + 1)}
    order = list(graphlib.TopologicalSorter(below).static_order())
    return {
        FEATURES_OF_INSTANCES["masks"]: [run_lengths.encoded(c) for c in run_lengths.of_segments(numbers, count)],
        ORDER: np.argsort(np.array(order, "int64")),
    }


def serialized(name: str, values: Sequence, class_names: Sequence[str]) -> bytes:
    """The serialized tf.train.Example, under tf-slim's keys, of an `encoder`'s result."""
    encoded, height, width, is_jpeg, _, target, original, segments = values
    if np.ndim(target) == 2:
        answer = _of_objects(target, original)
        answer |= _of_masks(segments, len(answer["image/object/area"])) if segments else {}
    elif isinstance(target, bytes):
        answer = {FEATURES_OF_MASKS["mask"]: target, "image/segmentation/class/format": "png"}
    else:
        answer = {FEATURES["label"]: int(target), "image/class/text": class_names[target]}
    features = {
        FEATURES["image"]: encoded,
        **answer,
        "image/filename": name,
        "image/format": _suffix(encoded, is_jpeg),
        "image/height": int(height),
        "image/width": int(width),
    }
    return tf.train.Example(
        features=tf.train.Features(feature={k: _feature(v) for k, v in features.items()})
    ).SerializeToString()


def warn_of_repeated(source: Source) -> None:
    """Warns of images with several rows: slices of records count records, and would share these images."""
    if not isinstance(source, RandomAccess) or source.names is None:
        return
    again = source.size - len(set(real_paths(image_files(source))))
    if again:
        logging.warning(
            "%s: %s with the image of another row. Slices of the records would share such images: write the images to"
            " evaluate on as another split, --split=train[80%%:] --as_split=val.",
            *(source.name, counted(again, "row")),
        )


@contextlib.contextmanager
def clear_errors(folder: str) -> Iterator[None]:
    """A context that turns a failed write, as to a full disk, into a clear OSError."""
    try:
        yield
    except tf.errors.OpError as error:
        fix = "Nothing was put in place. Make room there and run again."
        raise OSError(f'Cannot write to "{folder}": {error.message}. {fix}') from None


def _check_same_form(folder, description, features, colors):
    """Raises ValueError if dataset.json describes records in another form, which could not be read with these."""
    differs = {key: value for key, value in description.features.items() if features.get(key, value) != value}
    same = set(features) <= set(description.features) and ("masks" in features) == ("masks" in description.features)
    differs |= {} if same else {"features": list(description.features)}
    differs |= {} if description.colors == colors else {"colors": description.colors}
    if description.first_label:
        differs["first_label"] = description.first_label
    if differs:
        raise ValueError(
            f'"{folder}" has records of another form: its {NAME} says {differs}, and those written here have'
            f" {features}, with labels from 0. Use another folder."
        )


class Files:
    """The files of one split, written next to their destination and moved there together.

    Args:
        folder: the destination; created if missing.
        name: prefix of NAME-SPLIT-00000-of-00016.tfrecord.
        split: its name in dataset.json.
        count: number of files.
        source: of the examples; its classes are the same for all splits in the folder.
        overwrite: whether to replace an existing split.

    Attributes:
        names: file names, in order.
        partial: the folder in which they are written.

    Raises:
        ValueError: for an existing split, splits of other classes, records of another form, or a hidden name.
    """

    def __init__(self, folder: str, name: str, split: str, count: int, source: Source, overwrite: bool = False):
        if not 1 <= count <= source.size:
            raise ValueError(f"--shards={count} for {source.size} examples: expected 1 to {source.size}.")
        if name.startswith("."):
            raise ValueError(f"--name={name} would make hidden files, which are not read: leave out the dot.")
        self.folder, self.split = folder, split
        features = FEATURES if source.void is None else FEATURES_OF_MASKS
        of_objects = FEATURES_OF_INSTANCES if source.outlined else FEATURES_OF_BOXES
        features = features if source.most_objects is None else of_objects
        class_names, colors = tuple(source.class_names), source.colors
        stuff = tuple(source.stuff) or None
        new = Description(name, class_names, dict(features), colors=colors, stuff=stuff)
        description = read_description(folder) or new
        _check_same_form(folder, description, features, colors)
        if description.class_names != class_names:
            both = f"{description.class_names[:5]}..., now {class_names[:5]}..."
            raise ValueError(f'"{folder}" has other classes: {both} Use another folder.')
        self._old = description.match_split(split)
        if self._old and not overwrite:
            n = sum(description.splits[self._old].values())
            raise ValueError(
                f'"{folder}" already has the split "{self._old}", {n} examples. Use another folder, or --overwrite.'
            )
        most = description.most_objects
        if source.most_objects is not None:
            most = {**(most or {}), split: source.most_objects}
        self._description = dataclasses.replace(description, features=dict(features), most_objects=most)
        self.names = [f"{name}-{split}-{i:05d}-of-{count:05d}.tfrecord" for i in range(count)]
        self.partial = os.path.join(folder, f".partial-{split}")

    def partial_path(self, number: int) -> str:
        """The path at which file `number` is written."""
        return os.path.join(self.partial, self.names[number])

    @contextlib.contextmanager
    def written(self) -> Iterator[None]:
        """A context with `partial` as a new folder, removed at the end."""
        try:
            with clear_errors(self.folder):
                if tf.io.gfile.exists(self.partial):  # from a killed run
                    tf.io.gfile.rmtree(self.partial)
                tf.io.gfile.makedirs(self.partial)
            yield
        finally:
            with contextlib.suppress(tf.errors.OpError):
                tf.io.gfile.rmtree(self.partial)

    def put_in_place(self, counts: Sequence[int]) -> None:
        """Replaces the split's files by the new ones, of `counts` records; dataset.json omits the split meanwhile."""
        splits = dict(self._description.splits)
        old = splits.pop(self._old, {})
        if old:
            write_description(self.folder, dataclasses.replace(self._description, splits=splits))
        for name in set(old) - set(self.names):
            tf.io.gfile.remove(os.path.join(self.folder, name))
        sizes = {name: size for name, size in self._description.bytes.items() if name not in old}
        if "://" not in self.folder:
            sync_all(self.partial)
        for i, name in enumerate(self.names):
            tf.io.gfile.rename(self.partial_path(i), os.path.join(self.folder, name), overwrite=True)
            sizes[name] = tf.io.gfile.stat(os.path.join(self.folder, name)).length
        splits[self.split] = dict(zip(self.names, counts))
        write_description(self.folder, dataclasses.replace(self._description, splits=splits, bytes=sizes))


class ShardWriter:
    """A context that writes examples to a split's files in turn and puts them in place at its end.

    Attributes:
        counts: records per file.
    """

    def __init__(self, files: Files):
        self._files, self.counts = files, [0] * len(files.names)
        self._stack = contextlib.ExitStack()
        self._writers = []

    def __enter__(self):
        self._stack.enter_context(self._files.written())
        with clear_errors(self._files.folder):
            self._writers = [tf.io.TFRecordWriter(self._files.partial_path(i)) for i in range(len(self.counts))]
        return self

    def write(self, record: bytes) -> None:
        """Adds a serialized example to the next file."""
        i = sum(self.counts) % len(self.counts)
        with clear_errors(self._files.folder):
            self._writers[i].write(record)
        self.counts[i] += 1

    def __exit__(self, kind, error, trace):
        with self._stack, clear_errors(self._files.folder):
            for writer in self._writers:
                writer.close()
            if kind is None:
                self._files.put_in_place(self.counts)


def default_name(source: str, data_dir: str | None = None) -> str:
    """A name for the files: the last part of the source's path, without extension and leading dots."""
    kind, _, rest = with_kind(source, data_dir).partition("?")[0].partition(":")
    if kind in KINDS:
        path = rest.rstrip("/*")
        kind = os.path.basename(os.path.abspath(locate(path, data_dir))) if path else ""
    return re.sub(r"[^\w.\-]+", "_", os.path.splitext(kind.lstrip("."))[0]) or "data"


def write_records(
    source: Source,
    folder: str,
    name: str,
    split: str,
    shards: int,
    resize: int | None = None,
    quality: int = 95,
    seed: int = 0,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes a source's examples, shuffled; returns the report, also written to the folder.

    Args:
        name, split: of the files NAME-SPLIT-00000-of-00016.
        shards: number of files.
        resize, quality: as for `encoder`.
        seed: of the order.
        overwrite: whether to replace an existing split.

    Raises:
        ValueError: for an existing split, another writer, fewer examples than files, examples with more than an image
            and a label, or none that decodes.
        OSError: if writing fails.
    """
    skipped, size, shrunk = {}, 0, 0
    progress = stage(f"Writing {folder}", source.size, "images")
    with owned(folder):
        files = Files(folder, name, split, shards, source, overwrite)  # reads dataset.json
        warn_of_files(source)
        warn_of_repeated(source)
        with ShardWriter(files) as writer, progress as work:
            encode = encoder(resize, quality, source.most_objects, bool(source.class_names))
            for example, values, reason in scan(source, encode, seed):
                if reason:
                    skipped[example] = reason
                else:
                    record = serialized(example, values, source.class_names)
                    writer.write(record)
                    size, shrunk = size + len(record), shrunk + int(values[4])
                work.advance()
            if len(skipped) > source.size - shards:
                some = dict(list(skipped.items())[:3])
                raise ValueError(f"Of {source.size} images {len(skipped)} do not decode: {some}")
        written = {"examples": sum(writer.counts), "bytes": size, "shrunk": shrunk, "skipped": skipped}
        return write_report(folder, source.name, split, shards, resize, quality, seed, written)


def write_report(
    folder: str,
    source: str,
    split: str,
    shards: int,
    resize: int | None,
    quality: int,
    seed: int,
    written: dict[str, Any],
) -> dict[str, Any]:
    """Writes prepare-SPLIT.json, the settings and `written` about the examples; returns its contents."""
    report = {
        "source": source,
        "split": split,
        "files": shards,
        "resize": resize,
        "quality": quality,
        "shuffle_seed": seed,
        **written,
    }
    write_bytes(
        os.path.join(folder, f"prepare-{split}.json"), json.dumps(report, indent=1, ensure_ascii=False).encode()
    )
    return report
