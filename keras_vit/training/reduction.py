"""Sums over the replicas of a tf.distribute strategy; the one place in a step where replicas meet. Plain on the JAX backend."""

import keras


def replicas():
    """Into how many parts tf.distribute splits the batch: 1 on one device, and on the JAX backend, whose program is global."""
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync


def all_reduce(tensors):
    """The sums over replicas of a list of tensors, called in a replica."""
    if replicas() == 1:
        return tensors
    import tensorflow as tf

    return tf.distribute.get_replica_context().all_reduce("SUM", tensors)
