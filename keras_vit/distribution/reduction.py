"""Sums over the replicas of a tf.distribute strategy, the only place in a step where replicas meet. On JAX they change
nothing.
"""

import keras


def replicas() -> int:
    """The number of replicas that share the batch: 1 on one device, and on the JAX backend, whose program is global."""
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync


def all_reduce(tensors: list) -> list:
    """The sums over replicas of a list of tensors. To be called in a replica."""
    if replicas() == 1:
        return tensors
    import tensorflow as tf

    return tf.distribute.get_replica_context().all_reduce("SUM", tensors)
