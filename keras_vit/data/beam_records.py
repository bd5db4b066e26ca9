"""Writes a source as TFRecord files on many machines with Apache Beam, like records.write but in another order.

Workers read and encode the source in pieces. A hash of an example's name and the seed determines its file and place, so
files have about equal sizes. They are moved into place when all are complete.
"""

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any

import apache_beam as beam
import tensorflow as tf

from keras_vit.data.open import open_source
from keras_vit.data.records.write import Files, encoder, serialized, warn_of_repeated
from keras_vit.data.scan import scan
from keras_vit.data.sources.base import Records, Source
from keras_vit.data.sources.selection import subset, without
from keras_vit.io.beam_options import pipeline_options
from keras_vit.io.lock import owned
from keras_vit.io.paths import locate
from keras_vit.io.progress import stage

_PIECE = 1000  # random-access examples that a worker reads at a time


@functools.cache
def _source(data, split, data_dir, exclude):
    """Opens a source, once per worker."""
    source = open_source(data, split, data_dir)
    return without(source, exclude) if exclude else source


def pieces(source: Source) -> int:
    """Returns the number of pieces of a source: its files, or ranges of examples."""
    return len(source.files) if isinstance(source, Records) else -(-source.size // _PIECE)


def piece(source: Source, number: int) -> Source:
    """Returns piece `number` of a source."""
    if isinstance(source, Records):
        return dataclasses.replace(source, files=(source.files[number],))
    return subset(source, range(number * _PIECE, min((number + 1) * _PIECE, source.size)))


def place(name: str, seed: int) -> int:
    """Returns an example's position in the shuffled order, a 64-bit hash."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {name}".encode(errors="replace"), digest_size=8).digest(), "big")


class _Encode(beam.DoFn):
    """Maps a piece number to (file number, (place, name, record, shrunk, None)), or (..., None, False, why)."""

    def __init__(self, where, count, resize, quality, seed):
        self._where, self._count, self._seed = where, count, seed
        self._encoding = resize, quality

    def process(self, number):
        source = _source(*self._where)
        for name, values, why in scan(
            piece(source, number), encoder(*self._encoding, source.most_objects, bool(source.class_names))
        ):
            at = place(name, self._seed)
            record = None if why else serialized(name, values, source.class_names)
            yield at % self._count, (at, name, record, not why and bool(values[4]), why)


class _Write(beam.DoFn):
    """Writes the examples of (file number, examples) to the file and a summary next to it; yields nothing."""

    def __init__(self, files):
        self._files = files

    def process(self, element):
        number, examples = element
        examples = sorted((example for example in examples if example is not None), key=lambda example: example[:2])
        records = [record for _, _, record, _, _ in examples if record is not None]
        with tf.io.TFRecordWriter(self._files.partial_path(number)) as writer:
            for record in records:
                writer.write(record)
        counts = {
            "examples": len(records),
            "bytes": sum(map(len, records)),
            "shrunk": sum(shrunk for *_, shrunk, _ in examples),
            "skipped": {name: why for _, name, record, _, why in examples if record is None},
        }
        with tf.io.gfile.GFile(self._files.partial_path(number) + ".json", "w") as file:
            file.write(json.dumps(counts))


def _read_counts(files):
    """Yields the summaries written by `_Write`, file by file, and removes them."""
    for number in range(len(files.names)):
        path = files.partial_path(number) + ".json"
        with tf.io.gfile.GFile(path) as file:
            yield json.loads(file.read())
        tf.io.gfile.remove(path)


def _totals(counts, size):
    """Adds the files' summaries; ValueError if a file is empty."""
    skipped = {name: why for part in counts for name, why in part["skipped"].items()}
    empty = sum(not part["examples"] for part in counts)
    if empty:
        raise ValueError(
            f"{empty} of the {len(counts)} files would be empty, since {len(skipped)} of {size} images cannot be"
            f" decoded. Use fewer --shards. {dict(list(skipped.items())[:3])}"
        )
    return {**{key: sum(part[key] for part in counts) for key in ("examples", "bytes", "shrunk")}, "skipped": skipped}


def _connect(pipeline, pieces, encode, write, count):
    """Adds the steps to a pipeline: encode the source's pieces; write `count` files, also those without examples."""
    files = pipeline | "files" >> beam.Create([(i, None) for i in range(count)])
    encoded = pipeline | "pieces" >> beam.Create(range(pieces)) | beam.Reshuffle() | "encode" >> beam.ParDo(encode)
    (files, encoded) | beam.Flatten() | beam.GroupByKey() | "write" >> beam.ParDo(write)


def write_by_beam(
    data: str,
    split: str,
    data_dir: str | None,
    folder: str,
    name: str,
    as_split: str,
    count: int,
    resize: int | None = None,
    quality: int = 95,
    seed: int = 0,
    overwrite: bool = False,
    exclude: Sequence[str] = (),
    options: Sequence[str] = (),
) -> dict[str, Any]:
    """Writes the examples of a source, shuffled, to a folder that all workers share.

    Args:
        data, split, data_dir: see `open_source`, which each worker calls.
        folder, name, as_split, count, overwrite: see records.write.Files.
        resize, quality: see records.write.encoder.
        seed: int. Seed of the order.
        exclude: sequence of str. Names of examples to exclude.
        options: sequence of str. Beam's options, such as ("--runner=FlinkRunner",); DirectRunner by default.

    Returns:
        {"examples", "bytes", "shrunk": numbers, "skipped": {name: why} of examples that do not decode}.

    Raises:
        ValueError: for an unknown Beam option, an existing split, or too few readable examples to fill the files.
    """
    folder = locate(folder)
    beam_options, where = pipeline_options(options), (data, split, data_dir, tuple(exclude))
    source = _source(*where)
    warn_of_repeated(source)
    with owned(folder):
        files = Files(folder, name, as_split, count, source, overwrite)  # reads dataset.json
        with files.written(), stage(f"Writing {os.fspath(folder)} by Beam"):
            with beam.Pipeline(options=beam_options) as pipeline:
                _connect(pipeline, pieces(source), _Encode(where, count, resize, quality, seed), _Write(files), count)
            counts = list(_read_counts(files))
            report = _totals(counts, source.size)
            files.put_in_place([part["examples"] for part in counts])
    return report
