"""Trace a config's training step on the JAX backend and compile it for a TPU slice with libtpu, on any machine.

It is the run's own step: the task's model, loss, metrics and mixing, the config's optimizer, `model.train_step`, and a
strategy's sharding. Variables have no values, so that a machine with little memory can compile large models.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.distribution.strategy import check_divisible
from keras_vit.io.logs import quiet
from keras_vit.io.suggest import pip_install
from keras_vit.planning.slice.chips import Slice
from keras_vit.runs.optimizer import make_optimizer
from keras_vit.runs.prepare import Prepared


def check_backend() -> None:
    """Raises ValueError for a backend other than JAX, ImportError without libtpu."""
    if keras.backend.backend() != "jax":
        raise ValueError(
            f"A plan needs the JAX backend, got {keras.backend.backend()}: set KERAS_BACKEND=jax before importing"
            " Keras."
        )
    try:
        import libtpu  # noqa: F401
    except ImportError:
        raise ImportError(
            f"A plan needs the TPU compiler, libtpu, which is not installed: {pip_install('cpu,plan')}."
        ) from None


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """A context that silences the process's stderr, where libtpu reports the missing TPU."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def devices_of(name: str) -> list:
    """The devices of a slice as compilation targets; ValueError if libtpu does not know the slice."""
    # Query no metadata server, lock no device.
    os.environ.update(TPU_SKIP_MDS_QUERY="1", ALLOW_MULTIPLE_LIBTPU_LOAD="1")
    os.environ.pop("TPU_LIBRARY_PATH", None)
    from jax.experimental import topologies

    try:
        with _silent():
            return list(topologies.get_topology_desc(platform="tpu", topology_name=name).devices)
    except Exception as error:
        raise ValueError(f'libtpu has no slice "{name}": {str(error).splitlines()[0]}') from None


@contextlib.contextmanager
def _sharded_over(devices, model_parallel) -> Iterator[Any]:
    """A context that lays out variables for these devices; yields Keras' distribution."""
    from keras_vit.distribution.jax_sharding import block_parallel

    if model_parallel:
        distribution = block_parallel(devices, model_parallel)
    else:
        mesh = keras.distribution.DeviceMesh((len(devices),), ["batch"], np.array(devices))
        distribution = keras.distribution.DataParallel(device_mesh=mesh, auto_shard_dataset=False)
    before = keras.distribution.distribution()
    keras.distribution.set_distribution(distribution)
    try:
        yield distribution
    finally:
        keras.distribution.set_distribution(before)


@contextlib.contextmanager
def _without_values() -> Iterator[None]:
    """A scope in which variables have no values, and get none at its end, even after an error."""
    with keras.StatelessScope():
        try:
            yield
        finally:
            keras.backend.clear_session()  # forgets variables that would get values at the end of the scope


def _batch(prepared, sharding):
    """Specs of a global batch (x, y) from the task."""
    import jax

    def spec(of):
        kind = {"int64": "int32"}.get(of.dtype.name, of.dtype.name)  # JAX's default
        return jax.ShapeDtypeStruct((prepared.config.batch_size, *of.shape), kind, sharding=sharding)

    return tf.nest.map_structure(spec, prepared.example())


def lowered_step(prepared: Prepared, where: Slice, model_parallel: int | None = None) -> Any:
    """A config's training step for a slice, lowered by JAX; `.compile()` takes most of the time.

    Args:
        prepared: the config on PlannedSplits; its batch_size is global.
        where: slice to plan for.
        model_parallel: number of chips that share a matrix, as in a run's --model_parallel; None for data parallelism
            only.

    Raises:
        ValueError: the slice cannot divide batch or matrices, or an error that training would raise.
    """
    import jax

    devices = devices_of(where.name)
    check_divisible(prepared.config.batch_size, len(devices) // (model_parallel or 1))
    optimizer = make_optimizer(prepared.resolved)  # outside the scope: it has a variable with a value
    prepared, _ = prepared.without_checkpoint()
    with quiet(logging.ERROR), _sharded_over(devices, model_parallel) as distribution, _without_values():
        model = prepared.task.model(prepared.train)
        for variable in model.variables:  # the optimizer's slots copy this layout
            variable._layout = distribution.get_variable_layout(variable)
        prepared.compile(model, optimizer, jit_compile=True, steps_per_execution=1)

        def spec(variable):
            layout = variable._layout or distribution.get_variable_layout(variable)
            return jax.ShapeDtypeStruct(
                variable.shape, variable.dtype, sharding=getattr(layout, "backend_layout", layout)
            )

        batch = _batch(prepared, _sharding_of_batch(distribution))
        symbolic = jax.tree.map(lambda leaf: keras.KerasTensor(leaf.shape, leaf.dtype.name), batch)
        model._symbolic_build(data_batch=symbolic)
        groups = (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        )
        state = tuple([spec(variable) for variable in group] for group in groups)
        results = (None, tuple([leaf.sharding for leaf in group] for group in state))
        return jax.jit(model.train_step, donate_argnums=0, out_shardings=results).lower(state, batch)


def _sharding_of_batch(distribution):
    """Sharding of a batch's rows over the devices."""
    layout = keras.distribution.TensorLayout([distribution.batch_dim_name], distribution.device_mesh)
    return layout.backend_layout
