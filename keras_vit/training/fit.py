"""`keras_vit.Model`: a functional Keras model whose fit, evaluate and predict are right for images, under every strategy.

What it mends in Keras' own: clipping, accumulation, many steps a call, ragged batches and several workers under tf.distribute (module
step_tensorflow); evaluation weighs each example once though the last batch is padded; pixels on a wrong scale are refused before
training; unknown arguments are errors; batches may be mixed on the device.
"""

import contextlib

import keras
from keras import ops

from keras_vit.layers.registration import serializable
from keras_vit.training.inputs import feed, layout_of, scope_of
from keras_vit.training.pixels import check_pixels
from keras_vit.training.wrapping import step_of


def _tensorflow():
    """The TensorFlow backend's part, which imports it."""
    from keras_vit.training import step_tensorflow

    return step_tensorflow


class _WeightedLoss(keras.metrics.Mean):
    """The running loss, by examples counted rather than by batch: `weights` are the current batch's, set while tracing."""

    weights = None

    def update_state(self, values, sample_weight=None):
        if self.weights is None:
            return super().update_state(values, sample_weight=sample_weight)
        total = ops.sum(ops.cast(self.weights, self.dtype))
        padded = ops.cast(ops.shape(self.weights)[0], self.dtype)
        return super().update_state(values * padded / ops.maximum(total, 1e-12), sample_weight=total)


class _Remaining(keras.callbacks.Callback):
    """Tells the model how many steps of an epoch are left: Keras itself would run a whole last execution."""

    def _tell(self, steps, batch):
        if steps is None:
            raise ValueError(
                "With steps_per_execution > 1 the number of batches must be known: pass steps_per_epoch (steps, validation_steps), or "
                "dataset.apply(tf.data.experimental.assert_cardinality(n))."
            )
        self.model._remaining = steps - batch

    def on_train_batch_begin(self, batch, logs=None):
        self._tell(self.params["steps"], batch)

    def on_test_batch_begin(self, batch, logs=None):
        within_fit = getattr(self.model, "_eval_epoch_iterator", None)
        self._tell(within_fit.num_batches if within_fit is not None else self.params["steps"], batch)


