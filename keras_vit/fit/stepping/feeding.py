"""Prepares the input of fit, evaluate and predict for the model's strategy.

One device and MirroredStrategy accept everything as it is. With several workers, each takes its own rows of every
global batch. JAX distributions and TPUs need full batches: evaluation data is padded with rows of weight 0, and predict
drops the outputs of padded rows.
"""

import contextlib
import dataclasses
import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from keras_vit.distribution.strategy import check_divisible
from keras_vit.fit.checks.compiled import unweighted_metrics
from keras_vit.fit.checks.inputs import MappedPyDataset


def check_distribution() -> None:
    """Refuses a keras.distribution on a backend that ignores it: ValueError unless on JAX."""
    backend = keras.backend.backend()
    if backend != "jax" and keras.distribution.distribution() is not None:
        raise ValueError(
            f"keras.distribution.set_distribution has no effect on the {backend} backend: training would run on one"
            ' device. Use keras_vit.strategy("mirrored"), "multiworker" or "tpu", or the JAX backend'
            " (KERAS_BACKEND=jax)."
        )


def check_made_inside(model):
    """Refuses an optimizer or metrics that are not on all devices of the model's JAX distribution: ValueError."""
    if keras.backend.backend() != "jax" or model._distribution is None:
        return
    optimizer = getattr(model, "optimizer", None)
    others = [*model.metrics_variables, *(optimizer.variables if optimizer is not None else ())]
    places = [{frozenset(v.value.sharding.device_set) for v in each} for each in (model.weights, others)]
    if places[0] and not places[1] <= places[0]:
        raise ValueError(
            "The optimizer or the metrics were made outside the distribution's scope. Make them and compile inside:"
            " with strategy.scope(): model.compile(...)"
        )


def check_scope(model) -> None:
    """Refuses to train in another strategy's scope (ValueError); switches jit_compile off on a TPUStrategy."""
    if keras.backend.backend() == "jax":
        now = keras.distribution.distribution()
        if now is not None and now is not model._distribution:
            raise ValueError(
                "The model was made outside this distribution's scope. Make it inside: with strategy.scope(): model"
                " = ..."
            )
        return
    import tensorflow as tf

    if isinstance(model._distribute_strategy, tf.distribute.TPUStrategy) and model.jit_compile:
        model.jit_compile = False  # the strategy compiles the whole step, and fails on compiled parts
    if tf.distribute.has_strategy() and tf.distribute.get_strategy() is not model._distribute_strategy:
        raise ValueError(
            "The model was made outside this strategy's scope. Make and compile it inside: with strategy.scope(): model"
            " = ..."
        )


@contextlib.contextmanager
def training_scope(model):
    """The context for training: on the JAX backend, the scope of the model's distribution."""
    check_distribution()
    check_scope(model)
    if keras.backend.backend() == "jax" and model._distribution is not None:
        with model._distribution.scope():
            try:
                yield
            except ValueError as error:
                if type(error).__name__ != "IndivisibleError":  # of JAX, by its private name
                    raise
                raise ValueError(
                    "The devices cannot share a batch of the data evenly: they need full batches, of a multiple of"
                    f" {find_topology(model).replicas} examples. Leave out the rest, as drop_remainder=True does."
                ) from error
    else:
        yield


@contextlib.contextmanager
def own_scope(model):
    """The scope in which the model was made, for further models of its layers."""
    made_in = getattr(model, "_distribute_strategy", None) or model._distribution
    with contextlib.nullcontext() if made_in is None else made_in.scope():
        yield


@dataclasses.dataclass(frozen=True)
class Topology:
    """How a strategy consumes batches.

    Attributes:
        replicas: number of replicas that share a global batch.
        workers: number of processes that read input.
        local: number of replicas per worker.
        full: whether every batch must have the full size.
    """

    replicas: int = 1
    workers: int = 1
    local: int = 1
    full: bool = False


