"""`keras_vit.Model`: a functional Keras model with fit, evaluate and predict for images, under every strategy.

It corrects Keras' clipping, accumulation, several steps per execution, ragged batches and several workers under
tf.distribute (fit/stepping). Evaluation counts every example once, although the last batch is padded; pixels on the
wrong scale and unknown arguments are errors (fit/checks); batches can be mixed on the device. A model keeps its
description, architecture, preprocessing and classes, in files and clones and in models built on it.

A model can be made, read and called without the checks and the steps, which load when first used.
"""

import contextlib
import itertools
import os
import types
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

import keras

from keras_vit.fit import checks, state, stepping
from keras_vit.fit.mixing import Neighbours, check_pairs, check_unweighted
from keras_vit.layers.dense import Dense, freeze_quantized, inner_layers, kernels_deleted_quickly
from keras_vit.layers.registration import serializable

if TYPE_CHECKING:
    from keras_vit.classification.classify import Prediction
    from keras_vit.layers.quantization import Filters

# {Input layer: (spec, preprocessing, policy)} of every ViT, BiT and model built on one, for further models on that
# Input.
_DESCRIPTIONS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

# {logits layer: (classes, class names, activation)} of models that keras.models.clone_model made.
_HEADS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def describe_input(image, spec, preprocessing, policy):
    """Records architecture, preprocessing and dtype policy of the symbolic input `image`, for models built on it."""
    _DESCRIPTIONS[image._keras_history.operation] = (spec, preprocessing, policy)


@contextlib.contextmanager
def _explained_names():
    """Extends Keras' error about duplicate layer names: how to put several ViTs into one graph."""
    try:
        yield
    except ValueError as error:
        if "names should be unique" not in str(error):
            raise
        raise ValueError(
            f"{error} To put several models of this package into one graph, give each a different name, ViT(...,"
            ' name="left") or model.clone(name="left"), and call it: left(left.input), or left(image). Their blocks'
            " have the same names."
        ) from None


def _tensorflow():
    """The TensorFlow part, imported on first use."""
    from keras_vit.fit.stepping import tensorflow_step

    return tensorflow_step


