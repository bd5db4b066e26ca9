"""Sums in a fixed order, so that training on a CPU repeats to the bit."""

import keras


def fix_order_of_sums():
    """Makes TensorFlow on a CPU add gradients in the same order at every step; for the whole process, before its first step.

    Where a step takes much memory, TensorFlow's graph optimizer turns a sum of three and more gradients into additions in place, which
    run as threads come to them: float32 results then differ in their last bits from run to run, whatever the seeds, and with
    `enable_op_determinism` too. The rewriting is off while XLA's autoclustering is on; on a CPU that itself clusters nothing. Does
    nothing on another backend, or where there is a GPU or TPU.
    """
    if keras.backend.backend() != "tensorflow":
        return
    import tensorflow as tf

    if all(device.device_type == "CPU" for device in tf.config.list_physical_devices()):
        tf.config.optimizer.set_jit("autoclustering")
