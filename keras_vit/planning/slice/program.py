"""The training step of a config, traced on the JAX backend and compiled for a slice of TPUs by libtpu, on any machine.

The step is the run's own: the task's model, loss, metrics and mixing, the config's optimizer, `model.train_step`, and a
strategy's sharding. No variable has a value, so that a machine with little memory compiles the step of a large model.
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
from keras_vit.planning.slice import kernels
from keras_vit.planning.slice.chips import Slice
from keras_vit.runs.optimizer import make_optimizer
from keras_vit.runs.prepare import Prepared


def check_backend() -> None:
    """Refuses another backend than JAX, and an environment without libtpu.

    Raises:
        ValueError, ImportError: saying what to do.
    """
    if keras.backend.backend() != "jax":
        raise ValueError(
            f"A plan is compiled by JAX, and the backend is {keras.backend.backend()}: set KERAS_BACKEND=jax before"
            " Keras is imported."
        )
    try:
        import libtpu  # noqa: F401
    except ImportError:
        raise ImportError(
            "A plan needs the compiler of TPUs: pip install jax==0.10.2 libtpu==0.0.51, or in a checkout pip install -e"
            ' ".[plan]".'
        ) from None


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """A context in which nothing is written to the process's stderr: libtpu says there that it is on no TPU."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def devices_of(name: str) -> list:
    """The devices of a slice, which are not there and can be compiled for.

    Raises:
        ValueError: if libtpu knows no such slice.
    """
    os.environ.update(
        TPU_SKIP_MDS_QUERY="1", ALLOW_MULTIPLE_LIBTPU_LOAD="1"
    )  # asks no metadata server; locks no device
    os.environ.pop("TPU_LIBRARY_PATH", None)
    kernels.folder()
    from jax.experimental import topologies

    try:
        with _silent():
            return list(topologies.get_topology_desc(platform="tpu", topology_name=name).devices)
    except Exception as error:
        raise ValueError(f'libtpu has no slice "{name}": {str(error).splitlines()[0]}') from None


@contextlib.contextmanager
def _sharded_over(devices, model_parallel) -> Iterator[Any]:
    """A context in which variables are laid out for these devices; yields Keras' distribution."""
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


def _batch(prepared, sharding):
    """The specs of a global batch (x, y) as the task makes it."""
    import jax

    def spec(of):
        kind = {"int64": "int32"}.get(of.dtype.name, of.dtype.name)  # as JAX has it
        return jax.ShapeDtypeStruct((prepared.config.batch_size, *of.shape), kind, sharding=sharding)

    return tf.nest.map_structure(spec, prepared.example())


def lowered_step(prepared: Prepared, where: Slice, model_parallel: int | None = None) -> Any:
    """The training step of a config for a slice, lowered by JAX: `.compile()` is what takes its time.

    Args:
        prepared: the config on PlannedSplits; its batch_size is global.
        where: the slice.
        model_parallel: over how many chips a matrix is split, as --model_parallel of a run; None for data parallelism
            alone.

    Raises:
        ValueError: if the batch or the matrices cannot be split over the slice, or as training would.
    """
    import jax

    devices = devices_of(where.name)
    check_divisible(prepared.config.batch_size, len(devices) // (model_parallel or 1))
    optimizer = make_optimizer(prepared.resolved)  # has a variable with a value, and so is made before
    prepared, _ = prepared.without_checkpoint()
    with quiet(logging.ERROR), _sharded_over(devices, model_parallel) as distribution, keras.StatelessScope():
        model = prepared.task.model(prepared.train)
        for variable in model.variables:  # what the optimizer keeps for each is laid out as it is
            variable._layout = distribution.get_variable_layout(variable)
        prepared.compile(model, optimizer, jit_compile=True, steps_per_execution=1)
        model._count_examples()

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
        lowered = jax.jit(model.train_step, donate_argnums=0, out_shardings=results).lower(state, batch)
        keras.backend.clear_session()  # with it goes the list of variables that the scope's end would give values
    return lowered


def _sharding_of_batch(distribution):
    """How the rows of a batch lie on the devices."""
    layout = keras.distribution.TensorLayout([distribution.batch_dim_name], distribution.device_mesh)
    return layout.backend_layout