@serializable
class Model(keras.Model):
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
        mixing: a mixing of keras_vit.training, such as Mixup, for training batches, applied on the device, or None.
        micro_batches: number of parts into which a step splits its batch (each replica its own share), processed in
            turn to save activation memory. Clipping and the update happen once, with the whole batch's gradient. Batch
            normalisation sees one part at a time.
        weighs_examples: whether losses and metrics give one value per example whatever the output's rank, so that
            weights stay (b,). False, as in Keras, for one value per pixel or token of a dense output; this package's
            losses take (b,) in any case.
        objectives: losses that suit the outputs of a pre-training model; () for any.
        labels_are_classes: whether y contains classes, so that class_weight can weigh examples.
        usual_loss: name of the loss of keras_vit.training that errors suggest.
        check_pixels: whether to refuse images on another scale than the model's normalisation expects behind the layers
            before it, and to give it that scale in `preprocess`, `classify` and exports. False for pixels 0..255 there.
        activation: "softmax" or "sigmoid", from logits to probabilities, by the last cross-entropy loss; None before.

    A `.keras` file keeps mixing, micro_batches, activation, and which layers are frozen.
    """

    spec: Any
    image_size: tuple[int, int] | None
    channels: int | None
    preprocessing: str | None
    classes: int | None
    class_names: tuple[str, ...] | None
    activation: str | None = None
    made_from_arguments = False  # whether the class has its own constructor, like ViT, and is more than its layers
    # Set by checkpoints.load: a new model may run untrained, but a loaded one is expected to predict.
    refuses_zero_head = False
    outputs_are_logits = False  # whether a model with classes has no other outputs than their logits
    _answers: tuple[str, ...] | None = None

    mixing: Any = None
    micro_batches: int = 1
    weighs_examples: bool = False
    given_metrics: tuple[Any, Any] = (None, None)  # as compile(metrics, weighted_metrics) got them
    trained_layers: set[keras.layers.Layer] = set()  # those that were not frozen at compile, at any depth
    _remaining = None

    check_pixels: bool = True
    objectives: tuple[type[keras.losses.Loss], ...] = ()
    labels_are_classes: bool = True
    usual_loss: str = "SoftmaxCrossEntropy"

    def __init__(self, inputs: Any, outputs: Any, name: str | None = None, *, trainable: bool = True):
        with _explained_names():
            super().__init__(inputs, outputs, name=name, trainable=trainable)
        self.__dict__.pop("quantize", None)  # Keras wraps it in a single layer's checks and messages
        self._distribution = keras.distribution.distribution()
        shape = self.input_shape
        is_image = isinstance(shape, tuple) and len(shape) == 4 and None not in shape[1:]
        self.image_size = tuple(shape[1:3]) if is_image else None
        self.channels = shape[3] if is_image else None
        self.spec = self.preprocessing = self.classes = self.class_names = None
        self._describe()

    def _describe(self):
        """Takes spec, preprocessing, policy and classes from the one ViT or BiT that the model starts with or calls."""
        if isinstance(self.output, keras.KerasTensor):
            head = _HEADS.get(self.output._keras_history.operation, (None, None, None))
            self.classes, self.class_names, self.activation = head
        known = {layer: _DESCRIPTIONS[layer] for layer in self.layers if layer in _DESCRIPTIONS}
        inside = [layer for layer in self.layers if isinstance(layer, Model)]
        self._take_policy([policy for *_, policy in known.values()] + [model.dtype_policy for model in inside])
        nested = [model for model in inside if model.spec is not None]
        if len(known) + len(nested) != 1:
            return
        if nested:
            self.spec = nested[0].spec
            self.preprocessing = nested[0].preprocessing if nested[0].image_size == self.image_size else None
            if isinstance(self.output, keras.KerasTensor) and self.output._keras_history.operation is nested[0]:
                self.classes, self.class_names, self.activation = (
                    nested[0].classes,
                    nested[0].class_names,
                    nested[0].activation,
                )
        else:
            [(self.spec, self.preprocessing, _)] = known.values()

    def _take_policy(self, policies):
        """Takes the dtype policy of the models it is built on; any float16, also its own, wins: it scales the loss."""
        float16 = [policy for policy in (*policies, self.dtype_policy) if policy.name == "mixed_float16"]
        if policies:
            self.dtype_policy = (float16 or policies)[0]

    @property
    def answers(self) -> tuple[str, ...]:
        """What the outputs mean: kinds of `keras_vit.answers`, which serving, export and prediction follow.

        By default "classes", or "outputs" without classes; nothing for a model that only trains another one. Set it for
        a kind of your own; files keep it.
        """
        return self._answers or self._usual_answers()

    @answers.setter
    def answers(self, kinds: Iterable[str]):
        self._answers = (kinds,) if isinstance(kinds, str) else tuple(kinds)

    def _usual_answers(self) -> tuple[str, ...]:
        if self.get_encoder() is not self:
            return ()
        return ("outputs",) if self.classes is None else ("classes",)

    @property
    def parts(self) -> Mapping[str, "Model"]:
        """{name: model with one answer} of a MultiModel."""
        return {}

    def has_zero_head(self) -> bool:
        """Whether the head is all zeros, as before training, so that answers mean nothing."""
        return False

    def check_head(self) -> None:
        """Refuses to predict with a head loaded as zeros and still zero: its logits mean nothing."""
        if self.refuses_zero_head and self.has_zero_head():
            raise ValueError(
                "The head is all zeros, as in a checkpoint published without one, or before any training: it predicts"
                ' nothing. Load it with head="reset" and fine-tune it, or with head="drop" for features.'
            )

    def without_auxiliary(self) -> "Model":
        """The model without outputs that only training needs, of the same layers; itself if it has none."""
        return self

    @property
    def fixed_variables(self) -> list:
        """Variables that never train and come from another file, such as a teacher's; run checkpoints omit them."""
        return []

    def get_config(self):
        config = super().get_config()
        if "layers" not in config:  # a subclass with a constructor, whose config has the description
            return config
        description = {
            "spec": keras.saving.serialize_keras_object(self.spec),
            "preprocessing": self.preprocessing,
            "classes": self.classes,
            "class_names": self.class_names,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            **({} if self._answers is None else {"answers": self._answers}),
        }
        return {**config, **description, **state.to_config(self)}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        if "spec" not in config or "layers" not in config:  # a file of version 0.3, or such a subclass
            return super().from_config(config, custom_objects)
        config = dict(config)
        training = config.pop(state.KEY, None)
        spec = keras.saving.deserialize_keras_object(config.pop("spec"))
        preprocessing, classes, names = (config.pop(name) for name in ("preprocessing", "classes", "class_names"))
        policy, kinds = config.pop("dtype", None), config.pop("answers", None)  # not in older files
        model = super().from_config(config, custom_objects)
        if policy is not None:
            model.dtype_policy = keras.dtype_policies.get(policy)
        model.spec, model.preprocessing, model.classes = spec, preprocessing, classes
        model.class_names = None if names is None else tuple(names)
        model._answers = None if kinds is None else tuple(kinds)
        nested = any(isinstance(layer, Model) for layer in model.layers)
        if spec is not None and not nested and isinstance(model.input, keras.KerasTensor):
            describe_input(model.input, spec, preprocessing, model.dtype_policy)
        state.restore(model, training)
        return model

    def get_encoder(self) -> keras.Model:
        """The model from images to features, to measure and fine-tune: this model itself.

        A pre-training model, which sees images differently, returns the model it teaches; weights are shared.
        """
        return self

    def clone(self, name: str | None = None) -> Self:
        """An independent copy with the same class, config and weights; `name` None keeps the name."""
        config = self.get_config()
        copy = type(self).from_config(config if name is None else {**config, "name": name})
        copies = {"": copy, **inner_layers(copy)}
        for path, layer in {"": self, **inner_layers(self)}.items():
            weights: dict[str, Any] = {}
            layer.save_own_variables(weights)  # as in a file: a quantised layer's weights have no fixed order
            if weights:  # copied: fit on JAX donates the variables' buffers
                copies[path].load_own_variables({key: keras.ops.copy(value) for key, value in weights.items()})
        return copy

    def _run_through_graph(self, *args, **options):
        """Keras' own; with `call_fn` called by keras.models.clone_model, the copy gets this model's description.

        Raises:
            ValueError: for clone_model of a model made from its own arguments, which the copy could not be.
        """
        if "call_fn" in options and self.made_from_arguments and hasattr(self, "spec"):
            raise ValueError(
                f'keras.models.clone_model would make a keras.Functional of "{self.name}", without its architecture,'
                " classes, preprocessing and ways to train. Write model.clone() for a copy with its weights,"
                " type(model).from_config(model.get_config()) for one with new weights, or model(tensor) to build on a"
                " tensor."
            )
        outputs = super()._run_through_graph(*args, **options)
        known = getattr(self, "spec", None)  # missing while the graph is made, with `call_fn` too
        if "call_fn" in options and known is not None and isinstance(outputs, keras.KerasTensor):
            _HEADS[outputs._keras_history.operation] = (self.classes, self.class_names, self.activation)
            if isinstance(args[0], keras.KerasTensor) and not any(isinstance(layer, Model) for layer in self.layers):
                describe_input(args[0], self.spec, self.preprocessing, self.dtype_policy)
        return outputs

    @classmethod
    def from_preset(cls, preset: str | os.PathLike, **arguments: Any) -> Self:
        """The model that `keras_vit.load(preset, **arguments)` loads, from a path, an address or a name in the
        catalogue.

        Raises:
            ValueError: if it is not of this class (a BiT for ViT.from_preset), or as in `keras_vit.load`.
        """
        from keras_vit.checkpoints.load import load

        model = load(preset, **arguments)
        if not isinstance(model, cls):
            raise ValueError(
                f'"{preset}" contains a {type(model).__name__}, not a {cls.__name__}: use'
                f" keras_vit.{type(model).__name__}.from_preset, or keras_vit.load, which takes both."
            )
        return model

    def __call__(self, *args, **kwargs):
        """Keras' __call__; a training step of a plain Keras model around this one refuses pixels on another scale."""
        if kwargs.get("training") and args and self.check_pixels:
            args = (checks.checked_images(self, args[0]), *args[1:])
        with checks.checked():
            return super().__call__(*args, **kwargs)

    def symbolic_call(self, *args, **kwargs):
        """Keras' symbolic_call, with a warning where layers before this model normalise its pixels, too."""
        if self.check_pixels:
            checks.warn_of_double(self, [x for x in keras.tree.flatten(args[:1]) if isinstance(x, keras.KerasTensor)])
        return super().symbolic_call(*args, **kwargs)

    def compile(self, optimizer="rmsprop", loss=None, loss_weights=None, metrics=None, weighted_metrics=None, **kwargs):
        """Keras' compile.

        Raises:
            ValueError: for a loss or metric on probabilities where the outputs are logits, the reverse, or softmax over
                one class.
        """
        checks.check_compiled(self, loss, [metrics, weighted_metrics])
        self._take_loss(loss)
        self._compile_metrics = None  # without metrics, Keras 3.15 keeps those of the last call
        super().compile(optimizer, loss, loss_weights, metrics, weighted_metrics, **kwargs)
        # Keras would track attributes: `metrics` would list these metrics twice.
        vars(self)["_loss_tracker"] = stepping.RunningLoss(name="loss")
        vars(self)["given_metrics"] = (metrics, weighted_metrics)
        vars(self)["trained_layers"] = {layer for layer in self._flatten_layers() if layer.trainable}

    def _take_loss(self, loss):
        """Records the settings that follow from the loss; a subclass may refuse it."""
        self.activation = stepping.activation_by(loss) or self.activation

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

    def quantize(self, mode: str | None = None, config=None, filters: "Filters" = None, **kwargs) -> None:
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
        from keras_vit.layers.quantization import layers_to_quantize

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
        from keras_vit.serving.export import export_outputs

        export_outputs(self, super().export, filepath, format, options)

    def fit(self, x=None, y=None, batch_size=None, epochs=1, verbose="auto", callbacks=None, **kwargs):
        """Keras' fit. `batch_size` and a dataset's batches are global: the strategy's replicas share them.

        `class_weight` is {class number or name: factor}, with 1 for other classes; one factor per class; or "balanced",
        for labels in an array. It weighs images of one class, in arrays, datasets and generators.
        """
        weights = kwargs.pop("sample_weight", None)
        checks.check_loaded(self)
        self._check_trainable()
        checks.check_known(self)
        class_weight, held_out = kwargs.pop("class_weight", None), kwargs.get("validation_split") or 0.0
        checks.check_backups(callbacks)
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
        with stepping.training_scope(self), stepping.weights_kept(self), checks.plain_errors():
            ready = stepping.feed(self, x, y, weights, batch_size, training=True, shuffle=kwargs.get("shuffle", True))
            kwargs["steps_per_epoch"] = kwargs.get("steps_per_epoch") or ready.steps
            return super().fit(
                ready.x,
                ready.y,
                ready.batch_size,
                epochs=epochs,
                verbose=verbose,
                callbacks=self._counted(callbacks, validates=True),
                sample_weight=ready.weights,
                **self._validation(kwargs, batch_size, checks.label_shapes(self, x, y)),
            )

    def evaluate(
        self, x=None, y=None, batch_size=None, verbose="auto", sample_weight=None, steps=None, callbacks=None, **kwargs
    ):
        """Keras' evaluate. Every example counts exactly once, whatever the batch size and strategy."""
        if kwargs.get("_use_cached_eval_dataset"):  # within fit, which has prepared the data
            return super().evaluate(x, y, batch_size, verbose, sample_weight, steps, callbacks, **kwargs)
        checks.check_loaded(self)
        x = self._checked(x, y, sample_weight)
        with stepping.training_scope(self), stepping.weights_kept(self), checks.plain_errors():
            ready = stepping.feed(self, x, y, sample_weight, batch_size)
            steps, callbacks = steps or ready.steps, self._counted(callbacks, validates=False)
            return super().evaluate(
                ready.x, ready.y, ready.batch_size, verbose, ready.weights, steps, callbacks, **kwargs
            )

    def predict(self, x, batch_size=None, verbose="auto", steps=None, callbacks=None):
        """Keras' predict. Returns all outputs, in the order of `x`, in every process."""
        checks.check_data(self, x)
        x = checks.InputChecks.of(self).any(x)
        with stepping.training_scope(self), stepping.weights_kept(self), checks.plain_errors():
            ready = stepping.prediction_feed(self, x, batch_size)
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
        from keras_vit.prediction.images import preprocess

        return preprocess(self, x)

    def classify(
        self,
        x: Any,
        top_k: int = 5,
        batch_size: int = 32,
        activation: str | None = None,
        verbose: bool | int | str = "auto",
    ) -> "list[Prediction] | list[list[Prediction]]":
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
        from keras_vit.classification.classify import classify

        return classify(self, x, top_k, batch_size, activation, verbose)

    def predict_on_batch(self, x):
        """Keras' predict_on_batch; the replicas share the batch."""
        replicas = stepping.find_topology(self).replicas
        if replicas > 1:  # in Keras each would predict all of x
            return self.predict(x, batch_size=-(-stepping.count_rows(x) // replicas) * replicas, verbose=0)
        checks.check_data(self, x)
        checks.InputChecks.of(self).arrays(x)
        return super().predict_on_batch(x)

    def _validation(self, options, batch_size, label_shapes_of_training):
        """The options of fit, with validation data prepared for the strategy."""
        data = options.get("validation_data")
        if data is None:
            if options.get("validation_split") and stepping.find_topology(self).replicas > 1:
                raise ValueError("validation_split works on one device only. Pass validation_data=(x, y).")
            return options
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        checks.check_same_form(self, label_shapes_of_training, checks.label_shapes(self, x, y))
        x = self._checked(x, y, weights)
        ready = stepping.feed(self, x, y, weights, options.get("validation_batch_size") or batch_size)
        data = keras.utils.pack_x_y_sample_weight(ready.x, ready.y, ready.weights)
        steps = options.get("validation_steps") or ready.steps
        prepared = {"validation_data": data, "validation_steps": steps, "validation_batch_size": ready.batch_size}
        return {**options, **prepared}

    def target_rules(self) -> Any:
        """The fit.checks.targets.TargetRules for y, by the compiled loss; None for labels of images."""
        rules = getattr(getattr(self, "loss", None), "target_rules", None)
        return None if rules is None else rules(self)

    def _check_trainable(self):
        """Refuses to train what cannot train; subclasses add to it."""
        checks.check_trainable(self)

    def _class_weight(self, weights, y=None, held_out=0.0):
        """The ClassWeight of the argument `class_weight`; ValueError if y contains no classes."""
        if not self.labels_are_classes:
            raise ValueError(
                f"class_weight does not apply to a {type(self).__name__}: its targets are not image classes. Use"
                " sample_weight."
            )
        return stepping.ClassWeight.of(self, weights, y, held_out)

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
        checks.check_readable(self, x, y)
        # Generators and PyDatasets show their labels when they are read.
        has_labels = y is not None or isinstance(x, (types.GeneratorType, keras.utils.PyDataset))
        if hasattr(x, "element_spec"):
            has_labels = isinstance(x.element_spec, (tuple, list)) and len(x.element_spec) > 1
        own = self.has_own("compute_loss", "train_step", "test_step")
        if not has_labels and getattr(self, "loss", None) is not None and not own:
            raise ValueError(
                "The data has no labels, which the loss needs: expected (x, y) or (x, y, weights). To get the model's"
                " outputs, use predict."
            )
        return checks.InputChecks.of(self, mixes, measures=True).any(x, y, weights)

    def train_on_batch(self, x, y=None, sample_weight=None, class_weight=None, return_dict=False):
        """Keras' train_on_batch; class_weight as in `fit`, but for "balanced"."""
        self._check_pairs(x)
        self._check_unweighted(x, sample_weight, class_weight)
        checks.InputChecks.of(self, mixes=self.mixing is not None).arrays(x, y, sample_weight)
        if class_weight is not None:
            _, sample_weight = self._class_weight(class_weight).feed(x, y, sample_weight)
        return super().train_on_batch(x, y, sample_weight, return_dict=return_dict)

    def test_on_batch(self, x, y=None, sample_weight=None, return_dict=False):
        """Keras' test_on_batch."""
        checks.InputChecks.of(self).arrays(x, y, sample_weight)
        return super().test_on_batch(x, y, sample_weight, return_dict)

    def _counted(self, callbacks, validates):
        """The callbacks, plus one that counts remaining steps if an execution has several."""
        if self.steps_per_execution == 1:
            return callbacks
        remaining = stepping.Remaining(validates)
        if isinstance(callbacks, keras.callbacks.CallbackList):  # already has its model and steps
            remaining.set_model(self)
            remaining.set_params(callbacks.params)
            callbacks.callbacks = [
                *(c for c in callbacks.callbacks if not isinstance(c, stepping.Remaining)),
                remaining,
            ]
            return callbacks
        return [*([callbacks] if isinstance(callbacks, keras.callbacks.Callback) else callbacks or ()), remaining]

    def has_own(self, *methods: str) -> bool:
        """Whether the user's class overrides one of these methods."""
        return any(getattr(type(self), name) is not getattr(Model, name) for name in methods)

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        """Builds metrics and optimizer from the data's shapes; Keras would read a batch: several workers cannot."""
        if self._distribute_strategy is not None:
            _tensorflow().check_made_inside(self.optimizer, self._distribute_strategy)
        if iterator is not None:
            data_batch = _tensorflow().local_spec(iterator.data_adapter.get_tf_dataset().element_spec)
        if self._distribute_strategy is not None or data_batch is None:
            super()._maybe_symbolic_build(data_batch=data_batch)  # in the strategy's scope
        elif len(self.outputs) > 1:
            self._symbolic_build(data_batch=data_batch)  # makes each output's running loss
        else:
            self._build_metrics(data_batch)

    def _build_metrics(self, batch):
        """Makes the metrics' variables before tracing: a step that makes variables is traced twice, and keeps both."""
        _, y, _ = keras.utils.unpack_x_y_sample_weight(batch)
        metrics = self._compile_metrics
        if metrics is not None and not metrics.built and y is not None and not self.has_own("call", "compute_metrics"):
            metrics.build(y, self.measured(self.output))

    def make_train_function(self, force=False):
        stepping.check_kernels(self, stepping.find_topology(self).replicas)
        stepping.check_parts(self)
        self._count_examples()
        force = stepping.is_outdated(self, "train", self.mixing, self.micro_batches) or force
        self._average_updates()
        if keras.backend.backend() != "tensorflow":
            made = self.train_function is None or force
            super().make_train_function(force)
            return stepping.execute_in_one_program(self) if made else None
        if self.train_function is None or force:
            _tensorflow().check_optimizer(self.optimizer, self.distribute_strategy)
            own = self.has_own("train_step", "compute_metrics")
            if self.optimizer is not None and not self.has_own("train_step"):
                self.optimizer.build(self.trainable_variables)  # as in _build_metrics
            self.train_function = _tensorflow().make_function(self, self.train_step, lambda: self._remaining, own)
        return self.train_function

    def _average_updates(self):
        """Lets averages under gradient_accumulation_steps move once per update, also those of Keras' optimizers."""
        optimizer = stepping.innermost(self.optimizer) if self.optimizer is not None else None
        if optimizer is None or not (optimizer.use_ema and optimizer.gradient_accumulation_steps):
            return
        if optimizer.ema_overwrite_frequency:
            raise ValueError(
                "ema_overwrite_frequency counts batches, not updates, with gradient_accumulation_steps: set"
                " model.micro_batches instead of the latter, or leave ema_overwrite_frequency out."
            )
        optimizer._update_model_variables_moving_average = lambda _: stepping.move_averages(optimizer)

    def _make_function(self, step_function, concatenate_outputs=False):
        """Keras' loop over an execution's steps, on JAX of the host; the last execution ends with the epoch."""
        if keras.backend.backend() == "tensorflow":
            return super()._make_function(step_function)
        execution = super()._make_function(step_function, concatenate_outputs)
        if self.steps_per_execution == 1 or concatenate_outputs:  # of predict, which ends with its data
            return execution
        return lambda state, batches: execution(state, itertools.islice(batches, self._remaining))

    def make_test_function(self, force=False):
        self._count_examples()
        force = stepping.is_outdated(self, "test") or force
        if keras.backend.backend() != "tensorflow":
            return super().make_test_function(force)
        if self.test_function is None or force:
            own = self.has_own("test_step", "compute_metrics")
            self.test_function = _tensorflow().make_function(self, self.test_step, lambda: self._remaining, own)
        return self.test_function

    def make_predict_function(self, force=False):
        force = stepping.is_outdated(self, "predict") or force
        if keras.backend.backend() != "tensorflow" or stepping.find_topology(self).workers == 1:
            return super().make_predict_function(force)
        if self.predict_function is None or force:
            self.predict_function = _tensorflow().make_gathering_function(self, self.predict_step)
        return self.predict_function

    def get_metrics_result(self):
        """Keras' {name: metric}, also of metrics that have several numbers: {their names}, not a dict within."""
        flat = {}
        for name, value in super().get_metrics_result().items():
            flat.update(value if isinstance(value, dict) else {name: value})
        return flat

    def _get_metrics_result_or_logs(self, logs):
        """An epoch's report; Keras would report its own running loss, 0, if the user's step returns only "loss"."""
        if self.has_own("train_step", "test_step", "compute_metrics"):
            return logs
        return super()._get_metrics_result_or_logs(logs)

    def _count_examples(self):
        """Makes the running loss of each output a RunningLoss, like the total's; Keras makes them from the data."""
        stepping.check_made_inside(self)
        trackers = getattr(self._compile_loss, "metrics", [])
        if not all(isinstance(tracker, stepping.RunningLoss) for tracker in trackers):
            with stepping.own_scope(self):
                trackers[:] = [stepping.RunningLoss(name=tracker.name) for tracker in trackers]

    def train_step(self, *args):
        """Arguments: (batch,); on the JAX backend (state, batch)."""
        if keras.backend.backend() == "tensorflow":
            with checks.checked():
                return _tensorflow().train_step(self, *args)
        state, batch = args
        if self.mixing is not None:
            images, labels, *rest = batch
            check_unweighted(rest[0] if rest else None)
            batch = (*self.mixing(images, labels, stepping.batches_taken(self.optimizer, state[2])), *rest)
        if self.micro_batches > 1:
            logs, state = stepping.accumulated_step(self, state, batch)
        else:
            with self.weighing(keras.utils.unpack_x_y_sample_weight(batch)[2], is_mean=False):
                logs, state = super().train_step(state, batch)
        if not self.has_own("after_update"):
            return logs, state
        return logs, stepping.after_update(self, state)

    def after_update(self) -> None:
        """Called in every training step after the optimizer's update; does nothing unless overridden.

        It may assign non-trainable variables, for example of a teacher that follows the trained weights; make these
        with `aggregation="only_first_replica"`, since every replica assigns the same. It runs where the step does: in a
        graph, in each replica, once for all micro-batches.
        """

    def test_step(self, *args):
        """Arguments: (batch,); on the JAX backend (state, batch)."""
        _, _, weights = keras.utils.unpack_x_y_sample_weight(args[-1])
        with self.weighing(weights, is_mean=True):
            return super().test_step(*args)

    @contextlib.contextmanager
    def weighing(self, weights: Any, is_mean: bool) -> Iterator[None]:
        """Passes the examples' weights to the running losses while a step is traced.

        Args:
            weights: one tensor, a structure with one per output, or None.
            is_mean: see RunningLoss.
        """
        total, *outputs = self._running_losses()
        each = [] if weights is None or stepping.sums_over_batch(self.loss) else keras.tree.flatten(weights)
        total.weights = each[0] if each and (is_mean or len(each) == 1) else None
        for i, tracker in enumerate(outputs):
            tracker.weights = None if not each else each[i] if len(each) == len(outputs) else each[0]
        for tracker in (total, *outputs):
            tracker.is_mean, tracker.by_weight = is_mean, stepping.divides_by_weights(self.loss)
        try:
            yield
        finally:
            for tracker in (total, *outputs):
                tracker.weights = None

    def _running_losses(self):
        """The metrics of the running loss: the total, and with several outputs one each."""
        return [self._loss_tracker, *getattr(self._compile_loss, "metrics", ())]

    def supervised(self, outputs: Any, y: Any = None) -> tuple[Any, list[tuple[float, Any]]]:
        """(outputs that the loss compares with y, [(weight, output)] for training, with `auxiliary_targets`).

        The first may depend on y: a detector can look at the true objects, too. It is None for metrics.
        """
        return outputs, []

    def auxiliary_targets(self, y: Any) -> Any:
        """What training compares auxiliary outputs with: y."""
        return y

    def measured(self, outputs: Any) -> Any:
        """What metrics compare with y."""
        return self.supervised(outputs)[0]

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Keras' loss, with example weights for outputs of any rank; evaluation ignores examples of weight 0."""
        y_pred, auxiliary = self.supervised(y_pred, y)
        one_each = self.weighs_examples or stepping.are_per_example(self.loss)
        weights = (stepping.per_example if one_each else stepping.per_value)(sample_weight, y_pred)
        if not training and weights is not None and not stepping.sums_over_batch(self.loss):
            weights = stepping.per_counted(weights)
        loss = super().compute_loss(x, y, y_pred, weights, training)
        for factor, output in auxiliary if training else ():
            loss = loss + factor * self._compile_loss(self.auxiliary_targets(y), output, weights)
        return loss

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Keras' metrics, with example weights for outputs of any rank."""
        y_pred = self.measured(y_pred)
        weights = sample_weight if self.weighs_examples else stepping.per_value(sample_weight, y_pred)
        return super().compute_metrics(x, y, y_pred, weights)
