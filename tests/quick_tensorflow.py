"""TensorFlow and Keras without the work that programs of a few steps do not repay."""

import functools
import gc
import inspect
import random
import types
import typing

import numpy as np


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


def with_batches_of_slices():
    """Keras' datasets of arrays in their order, without the functions of indices that it traces for each of them."""
    import tensorflow as tf
    from keras.src import tree
    from keras.src.trainers.data_adapters import array_slicing
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    keras_dataset = ArrayDataAdapter.get_tf_dataset

    def dataset(self):
        arrays = array_slicing.convert_to_sliceable(self._inputs, target_backend="tensorflow")
        arrays = tree.lists_to_tuples(arrays)
        plain = all(isinstance(array, (np.ndarray, tf.Tensor)) for array in tree.flatten(arrays))
        if self._shuffle or not plain:
            return keras_dataset(self)
        slices = tf.data.Dataset.from_tensor_slices(arrays)
        return slices.batch(self._batch_size, drop_remainder=not self._partial_batch_size)

    ArrayDataAdapter.get_tf_dataset = dataset


def without_collecting():
    """A layer no longer collects garbage at each weight that it deletes, as quantising deletes every kernel."""
    from keras.src.layers.layer import Layer

    delete, collect = Layer.__delattr__, gc.collect

    def delete_only(self, name):
        gc.collect = lambda: 0
        try:
            delete(self, name)
        finally:
            gc.collect = collect

    Layer.__delattr__ = delete_only


def with_remembered_signatures():
    """Keras reads the signatures of every new layer's methods, and Python 3.11 the attributes of a protocol at each
    `isinstance`: both are the same each time.
    """
    from keras.src.layers import layer
    from keras.src.ops import operation

    function, arguments = functools.cache(inspect.signature), functools.cache(inspect.getfullargspec)
    method = functools.cache(lambda function: inspect.signature(types.MethodType(function, object())))

    def signature(given):
        return method(given.__func__) if inspect.ismethod(given) else function(given)

    remembered = types.SimpleNamespace(**{**vars(inspect), "signature": signature, "getfullargspec": arguments})
    layer.inspect = operation.inspect = remembered
    if hasattr(typing, "_get_protocol_attrs"):
        typing._get_protocol_attrs = functools.cache(typing._get_protocol_attrs)
