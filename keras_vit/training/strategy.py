"""How training is laid over devices: `strategy(name)`, with `.scope()` on both backends.

    with keras_vit.strategy("tpu").scope():
        model = ...; model.compile(..., steps_per_execution=100); model.fit(dataset)

On the TensorFlow backend these are tf.distribute's strategies, on the JAX backend Keras' distributions.
"""

import contextlib
import dataclasses
import difflib
import functools
from collections.abc import Callable
from typing import Any

import keras


@dataclasses.dataclass(frozen=True)
class Strategy:
    """One layout of training over devices. This class alone is one device.

    Attributes:
        name: as `strategy` takes it.
        replicas: into how many parts a global batch is split.
        hosts: how many processes or machines read input, each its share.
        host: this process' number among them; 0 where one process feeds all.
        engine: the tf.distribute strategy or the Keras distribution; None for one device.
    """

    name: str = "one"
    replicas: int = 1
    hosts: int = 1
    host: int = 0
    engine: Any = None

    @property
    def chief(self):
        """Whether this process writes the run's files."""
        return self.host == 0

    def scope(self):
        """A context in which models are made, compiled and trained."""
        return contextlib.nullcontext() if self.engine is None else self.engine.scope()

    def check_batch(self, batch_size):
        """Refuses a global batch that the replicas cannot share evenly.

        Raises:
            ValueError: naming the nearest sizes that they can.
        """
        check_divisible(batch_size, self.replicas)

    def distribute(self, make):
        """What `fit` and `evaluate` take, from `make`: (shard, replicas) -> tf.data.Dataset.

        `make` is called with shard (host, hosts) and the number of replicas on it, and gives a replica's batches, one after another,
        as data.training_batches does.
        """
        return make((self.host, self.hosts), 1)

    def any(self, flag):
        """Whether `flag` is set in any process; all of them call this at the same points."""
        return bool(flag)


class _TensorFlow(Strategy):
    """A tf.distribute strategy in one process, which feeds all its hosts."""

    def distribute(self, make):
        def per_host(context):
            hosts = context.num_input_pipelines
            return make((context.input_pipeline_id, hosts), self.replicas // hosts)

        return self.engine.distribute_datasets_from_function(per_host)


class _MultiWorker(_TensorFlow):
    """tf.distribute.MultiWorkerMirroredStrategy: each worker is a process with the same program."""

    @functools.cached_property
    def _sum(self):
        import tensorflow as tf

        return tf.function(lambda vote: self.engine.reduce("SUM", self.engine.run(lambda: vote), axis=None))

    def any(self, flag):
        import tensorflow as tf

        return bool(self._sum(tf.constant(float(flag))) > 0)


class _Jax(Strategy):
    """A Keras distribution on the JAX backend: one global program over all devices of all processes."""

    def any(self, flag):
        if self.hosts == 1:
            return bool(flag)
        import numpy as np
        from jax.experimental import multihost_utils

        return bool(multihost_utils.process_allgather(np.int32(flag)).any())


def check_divisible(batch_size, replicas):
    """Raises ValueError unless `batch_size` is a multiple of `replicas`, naming the nearest sizes that are."""
    if batch_size % replicas:
        lower = batch_size // replicas * replicas
        near = f"{lower} or {lower + replicas}" if lower else f"{replicas}"
        raise ValueError(
            f"A global batch of {batch_size} cannot be shared evenly by {replicas} replicas: use a batch size of {near}."
        )


def _one(**_):
    return Strategy()


def _mirrored(**_):
    import tensorflow as tf

    engine = tf.distribute.MirroredStrategy()
    return _TensorFlow("mirrored", engine.num_replicas_in_sync, engine=engine)


def _multiworker(**_):
    from keras_vit.training.clusters import multi_worker_strategy

    engine, workers, index = multi_worker_strategy()
    return _MultiWorker("multiworker", engine.num_replicas_in_sync, workers, index, engine)


def _tpu(tpu=None, **_):
    from keras_vit.training.clusters import tpu_strategy

    engine = tpu_strategy(tpu)
    return _TensorFlow("tpu", engine.num_replicas_in_sync, engine=engine)


def _data(**_):
    from keras_vit.training.layout import data_parallel

    engine, processes, index = data_parallel()
    return _Jax("data", engine.num_model_replicas, processes, index, engine)


def _model(model_parallel=None, **_):
    from keras_vit.training.layout import model_parallel as parallel

    engine, processes, index = parallel(model_parallel)
    return _Jax("model", engine.num_model_replicas, processes, index, engine)


@dataclasses.dataclass(frozen=True)
class _Row:
    backend: str | None  # None: either
    make: Callable


STRATEGIES = {
    "one": _Row(None, _one),
    "mirrored": _Row("tensorflow", _mirrored),
    "multiworker": _Row("tensorflow", _multiworker),
    "tpu": _Row("tensorflow", _tpu),
    "data": _Row("jax", _data),
    "model": _Row("jax", _model),
}


def strategy(name="one", *, tpu=None, model_parallel=None):
    """The strategy of a name.

    Args:
        name: "one" device; on the TensorFlow backend "mirrored" (all GPUs of this machine), "multiworker" (TF_CONFIG names the
            workers) or "tpu"; on the JAX backend "data" (every device holds the model, and a share of the batch) or "model" (groups
            of devices share the model's matrices, too).
        tpu: for "tpu": a TPU's name or address; None for this machine's, or what the environment names.
        model_parallel: for "model": over how many devices a matrix is split; None for all of this machine's.

    Raises:
        ValueError: for an unknown name, one of the other backend, or a cluster that is not described or does not answer.
    """
    if name not in STRATEGIES:
        close = difflib.get_close_matches(str(name), STRATEGIES, n=1)
        hint = f' Did you mean "{close[0]}"?' if close else ""
        raise ValueError(f'There is no strategy "{name}".{hint} Valid: {", ".join(STRATEGIES)}.')
    row, backend = STRATEGIES[name], keras.backend.backend()
    if row.backend not in (None, backend):
        valid = ", ".join(other for other, r in STRATEGIES.items() if r.backend in (None, backend))
        raise ValueError(
            f'The strategy "{name}" is for the {row.backend} backend; this is {backend}. Here: {valid}. Or set '
            f"KERAS_BACKEND={row.backend} before Keras is imported."
        )
    return row.make(tpu=tpu, model_parallel=model_parallel)
