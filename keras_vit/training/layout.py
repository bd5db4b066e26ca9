"""Keras' distributions for the JAX backend: the batch split over devices, and with "model" the blocks' matrices, too.

The split of a block is Megatron's (arXiv 1909.08053): query, key, value and the MLP's first matrix by columns, the two that follow them by
rows, so that a block sums over devices twice in the forward pass.
"""

import os
import re

import keras
import numpy as np

# Path pattern -> the axis that is split. All else is whole on every device.
_SPLIT = {
    r"block_\d+/attention/(query|key|value)/kernel": 1,
    r"block_\d+/attention/(query|key|value)/bias": 0,
    r"block_\d+/attention/out/kernel": 0,
    r"block_\d+/mlp/hidden/kernel": 1,
    r"block_\d+/mlp/hidden/bias": 0,
    r"block_\d+/mlp/out/kernel": 0,
}


class BlockParallel(keras.distribution.ModelParallel):
    """ModelParallel with the layout of Vision Transformer blocks. The mesh has the axes "batch" and "model"."""

    def __init__(self, mesh):
        super().__init__(layout_map=keras.distribution.LayoutMap(mesh), batch_dim_name="batch", auto_shard_dataset=False)

    def get_variable_layout(self, variable):
        """The layout of a variable by its path.

        Raises:
            ValueError: if an axis is not divisible by the number of devices that share it.
        """
        axes = [None] * len(variable.shape)
        for pattern, axis in _SPLIT.items():
            if re.search(rf"(^|/){pattern}$", variable.path):
                parts = self.device_mesh.shape[1]
                if variable.shape[axis] % parts:
                    raise ValueError(
                        f"{variable.path} {tuple(variable.shape)} cannot be split over {parts} devices: its axis {axis} is not a "
                        "multiple. Choose a model_parallel that divides the width, the heads and the MLP's width."
                    )
                axes[axis] = "model"
        if getattr(variable, "_layout", None) is not None:  # an optimizer's slot, which follows its weight
            return variable._layout
        return keras.distribution.TensorLayout(axes, self.device_mesh)


def _initialize():
    """Joins the processes where the environment describes several; returns (their number, this one's)."""
    import jax

    if "KERAS_DISTRIBUTION_JOB_ADDRESSES" in os.environ and not jax.distributed.is_initialized():
        keras.distribution.initialize()
    return jax.process_count(), jax.process_index()


def data_parallel():
    """(keras.distribution.DataParallel over all devices, number of processes, this process' number)."""
    processes, index = _initialize()
    return keras.distribution.DataParallel(auto_shard_dataset=False), processes, index


def model_parallel(parts=None):
    """(BlockParallel with every matrix over `parts` devices, number of processes, this process' number).

    Raises:
        ValueError: if the devices cannot be grouped by `parts`, or are several processes'.
    """
    import jax

    processes, index = _initialize()
    if processes > 1:
        raise ValueError(f"The strategy model takes one process, whose checkpoints hold whole matrices; these are {processes}.")
    devices = keras.distribution.list_devices()
    parts = parts or jax.local_device_count()
    if len(devices) % parts:
        raise ValueError(f"model_parallel={parts} does not divide the {len(devices)} devices.")
    shape = (len(devices) // parts, parts)
    mesh = keras.distribution.DeviceMesh(shape, ["batch", "model"], np.array(devices).reshape(shape))
    return BlockParallel(mesh), processes, index
