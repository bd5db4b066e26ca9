"""Writes a source as TFRecord files of equal size beside a dataset.json, which "tfrecord:FOLDER" reads.

The files grow in a folder of their own inside the output and are put in place whole at the end, dataset.json last: what is killed,
or finds the disk full, leaves what was there before.
"""

import contextlib
import dataclasses
import os

import tensorflow as tf

from keras_vit.data.description import FEATURES, Description, read_description, write_description


def _shrunk(image, side):
    """uint8 pixels, resized so that the shorter side is `side`."""
    size = tf.cast(tf.shape(image)[:2], tf.float64)
    wanted = tf.cast(tf.round(size * side / tf.reduce_min(size)), tf.int32)
    small = tf.image.resize(image, wanted, method="bicubic", antialias=True)
    return tf.cast(tf.clip_by_value(tf.round(small), 0, 255), tf.uint8)


def encoder(resize=None, quality=95):
    """A function of (image, pixels, label), as passes.each takes it, that returns what an example's record holds.

    An encoded image keeps its bytes, unless its shorter side is longer than `resize`: then a JPEG becomes a smaller JPEG of that
    quality, another a smaller PNG. Arrays become PNGs.

    Returns:
        A function that returns (encoded bytes, height, width, whether it is a JPEG, whether it was shrunk, label).
    """

    def encode(image, pixels, label):
        given = image.dtype == tf.string
        whole = pixels if given else image
        is_jpeg = tf.io.is_jpeg(image) if given else tf.constant(False)
        shrinks = tf.reduce_min(tf.shape(whole)[:2]) > resize if resize else tf.constant(False)
        small = tf.cond(shrinks, lambda: _shrunk(whole, resize), lambda: whole) if resize else whole
        jpeg, png = lambda: tf.image.encode_jpeg(small, quality=quality), lambda: tf.image.encode_png(small)
        encoded = tf.cond(shrinks, lambda: tf.cond(is_jpeg, jpeg, png), lambda: image) if given else png()
        return encoded, tf.shape(small)[0], tf.shape(small)[1], is_jpeg, shrinks, label

    return encode


def _feature(value):
    """A tf.train.Feature of text, bytes or an integer."""
    if isinstance(value, int):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value.encode() if isinstance(value, str) else value]))


def _suffix(encoded, is_jpeg):
    """tf-slim's word for the format."""
    return "JPEG" if is_jpeg else {b"\x89P": "PNG", b"BM": "BMP", b"GI": "GIF", b"RI": "WEBP"}.get(encoded[:2], "")


def serialized(name, values, class_names):
    """The tf.train.Example, serialized, of what an `encoder` returned, under tf-slim's keys."""
    encoded, height, width, is_jpeg, _, label = values
    features = {
        FEATURES["image"]: encoded,
        FEATURES["label"]: int(label),
        "image/class/text": class_names[label],
        "image/filename": name,
        "image/format": _suffix(encoded, is_jpeg),
        "image/height": int(height),
        "image/width": int(width),
    }
    return tf.train.Example(features=tf.train.Features(feature={k: _feature(v) for k, v in features.items()})).SerializeToString()


@contextlib.contextmanager
def _clear_errors(folder):
    """A full disk is an OSError that says so."""
    try:
        yield
    except tf.errors.OpError as error:
        mend = "Nothing was put in place. Make room there and run again."
        raise OSError(f'Cannot write to "{folder}": {error.message}. {mend}') from None


class Shards:
    """The files of one split while they are written.

    Args:
        folder: where they shall be; made if it is not there.
        name: of the data: the files are NAME-SPLIT-00000-of-00016.tfrecord.
        split: what dataset.json calls them.
        count: how many.
        class_names: the same for all splits in the folder.
        overwrite: whether a split that is there already is replaced.

    Raises:
        ValueError: if the folder holds the split already, or splits of other classes.
    """

    def __init__(self, folder, name, split, count, class_names, overwrite=False):
        self.folder, self.split = folder, split
        held = read_description(folder) or Description(name, tuple(class_names))
        if held.class_names != tuple(class_names):
            both = f"{held.class_names[:5]}..., now {tuple(class_names)[:5]}..."
            raise ValueError(f'"{folder}" holds other classes: {both} Use another folder.')
        if split in held.splits and not overwrite:
            n = sum(held.splits[split].values())
            raise ValueError(f'"{folder}" holds the split "{split}" already, {n} examples. Give another folder, or overwrite it.')
        self.description = dataclasses.replace(held, features=dict(FEATURES))
        self.names = [f"{name}-{split}-{i:05d}-of-{count:05d}.tfrecord" for i in range(count)]
        self.counts = [0] * count
        self._partial = os.path.join(folder, f".partial-{split}")
        self._writers = []

    def __enter__(self):
        with _clear_errors(self.folder):
            if tf.io.gfile.exists(self._partial):  # a killed run's
                tf.io.gfile.rmtree(self._partial)
            tf.io.gfile.makedirs(self._partial)
            self._writers = [tf.io.TFRecordWriter(os.path.join(self._partial, name)) for name in self.names]
        return self

    def write(self, record):
        """Adds a serialized example to the next file, in turn."""
        i = sum(self.counts) % len(self.counts)
        with _clear_errors(self.folder):
            self._writers[i].write(record)
        self.counts[i] += 1

    def _put_in_place(self):
        """Old files of the split go, the new ones come, and dataset.json, which in between does not tell of the split, comes last."""
        splits = dict(self.description.splits)
        old = splits.pop(self.split, {})
        if old:
            write_description(self.folder, dataclasses.replace(self.description, splits=splits))
        for name in set(old) - set(self.names):
            tf.io.gfile.remove(os.path.join(self.folder, name))
        for name in self.names:
            tf.io.gfile.rename(os.path.join(self._partial, name), os.path.join(self.folder, name), overwrite=True)
        splits[self.split] = dict(zip(self.names, self.counts))
        write_description(self.folder, dataclasses.replace(self.description, splits=splits))

    def __exit__(self, kind, error, trace):
        try:
            with _clear_errors(self.folder):
                for writer in self._writers:
                    writer.close()
                if kind is None:
                    self._put_in_place()
        finally:
            with contextlib.suppress(tf.errors.OpError):
                tf.io.gfile.rmtree(self._partial)
