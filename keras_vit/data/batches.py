"""Batches from a source: (x, y) for training, (x, y, weights) for evaluation; by default images and class labels.

When hosts share a global batch, each passes its index and the number of hosts as `shard=(index, count)`.
"""

import functools
from collections.abc import Callable, Hashable
from typing import Any

import tensorflow as tf

from keras_vit.data.data_service import distribute
from keras_vit.data.errors import ExampleErrors, replaced, report_errors
from keras_vit.data.mapping import fallible_map
from keras_vit.data.ops.op_registry import parse
from keras_vit.data.sharding import HostShard
from keras_vit.data.sources.base import Source, fold

Select = Callable[[dict[str, Any]], tuple]
_SELECT = 0x73656C65  # separates an example's seed from its ops' seeds, so that they draw different numbers
_KEPT = 16  # traced functions and datasets per source


def image_and_label(example: dict[str, Any]) -> tuple:
    """Returns (image, label) of an example, for classification.

    Raises:
        ValueError: if the example has no label.
    """
    if "label" not in example:
        raise ValueError(
            f'The examples have no "label", only {", ".join(name for name in example if name != "seed")}: pass'
            " select=, a function of an example that returns (x, y) or (x, y, weights)."
        )
    return example["image"], example["label"]


def _check_outputs(outputs, text):
    """Raises ValueError unless `select` returned (x, y) or (x, y, weights) of fixed shapes."""
    if not isinstance(outputs, tuple) or len(outputs) not in (2, 3):
        raise ValueError(
            f"Expected select= to return (x, y) or (x, y, weights), got {type(outputs).__name__}: {outputs}."
        )
    for spec in tf.nest.flatten(outputs[0]):
        if not spec.shape.is_fully_defined():
            raise ValueError(
                f'The preprocessing "{text}" gives images of shape {tuple(spec.shape)}. End it in a fixed size: '
                '"central_crop(224)", "random_crop(224)" or "resize(224, 224)".'
            )
    for spec in tf.nest.flatten(outputs[1:]):
        if not spec.shape.is_fully_defined():
            raise ValueError(f"Expected select= to return targets of fixed shape, got {tuple(spec.shape)}: pad them.")


def _selected(source, ops, select, seed):
    """Returns a function of (row number, key) that reads and preprocesses the example and applies `select`.

    The example has its own seed, (2,) int64.
    """
    preprocess = ops.graph()

    def prepare(number, key):
        example_seed = fold(seed, number)
        example = preprocess(source.read(key), example_seed if ops.random else None)
        return select(
            {**example, "seed": tf.cast(tf.random.experimental.stateless_fold_in(example_seed, _SELECT), tf.int64)}
        )

    return prepare


def _kept(source, make, ops, select, *key):
    """Returns make(), cached in the source by key: tracing may take seconds, and the shape check, every evaluation and
    the report need the same result.
    """
    key = (ops.text, tuple(op for op, _ in ops.steps), select, *key)
    if not isinstance(select, Hashable):
        return make()
    if key not in source.traced:
        made = make()
        if len(source.traced) == _KEPT:
            del source.traced[next(iter(source.traced))]  # the oldest
        source.traced[key] = made
    return source.traced[key]


def _traced(source, ops, select, seed, element_spec):
    """Traces `_selected` as a ConcreteFunction of (number, key); raises like `_check_outputs`."""

    def make():
        made = tf.function(_selected(source, ops, select, seed), autograph=False).get_concrete_function(*element_spec)
        _check_outputs(made.structured_outputs, ops.text)
        return made

    return _kept(source, make, ops, select, seed, element_spec)


def example_spec(
    source: Source, preprocess: str, select: Select = image_and_label, training: bool = True, seed: int | None = None
) -> tuple:
    """Returns the specs of an example from `training_batches`, (x, y) or (x, y, weights); traces, but reads no data.

    With training=False, of an example from `evaluation_batches` with `seed`.

    Raises:
        ValueError: for an invalid preprocessing.
    """
    ops, host = parse(preprocess), HostShard(1)
    if not training:
        _check_evaluation(ops, preprocess, seed)
    keys = tf.data.Dataset.zip(host.row_numbers(), source.keys(host))
    outputs = _traced(source, ops, select, seed or 0, keys.element_spec).structured_outputs
    return tf.nest.map_structure(lambda output: tf.TensorSpec(output.shape, output.dtype), outputs)


def _mapped(source, keys, ops, select, seed, rows, batches=None):
    """Returns (fallible_map of a dataset of (number, key), the function that it maps)."""
    function = _traced(source, ops, select, seed, keys.element_spec)

    def make_ids(number, key):
        return tf.concat([number[:, None], source.ids(key)], 1)

    return fallible_map(keys, function, make_ids, rows, batches), function


def _with_failed_replaced(errors, function, source):
    """Returns a function that replaces failed rows in batches of fallible_map by the nearest good row."""

    @tf.autograph.experimental.do_not_convert
    def replace(values, good, failed, ids):
        with tf.control_dependencies([report_errors(failed, ids, errors, function, source)]):
            return replaced(values, tf.identity(good), errors)

    return replace


