"""Keras distributions on JAX: "data" shards the batch over devices, "model" also the blocks' matrices.

Blocks are sharded as in Megatron (arXiv 1909.08053): query, key, value and the MLP's first matrix by columns, the
matrices after them by rows, so that the forward pass sums over devices only twice per block.
"""

import os
import re
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

# {path pattern: sharded axis}. Every other variable is whole on every device.
_SHARDED_AXES = {
    r"block_\d+/attention/(query|key|value)/kernel": 1,
    r"block_\d+/attention/(query|key|value)/bias": 0,
    r"block_\d+/attention/out/kernel": 0,
    r"block_\d+/mlp/hidden/kernel": 1,
    r"block_\d+/mlp/hidden/bias": 0,
    r"block_\d+/mlp/out/kernel": 0,
}


def sharded_axis(path: str) -> int | None:
    """The axis along which the "model" strategy shards a variable, or None."""
    return next((axis for pattern, axis in _SHARDED_AXES.items() if re.search(rf"(^|/){pattern}$", path)), None)


class BlockParallel(keras.distribution.ModelParallel):
    """ModelParallel for Vision Transformer blocks. The mesh has the axes "batch" and "model"."""

    def __init__(self, mesh: keras.distribution.DeviceMesh):
        super().__init__(
            layout_map=keras.distribution.LayoutMap(mesh), batch_dim_name="batch", auto_shard_dataset=False
        )

    def get_variable_layout(self, variable):
        """The TensorLayout of a variable, by its path; ValueError if its devices do not divide the sharded axis."""
        axes, axis, shards = [None] * len(variable.shape), sharded_axis(variable.path), self.device_mesh.shape[1]
        if axis is not None:
            if variable.shape[axis] % shards:
                raise ValueError(
                    f"{variable.path} {tuple(variable.shape)} cannot be split over {shards} devices: its axis {axis} is"
                    " not a multiple. Choose a model_parallel that divides the width, the heads and the MLP's width."
                )
            axes[axis] = "model"
        if getattr(variable, "_layout", None) is not None:  # an optimizer's variable follows its weight
            return variable._layout
        return keras.distribution.TensorLayout(axes, self.device_mesh)


def _initialize():
    """Joins the other processes, if the environment lists several; returns (number of processes, own index)."""
    import jax

    if "KERAS_DISTRIBUTION_JOB_ADDRESSES" in os.environ and not jax.distributed.is_initialized():
        keras.distribution.initialize()
    return jax.process_count(), jax.process_index()


def data_parallel() -> tuple[keras.distribution.DataParallel, int, int]:
    """(keras.distribution.DataParallel over all devices, number of processes, own index)."""
    processes, index = _initialize()
    return keras.distribution.DataParallel(auto_shard_dataset=False), processes, index


def model_parallel(shards: int | None = None) -> tuple[BlockParallel, int, int]:
    """(BlockParallel with every matrix split over `shards` devices, number of processes, own index).

    Raises:
        ValueError: if `shards` does not divide the number of devices, or with several processes.
    """
    import jax

    processes, index = _initialize()
    if processes > 1:
        raise ValueError(
            f'The strategy "model" runs in one process, with whole matrices in its checkpoints; got {processes}'
            " processes."
        )
    return block_parallel(keras.distribution.list_devices(), shards or jax.local_device_count()), processes, index


def block_parallel(devices: Sequence[Any], shards: int) -> BlockParallel:
    """BlockParallel over these devices, each matrix split over `shards` of them; ValueError unless divisible."""
    if len(devices) % shards:
        raise ValueError(f"model_parallel={shards} does not divide the {len(devices)} devices.")
    shape = (len(devices) // shards, shards)
    return BlockParallel(keras.distribution.DeviceMesh(shape, ["batch", "model"], np.array(devices).reshape(shape)))
