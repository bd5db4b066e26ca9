"""From a source to batches: training batches (images, labels), evaluation batches (images, labels, weights)."""

import tensorflow as tf

from keras_vit.data.preprocess import parse
from keras_vit.data.source import fold


def open_source(text, split, data_dir=None, buffer=10_000):
    """The source that `text` names: "digits", "folder:PATH", or a tensorflow-datasets name. A new kind is one row here.

    Raises:
        ValueError: as the source says.
    """
    kind, _, rest = text.partition(":")
    if kind == "digits":
        from keras_vit.data.digits import digits

        return digits(split)
    if kind == "folder":
        from keras_vit.data.folder import folder

        return folder(rest, split)
    from keras_vit.data.tfds import tfds

    return tfds(text, split, data_dir, buffer)


def _check_static(dataset, text):
    """Shapes must be fixed (a TPU, and a batch, need it): says which op to add."""
    shape = dataset.element_spec[0].shape
    if not shape.is_fully_defined():
        raise ValueError(
            f'The preprocessing "{text}" gives images of shape {tuple(shape)}. End it in a fixed size: '
            '"central_crop(224)", "random_crop(224)" or "resize(224, 224)".'
        )


def training_batches(source, preprocess, batch_size, seed=0, start_step=0):
    """An endless dataset of (images (b, h, w, c) uint8, labels (b,)): a pure function of (seed, step), from `start_step` on.

    Example i of the stream is augmented with a seed of its own, whatever the threads do.
    """
    ops = parse(preprocess)
    start = start_step * batch_size

    def prepare(i, example):
        image, label = example
        return ops(image, fold(seed, i) if ops.random else None), label

    numbered = source.shuffled(seed, start).enumerate(start)
    dataset = numbered.map(prepare, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    _check_static(dataset, preprocess)
    return dataset.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def evaluation_batches(source, preprocess, batch_size):
    """One pass in order: (images, labels, weights (b,) float32). The last batch is padded with weight 0, so shapes are static.

    Raises:
        ValueError: if the preprocessing has random ops.
    """
    ops = parse(preprocess)
    if ops.random:
        raise ValueError(f'Evaluation must not be random, but its preprocessing is "{preprocess}".')
    dataset = source.ordered().map(
        lambda image, label: (ops(image), label, tf.constant(1.0)), num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    )
    _check_static(dataset, preprocess)
    padding = -source.size % batch_size
    if padding:
        spec = dataset.element_spec
        empty = tuple(tf.zeros(s.shape, s.dtype) for s in spec)
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(empty).repeat(padding))
    dataset = dataset.batch(batch_size, drop_remainder=True)
    return dataset.apply(tf.data.experimental.assert_cardinality((source.size + padding) // batch_size)).prefetch(
        tf.data.AUTOTUNE
    )
