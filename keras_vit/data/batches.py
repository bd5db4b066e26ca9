"""From a source to batches: training batches (x, y), evaluation batches (x, y, weights); by default x are images and y
class labels.

Where several hosts work on one global batch, each asks for its part with `shard=(index, count)`: its number, and the
number of hosts.
"""

from collections.abc import Callable, Hashable
from typing import Any

import tensorflow as tf

from keras_vit.data.errors import ExampleErrors, replaced, report_errors
from keras_vit.data.mapping import fallible_map
from keras_vit.data.ops.registry import parse
from keras_vit.data.service import distribute
from keras_vit.data.sharding import HostShard
from keras_vit.data.sources.base import Source, fold

Select = Callable[[dict[str, Any]], tuple]
_SELECT = 0x73656C65  # folds an example's own seed from that of its ops, so that the two draw different numbers
_KEPT = 8  # traced functions of a source


def image_and_label(example: dict[str, Any]) -> tuple:
    """(image, label) of an example: what a classifier learns from.

    Raises:
        ValueError: for an example without a label.
    """
    if "label" not in example:
        raise ValueError(
            f'The examples have no "label", only {", ".join(name for name in example if name != "seed")}: say by'
            " select= what a batch holds, a function of an example that returns (x, y) or (x, y, weights)."
        )
    return example["image"], example["label"]


def _check_outputs(outputs, text):
    """Refuses what `select` returned if it is not (x, y) or (x, y, weights), or has no fixed shape: a TPU, and a batch,
    need one.

    Raises:
        ValueError: naming the shape.
    """
    if not isinstance(outputs, tuple) or len(outputs) not in (2, 3):
        raise ValueError(
            f"select= should return (x, y) or (x, y, weights), and returned {type(outputs).__name__}: {outputs}."
        )
    for spec in tf.nest.flatten(outputs[0]):
        if not spec.shape.is_fully_defined():
            raise ValueError(
                f'The preprocessing "{text}" gives images of shape {tuple(spec.shape)}. End it in a fixed size: '
                '"central_crop(224)", "random_crop(224)" or "resize(224, 224)".'
            )
    for spec in tf.nest.flatten(outputs[1:]):
        if not spec.shape.is_fully_defined():
            raise ValueError(
                f"select= returns a target of shape {tuple(spec.shape)}, and a batch needs fixed shapes: pad it to a"
                " fixed number of rows."
            )


def _selected(source, ops, select, seed):
    """A function: (number of a row, key) -> what `select` makes of the preprocessed example, which has a seed of its
    own, (2,) int64.
    """

    def prepare(number, key):
        own = fold(seed, number)
        example = ops(source.read(key), own if ops.random else None)
        return select({**example, "seed": tf.cast(tf.random.experimental.stateless_fold_in(own, _SELECT), tf.int64)})

    return prepare


def _traced(source, ops, select, seed, element_spec):
    """The ConcreteFunction of `_selected`, of (number, key).

    The source keeps it: tracing takes up to seconds, and a run would do it for its check of shapes, each evaluation and
    the report.

    Raises:
        ValueError: as _check_outputs says.
    """
    key = (ops.text, tuple(op for op, _ in ops.steps), select, seed, element_spec)
    keeps = isinstance(select, Hashable)
    if keeps and key in source.traced:
        return source.traced[key]
    function = tf.function(_selected(source, ops, select, seed), autograph=False).get_concrete_function(*element_spec)
    _check_outputs(function.structured_outputs, ops.text)
    if keeps:
        if len(source.traced) == _KEPT:
            del source.traced[next(iter(source.traced))]  # the oldest
        source.traced[key] = function
    return function


def example_spec(
    source: Source, preprocess: str, select: Select = image_and_label, training: bool = True, seed: int | None = None
) -> tuple:
    """What one example becomes, as `training_batches` does it, and without `training` `evaluation_batches` with `seed`:
    the specs of (x, y) or (x, y, weights).

    It is traced; no data is read.

    Raises:
        ValueError: as they do for a preprocessing.
    """
    ops, host = parse(preprocess), HostShard(1)
    if not training:
        _check_evaluation(ops, preprocess, seed)
    keys = tf.data.Dataset.zip(host.row_numbers(), source.keys(host))
    outputs = _traced(source, ops, select, seed or 0, keys.element_spec).structured_outputs
    return tf.nest.map_structure(lambda output: tf.TensorSpec(output.shape, output.dtype), outputs)


def _mapped(source, keys, ops, select, seed, rows, batches=None):
    """(fallible_map of a dataset of (number, key), the function of these that it is mapped by)."""
    function = _traced(source, ops, select, seed, keys.element_spec)
    ids_of = lambda number, key: tf.concat([number[:, None], source.ids(key)], 1)  # noqa: E731
    return fallible_map(keys, function, ids_of, rows, batches), function


