"""Tables as files: Parquet, by pyarrow, and TFRecords of tf.train.Example.

A new format needs two functions and a row of FORMATS.

A table is {column: values} of equal length: arrays (n,) or (n, length), or lists. Where `present` (n,) bool is False,
the row has no answer (its image is unreadable): null in Parquet, no feature in an Example.
"""

import contextlib
import dataclasses
import io
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import tensorflow as tf
from etils import epath

from keras_vit.answers import Column
from keras_vit.io.atomic import replacing, write_bytes


def _arrow_type(column):
    values = {"integer": pa.int64(), "text": pa.string(), "texts": pa.string(), "numbers": pa.float32()}[column.kind]
    # Variable length: pyarrow 25 cannot read fixed-size lists with nulls.
    return values if column.length is None else pa.list_(values)


def _arrow_array(column, values, present):
    """A column as a pyarrow array, null where `present` is False."""
    kind = _arrow_type(column)
    if column.length is None:
        return pa.array(values, kind, mask=~present)
    flat = pa.array(np.asarray(values).reshape(-1), kind.value_type)  # (n, length) -> (n * length,)
    starts = np.arange(len(present) + 1, dtype="int32") * column.length
    return pa.ListArray.from_arrays(pa.array(starts), flat, mask=pa.array(~present))


def _write_parquet(path, columns, table, present, about):
    arrays = [_arrow_array(column, table[column.name], present[column.name]) for column in columns]
    schema = pa.schema(
        [pa.field(column.name, _arrow_type(column)) for column in columns], metadata={"keras_vit": about}
    )
    memory = io.BytesIO()
    pa.parquet.write_table(pa.Table.from_arrays(arrays, schema=schema), memory)
    write_bytes(path, memory.getvalue())


def _read_parquet(path, names):
    with tf.io.gfile.GFile(path, "rb") as file:
        table = pa.parquet.read_table(pa.BufferReader(file.read()), columns=list(names))
    read, present = {}, {}
    for name in names:
        array = table[name].combine_chunks()
        present[name] = array.is_valid().to_numpy(zero_copy_only=False)
        if isinstance(array.type, pa.ListType):
            rows = array.drop_null()
            length = len(rows[0]) if len(rows) else 0
            # (m * length,) -> (m, length)
            read[name] = rows.flatten().to_numpy(zero_copy_only=False).reshape(len(rows), length)
        else:
            read[name] = array.drop_null().to_numpy(zero_copy_only=False)
    return read, present


def _feature(column, value):
    """tf.train.Feature of one row's value."""
    values = [value] if column.length is None else value
    if column.kind == "integer":
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    if column.kind == "numbers":
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode(errors="replace") for text in values]))


def _write_examples(path, columns, table, present):
    with tf.io.TFRecordWriter(path) as writer:
        for i in range(len(present[columns[0].name])):
            named = {c.name: _feature(c, table[c.name][i]) for c in columns if present[c.name][i]}
            writer.write(tf.train.Example(features=tf.train.Features(feature=named)).SerializeToString())


@contextlib.contextmanager
def whole_file(path: str) -> Iterator[epath.Path]:
    """Yields a temporary path for a file, local or in a bucket, which appears at `path` once it is complete."""
    if "://" in path:
        yield epath.Path(f"{path}.partial")
        tf.io.gfile.rename(f"{path}.partial", path, overwrite=True)
    else:
        with replacing(path) as temporary:
            yield epath.Path(temporary)


def _write_tfrecord(path, columns, table, present, about):
    with whole_file(path) as temporary:
        _write_examples(os.fspath(temporary), columns, table, present)


def _read_tfrecord(path, names):
    rows = {name: [] for name in names}
    for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
        features = tf.train.Example.FromString(record).features.feature
        for name in names:
            feature = features.get(name)
            kind = None if feature is None else feature.WhichOneof("kind")
            rows[name].append(None if kind is None else list(getattr(feature, kind).value))
    present = {name: np.array([row is not None for row in values], bool) for name, values in rows.items()}
    return {name: _joined([row for row in values if row is not None]) for name, values in rows.items()}, present


def _joined(rows):
    """Rows of an Example's lists as an array: numbers (m, length); integers and texts also (m,) from lists of one."""
    if rows and isinstance(rows[0][0], bytes):
        rows = [[text.decode() for text in row] for row in rows]
        array = np.array(rows, object)
    elif rows and isinstance(rows[0][0], float):
        return np.array(rows, "float32")
    else:
        array = np.array(rows, "int64")
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


@dataclasses.dataclass(frozen=True)
class Format:
    """A file format.

    Attributes:
        ending: suffix of file names.
        write: function (path, columns, table, present, about) that writes a file, all or nothing; `about` is text to
            store in the file if the format allows it.
        read: function (path, column names) -> (table of the rows with a value, {name: present}).
    """

    ending: str
    write: Callable[[str, Sequence[Column], dict[str, Any], dict[str, np.ndarray], str], None]
    read: Callable[[str, Sequence[str]], tuple[dict[str, Any], dict[str, np.ndarray]]]


FORMATS = {
    "parquet": Format(".parquet", _write_parquet, _read_parquet),
    "tfrecord": Format(".tfrecord", _write_tfrecord, _read_tfrecord),
}
