"""`keras_vit.Model`: a functional Keras model whose fit, evaluate and predict are right for images, under every strategy.

What it corrects in Keras' own: clipping, accumulation, several steps per execution, ragged batches and several workers under
tf.distribute (module step_tensorflow). Evaluation counts every example once although the last batch is padded; pixels on the wrong
scale are refused before training; unknown arguments are errors; batches can be mixed on the device.
"""

import contextlib
import os
import types
import warnings
import weakref
from collections.abc import Iterator
from typing import Any, Self

import keras
import numpy as np

from keras_vit.layers.composed import freeze_quantized, inner_layers
from keras_vit.layers.dense import Dense, kernels_deleted_quickly
from keras_vit.layers.registration import serializable
from keras_vit.optim.wrapper import step_of
from keras_vit.training import classify, state
from keras_vit.training.compile_checks import check_compiled
from keras_vit.training.input_checks import InputChecks, plain_errors
from keras_vit.training.inputs import feed, scope_of, topology_of
from keras_vit.training.presets import load_preset
from keras_vit.training.quantization import Filters, check_trainable, layers_to_quantize
from keras_vit.training.weights import RunningLoss, check_unweighted, divides_by_weights, per_counted, per_value, sums_over_batch


def _tensorflow():
    """The part for the TensorFlow backend, imported only when it is needed."""
    from keras_vit.training import step_tensorflow

    return step_tensorflow


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

# {layer that gives the logits: (classes, class names)} of models that keras.models.clone_model made.
_HEADS = weakref.WeakKeyDictionary()


def describe_input(image, spec, preprocessing):
    """Records the architecture and preprocessing that the symbolic input `image` belongs to, for models built on it later."""
    _DESCRIPTIONS[image._keras_history.operation] = (spec, preprocessing)


@contextlib.contextmanager
def _explained_names():
    """Adds to Keras' error of two layers with one name how to put several ViTs into one graph."""
    try:
        yield
    except ValueError as error:
        if "names should be unique" not in str(error):
            raise
        raise ValueError(
            f'{error} To put several models of this package into one graph, give each a name of its own, ViT(..., name="left") or '
            'model.clone(name="left"), and call it: left(left.input), or left(image). Their blocks have the same names.'
        ) from None


