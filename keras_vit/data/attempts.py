"""Mapping examples of which some fail, row by row, inside the graph: so that it works in a tf.data service's workers too.

`Dataset.ignore_errors` drops a row without a word. Here rows know their place in their batch, and behind each batch goes an end row,
which cannot fail: where places are missing, copies of the row behind take them and are marked. What identifies the examples of a batch
goes with its end row, since a row that is dropped can tell nothing.
"""

import tensorflow as tf

from keras_vit.data.parallel import EXAMPLES, untuned

_plain = tf.autograph.experimental.do_not_convert  # converting takes longer than tracing


def _extended(value, size):
    """The rows of `value` and zeros behind them, `size` rows together."""
    missing = tf.concat([[size - tf.shape(value)[0]], tf.shape(value)[1:]], 0)
    return tf.ensure_shape(tf.concat([value, tf.zeros(missing, value.dtype)], 0), (size, *value.shape[1:]))


def _zeros(spec):
    return tf.zeros([size or 0 for size in spec.shape], spec.dtype)


def _all_places(places):
    """For Dataset.scan over survivors (place (n,), rows (n, ...)), places going from 0 to `places` - 1 again and again.

    Its state is the place of the last row; it puts out (present (m,) bool, rows (m, ...)) of all places.
    """

    @_plain
    def step(last, batch):
        place, rows = batch
        missing = (place - tf.concat([[last], place[:-1]], 0) - 1) % places  # before each

        def fill():
            source = tf.repeat(tf.range(tf.size(place)), missing + 1)
            present = tf.concat([source[1:] != source[:-1], [True]], 0)
            return present, tf.nest.map_structure(lambda row: tf.gather(row, source), rows)

        whole = tf.reduce_all(missing == 0)
        return place[-1], tf.cond(whole, lambda: (tf.fill(tf.shape(place), True), rows), fill)

    return step


def attempted(examples, function, identify, rows, batches=None):
    """`examples` mapped by `function`, in batches.

    Args:
        examples: a dataset of tuples, the function's arguments.
        function: a ConcreteFunction, an example -> a structure of tensors, of static shapes; it may fail.
        identify: a batch of examples -> integers (n, m) int64 that say which they are.
        rows: of a batch.
        batches: how many, filled up with zeros; None for an endless dataset.

    Returns:
        A dataset of (values (rows, ...), good (rows,) bool, failed (rows,) bool, identities: serialized (n, m) int64). In rows that
        fill up neither mark is set. Where one is not set, the values have no meaning.
    """
    examples = examples.batch(rows)
    if batches is not None:
        none = tf.data.Dataset.from_tensors(tf.nest.map_structure(_zeros, examples.element_spec))
        examples = examples.concatenate(none.repeat()).take(batches)
    places = rows + 1
    empty = tf.nest.map_structure(_zeros, function.structured_outputs)

    @_plain
    def arrange(*batch):
        place = tf.range(places)
        real = place < tf.shape(tf.nest.flatten(batch)[0])[0]
        identities = tf.where(place == rows, tf.io.serialize_tensor(identify(*batch)), "")
        return place, real, identities, tf.nest.map_structure(lambda e: _extended(e, places), batch)

    @_plain
    def attempt(place, real, identities, example):
        return place, (real, identities, tf.cond(real, lambda: function(*example), lambda: empty))

    @_plain
    def cut(present, row):
        real, identities, values = row
        return tf.nest.map_structure(lambda v: v[:-1], values), (present & real)[:-1], ~present[:-1], identities[-1]

    attempts = examples.map(arrange).unbatch().map(attempt, num_parallel_calls=EXAMPLES, deterministic=True)
    survivors = attempts.ignore_errors().batch(places)
    return untuned(survivors.scan(rows, _all_places(places)).rebatch(places, drop_remainder=True).map(cut))
