"""Training over devices: `strategy(name)`, with `.scope()` on both backends.

    with keras_vit.strategy("tpu").scope():
        model = ...; model.compile(..., steps_per_execution=100); model.fit(dataset)

Strategies are tf.distribute's on the TensorFlow backend, Keras' distributions on JAX.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import keras

from keras_vit.io.suggest import check_known


@dataclasses.dataclass(frozen=True)
class Strategy:
    """Training over devices. This class itself is one device.

    Attributes:
        name: as in `strategy`.
        replicas: number of parts of a global batch.
        hosts: number of processes or machines that each read their share of the input.
        host: this process's index among them; 0 if one process feeds all.
        engine: tf.distribute strategy or Keras distribution; None for one device.
    """

    name: str = "one"
    replicas: int = 1
    hosts: int = 1
    host: int = 0
    engine: Any = None

    @property
    def chief(self) -> bool:
        """Whether this process writes the run's files."""
        return self.host == 0

    def scope(self) -> contextlib.AbstractContextManager:
        """The context in which to create, compile and train models."""
        return contextlib.nullcontext() if self.engine is None else self.engine.scope()

    def check_batch(self, batch_size: int) -> None:
        """Refuses a global batch that the replicas cannot share evenly; ValueError with the nearest valid sizes."""
        check_divisible(batch_size, self.replicas)

    def distribute(self, make: Callable) -> Any:
        """The input of `fit` and `evaluate`, from `make`: (shard, replicas) -> tf.data.Dataset.

        `make` gets the shard (host, hosts) and the number of replicas on that host, and returns a dataset of
        per-replica batches, as data.training_batches does.
        """
        return make((self.host, self.hosts), 1)

    def any(self, flag: bool) -> bool:
        """Whether `flag` is set in any process. All processes must call this at the same points."""
        return bool(flag)


class _TensorFlow(Strategy):
    """A tf.distribute strategy in one process that feeds all hosts."""

    def distribute(self, make):
        def per_host(context):
            hosts = context.num_input_pipelines
            return make((context.input_pipeline_id, hosts), self.replicas // hosts)

        return self.engine.distribute_datasets_from_function(per_host)


class _MultiWorker(_TensorFlow):
    """tf.distribute.MultiWorkerMirroredStrategy: each worker is a process running the same program."""

    @functools.cached_property
    def _sum(self):
        import tensorflow as tf

        return tf.function(lambda vote: self.engine.reduce("SUM", self.engine.run(lambda: vote), axis=None))

    def any(self, flag):
        import tensorflow as tf

        return bool(self._sum(tf.constant(float(flag))) > 0)


class _Jax(Strategy):
    """A Keras distribution on JAX: one global program over all devices of all processes."""

    def any(self, flag):
        if self.hosts == 1:
            return bool(flag)
        import numpy as np
        from jax.experimental import multihost_utils

        return bool(multihost_utils.process_allgather(np.int32(flag)).any())


def check_divisible(batch_size: int, replicas: int) -> None:
    """ValueError, with the nearest multiples, unless `batch_size` is a multiple of `replicas`."""
    if batch_size % replicas:
        lower = batch_size // replicas * replicas
        near = f"{lower} or {lower + replicas}" if lower else f"{replicas}"
        raise ValueError(
            f"A global batch of {batch_size} cannot be shared evenly by {replicas} replicas: use a batch size of"
            f" {near}."
        )


def _one():
    return Strategy()


def _mirrored():
    import tensorflow as tf

    engine = tf.distribute.MirroredStrategy()
    return _TensorFlow("mirrored", engine.num_replicas_in_sync, engine=engine)


def _multiworker():
    from keras_vit.distribution.clusters import multi_worker_strategy

    engine, workers, index = multi_worker_strategy()
    return _MultiWorker("multiworker", engine.num_replicas_in_sync, workers, index, engine)


def _tpu(tpu):
    from keras_vit.distribution.clusters import tpu_strategy

    engine = tpu_strategy(tpu)
    return _TensorFlow("tpu", engine.num_replicas_in_sync, engine=engine)


def _data():
    from keras_vit.distribution.jax_sharding import data_parallel

    engine, processes, index = data_parallel()
    return _Jax("data", engine.num_model_replicas, processes, index, engine)


def _model(model_parallel):
    from keras_vit.distribution.jax_sharding import model_parallel as parallel

    engine, processes, index = parallel(model_parallel)
    return _Jax("model", engine.num_model_replicas, processes, index, engine)


@dataclasses.dataclass(frozen=True)
class _Row:
    backend: str | None  # None for either
    make: Callable
    option: str | None = None  # its argument of `strategy`


STRATEGIES = {
    "one": _Row(None, _one),
    "mirrored": _Row("tensorflow", _mirrored),
    "multiworker": _Row("tensorflow", _multiworker),
    "tpu": _Row("tensorflow", _tpu, "tpu"),
    "data": _Row("jax", _data),
    "model": _Row("jax", _model, "model_parallel"),
}


def check_name(name: str) -> None:
    """ValueError, with the nearest name, for an unknown strategy."""
    check_known(name, "strategy", STRATEGIES)


def strategy(name: str = "one", *, tpu: str | None = None, model_parallel: int | None = None) -> Strategy:
    """The strategy of this name.

    Args:
        name: "one" device; on TensorFlow "mirrored" (all GPUs of this machine), "multiworker" (workers listed in
            TF_CONFIG) or "tpu"; on JAX "data" (each device has the model and a share of the batch) or "model" (groups
            of devices also share the model's matrices).
        tpu: for "tpu": name or address; None for the environment's TPU, or this machine's.
        model_parallel: for "model": number of devices that share a matrix; None for all devices of this machine.

    Raises:
        ValueError: for an unknown name, another strategy's argument or backend, or an undescribed or unreachable
            cluster.
    """
    check_name(name)
    row, backend, options = STRATEGIES[name], keras.backend.backend(), {"tpu": tpu, "model_parallel": model_parallel}
    for option, value in options.items():
        if value is not None and option != row.option:
            owner = next(other for other, r in STRATEGIES.items() if r.option == option)
            raise ValueError(
                f'{option}={value!r} is for the strategy "{owner}", not for "{name}": leave it out, or write'
                f' strategy("{owner}", {option}={value!r}).'
            )
    if row.backend not in (None, backend):
        valid = ", ".join(other for other, r in STRATEGIES.items() if r.backend in (None, backend))
        raise ValueError(
            f'The strategy "{name}" is for the {row.backend} backend; this is {backend}. Here: {valid}. Or set '
            f"KERAS_BACKEND={row.backend} before Keras is imported."
        )
    return row.make() if row.option is None else row.make(options[row.option])