@serializable
class Model(keras.Model):
    """A functional model, `Model(inputs, outputs)`, trained and evaluated as this package's models are.

    Build on a model of this package with it rather than with keras.Model: `keras_vit.Model(vit.input, my_head(vit.features))`, or with
    `vit` called as a layer on an input of your own. Such a model trains, saves, loads, exports and is inspected as `vit` is.

    A `train_step`, `test_step` or `compute_metrics` of your own works as in Keras; with several replicas, what it returns is averaged over them.

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
        check_pixels: whether floating-point images on another scale than the model's normalisation are refused.

    A `.keras` file keeps mixing, micro_batches, and which layers are frozen.
    """

    spec: Any
    image_size: tuple[int, int] | None
    channels: int | None
    preprocessing: str | None
    classes: int | None
    class_names: tuple[str, ...] | None
    mixing: Any = None
    micro_batches: int = 1
    check_pixels: bool = True
    _remaining = None

    def __init__(self, inputs: Any, outputs: Any, name: str | None = None, *, trainable: bool = True):
        with _explained_names():
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
        if isinstance(self.output, keras.KerasTensor):
            self.classes, self.class_names = _HEADS.get(self.output._keras_history.operation, (None, None))
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
        return {**config, **description, **state.to_config(self)}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        if "spec" not in config or "layers" not in config:  # a file of version 0.3, or a subclass that describes itself
            return super().from_config(config, custom_objects)
        config = dict(config)
        training = config.pop(state.KEY, None)
        spec = keras.saving.deserialize_keras_object(config.pop("spec"))
        preprocessing, classes, names = (config.pop(name) for name in ("preprocessing", "classes", "class_names"))
        model = super().from_config(config, custom_objects)
        model.spec, model.preprocessing, model.classes = spec, preprocessing, classes
        model.class_names = None if names is None else tuple(names)
        nested = any(isinstance(layer, Model) for layer in model.layers)
        if spec is not None and not nested and isinstance(model.input, keras.KerasTensor):
            describe_input(model.input, spec, preprocessing)
        state.restore(model, training)
        return model

    @classmethod
    def from_preset(cls, preset: str | os.PathLike, **arguments: Any) -> Self:
        """The model that `keras_vit.load(preset, **arguments)` loads: from a path, an address or a name in the catalogue.

        Raises:
            ValueError: if it is not of this class (a BiT for ViT.from_preset), or as in `keras_vit.load`.
        """
        return load_preset(cls, preset, arguments)

    def clone(self, name: str | None = None) -> "Model":
        """A copy with the same class, config and weights, independent of this model; `name` None keeps the name."""
        config = self.get_config()
        copy = type(self).from_config(config if name is None else {**config, "name": name})
        copies = {"": copy, **inner_layers(copy)}
        for path, layer in {"": self, **inner_layers(self)}.items():
            weights: dict[str, Any] = {}
            layer.save_own_variables(weights)  # as into a file: the order of a quantised layer's weights depends on its history
            if weights:
                copies[path].load_own_variables(weights)
        return copy

    def compile(self, optimizer="rmsprop", loss=None, loss_weights=None, metrics=None, weighted_metrics=None, **kwargs):
        """Keras' compile.

        Raises:
            ValueError: for a loss or metric on probabilities of a model that returns logits, the reverse, or a softmax over one class.
        """
        check_compiled(self, loss, [metrics, weighted_metrics])
        super().compile(optimizer, loss, loss_weights, metrics, weighted_metrics, **kwargs)

    def compile_from_config(self, config):
        """Keras' compile_from_config; a file whose loss or metrics `compile` refuses is loaded without them."""
        if self.has_own("compile"):
            return super().compile_from_config(config)  # which says what the class has to do
        try:
            self.compile(**keras.saving.deserialize_keras_object(config))
        except ValueError as error:
            warnings.warn(f'"{self.name}" is not compiled as it was when it was saved: {error}', stacklevel=2)
        else:
            if self.optimizer is not None:
                self.optimizer.build(self.trainable_variables)

    def _run_through_graph(self, *args, **options):
        """Keras' own. With `call_fn` it is called by keras.models.clone_model, whose copy then knows what this model knows."""
        outputs = super()._run_through_graph(*args, **options)
        known = getattr(self, "spec", None)  # not there while the graph is made, with `call_fn` too
        if "call_fn" in options and known is not None and isinstance(outputs, keras.KerasTensor):
            _HEADS[outputs._keras_history.operation] = (self.classes, self.class_names)
            if isinstance(args[0], keras.KerasTensor) and not any(isinstance(layer, Model) for layer in self.layers):
                describe_input(args[0], self.spec, self.preprocessing)
        return outputs

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
        weights = kwargs.pop("sample_weight", None)
        self._check_trainable()
        x = self._checked(x, y, weights)
        with scope_of(self), plain_errors():
            ready = feed(self, x, y, weights, batch_size, training=True, shuffle=kwargs.get("shuffle", True))
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
        x = self._checked(x, y, sample_weight)
        with scope_of(self), plain_errors():
            ready = feed(self, x, y, sample_weight, batch_size)
            steps, callbacks = steps or ready.steps, self._counted(callbacks)
            return super().evaluate(ready.x, ready.y, ready.batch_size, verbose, ready.weights, steps, callbacks, **kwargs)

    def predict(self, x, batch_size=None, verbose="auto", steps=None, callbacks=None):
        """Keras' predict. Returns all outputs, in the order of `x`, in every process."""
        x = InputChecks.of(self).any(x)
        with scope_of(self), plain_errors():
            ready = feed(self, x, batch_size=batch_size)
            outputs = super().predict(ready.x, ready.batch_size, verbose, steps or ready.steps, callbacks)
            return keras.tree.map_structure(lambda t: t[: len(x)], outputs) if hasattr(x, "shape") else outputs

    def preprocess(self, x: Any) -> Any:
        """Images as the pixels that the model takes, by its own preprocessing text; without one they are resized to its size.

        Args:
            x: a path, encoded bytes, an open file, a PIL image, pixels 0..255 (h, w) or (h, w, c), or a list or batch of these. In a
                `tf.data` pipeline: encoded images, () or (b,), or pixels.

        Returns:
            uint8 (height, width, c), or (b, height, width, c) for a list or batch.

        Raises:
            FileNotFoundError: if there is no such file.
            ImportError: if TensorFlow, which decodes on every backend, is not installed.
            ValueError: for what is not an image, or pixels on another scale.
        """
        return classify.preprocess(self, x)

    def classify(
        self, x: Any, top_k: int = 5, batch_size: int = 32, activation: str | None = None, verbose: bool | int | str = "auto"
    ) -> list[classify.Prediction] | list[list[classify.Prediction]]:
        """What images show: names and probabilities, through the model's own preprocessing.

        Args:
            x: an image or several, as for `preprocess`.
            top_k: how many classes, at most.
            batch_size: images at once.
            activation: "softmax" or "sigmoid", for models of several labels per image. None for sigmoid if the model has one class or was
                compiled with a binary cross-entropy, else softmax.
            verbose: whether to show progress; "auto" for more images than a batch.

        Returns:
            A list of named tuples (name, probability, index), most probable first; for several images a list of these. Without class names the names
            are the classes' numbers.

        Raises:
            FileNotFoundError, ImportError: as in `preprocess`.
            ValueError: as in `preprocess`, for a model without classes, or one whose head was never trained.
        """
        return classify.classify(self, x, top_k, batch_size, activation, verbose)

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
        x = self._checked(x, y, weights)
        ready = feed(self, x, y, weights, options.get("validation_batch_size") or batch_size)
        data = ready.x if ready.y is None else (ready.x, ready.y) if ready.weights is None else (ready.x, ready.y, ready.weights)
        steps = options.get("validation_steps") or ready.steps
        return {**options, "validation_data": data, "validation_steps": steps, "validation_batch_size": ready.batch_size}

    def _check_trainable(self):
        """Refuses to train what would not train, or not as it is set up."""
        if (
            isinstance(self.micro_batches, bool)
            or not isinstance(self.micro_batches, (int, np.integer))
            or self.micro_batches < 1
        ):
            raise ValueError(f"model.micro_batches should be a whole number of at least 1, got {self.micro_batches!r}.")
        if self.mixing is not None and not callable(self.mixing):
            raise ValueError(f"model.mixing should be a training.Mixup, Cutmix, MixupOrCutmix or None, got {self.mixing!r}.")
        if not self.trainable_variables and self.variables:
            raise ValueError(
                "Nothing would train: every layer of the model is frozen. Set trainable = True on some, then compile again."
            )
        now = {layer: layer.trainable for layer in self._flatten_layers()}
        if getattr(self, "train_function", None) is not None and now != self._compiled_trainable_state:
            changed = sorted(layer.name for layer in now if now[layer] != self._compiled_trainable_state.get(layer))
            raise ValueError(f"The layers {', '.join(changed[:8])} were frozen or unfrozen after compile: call compile again.")

    def _checked(self, x, y, weights):
        """What to train or evaluate on instead of `x`: arrays are checked, anything else is checked as it is read.

        Raises:
            ValueError: for arrays that are refused, or data without labels.
        """
        if isinstance(x, (list, tuple)) and len(x) != len(self.inputs):
            raise ValueError(
                f"The data is a {type(x).__name__} of {len(x)}, and the model has {len(self.inputs)} input(s). Put images into one array: np.stack(x)."
            )
        if len(getattr(x, "shape", ())) and x.shape[0] == 0:
            raise ValueError("The data is empty: it has no examples.")
        has_labels = y is not None
        if hasattr(x, "element_spec"):
            has_labels = isinstance(x.element_spec, (tuple, list)) and len(x.element_spec) > 1
        elif isinstance(x, (types.GeneratorType, keras.utils.PyDataset)):
            has_labels = True  # seen when it is read
        own = self.has_own("compute_loss", "train_step", "test_step")
        if not has_labels and getattr(self, "loss", None) is not None and not own:
            raise ValueError(
                "The data has no labels, which the loss needs: expected (x, y) or (x, y, weights). To get the model's outputs, use predict."
            )
        return InputChecks.of(self).any(x, y, weights)

    def train_on_batch(self, x, y=None, sample_weight=None, class_weight=None, return_dict=False):
        """Keras' train_on_batch."""
        InputChecks.of(self).arrays(x, y, sample_weight)
        return super().train_on_batch(x, y, sample_weight, class_weight, return_dict)

    def test_on_batch(self, x, y=None, sample_weight=None, return_dict=False):
        """Keras' test_on_batch."""
        InputChecks.of(self).arrays(x, y, sample_weight)
        return super().test_on_batch(x, y, sample_weight, return_dict)

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
        several = len(self.outputs) > 1
        if iterator is not None and (several or self._distribute_strategy is not None):
            data_batch = _tensorflow().local_spec(iterator.data_adapter.get_tf_dataset().element_spec)
        if several and data_batch is not None:
            self._symbolic_build(data_batch=data_batch)  # makes the running loss of each output
        else:
            super()._maybe_symbolic_build(data_batch=data_batch)

    def make_train_function(self, force=False):
        check_trainable(self, topology_of(self).replicas)
        self._count_examples()
        if keras.backend.backend() != "tensorflow":
            return super().make_train_function(force)
        if self.train_function is None or force:
            _tensorflow().check_optimizer(self.optimizer, self.distribute_strategy)
            own = self.has_own("train_step", "compute_metrics")
            self.train_function = _tensorflow().make_function(self, self.train_step, lambda: self._remaining, own)
        return self.train_function

    def make_test_function(self, force=False):
        self._count_examples()
        if keras.backend.backend() != "tensorflow":
            return super().make_test_function(force)
        if self.test_function is None or force:
            own = self.has_own("test_step", "compute_metrics")
            self.test_function = _tensorflow().make_function(self, self.test_step, lambda: self._remaining, own)
        return self.test_function

    def make_predict_function(self, force=False):
        several = keras.backend.backend() == "tensorflow" and topology_of(self).workers > 1
        if not several:
            return super().make_predict_function(force)
        if self.predict_function is None or force:
            self.predict_function = _tensorflow().make_gathering_function(self, self.predict_step)
        return self.predict_function

    def has_own(self, *methods: str) -> bool:
        """Whether the user's class overrides one of these methods of Model."""
        return any(getattr(type(self), name) is not getattr(Model, name) for name in methods)

    def _get_metrics_result_or_logs(self, logs):
        """What an epoch reports. Keras would report its own running loss, 0, where a step of the user's own returns only "loss"."""
        if self.has_own("train_step", "test_step", "compute_metrics"):
            return logs
        return super()._get_metrics_result_or_logs(logs)

    def _count_examples(self):
        """Has the running losses, of all outputs and of each, average over examples rather than batches."""
        for tracker in self._running_losses():
            if type(tracker) is keras.metrics.Mean:
                tracker.__class__ = RunningLoss  # made and registered by Keras

    def train_step(self, *args):
        """The arguments are (batch,), and on the JAX backend (state, batch)."""
        if keras.backend.backend() == "tensorflow":
            return _tensorflow().train_step(self, *args)
        state, batch = args
        if self.mixing is not None:
            images, labels, *rest = batch
            check_unweighted(rest[0] if rest else None)
            batch = (*self.mixing(images, labels, step_of(self.optimizer, state[2])), *rest)
        if self.micro_batches > 1:
            from keras_vit.training.step_jax import accumulated_step

            return accumulated_step(self, state, batch)
        with self.weighing(keras.utils.unpack_x_y_sample_weight(batch)[2], is_mean=False):
            return super().train_step(state, batch)

    def test_step(self, *args):
        """The arguments are (batch,), and on the JAX backend (state, batch)."""
        _, _, weights = keras.utils.unpack_x_y_sample_weight(args[-1])
        with self.weighing(weights, is_mean=True):
            return super().test_step(*args)

    @contextlib.contextmanager
    def weighing(self, weights: Any, is_mean: bool) -> Iterator[None]:
        """While a step is traced, tells the running losses the weights of its examples.

        Args:
            weights: one tensor, a structure with one per output, or None.
            is_mean: see RunningLoss.
        """
        total, *outputs = self._running_losses()
        each = [] if weights is None or sums_over_batch(self.loss) else keras.tree.flatten(weights)
        total.weights = each[0] if each and (is_mean or len(each) == 1) else None
        for i, tracker in enumerate(outputs):
            tracker.weights = None if not each else each[i] if len(each) == len(outputs) else each[0]
        for tracker in (total, *outputs):
            tracker.is_mean, tracker.by_weight = is_mean, divides_by_weights(self.loss)
        try:
            yield
        finally:
            for tracker in (total, *outputs):
                tracker.weights = None

    def _running_losses(self):
        """The metrics that hold the running loss: of all, and, of a model with several outputs, of each."""
        return [self._loss_tracker, *getattr(self._compile_loss, "metrics", ())]

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Keras' loss, with weights of examples for outputs of any rank. In evaluation, examples of weight 0 are not counted."""
        weights = per_value(sample_weight, y_pred)
        if not training and weights is not None and not sums_over_batch(self.loss):
            weights = per_counted(weights)
        return super().compute_loss(x, y, y_pred, weights, training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Keras' metrics, with weights of examples for outputs of any rank."""
        return super().compute_metrics(x, y, y_pred, per_value(sample_weight, y_pred))
