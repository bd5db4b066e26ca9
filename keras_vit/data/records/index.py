"""Record counts of files without a dataset.json, from reading them once, kept in the cache folder."""

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
    """The number of records in a TFRecord file, from their lengths alone.

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
        what = (
            f"record {count} does not end where the file does. It was cut short, or is damaged; copy or write it again."
        )
        what = "it is compressed by gzip, which is not supported; decompress it." if is_gzip else what
        raise ValueError(f'"{path}" is not a complete TFRecord file: {what}')
    return count


def record_counts(paths: list[str]) -> list[int]:
    """The number of records in each file, with a progress bar; from the cache if the files are unchanged."""

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
