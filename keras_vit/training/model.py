"""`keras_vit.Model`: a functional Keras model whose fit, evaluate and predict are right for images, under every strategy.

What it corrects in Keras' own: clipping, accumulation, several steps per execution, ragged batches and several workers under
tf.distribute (module step_tensorflow). Evaluation counts every example once although the last batch is padded; pixels on the wrong
scale are refused before training; unknown arguments are errors; batches can be mixed on the device.
"""

import contextlib
import weakref

import keras
from keras import ops

from keras_vit.layers.composed import freeze_quantized
from keras_vit.layers.dense import Dense, kernels_deleted_quickly
from keras_vit.layers.registration import serializable
from keras_vit.optim.wrapper import step_of
from keras_vit.training.inputs import feed, scope_of, topology_of
from keras_vit.training.pixel_range import check_pixel_range
from keras_vit.training.quantization import Filters, check_trainable, layers_to_quantize
from keras_vit.training.weights import per_value, sums_over_batch, with_mean_one


def _tensorflow():
    """The part for the TensorFlow backend, imported only when it is needed."""
    from keras_vit.training import step_tensorflow

    return step_tensorflow


class _WeightedLoss(keras.metrics.Mean):
    """The running loss, averaged over examples rather than batches: `weights` are those of the current batch, set while tracing."""

    weights = None

    def update_state(self, values, sample_weight=None):
        if self.weights is not None:
            sample_weight = sum(ops.sum(ops.cast(w, self.dtype)) for w in keras.tree.flatten(self.weights) if w is not None)
        return super().update_state(values, sample_weight=sample_weight)


class _Remaining(keras.callbacks.Callback):
    """Sets how many steps of the epoch the model has left: Keras itself would make the last execution a whole one."""

    def _set(self, steps, batch):
        if steps is None:
            raise ValueError(
                "With steps_per_execution > 1 the number of batches must be known: pass steps_per_epoch (steps, validation_steps), or "
                "use dataset.apply(tf.data.experimental.assert_cardinality(n))."
            )
        self.model._remaining = steps - batch

    def on_train_batch_begin(self, batch, logs=None):
        self._set(self.params["steps"], batch)

    def on_test_batch_begin(self, batch, logs=None):
        within_fit = getattr(self.model, "_eval_epoch_iterator", None)
        self._set(within_fit.num_batches if within_fit is not None else self.params["steps"], batch)


# {Input layer: (spec, preprocessing)} for every ViT, BiT and model built on one: a further model on the same Input looks here.
_DESCRIPTIONS = weakref.WeakKeyDictionary()


def describe_input(image, spec, preprocessing):
    """Records the architecture and preprocessing that the symbolic input `image` belongs to, for models built on it later."""
    _DESCRIPTIONS[image._keras_history.operation] = (spec, preprocessing)


