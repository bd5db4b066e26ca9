"""TensorFlow without the work that programs of a few steps do not repay."""

import functools
import random


def without_optimizing(disabled=True):
    """Optimizing a graph takes longer than running it a few times."""
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": disabled})


def without_records():
    """TensorFlow no longer records the lines of Python behind each operation of a graph, for its error messages, and no
    longer forgets its kernels at a new seed: Keras' random operations keep no state in them.
    """
    from tensorflow.python.eager import context
    from tensorflow.python.framework import ops

    def set_seed(self, seed):
        self._seed, self._rng = seed, random.Random(seed)

    context.Context._set_global_seed = set_seed
    ops._create_c_op = functools.partial(ops._create_c_op, extract_traceback=False)
