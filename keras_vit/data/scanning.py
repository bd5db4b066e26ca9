"""What files of records that nobody described hold, found out by reading them once; the answer is kept in a cache folder."""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import struct

import keras
import tensorflow as tf
from absl import logging

from keras_vit.data.paths import THREADS, in_threads

_FRAME = 16  # bytes around a record: its length (8) and two checksums (4 each)


def _cache_folder():
    """$KERAS_VIT_CACHE, else $XDG_CACHE_HOME/keras_vit, else ~/.cache/keras_vit; its folder for answers."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return pathlib.Path(os.environ.get("KERAS_VIT_CACHE") or os.path.join(home, "keras_vit")).expanduser() / "scanned"


def once(question, paths, answer):
    """answer(), or what it was the last time that `question` was asked of these files, unchanged since in length and time.

    Args:
        question: text.
        paths: of the files.
        answer: a function of nothing that returns JSON.
    """
    stats = in_threads(tf.io.gfile.stat, paths)
    key = json.dumps([question, *([path, stat.length, stat.mtime_nsec] for path, stat in zip(paths, stats))])
    place = _cache_folder() / (hashlib.sha256(key.encode()).hexdigest()[:24] + ".json")
    try:
        return json.loads(place.read_text())
    except (OSError, json.JSONDecodeError):
        found = answer()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary = place.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(found))
        os.replace(temporary, place)
    except OSError as error:
        logging.warning("What was counted cannot be kept for the next time in %s: %s", place.parent, error)
    return found


def count_records(path):
    """How many records a TFRecord file has, read from their lengths alone.

    Raises:
        ValueError: if it is not a whole TFRecord file.
    """
    size, place, count = tf.io.gfile.stat(path).length, 0, 0
    with tf.io.gfile.GFile(path, "rb") as file:
        while place + _FRAME <= size:
            file.seek(place)
            place += struct.unpack("<Q", file.read(8))[0] + _FRAME
            count += 1
    if place != size:
        what = f"record {count} does not end where the file does. Compressed ones are not read."
        raise ValueError(f'"{path}" is no whole TFRecord file: {what}')
    return count


def record_counts(paths):
    """The number of records of each file, with a progress bar; from the cache, if they have not changed."""

    def count():
        logging.info("Counting the records of %d files, once.", len(paths))
        bar = keras.utils.Progbar(len(paths), unit_name="file", verbose=int(len(paths) > 20))
        found = []
        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            for records in pool.map(count_records, paths):
                found.append(records)
                bar.update(len(found))
        return found

    return once("records", paths, count)
