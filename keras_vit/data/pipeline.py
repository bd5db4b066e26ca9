"""From a source to batches: training batches (images, labels), evaluation batches (images, labels, weights).

Where several hosts work on one global batch, each asks for its part by `shard=(index, count)`: its number, and how many they are.
"""

import tensorflow as tf

from keras_vit.data.attempts import attempted
from keras_vit.data.broken import Broken, filled, told
from keras_vit.data.preprocess import parse
from keras_vit.data.rows import Rows
from keras_vit.data.service import distribute
from keras_vit.data.source import fold


def _attempted(source, keys, prepare, text, rows, batches=None):
    """attempts.attempted of a dataset of (number, key); also the function that `prepare`, of these, makes.

    Raises:
        ValueError: if its images have no fixed size: a TPU, and a batch, need one.
    """
    function = tf.function(prepare, autograph=False).get_concrete_function(*keys.element_spec)
    shape = function.structured_outputs[0].shape
    if not shape.is_fully_defined():
        raise ValueError(
            f'The preprocessing "{text}" gives images of shape {tuple(shape)}. End it in a fixed size: '
            '"central_crop(224)", "random_crop(224)" or "resize(224, 224)".'
        )
    identify = lambda number, key: tf.concat([number[:, None], source.identities(key)], 1)  # noqa: E731
    return attempted(keys, function, identify, rows, batches), function


def _filling(broken, function, source):
    """Maps what attempts.attempted gives to batches in which the nearest good rows stand for those that failed."""

    @tf.autograph.experimental.do_not_convert
    def fill(values, good, failed, identities):
        with tf.control_dependencies([told(failed, identities, broken, function, source)]):
            return filled(values, tf.identity(good), broken)

    return fill


def training_batches(
    source, preprocess, batch_size, seed=0, start_step=0, shard=(0, 1), replicas=1, service=None, broken=None, deterministic=True
):
    """An endless dataset of (images (b, h, w, c) uint8, labels (b,)): a pure function of (seed, step), from `start_step` on.

    Row i of the stream is augmented with a seed of its own, whatever the threads do. Where the source has random access, the
    hosts' batches of a step, put together, are the one-host batch, bit for bit; of records each host reads files of its own. An
    example that cannot be read or decoded is replaced by the nearest good one of its batch, and `broken` told.

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
        broken: a Broken, which counts the examples that cannot be used; None for one of its own, with a limit of 100.
        deterministic: False takes records from whichever file has some, so that a slow file holds nothing up: the order of records,
            and the place where a resumed run goes on, are then not exact. Random access stays as it is.

    Raises:
        ValueError: if the batch cannot be shared out evenly, the images have no fixed size, there are fewer files of records than
            hosts, or no data service answers.
    """
    ops, rows, broken = parse(preprocess), Rows(batch_size, *shard, replicas), broken or Broken()

    def prepare(number, key):
        image, label = source.read(key)
        return ops(image, fold(seed, number) if ops.random else None), ops.label(label)

    if service is None:
        keys = source.shuffled_keys(seed, start_step, rows)
    else:
        # Any host may get any batch, so that each is a step of its own to the service.
        keys = source.served_keys(seed, start_step * rows.count * replicas, Rows(rows.per_replica))
    dataset, function = _attempted(source, keys, prepare, preprocess, rows.per_replica)
    if service is not None:
        stream = f"{source.name}, {source.size} examples, {preprocess}, seed {seed}"
        dataset = distribute(dataset, service, f"{stream}, step {start_step} of {batch_size} by {rows.per_replica}")

    options = tf.data.Options()
    options.deterministic = deterministic
    return dataset.map(_filling(broken, function, source)).prefetch(tf.data.AUTOTUNE).with_options(options)


def evaluation_batches(source, preprocess, batch_size, shard=(0, 1), replicas=1, broken=None):
    """One pass in order: (images, labels, weights (b,) float32). Every host gets as many batches, padded last with weight 0.

    An example that cannot be read or decoded is black, of label 0 and weight 0, and `broken` told. `batch_size`, `shard`,
    `replicas` and `broken` are as in `training_batches`.

    Raises:
        ValueError: if the preprocessing has random ops or ops on labels, or the batch cannot be shared out evenly.
    """
    ops, rows, broken = parse(preprocess), Rows(batch_size, *shard, replicas), broken or Broken()
    if ops.random:
        raise ValueError(f'Evaluation must not be random, but its preprocessing is "{preprocess}".')
    if ops.labels:
        raise ValueError(f'Evaluation counts labels by their numbers: leave {", ".join(ops.labels)} out of "{preprocess}".')

    def prepare(number, key):
        image, label = source.read(key)
        return ops(image), label

    batches = -(-source.size // batch_size) * replicas
    keys = tf.data.Dataset.zip(tf.data.Dataset.counter(), source.keys(rows))
    dataset, function = _attempted(source, keys, prepare, preprocess, rows.per_replica, batches)

    @tf.autograph.experimental.do_not_convert
    def weigh(values, good, failed, identities):
        with tf.control_dependencies([told(failed, identities, broken, function, source)]):
            weights = tf.cast(good, tf.float32)
        blank = lambda v: tf.where(tf.reshape(good, (-1, *[1] * (v.shape.rank - 1))), v, tf.zeros_like(v))  # noqa: E731
        values = tf.cond(tf.reduce_all(good), lambda: values, lambda: tf.nest.map_structure(blank, values))
        return *values, weights

    dataset = dataset.map(weigh)
    return dataset.apply(tf.data.experimental.assert_cardinality(batches)).prefetch(tf.data.AUTOTUNE)
