"""A model's description: architecture, preprocessing and classes, kept by files, clones and models built on it."""

import contextlib
import os
import weakref
from collections.abc import Callable
from typing import Any, Self, TypeVar

import keras

from keras_vit.layers.dense import inner_layers
from keras_vit.training import state

_LOADERS: list[Callable] = []
_Loader = TypeVar("_Loader", bound=Callable)


def register_loader(load: _Loader) -> _Loader:
    """Decorator: makes `load` the function behind `from_preset`."""
    _LOADERS[:] = [load]
    return load


def load_preset(kind: type, preset: str | os.PathLike, arguments: dict[str, Any]) -> Any:
    """The result of `load(preset, **arguments)`; ValueError unless it is a `kind`."""
    model = _LOADERS[0](preset, **arguments)
    if not isinstance(model, kind):
        raise ValueError(
            f'"{preset}" contains a {type(model).__name__}, not a {kind.__name__}: use'
            f" keras_vit.{type(model).__name__}.from_preset, or keras_vit.load, which takes both."
        )
    return model


# {Input layer: (spec, preprocessing, policy)} of every ViT, BiT and model built on one, for further models on that
# Input.
_DESCRIPTIONS = weakref.WeakKeyDictionary()

# {logits layer: (classes, class names, activation)} of models that keras.models.clone_model made.
_HEADS = weakref.WeakKeyDictionary()


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


class DescribedModel(keras.Model):
    """A functional Keras model with a description; its attributes are those of training.Model."""

    spec: Any
    image_size: tuple[int, int] | None
    channels: int | None
    preprocessing: str | None
    classes: int | None
    class_names: tuple[str, ...] | None
    activation: str | None = None
    made_from_arguments = False  # whether the class has its own constructor, like ViT, and is more than its layers

    @property
    def fixed_variables(self) -> list:
        """Variables that never train and come from another file, such as a teacher's; run checkpoints omit them."""
        return []

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
        inside = [layer for layer in self.layers if isinstance(layer, DescribedModel)]
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

    def get_config(self):
        config = super().get_config()
        if "layers" not in config:  # a subclass with its own constructor, which describes itself
            return config
        description = {
            "spec": keras.saving.serialize_keras_object(self.spec),
            "preprocessing": self.preprocessing,
            "classes": self.classes,
            "class_names": self.class_names,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
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
        policy = config.pop("dtype", None)  # not in older files
        model = super().from_config(config, custom_objects)
        if policy is not None:
            model.dtype_policy = keras.dtype_policies.get(policy)
        model.spec, model.preprocessing, model.classes = spec, preprocessing, classes
        model.class_names = None if names is None else tuple(names)
        nested = any(isinstance(layer, DescribedModel) for layer in model.layers)
        if spec is not None and not nested and isinstance(model.input, keras.KerasTensor):
            describe_input(model.input, spec, preprocessing, model.dtype_policy)
        state.restore(model, training)
        return model

    def get_encoder(self) -> keras.Model:
        """The model from images to features, to measure and fine-tune: this model itself.

        A pre-training model, which sees images differently, returns the model it teaches; weights are shared.
        """
        return self

    @classmethod
    def from_preset(cls, preset: str | os.PathLike, **arguments: Any) -> Self:
        """The model that `keras_vit.load(preset, **arguments)` loads, from a path, an address or a name in the
        catalogue.

        Raises:
            ValueError: if it is not of this class (a BiT for ViT.from_preset), or as in `keras_vit.load`.
        """
        return load_preset(cls, preset, arguments)

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
            if isinstance(args[0], keras.KerasTensor) and not any(
                isinstance(layer, DescribedModel) for layer in self.layers
            ):
                describe_input(args[0], self.spec, self.preprocessing, self.dtype_policy)
        return outputs
