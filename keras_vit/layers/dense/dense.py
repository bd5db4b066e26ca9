"""Keras' Dense, computed in the form that is fastest on the backend; Keras quantises it, and it learns by LoRA (arXiv
2106.09685).
"""

import contextlib
import gc

import keras
from keras import ops

from keras_vit.layers.backend import affine
from keras_vit.layers.registration import serializable

LORA_WEIGHTS = ("lora_kernel_a", "lora_kernel_b")


@contextlib.contextmanager
def kernels_deleted_quickly():
    """A context for replacing many kernels. Keras collects garbage at each one, which takes longer than all the rest: a
    tenth of a second and more where TensorFlow is loaded. What was there before is left out of these collections.
    """
    if gc.get_freeze_count():  # somebody's own choice, which could not be told apart afterwards
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@serializable
class Dense(keras.layers.Dense):
    """keras.layers.Dense on tokens: (b, n, c) -> (b, n, units).

    Quantised, it computes as Keras' own does. With LoRA, its kernel and bias are frozen, however `trainable` is set,
    and a file keeps the two matrices apart from the kernel: Keras would add them to it, and go on from two matrices of
    zeros, which never learn.
    """

    def call(self, inputs, training=None):
        bias = ops.convert_to_tensor(self.bias) if self.use_bias else None
        if not self.lora_enabled:
            return affine(inputs, ops.convert_to_tensor(self.kernel), bias, self.activation)
        y = affine(inputs, ops.convert_to_tensor(self._kernel), bias)
        x = ops.matmul(
            ops.matmul(inputs, self.lora_kernel_a), self.lora_kernel_b
        )  # (b, n, c) -> (b, n, rank) -> (b, n, d)
        return self.activation(y + ops.cast(self.lora_alpha / self.lora_rank, x.dtype) * x)

    def quantize(self, mode=None, type_check=True, config=None):
        # Keras refuses subclasses, since it cannot know what they compute; this one computes the same.
        super().quantize(mode, type_check=False, config=config)

    @property
    def trainable(self):
        return self._trainable

    @trainable.setter
    def trainable(self, value):
        keras.layers.Dense.trainable.fset(self, value)
        if getattr(self, "lora_enabled", False):
            self._freeze_all_but_lora()

    def _freeze_all_but_lora(self):
        for weight in self.weights:
            weight.trainable = self.trainable and weight.name in LORA_WEIGHTS

    def enable_lora(self, rank, lora_alpha=None, a_initializer="he_uniform", b_initializer="zeros"):
        super().enable_lora(rank, lora_alpha, a_initializer, b_initializer)
        self._freeze_all_but_lora()

    def merge_lora(self):
        """Adds LoRA's product to the kernel and drops its two matrices. A quantised kernel is quantised again, with a
        new scale.

        Raises:
            ValueError: if the layer has no LoRA.
        """
        if not self.lora_enabled:
            raise ValueError(f'Dense "{self.path}" has no LoRA to merge.')
        merged = {}
        super().save_own_variables(merged)  # with the sum as kernel
        if self.quantization_mode is None:  # Keras rounds the sum to the compute dtype
            product = ops.matmul(ops.convert_to_tensor(self.lora_kernel_a), ops.convert_to_tensor(self.lora_kernel_b))
            merged["0"] = ops.convert_to_tensor(self._kernel) + ops.cast(
                product * (self.lora_alpha / self.lora_rank), self._kernel.dtype
            )
        del self.lora_kernel_a, self.lora_kernel_b
        self.lora_enabled, self.lora_rank, self.lora_alpha = False, None, None
        super().load_own_variables(merged)
        keras.layers.Dense.trainable.fset(self, self.trainable)  # kernel and bias follow the layer again

    @contextlib.contextmanager
    def _as_without_lora(self):
        enabled, self.lora_enabled = self.lora_enabled, False
        try:
            yield
        finally:
            self.lora_enabled = enabled

    def save_own_variables(self, store):
        with self._as_without_lora():
            super().save_own_variables(store)
        if self.lora_enabled:
            for name in LORA_WEIGHTS:
                store[name] = getattr(self, name)

    def load_own_variables(self, store):
        if not self.lora_enabled:
            return super().load_own_variables(store)
        if LORA_WEIGHTS[0] in store.keys():
            with self._as_without_lora():
                super().load_own_variables(store)
            for name in LORA_WEIGHTS:
                getattr(self, name).assign(store[name])
            return None
        start = ops.convert_to_numpy(self.lora_kernel_a)
        super().load_own_variables(store)  # sets both matrices to zeros
        self.lora_kernel_a.assign(start)
        return None