@serializable
class Model(keras.Model):
    """A functional model, `Model(inputs, outputs)`, trained and evaluated as this package's models are.

    Build on a model of this package with it, rather than with keras.Model, to keep what module `fit` mends:
    `keras_vit.Model(vit.input, new_head(vit.features))`. A `train_step` of your own reports through metrics.

    Attributes:
        mixing: a training.Mixup to apply to each training batch on the device, or None.
        micro_batches: in how many parts, one after the other, a step goes through its batch (each replica through its share). Memory
            for activations falls accordingly; clipping and update happen once, on the whole batch's gradient.
    """

    mixing = None
    micro_batches = 1
    _remaining = None

    def __init__(self, inputs, outputs, name=None, *, trainable=True):
        super().__init__(inputs, outputs, name=name, trainable=trainable)
        self._distribution = keras.distribution.distribution()

    def clone(self):
        """A copy with the same class, config and weights (keras.models.clone_model returns a plain Functional)."""
        copy = type(self).from_config(self.get_config())
        copy.set_weights(self.get_weights())
        return copy

    def fit(self, x=None, y=None, batch_size=None, epochs=1, verbose="auto", callbacks=None, **kwargs):
        """Keras' fit. `batch_size`, and a dataset's batches, are global: the strategy's replicas share them."""
        check_pixels(x)
        with scope_of(self):
            ready = feed(
                self, x, y, kwargs.pop("sample_weight", None), batch_size, training=True, shuffle=kwargs.get("shuffle", True)
            )
            kwargs["steps_per_epoch"] = kwargs.get("steps_per_epoch") or ready.steps
            self._check_steps(kwargs["steps_per_epoch"])
            return super().fit(
                ready.x,
                ready.y,
                ready.batch_size,
                epochs=epochs,
                verbose=verbose,
                callbacks=self._counted(callbacks),
                sample_weight=ready.weights,
                **self._validation(kwargs, batch_size),
            )

    def evaluate(self, x=None, y=None, batch_size=None, verbose="auto", sample_weight=None, steps=None, callbacks=None, **kwargs):
        """Keras' evaluate; every example counts once, whatever the batches and the strategy."""
        if kwargs.get("_use_cached_eval_dataset"):  # within fit, which has seen to its data
            return super().evaluate(x, y, batch_size, verbose, sample_weight, steps, callbacks, **kwargs)
        check_pixels(x)
        with scope_of(self):
            ready = feed(self, x, y, sample_weight, batch_size)
            steps, callbacks = steps or ready.steps, self._counted(callbacks)
            return super().evaluate(ready.x, ready.y, ready.batch_size, verbose, ready.weights, steps, callbacks, **kwargs)

    def predict(self, x, batch_size=None, verbose="auto", steps=None, callbacks=None):
        """Keras' predict; all outputs, in the order of `x`, in every process."""
        check_pixels(x)
        with scope_of(self):
            ready = feed(self, x, batch_size=batch_size)
            outputs = super().predict(ready.x, ready.batch_size, verbose, steps or ready.steps, callbacks)
            return keras.tree.map_structure(lambda t: t[: len(x)], outputs) if hasattr(x, "shape") else outputs

    def predict_on_batch(self, x):
        """Keras' predict_on_batch, the batch shared by the replicas."""
        if layout_of(self).replicas == 1:
            return super().predict_on_batch(x)
        return self.predict(x, batch_size=len(x), verbose=0)  # Keras would have each replica predict all of x

    def _validation(self, options, batch_size):
        """fit's options with the validation data made ready, too."""
        data = options.get("validation_data")
        if data is None:
            if options.get("validation_split") and layout_of(self).replicas > 1:
                raise ValueError("validation_split takes one device only. Pass validation_data=(x, y).")
            return options
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        ready = feed(self, x, y, weights, options.get("validation_batch_size") or batch_size)
        data = ready.x if ready.y is None else (ready.x, ready.y) if ready.weights is None else (ready.x, ready.y, ready.weights)
        steps = options.get("validation_steps") or ready.steps
        return {**options, "validation_data": data, "validation_steps": steps, "validation_batch_size": ready.batch_size}

    def _check_steps(self, steps):
        """On JAX, where Keras runs whole executions only, the steps of an epoch must be a multiple of them."""
        if keras.backend.backend() == "jax" and steps and steps % self.steps_per_execution:
            raise ValueError(
                f"steps_per_epoch={steps} is no multiple of steps_per_execution={self.steps_per_execution}: Keras would run more steps."
            )

    def _counted(self, callbacks):
        """The callbacks, with one that counts where an execution has several steps."""
        if keras.backend.backend() != "tensorflow" or self.steps_per_execution == 1:
            return callbacks
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks.append(_Remaining())
            return callbacks
        return [*(callbacks or ()), _Remaining()]

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        """Builds metrics and optimizer from the data's shapes; Keras would take a batch, and fails at several workers' batches."""
        if self._distribute_strategy is not None:
            _tensorflow().check_made_inside(self.optimizer, self._distribute_strategy)
        if iterator is not None and self._distribute_strategy is not None:
            data_batch = _tensorflow().local_spec(iterator.data_adapter.get_tf_dataset().element_spec)
        super()._maybe_symbolic_build(data_batch=data_batch)

    def make_train_function(self, force=False):
        self._weigh_loss()
        if keras.backend.backend() != "tensorflow":
            return super().make_train_function(force)
        if self.train_function is None or force:
            _tensorflow().check_optimizer(self.optimizer, self.distribute_strategy)
            self.train_function = _tensorflow().make_function(self, self.train_step, lambda: self._remaining)
        return self.train_function

    def make_test_function(self, force=False):
        self._weigh_loss()
        if keras.backend.backend() != "tensorflow":
            return super().make_test_function(force)
        if self.test_function is None or force:
            self.test_function = _tensorflow().make_function(self, self.test_step, lambda: self._remaining)
        return self.test_function

    def make_predict_function(self, force=False):
        several = keras.backend.backend() == "tensorflow" and layout_of(self).workers > 1
        if not several:
            return super().make_predict_function(force)
        if self.predict_function is None or force:
            self.predict_function = _tensorflow().make_gathering_function(self, self.predict_step)
        return self.predict_function

    def _weigh_loss(self):
        if type(self._loss_tracker) is keras.metrics.Mean:
            scope = contextlib.nullcontext() if keras.backend.backend() != "tensorflow" else self.distribute_strategy.scope()
            with scope:
                # Past Keras' __setattr__, which would list the metric a second time.
                object.__setattr__(self, "_loss_tracker", _WeightedLoss(name="loss"))

    def train_step(self, *args):
        """Args are (batch,), and on the JAX backend (state, batch)."""
        if keras.backend.backend() == "tensorflow":
            return _tensorflow().train_step(self, *args)
        state, batch = args
        if self.mixing is not None:
            images, labels, *rest = batch
            batch = (*self.mixing(images, labels, step_of(self.optimizer, state[2])), *rest)
        if self.micro_batches > 1:
            from keras_vit.training.step_jax import accumulated_step

            return accumulated_step(self, state, batch)
        return super().train_step(state, batch)

    def test_step(self, *args):
        """Args are (batch,), and on the JAX backend (state, batch)."""
        batch = args[-1]
        self._loss_tracker.weights = batch[2] if len(batch) == 3 else None
        try:
            return super().test_step(*args)
        finally:
            self._loss_tracker.weights = None
