"""Keras' class registry under the package's name: `.keras` files load after `import keras_vit`."""

from typing import Any, TypeVar

import keras

from keras_vit.layers.arguments import constructor_arguments

_Class = TypeVar("_Class", bound=type)


def serializable(cls: _Class) -> _Class:
    """Registers a class.

    A layer, optimizer, loss or metric without `get_config` gets one: the constructor's arguments, from attributes of
    these names.
    """
    made: Any = cls  # for type checkers, which know no attribute of a class yet
    kinds = (keras.layers.Layer, keras.optimizers.Optimizer, keras.losses.Loss, keras.metrics.Metric)
    derives = issubclass(cls, kinds) and not issubclass(cls, keras.Model)
    if derives and "__init__" in vars(cls) and "get_config" not in vars(cls):
        names = list(constructor_arguments(cls))

        def get_config(self):
            config = super(cls, self).get_config()
            return {**config, **{name: getattr(self, name) for name in names if name not in config}}

        made.get_config = get_config
    return keras.saving.register_keras_serializable(package="keras_vit")(cls)