def training_batches(
    source: Source,
    preprocess: str,
    batch_size: int,
    seed: int = 0,
    start_step: int = 0,
    shard: tuple[int, int] = (0, 1),
    replicas: int = 1,
    service: str | None = None,
    errors: ExampleErrors | None = None,
    deterministic: bool = True,
    select: Select = image_and_label,
) -> tf.data.Dataset:
    """Yields endless (x, y), by default images (b, h, w, c) uint8 and labels (b,): a pure function of (seed, step).

    Each row of the stream has its own augmentation seed, independent of threads. With random access, the hosts' batches
    of a step, concatenated, equal the single-host batch bit for bit; records are split among hosts by file. An example
    that cannot be read or decoded is replaced by the nearest good one in its batch and added to `errors`.

    Args:
        source: Source. From `open_source` or `from_arrays`.
        preprocess: str. Preprocessing text; see data/ops/op_registry.py.
        batch_size: int. Rows of the global batch.
        seed: int. Seed of the order and the augmentation.
        start_step: int. Global batches to skip.
        shard: (index, count). This host takes rows index * batch_size / count to (index + 1) * batch_size / count.
        replicas: int. Batches into which this host's rows of a step are split.
        service: str. "grpc://host:port" of a tf.data service that prepares the batches. Hosts receive each example
            once, first come, first served; the order and resuming are then not exact.
        errors: ExampleErrors. Counts unusable examples; None for a new one with a limit of 100.
        deterministic: bool. False reads records from whichever file is ready, so a slow file delays nothing; the order
            and resuming are then not exact. Does not affect random access.
        select: callable. Maps a preprocessed example, a dict, to (x, y) or (x, y, weights), structures of tensors of
            fixed shapes. Draw random numbers from the example's "seed", (2,) int64, to get the same on any number of
            devices and after resuming.

    Raises:
        ValueError: if the batch cannot be split evenly, the images have no fixed size, there are fewer record files
            than hosts, no data service answers, or the examples lack a value that `select` needs.
    """
    ops, host, errors = parse(preprocess), HostShard(batch_size, *shard, replicas), errors or ExampleErrors()
    if service is None:
        keys = source.shuffled_keys(seed, start_step, host)
    else:
        # Any host may receive any batch, so the service treats each batch as one step.
        keys = source.served_keys(seed, start_step * host.count * replicas, HostShard(host.per_replica))
    dataset, function = _mapped(source, keys, ops, select, seed, host.per_replica)
    if service is not None:
        stream = f"{source.name}, {source.size} examples, {preprocess}, seed {seed}"
        if select is not image_and_label:
            stream += f", {getattr(select, '__qualname__', select)} {dataset.element_spec[0]}"
        dataset = distribute(dataset, service, f"{stream}, step {start_step} of {batch_size} by {host.per_replica}")

    options = tf.data.Options()
    options.deterministic = deterministic
    return dataset.map(_with_failed_replaced(errors, function, source)).prefetch(tf.data.AUTOTUNE).with_options(options)


def _per_row(values, like):
    """Reshapes values (b,) to (b, 1, ...), to broadcast with `like`, (b, ...)."""
    return tf.reshape(values, (-1, *[1] * (like.shape.rank - 1)))


@functools.partial(tf.function, autograph=False)  # traced once for all datasets with these values
def _weighed(values, good, weights):
    """Returns (x, y, weights) of `values`, (x, y) or (x, y, their own weights), zeros in bad rows."""

    def blank(v):
        return tf.where(_per_row(good, v), v, tf.zeros_like(v))

    x, y, *own_weights = tf.cond(tf.reduce_all(good), lambda: values, lambda: tf.nest.map_structure(blank, values))
    return x, y, tf.cast(own_weights[0], tf.float32) * _per_row(weights, own_weights[0]) if own_weights else weights


def _check_evaluation(ops, text, seed):
    """Refuses random ops without a seed and ops on labels."""
    if ops.random and seed is None:
        raise ValueError(f'Evaluation must not be random: remove random ops from "{text}", or pass a seed.')
    if ops.label_ops:
        raise ValueError(f'Evaluation needs integer labels: remove {", ".join(ops.label_ops)} from "{text}".')


def evaluation_batches(
    source: Source,
    preprocess: str,
    batch_size: int,
    shard: tuple[int, int] = (0, 1),
    replicas: int = 1,
    errors: ExampleErrors | None = None,
    select: Select = image_and_label,
    seed: int | None = None,
) -> tf.data.Dataset:
    """Yields (x, y, weights) in order, once; by default images (b, h, w, c) uint8, labels (b,), weights (b,) float32.

    Every host gets the same number of batches; the last ones are padded with weight 0. An example that cannot be read
    or decoded becomes zeros with weight 0 and is added to `errors`. These weights multiply those of `select`. Compile
    with weighted_metrics=...: metrics=... counts rows of weight 0. `seed` allows random ops: each row's seed is folded
    from it, so its pixels are the same in each pass, on any number of hosts. See `training_batches` for the other
    arguments.

    Raises:
        ValueError: if the preprocessing has random ops without a seed or ops on labels, or the batch cannot be split
            evenly.
    """
    ops, host = parse(preprocess), HostShard(batch_size, *shard, replicas)
    _check_evaluation(ops, preprocess, seed)
    if errors is None:
        return _evaluated(source, ops, host, ExampleErrors(), select, seed or 0)
    make = functools.partial(_evaluated, source, ops, host, errors, select, seed or 0)
    return _kept(source, make, ops, select, seed or 0, host, errors)


def _evaluated(source, ops, host, errors, select, seed):
    """Makes the dataset of `evaluation_batches`."""
    batches = -(-source.size // host.batch_size) * host.replicas
    keys = tf.data.Dataset.zip(host.row_numbers(), source.keys(host))
    dataset, function = _mapped(source, keys, ops, select, seed, host.per_replica, batches)

    @tf.autograph.experimental.do_not_convert
    def weigh(values, good, failed, ids):
        with tf.control_dependencies([report_errors(failed, ids, errors, function, source)]):
            weights = tf.cast(good, tf.float32)
        return _weighed(values, good, weights)

    dataset = dataset.map(weigh)
    return dataset.apply(tf.data.experimental.assert_cardinality(batches)).prefetch(tf.data.AUTOTUNE)
