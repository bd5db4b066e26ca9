"""Maps examples, a fixed number in parallel, and marks failures.

tf.data.AUTOTUNE is slower (docs/performance.md), and deleting an iterator of a tuned dataset, as at the end of `fit`,
sometimes takes up to a minute.

`Dataset.ignore_errors` silently drops a failing example. `fallible_map` numbers the examples of each batch, maps
each batch as a nested dataset, and marks the missing numbers. All of it runs in the graph, so also in the workers of a
tf.data service.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# Results are in order, so others must run while a slow one is read. Each stores a decoded image: two per core.
EXAMPLES = max(16, 2 * (os.cpu_count() or 1))
_BATCHES = 2  # at once: one begins while the last examples of another are read
_no_autograph = tf.autograph.experimental.do_not_convert  # converting takes longer than tracing
# Traced once per process for each signature: tracing is most of what making a dataset takes.
_shared = functools.partial(tf.function, autograph=False)


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Turns off tuning for `dataset` and datasets made from it."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def _zeros(spec):
    return tf.zeros([size or 0 for size in spec.shape], spec.dtype)


@functools.cache
def _filled(rows):
    """Returns a function of (numbers (n,), values (n, ...)), n at most `rows` + 1 and the last number `rows`.

    It returns (values (rows, ...), good (rows,) bool): each missing row is a copy of the next one, and not good.
    """

    @_shared
    def fill(numbers, values):
        places = tf.range(rows)
        source = tf.searchsorted(numbers, places)  # the first number that is not smaller
        whole = tf.size(numbers) == rows + 1
        values = tf.nest.map_structure(
            lambda v: tf.ensure_shape(
                tf.cond(whole, lambda: v[:-1], lambda: tf.gather(v, source)), (rows, *v.shape[1:])
            ),
            values,
        )
        return values, tf.gather(numbers, source) == places

    return fill


def fallible_map(
    examples: tf.data.Dataset, function: Any, make_ids: Callable, rows: int, batches: int | None = None
) -> tf.data.Dataset:
    """Maps `examples` by `function` in batches and marks failed rows.

    Args:
        examples: dataset of tuples. Arguments of the function.
        function: ConcreteFunction. Maps an example to a structure of tensors of static shapes; may fail.
        ids_of: callable. Maps a batch of examples to their ids, (n, m) int64.
        rows: int. Size of a batch.
        batches: int. Number of batches, padded with zeros; None for an endless dataset.

    Returns:
        A dataset of (values (rows, ...), good (rows,) bool, failed (rows,) bool, ids (n, m) int64). Padding rows are
        neither good nor failed. Only good rows have meaningful values.
    """
    examples = examples.batch(rows)
    if batches is not None:
        padding = tf.data.Dataset.from_tensors(tf.nest.map_structure(_zeros, examples.element_spec))
        examples = examples.concatenate(padding.repeat()).take(batches)
    end = (tf.constant(rows), tf.nest.map_structure(_zeros, function.structured_outputs))

    @_no_autograph
    def apply(number, example):
        return number, function(*example)

    @_no_autograph
    def mapped(*batch):
        ids = make_ids(*batch)
        count = tf.shape(ids)[0]
        numbered = tf.data.Dataset.from_tensor_slices((tf.range(count), batch))
        done = numbered.map(apply, num_parallel_calls=EXAMPLES, deterministic=True).ignore_errors()
        ended = done.concatenate(tf.data.Dataset.from_tensors(end)).batch(rows + 1)
        values, good = _filled(rows)(*ended.get_single_element())
        return values, good, ~good & (tf.range(rows) < count), ids

    return untuned(examples.map(mapped, num_parallel_calls=_BATCHES, deterministic=True))
