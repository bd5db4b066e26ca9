"""`keras_vit.Model`: a functional Keras model with fit, evaluate and predict for images, under every strategy.

It corrects Keras' clipping, accumulation, several steps per execution, ragged batches and several workers under
tf.distribute (training/steps). Evaluation counts every example once, although the last batch is padded; pixels on the
wrong scale and unknown arguments are errors; batches can be mixed on the device.
"""

import types
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import keras

from keras_vit.layers.dense import Dense, Filters, freeze_quantized, kernels_deleted_quickly, layers_to_quantize
from keras_vit.layers.registration import serializable
from keras_vit.optim.wrappers import check_backups
from keras_vit.training.checks.before_fit import check_data, check_known, check_loaded, check_trainable
from keras_vit.training.checks.compiled import check_compiled
from keras_vit.training.checks.inputs import InputChecks
from keras_vit.training.checks.labels import check_same_form, label_shapes
from keras_vit.training.checks.marked import plain_errors
from keras_vit.training.checks.pixel_scale import warn_of_double
from keras_vit.training.checks.pixels_in_graphs import checked, checked_images
from keras_vit.training.class_weight import ClassWeight
from keras_vit.training.losses import activation_by
from keras_vit.training.mixing import Neighbours, check_pairs, check_unweighted
from keras_vit.training.prediction import classify, images
from keras_vit.training.steps.inputs import feed, prediction_feed, rows_of, scope_of, topology_of
from keras_vit.training.steps.model_steps import SteppingModel, weights_kept


class _Remaining(keras.callbacks.Callback):
    """Sets the model's number of steps left in the epoch, so that the last execution is not a whole one.

    On JAX an epoch may end with its data, and the number of batches need not be known.

    Args:
        validates: for fit's evaluations on validation data: the parameters lack their number of steps.
    """

    def __init__(self, validates: bool):
        super().__init__()
        self._validates = validates

    def _set(self, steps, batch):
        if steps is None and keras.backend.backend() == "jax":
            self.model._remaining = None
            return
        if steps is None:
            raise ValueError(
                "With steps_per_execution > 1 the number of batches must be known: pass steps_per_epoch (steps,"
                " validation_steps), or use dataset.apply(tf.data.experimental.assert_cardinality(n))."
            )
        self.model._remaining = steps - batch

    def on_train_batch_begin(self, batch, logs=None):
        self._set(self.params.get("steps"), batch)

    def on_test_batch_begin(self, batch, logs=None):
        self._set(self.model._eval_epoch_iterator.num_batches if self._validates else self.params.get("steps"), batch)


_EXPORTERS: list[Callable] = []
_Exporter = TypeVar("_Exporter", bound=Callable)


def register_exporter(export: _Exporter) -> _Exporter:
    """Decorator: makes `export` the function behind Model.export. Training cannot import the writers of files."""
    _EXPORTERS[:] = [export]
    return export