def find_topology(model) -> Topology:
    """The Topology of a model's strategy."""
    if keras.backend.backend() == "jax":
        distribution = model._distribution
        if distribution is None or distribution.num_processes > 1:  # several processes bring their own rows
            return Topology()
        n = distribution.num_model_replicas
        return Topology(n, 1, n, full=True)
    import tensorflow as tf

    strategy = model.distribute_strategy
    n, extended = strategy.num_replicas_in_sync, strategy.extended
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        local = len(extended.worker_devices)
        return Topology(n, n // local, local)
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return Topology(n, 1, n // extended.num_hosts, full=True)
    return Topology(n, 1, n)


def _as_they_are(outputs):
    return outputs


@dataclasses.dataclass(frozen=True)
class Feed:
    """The arguments for Keras' fit, evaluate or predict.

    Attributes:
        x, y, weights, batch_size: as in Keras.
        steps: None if Keras can find the number of steps itself.
        trim: removes padded rows from predict's outputs, an array or a tree.
    """

    x: Any
    y: Any = None
    weights: Any = None
    batch_size: int | None = None
    steps: int | None = None
    trim: Callable[[Any], Any] = _as_they_are


def count_rows(x: Any) -> int:
    """The number of examples in an array, or in a dict, list or tuple with one per input."""
    return len(keras.tree.flatten(x)[0])


def _are_arrays(x):
    """Whether `x` is an array with rows, or a tree of them."""
    leaves = keras.tree.flatten(x)
    return bool(leaves) and all(getattr(leaf, "shape", ()) for leaf in leaves)


def _copied(model, x):
    """`x` with copies of the arrays that Python code yields: replicas on CPUs compute in a batch's own memory.

    TensorFlow does not copy such arrays, and would write to those of the user.
    """
    import tensorflow as tf

    if not any("CPU" in device for device in model.distribute_strategy.extended.worker_devices):
        return x

    def copies(batch):
        return keras.tree.map_structure(lambda t: None if t is None else np.array(t), batch)

    def copied(*batch):
        return tf.nest.map_structure(lambda t: tf.raw_ops.DeepCopy(x=t), batch, expand_composites=True)

    if isinstance(x, types.GeneratorType):
        return (copies(batch) for batch in x)
    if isinstance(x, keras.utils.PyDataset):
        return MappedPyDataset(x, lambda _, batch: copies(batch))
    return x.map(copied) if isinstance(x, tf.data.Dataset) else x


def feed(
    model, x, y=None, weights=None, batch_size: int | None = None, training: bool = False, shuffle: bool = False
) -> Feed:
    """The Feed of arrays or a dataset for the model's strategy.

    Raises:
        ValueError: if replicas cannot share the batches evenly, or the last training batch must be full and is not.
    """
    topology = find_topology(model)
    if topology.replicas == 1:
        return Feed(x, y, weights, batch_size)
    if keras.backend.backend() == "tensorflow" and not topology.full:  # a TPU copies to its own memory
        x = _copied(model, x)
    if hasattr(x, "element_spec"):
        return _dataset_feed(model, topology, x, training)
    if topology.workers > 1 and not hasattr(x, "shape"):
        raise ValueError(
            f"Several workers can share the rows of arrays and of tf.data datasets only; got {type(x).__name__}."
        )
    if not _are_arrays(x):
        evaluates = topology.full and not training and keras.backend.backend() == "jax"
        return Feed(_in_full(model, x, topology.replicas) if evaluates else x, y, weights, batch_size)
    batch_size = batch_size or 32
    check_divisible(batch_size, topology.replicas)
    if topology.workers > 1:
        return _dataset_feed(model, topology, _batches(x, y, weights, batch_size, training and shuffle), training)
    if topology.full and count_rows(x) % batch_size:
        if training:
            raise ValueError(
                f"Training on these devices needs full batches of {batch_size}, got {count_rows(x)} examples: pass a"
                " multiple of it, or a dataset with drop_remainder=True."
            )
        if y is not None:
            _check_weighted(model)
        return _padded(x, y, weights, batch_size)
    return Feed(x, y, weights, batch_size)


def _check_weighted(model):
    """ValueError if the model has metrics that would count rows of weight 0."""
    if unweighted_metrics(model):
        raise ValueError(
            "On these devices the last batch is padded with rows of weight 0, which metrics given as"
            " compile(metrics=...) would count. Use compile(weighted_metrics=...), or pass full batches."
        )


def _padded(x, y, weights, batch_size):
    """The Feed of arrays, padded to full batches with rows of weight 0."""
    n = count_rows(x)
    weights = np.ones(n, "float32") if weights is None and y is not None else weights
    padded = (_pad(arrays, -n % batch_size) for arrays in (x, y, weights))
    return Feed(*padded, batch_size, trim=lambda outputs: keras.tree.map_structure(lambda t: t[:n], outputs))


def _pad(arrays, missing):
    """Each array of a tree, followed by `missing` rows of zeros; None stays None."""

    def pad(a):
        return None if a is None else np.concatenate([a, np.zeros((missing, *np.shape(a)[1:]), np.asarray(a).dtype)])

    return keras.tree.map_structure(pad, arrays)


def _in_full(model, x, multiple):
    """A generator or PyDataset of (x, y, weights); batches padded to a multiple of rows with rows of weight 0."""

    def padded(_, batch):
        images, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
        if y is None:
            return batch
        n = count_rows(images)
        if n % multiple:
            _check_weighted(model)
        weights = np.ones(n, "float32") if weights is None else weights
        return tuple(_pad(part, -n % multiple) for part in (images, y, weights))

    if isinstance(x, keras.utils.PyDataset):
        return MappedPyDataset(x, padded)
    return (padded(0, batch) for batch in x) if isinstance(x, types.GeneratorType) else x


class _PaddedInputs:
    """Inputs of batches, each padded to a multiple of rows; remembers which rows are padding."""

    def __init__(self, batches, multiple):
        self._batches, self._multiple = batches, multiple
        self._is_row = []

    def read(self) -> Iterator[tuple]:
        for batch in self._batches:
            x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
            missing = -count_rows(x) % self._multiple
            self._is_row.append(np.arange(count_rows(x) + missing) < count_rows(x))
            yield (_pad(x, missing),)

    def trim(self, outputs):
        is_row = np.concatenate(self._is_row)  # also of batches read ahead of `steps`
        return keras.tree.map_structure(lambda t: t[is_row[: len(t)]], outputs)


def prediction_feed(model, x, batch_size: int | None = None) -> Feed:
    """The Feed of predict, inputs only; batches that the devices cannot share evenly are padded. Errors as `feed`."""
    topology = find_topology(model)
    if topology.full and keras.backend.backend() == "jax" and _may_be_uneven(x, topology.replicas):
        steps = int(x.cardinality()) if hasattr(x, "cardinality") else getattr(x, "num_batches", None) or -1
        batches = x
        if isinstance(x, keras.utils.PyDataset):
            batches = (x[i] for i in (range(steps) if steps > 0 else itertools.count()))
        padded = _PaddedInputs(batches, topology.replicas)
        return Feed(padded.read(), steps=steps if steps > 0 else None, trim=padded.trim)
    return feed(model, x, batch_size=batch_size)


def _may_be_uneven(x, replicas):
    """Whether the replicas may be unable to share some batches of `x`, a dataset or read by Python, evenly."""
    if hasattr(x, "element_spec"):
        return any(n is None or n % replicas for n in _sizes(x))
    return isinstance(x, (types.GeneratorType, keras.utils.PyDataset))


def _sizes(dataset):
    """The static batch sizes of a dataset, None where they vary."""
    import tensorflow as tf

    return {spec.shape[0] for spec in keras.tree.flatten(dataset.element_spec) if isinstance(spec, tf.TensorSpec)}


def _dataset_feed(model, topology, dataset, training):
    import tensorflow as tf

    sizes = _sizes(dataset)
    for size in sizes - {None}:
        check_divisible(size, topology.replicas)
    if isinstance(dataset, tf.distribute.DistributedDataset):
        steps = int(dataset.cardinality)
        by_replica = type(dataset).__name__ == "DistributedDatasetsFromFunction"  # its elements are per-replica batches
        return Feed(dataset, steps=steps // topology.local if by_replica and steps > 0 else None)
    if topology.workers > 1:
        steps = int(dataset.cardinality())
        dataset = dataset if isinstance(dataset.element_spec, tuple) else dataset.map(lambda x: (x,))
        parts = _per_worker(topology, dataset.repeat() if training and steps > 0 else dataset)
        return Feed(
            model.distribute_strategy.distribute_datasets_from_function(parts), steps=steps if steps > 0 else None
        )
    if topology.full and None in sizes and keras.backend.backend() == "tensorflow":
        raise ValueError(
            f"A TPU needs batches of one fixed size; the dataset has {dataset.element_spec}. Use batch(n,"
            " drop_remainder=True), and for evaluation data.evaluation_batches, which pads the last batch."
        )
    if topology.full and sizes == {None} and not training and keras.backend.backend() == "jax":
        _check_weighted(model)
        return Feed(dataset.map(lambda *batch: _padded_batch(batch, topology.replicas)))
    return Feed(dataset)


def _padded_batch(batch, multiple):
    """A batch as (x, y, weights), padded with weight 0 to a multiple of rows; a batch (x,) stays."""
    import tensorflow as tf

    x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
    if y is None:
        return x
    n = tf.shape(keras.tree.flatten(x)[0])[0]
    weights = tf.ones((n,)) if weights is None else weights

    def pad(t):
        return tf.pad(t, [(0, -n % multiple)] + [(0, 0)] * (t.shape.rank - 1))

    return keras.tree.map_structure(pad, (x, y, weights))


def _batches(x, y, weights, batch_size, shuffle):
    """A dataset of batches from arrays, in the same order in every process."""
    import tensorflow as tf

    parts = tuple(a for a in (x, y, weights) if a is not None)
    dataset = tf.data.Dataset.from_tensor_slices(parts)
    if shuffle:
        dataset = dataset.shuffle(len(x), seed=0, reshuffle_each_iteration=True)
    return dataset.batch(batch_size)


def _per_worker(topology, dataset):
    """A worker's part of a dataset of global batches, for distribute_datasets_from_function.

    Replica r of N takes the rows from r b / N to (r + 1) b / N of each batch of b.
    """
    import tensorflow as tf

    def make(context):
        def split(*batch):
            n = tf.shape(keras.tree.flatten(batch)[0])[0]

            def part(i):
                r = context.input_pipeline_id * topology.local + i
                start, stop = n * r // topology.replicas, n * (r + 1) // topology.replicas
                return keras.tree.map_structure(lambda t: t[start:stop], batch)

            return tf.data.Dataset.range(topology.local, output_type=tf.int32).map(part)

        def fixed(*part):
            """Restores the global batch's static shapes."""

            def fix(t, spec):
                rows = None if spec.shape[0] is None else spec.shape[0] // topology.replicas
                return tf.ensure_shape(t, (rows, *spec.shape[1:]))

            return keras.tree.map_structure(fix, part, dataset.element_spec)

        return dataset.flat_map(split).map(fixed)

    return make
