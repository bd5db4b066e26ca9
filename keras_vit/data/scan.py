"""Reads a source once outside training and names each example, with a reason for each that cannot be decoded."""

import functools
from collections.abc import Callable, Collection, Iterator

import tensorflow as tf

from keras_vit.data.errors import why, wrong_description
from keras_vit.data.mapping import EXAMPLES, untuned
from keras_vit.data.ops.decode import decode_image
from keras_vit.data.ops.decode_mask import decode_mask, mask_of_size
from keras_vit.data.sources.base import Source
from keras_vit.data.sources.selection import example_names

_BATCH = 64


@functools.cache
def _decoder():
    """Compiles `decode_image` for bytes once per process: tracing its many branches takes seconds."""
    return tf.function(decode_image, [tf.TensorSpec((), tf.string)], autograph=False)


def _pixels(image):
    return _decoder()(image) if image.dtype == tf.string else decode_image(image)


def _decoded(source, example_id):
    example = source.read(source.make_key(*example_id))
    pixels = _pixels(example["image"])
    if "mask" in example:
        mask_of_size(decode_mask(example["mask"]), tf.shape(pixels)[:2])


def _keys(source, seed, only):
    """Yields the keys of one pass, as tuples; see `scan`."""
    if seed is None:
        keys = source.keys()
    else:
        keys = source.shuffled_keys(seed).map(lambda number, key: key)
        keys = keys.take(source.size)
    if only is not None:
        places = tf.constant([i for i, name in enumerate(example_names(source)) if name in only], tf.int64)
        chosen = keys.enumerate().filter(lambda i, key: tf.reduce_any(i == places))
        keys = chosen.map(lambda i, key: key)
    return keys if isinstance(keys.element_spec, tuple) else tf.data.Dataset.zip((keys,))


def _id(source, key):
    """Returns the id (m,) int64 of a key, a tuple."""
    batch = tuple(part[None] for part in key)
    return source.ids(batch if len(batch) > 1 else batch[0])[0]


def scan(
    source: Source, work: Callable[..., tuple], seed: int | None = None, only: Collection[str] | None = None
) -> Iterator[tuple]:
    """Reads, decodes and maps every example of a source once.

    Args:
        source: Source. From `open_source` or `from_arrays`.
        work: callable. Maps an example, a dict, and its pixels (h, w, 3) uint8 to a tuple of tensors of static shapes.
            Runs in a graph.
        seed: int. Seed of a shuffled order; None for the source's order.
        only: collection of str. Names of the examples to map, in the source's order; None for all.

    Yields:
        (name, arrays from `work`, None) for each example; at the end (name, None, reason) for each that cannot be
        decoded.

    Raises:
        WrongDescription: at the end, for an example that contradicts the description of its source.
    """
    keys = _keys(source, seed, only)

    @tf.autograph.experimental.do_not_convert
    def read(*key):
        example = source.read(key if len(key) > 1 else key[0])
        return _id(source, key), work(example, _pixels(example["image"]))

    results = untuned(keys.map(read, num_parallel_calls=EXAMPLES).ignore_errors().batch(_BATCH).prefetch(2))
    seen = set()
    for ids, values in results.as_numpy_iterator():
        for example_id, *row in zip(map(tuple, ids.tolist()), *values):
            seen.add(example_id)
            yield source.example_name(*example_id), row, None
    if only is None and len(seen) == source.size:
        return
    ids = keys.map(lambda *key: _id(source, key)).batch(_BATCH)
    for example_id in (tuple(row) for batch in ids.as_numpy_iterator() for row in batch.tolist()):
        if example_id not in seen:
            name, found = source.example_name(*example_id), why(functools.partial(_decoded, source, example_id))
            wrong = wrong_description(name, found)
            if wrong is not None:
                raise wrong
            yield name, None, found
