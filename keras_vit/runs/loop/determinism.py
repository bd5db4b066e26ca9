"""Sums in a fixed order, so that training on a CPU is reproducible bit for bit."""

import keras


def fix_order_of_sums() -> None:
    """Makes TensorFlow on a CPU add gradients in the same order at every step.

    It applies to the whole process, and must be called before the first step. In steps that use much memory,
    TensorFlow's graph optimizer turns a sum of three or more gradients into in-place additions, which run in the order
    in which threads finish. The last bits of float32 results then vary between runs, whatever the seeds and even with
    `enable_op_determinism`. This rewrite is off while XLA's autoclustering is on, which itself clusters nothing on a
    CPU. Does nothing on another backend, or if there is a GPU or TPU.
    """
    if keras.backend.backend() != "tensorflow":
        return
    import tensorflow as tf

    if all(device.device_type == "CPU" for device in tf.config.list_physical_devices()):
        tf.config.optimizer.set_jit("autoclustering")
