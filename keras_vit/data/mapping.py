"""Maps examples, a fixed number in parallel, and marks failures.

tf.data.AUTOTUNE is slower (docs/performance.md), and deleting an iterator of a tuned dataset, as at the end of `fit`,
sometimes takes up to a minute.

`Dataset.ignore_errors` silently drops a failing row. `fallible_map` marks it, inside the graph, so it also works in the
workers of a tf.data service. Each row carries its place in its batch, and each batch ends with an end row, which cannot
fail. Marked copies of the next row fill missing places. The end row carries the ids of the batch's examples, since a
dropped row can report nothing.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# Results are in order, so others must run while a slow one is read. Each stores a decoded image: two per core.
EXAMPLES = max(16, 2 * (os.cpu_count() or 1))
_no_autograph = tf.autograph.experimental.do_not_convert  # converting takes longer than tracing
# Traced once per process for each signature: tracing is most of what making a dataset takes.
_shared = functools.partial(tf.function, autograph=False)


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Turns off tuning for `dataset` and datasets made from it."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def _extended(value, size):
    """Pads `value` with zeros to `size` rows."""
    missing = tf.concat([[size - tf.shape(value)[0]], tf.shape(value)[1:]], 0)
    return tf.ensure_shape(tf.concat([value, tf.zeros(missing, value.dtype)], 0), (size, *value.shape[1:]))


def _zeros(spec):
    return tf.zeros([size or 0 for size in spec.shape], spec.dtype)


@functools.cache
def _with_places(rows):
    """Returns a function of (ids (n, m), a batch of n examples) -> (place, real, ids, example), each of `rows` + 1
    rows; the last one, the end row, has the ids of all.
    """

    @_shared
    def with_places(ids, batch):
        place = tf.range(rows + 1)
        real = place < tf.shape(ids)[0]
        ids = tf.where(place == rows, tf.io.serialize_tensor(ids), "")
        return place, real, ids, tf.nest.map_structure(lambda e: _extended(e, rows + 1), batch)

    return with_places


@_shared
def _without_end_row(present, row):
    """Returns (values, good, failed, ids) of all rows but the end row."""
    real, ids, values = row
    return tf.nest.map_structure(lambda v: v[:-1], values), (present & real)[:-1], ~present[:-1], ids[-1]


@functools.cache
def _all_places(places):
    """Returns a step for Dataset.scan over surviving rows (place (n,), rows (n, ...)), with places 0 to `places` - 1.

    The state is the place of the last row. The output (present (m,) bool, rows (m, ...)) has one row per place.
    """

    @_shared
    def step(last, batch):
        place, rows = batch
        missing = (place - tf.concat([[last], place[:-1]], 0) - 1) % places  # before each row

        def fill():
            source = tf.repeat(tf.range(tf.size(place)), missing + 1)
            present = tf.concat([source[1:] != source[:-1], [True]], 0)
            return present, tf.nest.map_structure(lambda row: tf.gather(row, source), rows)

        whole = tf.reduce_all(missing == 0)
        return place[-1], tf.cond(whole, lambda: (tf.fill(tf.shape(place), True), rows), fill)

    return step


def fallible_map(
    examples: tf.data.Dataset, function: Any, ids_of: Callable, rows: int, batches: int | None = None
) -> tf.data.Dataset:
    """Maps `examples` by `function` in batches and marks failed rows.

    Args:
        examples: dataset of tuples. Arguments of the function.
        function: ConcreteFunction. Maps an example to a structure of tensors of static shapes; may fail.
        ids_of: callable. Maps a batch of examples to their ids, (n, m) int64.
        rows: int. Size of a batch.
        batches: int. Number of batches, padded with zeros; None for an endless dataset.

    Returns:
        A dataset of (values (rows, ...), good (rows,) bool, failed (rows,) bool, ids: serialized (n, m) int64). Padding
        rows are neither good nor failed. Only good rows have meaningful values.
    """
    examples = examples.batch(rows)
    if batches is not None:
        padding = tf.data.Dataset.from_tensors(tf.nest.map_structure(_zeros, examples.element_spec))
        examples = examples.concatenate(padding.repeat()).take(batches)
    places = rows + 1
    empty = tf.nest.map_structure(_zeros, function.structured_outputs)

    @_no_autograph
    def placed(*batch):
        return _with_places(rows)(ids_of(*batch), batch)

    @_no_autograph
    def apply(place, real, ids, example):
        return place, (real, ids, tf.cond(real, lambda: function(*example), lambda: empty))

    mapped = examples.map(placed).unbatch().map(apply, num_parallel_calls=EXAMPLES, deterministic=True)
    survivors = mapped.ignore_errors().batch(places)
    whole = survivors.scan(rows, _no_autograph(lambda last, batch: _all_places(places)(last, batch)))
    whole = whole.rebatch(places, drop_remainder=True)
    return untuned(whole.map(_no_autograph(lambda present, row: _without_end_row(present, row))))
