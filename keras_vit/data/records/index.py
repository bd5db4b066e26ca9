"""Counts the records of files without a dataset.json, once, and caches the counts."""

import concurrent.futures
import struct

import keras
import tensorflow as tf
from absl import logging

from keras_vit.io.cache import cached_answer
from keras_vit.io.logs import log_once
from keras_vit.io.paths import THREADS
from keras_vit.io.suggest import listed

FRAME = 16  # bytes around a record: its length (8) and two checksums (4 each)


def count_records(path: str) -> int:
    """Counts the records in a TFRecord file; reads only their lengths.

    Raises:
        ValueError: if it is not a complete TFRecord file.
    """
    size, place, count = tf.io.gfile.stat(path).length, 0, 0
    with tf.io.gfile.GFile(path, "rb") as file:
        is_gzip = file.read(3) == b"\x1f\x8b\x08"
        while place + FRAME <= size:
            file.seek(place)
            place += struct.unpack("<Q", file.read(8))[0] + FRAME
            count += 1
    if place != size:
        what = f"record {count} does not end with the file, which is truncated or damaged. Copy or write it again."
        what = "gzip compression is not supported. Decompress it." if is_gzip else what
        raise ValueError(f'"{path}" is not a complete TFRecord file: {what}')
    return count


def record_counts(paths: list[str]) -> list[int]:
    """Counts the records in each file, with a progress bar; uses the cache if the files are unchanged."""

    def count():
        logging.info("Counting the records of %d files, once.", len(paths))
        bar = keras.utils.Progbar(len(paths), unit_name="file", verbose=int(len(paths) > 20))
        counts = []
        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            for records in pool.map(count_records, paths):
                counts.append(records)
                bar.update(len(counts))
        return counts

    counts = cached_answer("records", paths, count)
    empty = [path for path, records in zip(paths, counts) if not records]
    if empty and any(counts):
        log_once(logging.WARNING, f"{len(empty)} of {len(paths)} files have no records: {listed(empty, 3)}.")
    return counts
