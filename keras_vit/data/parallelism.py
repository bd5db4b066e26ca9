"""How many examples a dataset works on at a time: a fixed number, in place of tf.data's own tuning.

tf.data.AUTOTUNE is slower (docs/performance.md), and deleting an iterator of a tuned dataset sometimes takes up to a
minute, for example at the end of `fit`.
"""

import os

import tensorflow as tf

# Examples come out in order, so others must be under way while a slow one is read. Each holds a decoded image: two per
# core.
EXAMPLES = max(16, 2 * (os.cpu_count() or 1))


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """`dataset`, without tuning; datasets made from it are not tuned either."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
