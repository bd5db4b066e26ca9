"""From a source to batches: training batches (images, labels), evaluation batches (images, labels, weights).

Where several hosts work on one global batch, each asks for its part by `shard=(index, count)`: its number, and how many they are.
"""

import tensorflow as tf

from keras_vit.data.preprocess import parse
from keras_vit.data.rows import Rows
from keras_vit.data.service import distribute
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


def training_batches(source, preprocess, batch_size, seed=0, start_step=0, shard=(0, 1), replicas=1, service=None):
    """An endless dataset of (images (b, h, w, c) uint8, labels (b,)): a pure function of (seed, step), from `start_step` on.

    Row i of the stream is augmented with a seed of its own, whatever the threads do. Where the source has random access, the
    hosts' batches of a step, put together, are the one-host batch, bit for bit; of records each host reads files of its own.

    Args:
        source: from `open_source` or `from_arrays`.
        preprocess: text, see preprocess.py.
        batch_size: rows of the global batch.
        seed: of the order and the augmentation.
        start_step: batches, global ones, that have been seen.
        shard: (index, count): this host's rows of each step are index * batch_size / count to (index + 1) * batch_size / count.
        replicas: the host's rows come as so many batches a step.
        service: "grpc://host:port" of a tf.data service, whose workers then prepare the batches. Hosts get them first come first
            served, each example once among them: neither the order nor the place where a resumed run goes on is exact then.

    Raises:
        ValueError: if the batch cannot be shared out evenly, the images have no fixed size, there are fewer files of records than
            hosts, or no data service answers.
    """
    ops, rows = parse(preprocess), Rows(batch_size, *shard, replicas)

    def prepare(number, image, label):
        return ops(image, fold(seed, number) if ops.random else None), label

    if service is None:
        examples = source.shuffled(seed, start_step, rows)
    else:
        # Any host may get any batch, so that each is a step of its own to the service.
        examples = source.served(seed, start_step * rows.count * replicas, Rows(rows.per_replica))
    dataset = examples.map(prepare, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    _check_static(dataset, preprocess)
    dataset = dataset.batch(rows.per_replica, drop_remainder=True)
    if service is not None:
        stream = f"{source.name}, {source.size} examples, {preprocess}, seed {seed}"
        dataset = distribute(dataset, service, f"{stream}, step {start_step} of {batch_size} by {rows.per_replica}")
    return dataset.prefetch(tf.data.AUTOTUNE)


def evaluation_batches(source, preprocess, batch_size, shard=(0, 1), replicas=1):
    """One pass in order: (images, labels, weights (b,) float32). Every host gets as many batches, padded last with weight 0.

    `batch_size`, `shard` and `replicas` are as in `training_batches`.

    Raises:
        ValueError: if the preprocessing has random ops, or the batch cannot be shared out evenly.
    """
    ops, rows = parse(preprocess), Rows(batch_size, *shard, replicas)
    if ops.random:
        raise ValueError(f'Evaluation must not be random, but its preprocessing is "{preprocess}".')
    dataset = source.ordered(rows).map(
        lambda image, label: (ops(image), label, tf.constant(1.0)), num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    )
    _check_static(dataset, preprocess)
    steps = -(-source.size // batch_size)
    padding = steps * rows.per_host - rows.below(source.size)
    if padding:
        empty = tuple(tf.zeros(s.shape, s.dtype) for s in dataset.element_spec)
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(empty).repeat(padding))
    dataset = dataset.batch(rows.per_replica, drop_remainder=True)
    return dataset.apply(tf.data.experimental.assert_cardinality(steps * replicas)).prefetch(tf.data.AUTOTUNE)