@serializable
class Model(SteppingModel):
    """A functional model, `Model(inputs, outputs)`, with this package's training and evaluation.

    Use it instead of keras.Model to build on this package's models: `keras_vit.Model(vit.input,
    my_head(vit.features))`, or with `vit` called as a layer on an input of your own. The result trains, saves, loads,
    exports and is inspected like `vit`.

    Your own `train_step`, `test_step` or `compute_metrics` work as in Keras; their results are averaged over
    replicas.

    Attributes:
        spec: ViTSpec or BiTSpec of the model it was built on; None unless there is exactly one.
        image_size, channels: pixels (height, width) and a number, of its input images; None for inputs other than one
            image.
        preprocessing: text of the evaluation preprocessing (docs/data.md), from the model it was built on; None at
            another input size.
        classes, class_names: number and names of the classes if the outputs are logits (b, classes): as given to
            `with_head(layer, class_names=...)`, or of a nested classifier if its logits are the outputs; else None.
        mixing: a training.Mixup, Cutmix or MixupOrCutmix, for detection SceneMixup or Mosaic, for training batches,
            applied on the device, or None.
        micro_batches: number of parts into which a step splits its batch (each replica its own share), processed in
            turn to save activation memory. Clipping and the update happen once, with the whole batch's gradient. Batch
            normalisation sees one part at a time.
        weighs_examples: whether losses and metrics give one value per example whatever the output's rank, so that
            weights stay (b,). False, as in Keras, for one value per pixel or token of a dense output; this package's
            losses take (b,) in any case.
        objectives: losses that suit the outputs of a pre-training model; () for any.
        labels_are_classes: whether y contains classes, so that class_weight can weigh examples.
        check_pixels: whether to refuse images on another scale than the model's normalisation expects behind the layers
            before it, and to give it that scale in `preprocess`, `classify` and exports. False for pixels 0..255 there.
        activation: "softmax" or "sigmoid", from logits to probabilities, by the last cross-entropy loss; None before.

    A `.keras` file keeps mixing, micro_batches, activation, and which layers are frozen.
    """

    check_pixels: bool = True
    objectives: tuple[type[keras.losses.Loss], ...] = ()
    labels_are_classes: bool = True

    def __call__(self, *args, **kwargs):
        """Keras' __call__; a training step of a plain Keras model around this one refuses pixels on another scale."""
        if kwargs.get("training") and args and self.check_pixels:
            args = (checked_images(self, args[0]), *args[1:])
        with checked():
            return super().__call__(*args, **kwargs)

    def symbolic_call(self, *args, **kwargs):
        """Keras' symbolic_call, with a warning where layers before this model normalise its pixels, too."""
        if self.check_pixels:
            warn_of_double(self, [x for x in keras.tree.flatten(args[:1]) if isinstance(x, keras.KerasTensor)])
        return super().symbolic_call(*args, **kwargs)

    def compile(self, optimizer="rmsprop", loss=None, loss_weights=None, metrics=None, weighted_metrics=None, **kwargs):
        """Keras' compile.

        Raises:
            ValueError: for a loss or metric on probabilities where the outputs are logits, the reverse, or softmax over
                one class.
        """
        check_compiled(self, loss, [metrics, weighted_metrics])
        self._take_loss(loss)
        super().compile(optimizer, loss, loss_weights, metrics, weighted_metrics, **kwargs)

    def _take_loss(self, loss):
        """Records the settings that follow from the loss; a subclass may refuse it."""
        self.activation = activation_by(loss) or self.activation

    def compile_from_config(self, config):
        """Keras' compile_from_config; a file loads without a loss or metrics that `compile` refuses."""
        if self.has_own("compile"):
            return super().compile_from_config(config)  # its error says how to fix the class
        try:
            self.compile(**keras.saving.deserialize_keras_object(config))
        except ValueError as error:
            warnings.warn(f'"{self.name}" is not compiled as it was when it was saved: {error}', stacklevel=2)
        else:
            if self.optimizer is not None:
                self.optimizer.build(self.trainable_variables)

    def quantize(self, mode: str | None = None, config=None, filters: Filters = None, **kwargs) -> None:
        """Keras' quantize: every dense layer, also inside blocks, gets a low-bit kernel. In place, irreversible.

        Patch embedding, position embeddings, normalisations and biases stay. Files, clones and exports stay quantised.
        With LoRA, only LoRA still trains.

        Args:
            mode: "int8", "int4" or "float8"; None for the config's.
            config: a keras.quantizers.Int8QuantizationConfig, Int4QuantizationConfig or Float8QuantizationConfig; None
                for Keras' defaults.
            filters: as in Keras: regular expression or list of them, searched in layer names, or a function of a layer.

        Raises:
            ValueError: for another mode, or without a dense layer left to quantise.
        """
        chosen = {id(layer) for layer in layers_to_quantize(self, mode, config, filters)}
        with kernels_deleted_quickly():
            super().quantize(mode, config=config, filters=lambda layer: id(layer) in chosen, **kwargs)
        if any(isinstance(layer, Dense) and layer.lora_enabled for layer in self._flatten_layers()):
            freeze_quantized(self)

    def save(self, filepath, overwrite=True, zipped=None, **kwargs):
        """Keras' save, to a .keras file, or a folder with zipped=False; `keras_vit.load` reads both.

        Raises:
            ValueError: for .h5, Keras' older format: it would lose the architecture, and not load.
        """
        if str(filepath).lower().endswith((".h5", ".hdf5")):
            raise ValueError(
                f'"{filepath}" is an HDF5 file, Keras\' older format, which does not keep what this model is and would'
                ' not load again. Write model.save("model.keras"), or model.save_weights("model.weights.h5") for the'
                " weights alone."
            )
        super().save(filepath, overwrite=overwrite, zipped=zipped, **kwargs)

    def export(self, filepath, format: str | None = None, verbose=None, input_signature=None, **kwargs):
        """Keras' export, of the model's outputs from pixels; `keras_vit.export` adds what servers need.

        Args:
            filepath: a folder; for "onnx" a file ending in .onnx, for "litert" in .tflite.
            format: as in Keras; None for the one of the path's ending, a SavedModel without one. "onnx" is written by
                this package, since Keras' file is invalid for a model with exact GELU.
            verbose, input_signature, **kwargs: as in Keras.

        Raises:
            ValueError: for a format that the path's ending contradicts, or what ONNX files cannot express.
        """
        options = {"verbose": verbose, "input_signature": input_signature, **kwargs}
        return _EXPORTERS[0](self, super().export, filepath, format, options)

    def fit(self, x=None, y=None, batch_size=None, epochs=1, verbose="auto", callbacks=None, **kwargs):
        """Keras' fit. `batch_size` and a dataset's batches are global: the strategy's replicas share them.

        `class_weight` is {class number or name: factor}, with 1 for other classes; one factor per class; or "balanced",
        for labels in an array. It weighs images of one class, in arrays, datasets and generators.
        """
        weights = kwargs.pop("sample_weight", None)
        check_loaded(self)
        self._check_trainable()
        check_known(self)
        class_weight, held_out = kwargs.pop("class_weight", None), kwargs.get("validation_split") or 0.0
        check_backups(callbacks)
        self._check_pairs(x, batch_size or 32)
        self._check_unweighted(x, weights, class_weight)
        if class_weight is not None:
            class_weight = self._class_weight(class_weight, y, held_out)
        x = self._checked(x, y, weights, mixes=self.mixing is not None)
        if class_weight is not None:
            x, by_class = class_weight.feed(x, y, weights)
            if held_out:  # Keras would weigh the validation examples, too
                kwargs["class_weight"] = dict(enumerate(class_weight.factors))
            else:
                weights = by_class
        with scope_of(self), weights_kept(self), plain_errors():
            ready = feed(self, x, y, weights, batch_size, training=True, shuffle=kwargs.get("shuffle", True))
            kwargs["steps_per_epoch"] = kwargs.get("steps_per_epoch") or ready.steps
            return super().fit(
                ready.x,
                ready.y,
                ready.batch_size,
                epochs=epochs,
                verbose=verbose,
                callbacks=self._counted(callbacks, validates=True),
                sample_weight=ready.weights,
                **self._validation(kwargs, batch_size, label_shapes(self, x, y)),
            )

    def evaluate(
        self, x=None, y=None, batch_size=None, verbose="auto", sample_weight=None, steps=None, callbacks=None, **kwargs
    ):
        """Keras' evaluate. Every example counts exactly once, whatever the batch size and strategy."""
        if kwargs.get("_use_cached_eval_dataset"):  # within fit, which has prepared the data
            return super().evaluate(x, y, batch_size, verbose, sample_weight, steps, callbacks, **kwargs)
        check_loaded(self)
        x = self._checked(x, y, sample_weight)
        with scope_of(self), weights_kept(self), plain_errors():
            ready = feed(self, x, y, sample_weight, batch_size)
            steps, callbacks = steps or ready.steps, self._counted(callbacks, validates=False)
            return super().evaluate(
                ready.x, ready.y, ready.batch_size, verbose, ready.weights, steps, callbacks, **kwargs
            )

    def predict(self, x, batch_size=None, verbose="auto", steps=None, callbacks=None):
        """Keras' predict. Returns all outputs, in the order of `x`, in every process."""
        check_data(self, x)
        x = InputChecks.of(self).any(x)
        with scope_of(self), weights_kept(self), plain_errors():
            ready = prediction_feed(self, x, batch_size)
            return ready.trim(super().predict(ready.x, ready.batch_size, verbose, steps or ready.steps, callbacks))

    def preprocess(self, x: Any) -> Any:
        """Images as the model's pixels, by its preprocessing text, or resized to its size without one.

        Args:
            x: path, encoded bytes, open file, PIL image, pixels 0..255 (h, w) or (h, w, c), or a list or batch of
                these. In a `tf.data` pipeline: encoded images, () or (b,), or pixels.

        Returns:
            uint8 (height, width, c), or (b, height, width, c) for a list or batch.

        Raises:
            FileNotFoundError: for a missing file.
            ImportError: without TensorFlow, which decodes on every backend.
            ValueError: for anything but an image, or pixels on another scale.
        """
        return images.preprocess(self, x)

    def classify(
        self,
        x: Any,
        top_k: int = 5,
        batch_size: int = 32,
        activation: str | None = None,
        verbose: bool | int | str = "auto",
    ) -> list[classify.Prediction] | list[list[classify.Prediction]]:
        """Classifies images, prepared by the model's own preprocessing: names and probabilities.

        Args:
            x: an image or several, as for `preprocess`.
            top_k: maximum number of classes.
            batch_size: images at once.
            activation: "softmax", or "sigmoid" for several labels per image. None for `model.activation`, or else
                sigmoid for one class, softmax for more.
            verbose: show progress; "auto" for more than one batch.

        Returns:
            A list of named tuples (name, probability, index), most probable first; for several images a list of these.
                Without class names the names are the class numbers.

        Raises:
            FileNotFoundError, ImportError: as in `preprocess`.
            ValueError: as in `preprocess`, for a model without classes, or with an untrained head.
        """
        return classify.classify(self, x, top_k, batch_size, activation, verbose)

    def predict_on_batch(self, x):
        """Keras' predict_on_batch; the replicas share the batch."""
        replicas = topology_of(self).replicas
        if replicas > 1:  # in Keras each would predict all of x
            return self.predict(x, batch_size=-(-rows_of(x) // replicas) * replicas, verbose=0)
        check_data(self, x)
        InputChecks.of(self).arrays(x)
        return super().predict_on_batch(x)

    def _validation(self, options, batch_size, label_shapes_of_training):
        """The options of fit, with validation data prepared for the strategy."""
        data = options.get("validation_data")
        if data is None:
            if options.get("validation_split") and topology_of(self).replicas > 1:
                raise ValueError("validation_split works on one device only. Pass validation_data=(x, y).")
            return options
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        check_same_form(self, label_shapes_of_training, label_shapes(self, x, y))
        x = self._checked(x, y, weights)
        ready = feed(self, x, y, weights, options.get("validation_batch_size") or batch_size)
        data = keras.utils.pack_x_y_sample_weight(ready.x, ready.y, ready.weights)
        steps = options.get("validation_steps") or ready.steps
        prepared = {"validation_data": data, "validation_steps": steps, "validation_batch_size": ready.batch_size}
        return {**options, **prepared}

    def _check_trainable(self):
        """Refuses to train what cannot train; subclasses add to it."""
        check_trainable(self)

    def _class_weight(self, weights, y=None, held_out=0.0):
        """The ClassWeight of the argument `class_weight`; ValueError if y contains no classes."""
        if not self.labels_are_classes:
            raise ValueError(
                f"class_weight does not apply to a {type(self).__name__}: its targets are not image classes. Use"
                " sample_weight."
            )
        return ClassWeight.of(self, weights, y, held_out)

    def _check_pairs(self, x, batch_size=None):
        """Refuses to mix batches of one image, if their size is known; a last batch of one stays as it is."""
        if not isinstance(self.mixing, Neighbours):
            return
        spec = getattr(x, "element_spec", None)
        for first in keras.tree.flatten(x if spec is None else spec)[:1]:
            rows = (getattr(first, "shape", None) or (None,))[0]
            if rows is not None:
                rows = rows if spec is not None or batch_size is None else min(rows, batch_size)
                check_pairs(rows, group=self.mixing.group)

    def _check_unweighted(self, x, *weights):
        """Refuses weights of examples that `mixing` would mix, before the step is traced."""
        if self.mixing is not None:
            spec = getattr(x, "element_spec", None)
            of_dataset = keras.utils.unpack_x_y_sample_weight(spec)[2] if isinstance(spec, (tuple, list)) else None
            for given in (*weights, of_dataset):
                check_unweighted(given)

    def _checked(self, x, y, weights, mixes=False):
        """`x` to read instead: arrays are checked at once, others when read; ValueError for bad arrays or no labels."""
        check_data(self, x)
        has_labels = y is not None
        if hasattr(x, "element_spec"):
            has_labels = isinstance(x.element_spec, (tuple, list)) and len(x.element_spec) > 1
        elif isinstance(x, (types.GeneratorType, keras.utils.PyDataset)):
            has_labels = True  # known once it is read
        own = self.has_own("compute_loss", "train_step", "test_step")
        if not has_labels and getattr(self, "loss", None) is not None and not own:
            raise ValueError(
                "The data has no labels, which the loss needs: expected (x, y) or (x, y, weights). To get the model's"
                " outputs, use predict."
            )
        return InputChecks.of(self, mixes, measures=True).any(x, y, weights)

    def train_on_batch(self, x, y=None, sample_weight=None, class_weight=None, return_dict=False):
        """Keras' train_on_batch; class_weight as in `fit`, but for "balanced"."""
        self._check_pairs(x)
        self._check_unweighted(x, sample_weight, class_weight)
        InputChecks.of(self, mixes=self.mixing is not None).arrays(x, y, sample_weight)
        if class_weight is not None:
            _, sample_weight = self._class_weight(class_weight).feed(x, y, sample_weight)
        return super().train_on_batch(x, y, sample_weight, return_dict=return_dict)

    def test_on_batch(self, x, y=None, sample_weight=None, return_dict=False):
        """Keras' test_on_batch."""
        InputChecks.of(self).arrays(x, y, sample_weight)
        return super().test_on_batch(x, y, sample_weight, return_dict)

    def _counted(self, callbacks, validates):
        """The callbacks, plus one that counts remaining steps if an execution has several."""
        if self.steps_per_execution == 1:
            return callbacks
        remaining = _Remaining(validates)
        if isinstance(callbacks, keras.callbacks.CallbackList):  # already has its model and steps
            remaining.set_model(self)
            remaining.set_params(callbacks.params)
            callbacks.callbacks = [*(c for c in callbacks.callbacks if not isinstance(c, _Remaining)), remaining]
            return callbacks
        return [*([callbacks] if isinstance(callbacks, keras.callbacks.Callback) else callbacks or ()), remaining]

    def has_own(self, *methods: str) -> bool:
        """Whether the user's class overrides one of these methods."""
        return any(getattr(type(self), name) is not getattr(Model, name) for name in methods)
