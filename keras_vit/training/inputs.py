"""What fit, evaluate and predict are given, made ready for the strategy that the model was made under.

One device and MirroredStrategy take everything as it is. Several workers each take their rows of every global batch. JAX' distributions
and TPUs want full batches: what is evaluated is filled up with rows of weight 0.
"""

import contextlib
import dataclasses
from typing import Any

import keras
import numpy as np

from keras_vit.training.strategy import check_divisible


def check_distribution():
    """Refuses a keras.distribution where nothing would come of it.

    Raises:
        ValueError: on another backend than JAX.
    """
    backend = keras.backend.backend()
    if backend != "jax" and keras.distribution.distribution() is not None:
        raise ValueError(
            f"keras.distribution.set_distribution has no effect on the {backend} backend: training would run on one device. Use "
            'keras_vit.strategy("mirrored"), "multiworker" or "tpu", or the JAX backend (KERAS_BACKEND=jax).'
        )


def check_scope(model):
    """Refuses to train a model inside the scope of another strategy than it was made under; leaves compiling to a TPUStrategy.

    Raises:
        ValueError: saying so.
    """
    if keras.backend.backend() == "jax":
        now = keras.distribution.distribution()
        if now is not None and now is not model._distribution:
            raise ValueError(
                "The model was made outside this distribution's scope. Make it inside: with strategy.scope(): model = ..."
            )
        return
    import tensorflow as tf

    if isinstance(model._distribute_strategy, tf.distribute.TPUStrategy) and model.jit_compile:
        model.jit_compile = False  # the strategy compiles the whole step, and fails at a part that is compiled already
    if tf.distribute.has_strategy() and tf.distribute.get_strategy() is not model._distribute_strategy:
        raise ValueError(
            "The model was made outside this strategy's scope. Make and compile it inside: with strategy.scope(): model = ..."
        )


@contextlib.contextmanager
def scope_of(model):
    """The context in which the model trains: on the JAX backend the distribution that it was made under."""
    check_distribution()
    check_scope(model)
    if keras.backend.backend() == "jax" and model._distribution is not None:
        with model._distribution.scope():
            yield
    else:
        yield


@dataclasses.dataclass(frozen=True)
class _Layout:
    """Of a model's strategy: replicas in all, workers that read by themselves, replicas on each, whether batches must be full."""

    replicas: int = 1
    workers: int = 1
    local: int = 1
    full: bool = False


