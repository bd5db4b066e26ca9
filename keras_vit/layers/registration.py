"""Keras' class registry under the package's name: `.keras` files load after `import keras_vit`."""

import inspect
from typing import Any, TypeVar

import keras

from keras_vit.io.suggest import nearest
from keras_vit.layers.arguments import arguments_of

_Class = TypeVar("_Class", bound=type)


def _with_hints(cls):
    """Makes a layer suggest the required argument that a name of another library stands for: num_heads, embed_dim."""
    arguments = arguments_of(cls)
    new, names = cls.__new__, list(arguments)
    required = [name for name in names if arguments[name] is inspect.Parameter.empty]

    def checked_new(layer, *args, **kwargs):
        missing = [name for name in required if name not in (*kwargs, *names[: len(args)])]
        for name in kwargs if layer is cls and missing else ():  # not a subclass with arguments of its own
            if name not in arguments and (near := nearest(name, missing)):
                raise TypeError(f'{cls.__name__}: unknown argument "{name}". Did you mean "{near[0]}"?')
        return new(layer, *args, **kwargs)

    if required:
        cls.__new__ = staticmethod(checked_new)


def serializable(cls: _Class) -> _Class:
    """Registers a class.

    A layer or optimizer without `get_config` gets one: the constructor's arguments, attributes of the same names.
    """
    made: Any = cls  # for type checkers, which know no attribute of a class yet
    kinds = (keras.layers.Layer, keras.optimizers.Optimizer)
    derives = issubclass(cls, kinds) and not issubclass(cls, keras.Model)
    if derives and "__init__" in vars(cls) and "get_config" not in vars(cls):
        names = list(arguments_of(cls))

        def get_config(self):
            config = super(cls, self).get_config()
            return {**config, **{name: getattr(self, name) for name in names if name not in config}}

        made.get_config = get_config
    if issubclass(cls, keras.layers.Layer) and derives and "__init__" in vars(cls):
        _with_hints(made)
    return keras.saving.register_keras_serializable(package="keras_vit")(cls)