def _with_failed_replaced(errors, function, source):
    """Maps the batches of fallible_map to batches in which the nearest good rows replace those that failed."""

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
    """An endless dataset of (x, y), by default images (b, h, w, c) uint8 and labels (b,): a pure function of (seed,
    step).

    Row i of the stream is augmented with a seed of its own, whatever the threads do. If the source has random access,
    the hosts' batches of a step, concatenated, are the one-host batch, bit for bit; of records each host reads its own
    files. An example that cannot be read or decoded is replaced by the nearest good one of its batch, and added to
    `errors`.

    Args:
        source: from `open_source` or `from_arrays`.
        preprocess: text, see data/ops/registry.py.
        batch_size: rows of the global batch.
        seed: of the order and the augmentation.
        start_step: the number of global batches that have already been used; the dataset begins after them.
        shard: (index, count): this host's rows of each step are index * batch_size / count to (index + 1) * batch_size
            / count.
        replicas: how many batches the host's rows of a step make.
        service: "grpc://host:port" of a tf.data service, whose workers then prepare the batches. Hosts get them first
            come, first served, each example once: neither the order nor the example at which a resumed run continues is
            exact then.
        errors: an ExampleErrors, which counts the examples that cannot be used; None for a new one, with a limit of
            100.
        deterministic: False takes records from whichever file has some ready, so that a slow file holds nothing up: the
            order of records, and the example at which a resumed run continues, are then not exact. Random access is not
            affected.
        select: a preprocessed example, a dict -> (x, y) or (x, y, weights), structures of tensors of fixed shapes. The
            example's "seed", (2,) int64, is its own: what is drawn from it is the same on any number of devices,
            resumed or not.

    Raises:
        ValueError: if the batch cannot be split evenly, the images have no fixed size, there are fewer files of records
            than hosts, no data service answers, or the examples lack what `select` takes.
    """
    ops, host, errors = parse(preprocess), HostShard(batch_size, *shard, replicas), errors or ExampleErrors()
    if service is None:
        keys = source.shuffled_keys(seed, start_step, host)
    else:
        # Any host may get any batch, so to the service each batch is a step of its own.
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
    """Values (b,) in the shape (b, 1, ...) that broadcasts with `like`, (b, ...)."""
    return tf.reshape(values, (-1, *[1] * (like.shape.rank - 1)))


def _check_evaluation(ops, text, seed):
    """Refuses random ops without a seed, and those on labels, for evaluation."""
    if ops.random and seed is None:
        raise ValueError(f'Evaluation must not be random, but its preprocessing is "{text}".')
    if ops.label_ops:
        raise ValueError(f'Evaluation takes labels as integers: leave {", ".join(ops.label_ops)} out of "{text}".')


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
    """One pass in order: (x, y, weights), by default images (b, h, w, c) uint8, labels (b,) and weights (b,) float32.

    Every host gets the same number of batches; the last ones are padded with weight 0. An example that cannot be read
    or decoded is all zeros, with weight 0, and is added to `errors`. `select` may return weights of its own, which are
    multiplied by these. With `seed` random ops are allowed, and row n's are drawn by a seed folded from it: the same
    pixels in each pass, on any number of hosts. The other arguments are those of `training_batches`.

    Raises:
        ValueError: if the preprocessing has random ops without a seed or ops on labels, or the batch cannot be split
            evenly.
    """
    ops, host, errors = parse(preprocess), HostShard(batch_size, *shard, replicas), errors or ExampleErrors()
    _check_evaluation(ops, preprocess, seed)
    batches = -(-source.size // batch_size) * replicas
    keys = tf.data.Dataset.zip(host.row_numbers(), source.keys(host))
    dataset, function = _mapped(source, keys, ops, select, seed or 0, host.per_replica, batches)

    @tf.autograph.experimental.do_not_convert
    def weigh(values, good, failed, ids):
        with tf.control_dependencies([report_errors(failed, ids, errors, function, source)]):
            weights = tf.cast(good, tf.float32)
        blank = lambda v: tf.where(_per_row(good, v), v, tf.zeros_like(v))  # noqa: E731
        x, y, *given = tf.cond(tf.reduce_all(good), lambda: values, lambda: tf.nest.map_structure(blank, values))
        return x, y, tf.cast(given[0], tf.float32) * _per_row(weights, given[0]) if given else weights

    dataset = dataset.map(weigh)
    return dataset.apply(tf.data.experimental.assert_cardinality(batches)).prefetch(tf.data.AUTOTUNE)