def layout_of(model):
    """The _Layout of a model's strategy."""
    if keras.backend.backend() == "jax":
        distribution = model._distribution
        if distribution is None or distribution.num_processes > 1:  # several processes bring rows of their own
            return _Layout()
        n = distribution.num_model_replicas
        return _Layout(n, 1, n, full=True)
    import tensorflow as tf

    strategy = model.distribute_strategy
    n, extended = strategy.num_replicas_in_sync, strategy.extended
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        local = len(extended.worker_devices)
        return _Layout(n, n // local, local)
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return _Layout(n, 1, n // extended.num_hosts, full=True)
    return _Layout(n, 1, n)


@dataclasses.dataclass(frozen=True)
class Feed:
    """What goes on to Keras: as fit, evaluate and predict name it. `steps` is None where Keras finds out by itself."""

    x: Any
    y: Any = None
    weights: Any = None
    batch_size: int | None = None
    steps: int | None = None


def feed(model, x, y=None, weights=None, batch_size=None, training=False, shuffle=False):
    """The Feed of arrays or a dataset for the model's strategy.

    Raises:
        ValueError: if the replicas cannot share the batches evenly, or training would end in a batch that is not full where it must be.
    """
    layout = layout_of(model)
    if layout.replicas == 1:
        return Feed(x, y, weights, batch_size)
    if hasattr(x, "element_spec"):
        return _dataset_feed(model, layout, x, training)
    if not hasattr(x, "shape"):
        if layout.workers > 1:
            raise ValueError(f"Several workers share out the rows of arrays and of tf.data datasets; got {type(x).__name__}.")
        return Feed(x, y, weights, batch_size)
    batch_size = batch_size or 32
    check_divisible(batch_size, layout.replicas)
    if layout.workers > 1:
        return _dataset_feed(model, layout, _batches(x, y, weights, batch_size, training and shuffle), training)
    if layout.full and len(x) % batch_size:
        if training:
            raise ValueError(
                f"{len(x)} examples do not fill batches of {batch_size}, as training on these devices needs: give a multiple of it, or "
                "a dataset with drop_remainder=True."
            )
        if y is not None:
            _check_weighted(model)
        return _filled(x, y, weights, batch_size)
    return Feed(x, y, weights, batch_size)


def _check_weighted(model):
    """Raises ValueError if the model has metrics that would count rows of weight 0."""
    if getattr(model._compile_metrics, "_user_metrics", None):
        raise ValueError(
            "On these devices the last batch is filled up with rows of weight 0, which metrics given to compile(metrics=...) would count. "
            "Give them as compile(weighted_metrics=...), or data in full batches."
        )


def _filled(x, y, weights, batch_size):
    """Arrays with rows of weight 0 behind them, to full batches."""
    weights = np.ones(len(x), "float32") if weights is None and y is not None else weights
    missing = -len(x) % batch_size

    def fill(a):
        return None if a is None else np.concatenate([a, np.zeros((missing, *np.shape(a)[1:]), np.asarray(a).dtype)])

    return Feed(fill(x), fill(y), fill(weights), batch_size)


def _dataset_feed(model, layout, dataset, training):
    import tensorflow as tf

    sizes = {spec.shape[0] for spec in keras.tree.flatten(dataset.element_spec) if isinstance(spec, tf.TensorSpec)}
    for size in sizes - {None}:
        check_divisible(size, layout.replicas)
    if isinstance(dataset, tf.distribute.DistributedDataset):
        steps = int(dataset.cardinality)
        by_replica = type(dataset).__name__ == "DistributedDatasetsFromFunction"  # elements are a replica's batches
        return Feed(dataset, steps=steps // layout.local if by_replica and steps > 0 else None)
    if layout.workers > 1:
        steps = int(dataset.cardinality())
        dataset = dataset if isinstance(dataset.element_spec, tuple) else dataset.map(lambda x: (x,))
        parts = _per_worker(layout, dataset.repeat() if training and steps > 0 else dataset)
        return Feed(model.distribute_strategy.distribute_datasets_from_function(parts), steps=steps if steps > 0 else None)
    if layout.full and None in sizes and keras.backend.backend() == "tensorflow":
        raise ValueError(
            f"A TPU needs batches of one fixed size; the dataset gives {dataset.element_spec}. Use batch(n, drop_remainder=True), and for "
            "evaluation data.evaluation_batches, which fills the last batch up."
        )
    if layout.full and sizes == {None} and not training and keras.backend.backend() == "jax":
        _check_weighted(model)
        return Feed(dataset.map(lambda *batch: _filled_batch(batch, layout.replicas)))
    return Feed(dataset)


def _filled_batch(batch, multiple):
    """A batch (x, y) or (x, y, weights) as (x, y, weights), filled up to a multiple of rows with weight 0; or (x,) as it is."""
    import tensorflow as tf

    x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
    if y is None:
        return x
    n = tf.shape(x)[0]
    weights = tf.ones((n,)) if weights is None else weights
    fill = lambda t: tf.pad(t, [(0, -n % multiple)] + [(0, 0)] * (t.shape.rank - 1))  # noqa: E731
    return keras.tree.map_structure(fill, (x, y, weights))


def _batches(x, y, weights, batch_size, shuffle):
    """A dataset of batches from arrays, in an order that is the same in every process."""
    import tensorflow as tf

    parts = tuple(a for a in (x, y, weights) if a is not None)
    dataset = tf.data.Dataset.from_tensor_slices(parts)
    if shuffle:
        dataset = dataset.shuffle(len(x), seed=0, reshuffle_each_iteration=True)
    return dataset.batch(batch_size)


def _per_worker(layout, dataset):
    """A worker's part of a dataset of global batches, for distribute_datasets_from_function.

    Replica r of N takes the rows from r b / N to (r + 1) b / N of each batch of b.
    """
    import tensorflow as tf

    def make(context):
        def split(*batch):
            n = tf.shape(keras.tree.flatten(batch)[0])[0]

            def part(i):
                r = context.input_pipeline_id * layout.local + i
                start, stop = n * r // layout.replicas, n * (r + 1) // layout.replicas
                return keras.tree.map_structure(lambda t: t[start:stop], batch)

            return tf.data.Dataset.range(layout.local, output_type=tf.int32).map(part)

        def fixed(*part):
            """Static shapes again, where the global batch has them."""

            def fix(t, spec):
                rows = None if spec.shape[0] is None else spec.shape[0] // layout.replicas
                return tf.ensure_shape(t, (rows, *spec.shape[1:]))

            return keras.tree.map_structure(fix, part, dataset.element_spec)

        return dataset.flat_map(split).map(fixed)

    return make
