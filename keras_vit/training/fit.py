"""`keras_vit.Model`: a functional Keras model whose fit, evaluate and predict are right for images.

What it mends in Keras' own: evaluation weighs each example once though the last batch is padded; pixels on a wrong scale are refused
before training; unknown arguments are errors; batches may be mixed on the device.
"""

import keras
import numpy as np
from keras import ops

from keras_vit.layers.registration import serializable


class _WeightedLoss(keras.metrics.Mean):
    """The running loss, by examples counted rather than by batch: `weights` are the current batch's, set while tracing."""

    weights = None

    def update_state(self, values, sample_weight=None):
        if self.weights is None:
            return super().update_state(values, sample_weight=sample_weight)
        total = ops.sum(ops.cast(self.weights, self.dtype))
        padded = ops.cast(ops.shape(self.weights)[0], self.dtype)
        return super().update_state(values * padded / ops.maximum(total, 1e-12), sample_weight=total)


def _first_images(x):
    """Some of the images that `x` (arrays, a dataset, an iterable) starts with, or None where looking would cost."""
    if hasattr(x, "element_spec"):
        spec = x.element_spec
        spec = spec[0] if isinstance(spec, (tuple, list)) else spec
        if not getattr(getattr(spec, "dtype", None), "is_floating", False):
            return None
        batch = next(iter(x.take(1)), None)
        return batch[0] if isinstance(batch, (tuple, list)) else batch
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return x[:32]
    return None


def check_pixels(x):
    """Refuses floating-point images that look normalised already: the model's input is pixels 0..255.

    Raises:
        ValueError: if the first batch is floating-point, not constant, and lies within [-3, 3].
    """
    images = _first_images(x)
    if images is None or np.issubdtype(np.asarray(images).dtype, np.integer):
        return
    images = np.asarray(images, dtype="float32")
    if images.ndim != 4 or not images.size:
        return
    low, high = float(images.min()), float(images.max())
    if low != high and -3.0 <= low and high <= 3.0:
        raise ValueError(
            f"The images look normalised: the first batch lies in [{low:.3g}, {high:.3g}]. This model expects pixels 0..255 and "
            "normalises them itself. Multiply images in [0, 1] by 255, or undo the normalisation."
        )


@serializable
class Model(keras.Model):
    """A functional model, `Model(inputs, outputs)`, trained and evaluated as this package's models are.

    Build on a model of this package with it, rather than with keras.Model, to keep what module `fit` mends:
    `keras_vit.Model(vit.input, new_head(vit.features))`.

    Attributes:
        mixing: a training.Mixup to apply to each training batch on the device, or None.
    """

    mixing = None

    def __init__(self, inputs, outputs, name=None, *, trainable=True):
        super().__init__(inputs, outputs, name=name, trainable=trainable)

    def clone(self):
        """A copy with the same class, config and weights (keras.models.clone_model returns a plain Functional)."""
        copy = type(self).from_config(self.get_config())
        copy.set_weights(self.get_weights())
        return copy

    def fit(self, x=None, *args, **kwargs):
        check_pixels(x)
        return super().fit(x, *args, **kwargs)

    def evaluate(self, x=None, *args, **kwargs):
        check_pixels(x)
        return super().evaluate(x, *args, **kwargs)

    def predict(self, x, *args, **kwargs):
        check_pixels(x)
        return super().predict(x, *args, **kwargs)

    def make_train_function(self, force=False):
        self._weigh_loss()
        return super().make_train_function(force)

    def make_test_function(self, force=False):
        self._weigh_loss()
        return super().make_test_function(force)

    def _weigh_loss(self):
        if type(self._loss_tracker) is keras.metrics.Mean:
            # Past Keras' __setattr__, which would list the metric a second time.
            object.__setattr__(self, "_loss_tracker", _WeightedLoss(name="loss"))

    def train_step(self, *args):
        """Args are (batch,), and on the JAX backend (state, batch)."""
        *state, batch = args
        if self.mixing is not None:
            images, labels, *rest = batch
            step = state[0][2][0] if state else self.optimizer.iterations
            batch = (*self.mixing(images, labels, step), *rest)
        return super().train_step(*state, batch)

    def test_step(self, *args):
        """Args are (batch,), and on the JAX backend (state, batch)."""
        batch = args[-1]
        self._loss_tracker.weights = batch[2] if len(batch) == 3 else None
        try:
            return super().test_step(*args)
        finally:
            self._loss_tracker.weights = None