@serializable
class Model(keras.Model):
    """A functional model, `Model(inputs, outputs)`, trained and evaluated as this package's models are.

    Build on a model of this package with it rather than with keras.Model: `keras_vit.Model(vit.input, my_head(vit.features))`, or with
    `vit` called as a layer on an input of your own. Such a model trains, saves, loads, exports and is inspected as `vit` is. A custom
    `train_step` must report through metrics.

    Attributes:
        spec: the ViTSpec or BiTSpec of the model it was built on; None where there is none, or where there are several.
        image_size, channels: of its input images: pixels (height, width) and a number; None for inputs other than one image.
        preprocessing: text of the evaluation preprocessing (docs/data.md), from the model it was built on; None if its input has
            another size.
        classes, class_names: number and names of the classes where the outputs are logits (b, classes): as given to
            `with_head(layer, class_names=...)`, or those of a nested classifier whose logits are the outputs. None otherwise.
        mixing: a training.Mixup, Cutmix or MixupOrCutmix that is applied to each training batch on the device, or None.
        micro_batches: the number of parts that a step splits its batch into and processes one after the other (each replica splits
            its own share). Memory for activations falls accordingly; clipping and the update happen once, with the gradient of the
            whole batch.
    """

    mixing = None
    micro_batches = 1
    _remaining = None

    def __init__(self, inputs, outputs, name=None, *, trainable=True):
        super().__init__(inputs, outputs, name=name, trainable=trainable)
        self.__dict__.pop("quantize", None)  # Keras wraps it in checks, whose messages are those of a single layer
        self._distribution = keras.distribution.distribution()
        shape = self.input_shape
        is_image = isinstance(shape, tuple) and len(shape) == 4 and None not in shape[1:]
        self.image_size = tuple(shape[1:3]) if is_image else None
        self.channels = shape[3] if is_image else None
        self.spec = self.preprocessing = self.classes = self.class_names = None
        self._describe()

    def _describe(self):
        """Takes spec, preprocessing and classes from the one ViT or BiT that the model starts with or calls, if there is one."""
        known = {layer: _DESCRIPTIONS[layer] for layer in self.layers if layer in _DESCRIPTIONS}
        nested = [layer for layer in self.layers if isinstance(layer, Model) and layer.spec is not None]
        if len(known) + len(nested) != 1:
            return
        if nested:
            self.spec = nested[0].spec
            self.preprocessing = nested[0].preprocessing if nested[0].image_size == self.image_size else None
            if isinstance(self.output, keras.KerasTensor) and self.output._keras_history.operation is nested[0]:
                self.classes, self.class_names = nested[0].classes, nested[0].class_names
        else:
            [(self.spec, self.preprocessing)] = known.values()

    def get_config(self):
        config = super().get_config()
        if "layers" not in config:  # of a subclass with a constructor of its own, which describes itself
            return config
        description = {
            "spec": keras.saving.serialize_keras_object(self.spec),
            "preprocessing": self.preprocessing,
            "classes": self.classes,
            "class_names": self.class_names,
        }
        return {**config, **description}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        if "spec" not in config or "layers" not in config:  # a file of version 0.3, or a subclass that describes itself
            return super().from_config(config, custom_objects)
        config = dict(config)
        spec = keras.saving.deserialize_keras_object(config.pop("spec"))
        preprocessing, classes, names = (config.pop(name) for name in ("preprocessing", "classes", "class_names"))
        model = super().from_config(config, custom_objects)
        model.spec, model.preprocessing, model.classes = spec, preprocessing, classes
        model.class_names = None if names is None else tuple(names)
        nested = any(isinstance(layer, Model) for layer in model.layers)
        if spec is not None and not nested and isinstance(model.input, keras.KerasTensor):
            describe_input(model.input, spec, preprocessing)
        return model

    def clone(self):
        """A copy with the same class, config and weights, independent of this model (keras.models.clone_model returns a keras.Functional)."""
        copy = type(self).from_config(self.get_config())
        for layer, other in zip(self._flatten_layers(), copy._flatten_layers(), strict=True):
            weights = {}
            layer.save_own_variables(
                weights
            )  # as into a file: the order of a quantised layer's weights depends on when it was quantised
            other.load_own_variables(weights)
        return copy

    def quantize(self, mode: str | None = None, config=None, filters: Filters = None, **kwargs) -> None:
        """Keras' quantize: every dense layer, also inside the blocks, computes with a kernel of few bits. In place, and for good.

        Patch embedding, position embeddings, normalisations and biases stay as they are. Files, clones and exports stay quantised. If the
        model has LoRA, this alone still trains.

        Args:
            mode: "int8", "int4" or "float8"; None for that of the config.
            config: a keras.quantizers.Int8QuantizationConfig, Int4QuantizationConfig or Float8QuantizationConfig; None for Keras' defaults.
            filters: as in Keras: a regular expression or a list of them, searched in the layers' names, or a function of a layer.

        Raises:
            ValueError: for another mode, or if no dense layer is left to quantise.
        """
        chosen = {id(layer) for layer in layers_to_quantize(self, mode, config, filters)}
        with kernels_deleted_quickly():
            super().quantize(mode, config=config, filters=lambda layer: id(layer) in chosen, **kwargs)
        if any(isinstance(layer, Dense) and layer.lora_enabled for layer in self._flatten_layers()):
            freeze_quantized(self)

    def fit(self, x=None, y=None, batch_size=None, epochs=1, verbose="auto", callbacks=None, **kwargs):
        """Keras' fit. `batch_size` and the batches of a dataset are global: the replicas of the strategy share them."""
        check_pixel_range(x)
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
        """Keras' evaluate. Every example counts exactly once, whatever the batch size and the strategy."""
        if kwargs.get("_use_cached_eval_dataset"):  # within fit, which has already prepared the data
            return super().evaluate(x, y, batch_size, verbose, sample_weight, steps, callbacks, **kwargs)
        check_pixel_range(x)
        with scope_of(self):
            ready = feed(self, x, y, sample_weight, batch_size)
            steps, callbacks = steps or ready.steps, self._counted(callbacks)
            return super().evaluate(ready.x, ready.y, ready.batch_size, verbose, ready.weights, steps, callbacks, **kwargs)

    def predict(self, x, batch_size=None, verbose="auto", steps=None, callbacks=None):
        """Keras' predict. Returns all outputs, in the order of `x`, in every process."""
        check_pixel_range(x)
        with scope_of(self):
            ready = feed(self, x, batch_size=batch_size)
            outputs = super().predict(ready.x, ready.batch_size, verbose, steps or ready.steps, callbacks)
            return keras.tree.map_structure(lambda t: t[: len(x)], outputs) if hasattr(x, "shape") else outputs

    def predict_on_batch(self, x):
        """Keras' predict_on_batch; the replicas share the batch."""
        if topology_of(self).replicas == 1:
            return super().predict_on_batch(x)
        return self.predict(x, batch_size=len(x), verbose=0)  # Keras would have each replica predict all of x

    def _validation(self, options, batch_size):
        """The options of fit, with the validation data prepared for the strategy."""
        data = options.get("validation_data")
        if data is None:
            if options.get("validation_split") and topology_of(self).replicas > 1:
                raise ValueError("validation_split works on one device only. Pass validation_data=(x, y).")
            return options
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        ready = feed(self, x, y, weights, options.get("validation_batch_size") or batch_size)
        data = ready.x if ready.y is None else (ready.x, ready.y) if ready.weights is None else (ready.x, ready.y, ready.weights)
        steps = options.get("validation_steps") or ready.steps
        return {**options, "validation_data": data, "validation_steps": steps, "validation_batch_size": ready.batch_size}

    def _check_steps(self, steps):
        """On JAX, Keras runs only whole executions: the steps of an epoch must be a multiple of steps_per_execution."""
        if keras.backend.backend() == "jax" and steps and steps % self.steps_per_execution:
            raise ValueError(
                f"steps_per_epoch={steps} is not a multiple of steps_per_execution={self.steps_per_execution}: Keras would run more "
                "steps."
            )

    def _counted(self, callbacks):
        """The callbacks, plus one that counts the remaining steps if an execution has several."""
        if keras.backend.backend() != "tensorflow" or self.steps_per_execution == 1:
            return callbacks
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks.append(_Remaining())
            return callbacks
        return [*(callbacks or ()), _Remaining()]

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        """Builds metrics and optimizer from the shapes of the data; Keras would read a batch, which fails with several workers."""
        if self._distribute_strategy is not None:
            _tensorflow().check_made_inside(self.optimizer, self._distribute_strategy)
        if iterator is not None and self._distribute_strategy is not None:
            data_batch = _tensorflow().local_spec(iterator.data_adapter.get_tf_dataset().element_spec)
        super()._maybe_symbolic_build(data_batch=data_batch)

    def make_train_function(self, force=False):
        check_trainable(self, topology_of(self).replicas)
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
        several = keras.backend.backend() == "tensorflow" and topology_of(self).workers > 1
        if not several:
            return super().make_predict_function(force)
        if self.predict_function is None or force:
            self.predict_function = _tensorflow().make_gathering_function(self, self.predict_step)
        return self.predict_function

    def _weigh_loss(self):
        if type(self._loss_tracker) is keras.metrics.Mean:
            scope = contextlib.nullcontext() if keras.backend.backend() != "tensorflow" else self.distribute_strategy.scope()
            with scope:
                # Bypasses Keras' __setattr__, which would register the metric a second time.
                object.__setattr__(self, "_loss_tracker", _WeightedLoss(name="loss"))

    def train_step(self, *args):
        """The arguments are (batch,), and on the JAX backend (state, batch)."""
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
        """The arguments are (batch,), and on the JAX backend (state, batch)."""
        batch = args[-1]
        weighted = len(batch) == 3 and not sums_over_batch(self.loss)
        self._loss_tracker.weights = batch[2] if weighted else None
        try:
            return super().test_step(*args)
        finally:
            self._loss_tracker.weights = None

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Keras' loss, with weights of examples for outputs of any rank. In evaluation it is the weighted mean of the batch."""
        weights = per_value(sample_weight, y_pred)
        if not training and weights is not None and not sums_over_batch(self.loss):
            weights = with_mean_one(weights)
        return super().compute_loss(x, y, y_pred, weights, training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Keras' metrics, with weights of examples for outputs of any rank."""
        return super().compute_metrics(x, y, y_pred, per_value(sample_weight, y_pred))
