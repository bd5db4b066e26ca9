"""How much a dataset works on at a time: a fixed number of examples, in place of tf.data's own tuning.

tf.data.AUTOTUNE is slower (docs/performance.md), and where it is, whoever deletes an iterator waits now and then, up to a minute: at the end
of `fit`, for one.
"""

import os

import tensorflow as tf

# They come out in order, so that behind a slow one others must be under way. Each holds a decoded image: with many cores, two a core.
EXAMPLES = max(16, 2 * (os.cpu_count() or 1))


def untuned(dataset):
    """`dataset` as it is, and whatever is made of it, without tuning."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
