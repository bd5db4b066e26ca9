"""One pass over a source outside of training: each example by name, and what does not decode by name and reason."""

import functools

import tensorflow as tf

from keras_vit.data.broken import reason
from keras_vit.data.decode import decode
from keras_vit.data.excluding import example_names
from keras_vit.data.parallel import EXAMPLES, untuned

_BATCH = 64


@functools.cache
def _decoder():
    """`decode` of bytes, compiled: its many branches take seconds to trace, once a process."""
    return tf.function(decode(3), [tf.TensorSpec((), tf.string)], autograph=False)


def _pixels(image):
    return _decoder()(image) if image.dtype == tf.string else decode(3)(image)


def _keys(source, seed, only):
    """The keys of one pass, each a tuple; see `each`."""
    if seed is None:
        keys = source.keys()
    else:
        keys = source.shuffled_keys(seed).map(lambda number, key: key).take(source.size)
    if only is not None:
        places = tf.constant([i for i, name in enumerate(example_names(source)) if name in only], tf.int64)
        keys = keys.enumerate().filter(lambda i, key: tf.reduce_any(i == places)).map(lambda i, key: key)
    return keys if isinstance(keys.element_spec, tuple) else tf.data.Dataset.zip((keys,))


def _identity(source, key):
    """What identifies a key (a tuple), (m,) int64."""
    one = tuple(part[None] for part in key)
    return source.identities(one if len(one) > 1 else one[0])[0]


def _named(source, identity):
    """The name of the example of an identity."""
    return source.called(identity if len(identity) > 1 else identity[0])


def _reason(source, identity):
    """Why an example does not decode."""
    try:
        _pixels(source.read(source.found(*identity))[0])
    except tf.errors.OpError as error:
        return reason(error)
    return "it could not be read at first, and could a moment later"


def each(source, work, seed=None, only=None):
    """Reads, decodes and maps every example of a source once.

    Args:
        source: from `open_source` or `from_arrays`.
        work: (image, pixels (h, w, 3) uint8, label) -> a tuple of tensors of static shapes; runs in a graph. The image is as the
            source gives it.
        seed: of a shuffled order; None for the source's own.
        only: names of the examples to map, in the source's own order; None for all.

    Yields:
        (name, what `work` returns as arrays, None); at the end (name, None, the reason) for examples that do not decode.
    """
    keys = _keys(source, seed, only)

    def one(*key):
        image, label = source.read(key if len(key) > 1 else key[0])
        return _identity(source, key), work(image, _pixels(image), label)

    done = untuned(keys.map(one, num_parallel_calls=EXAMPLES).ignore_errors().batch(_BATCH).prefetch(2))
    seen = set()
    for identities, values in done.as_numpy_iterator():
        for identity, *row in zip(map(tuple, identities.tolist()), *values):
            seen.add(identity)
            yield _named(source, identity), row, None
    if only is None and len(seen) == source.size:
        return
    identities = keys.map(lambda *key: _identity(source, key)).batch(_BATCH)
    for identity in (tuple(row) for batch in identities.as_numpy_iterator() for row in batch.tolist()):
        if identity not in seen:
            yield _named(source, identity), None, _reason(source, identity)
