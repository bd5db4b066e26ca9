"""Keras' registry of classes, under the package's name: `.keras` files then load after `import keras_vit`."""

import inspect
from typing import Any

import keras


def serializable(cls: Any) -> Any:
    """Registers a class. A layer without a `get_config` gets one: the arguments of its constructor, each of which is an
    attribute of the same name, added to the config of its base class.
    """
    own, is_layer = vars(cls), issubclass(cls, keras.layers.Layer) and not issubclass(cls, keras.Model)
    if is_layer and "__init__" in own and "get_config" not in own:
        parameters = inspect.signature(cls.__init__).parameters.values()
        names = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.name != "self"]

        def get_config(self):
            config = super(cls, self).get_config()
            return {**config, **{name: getattr(self, name) for name in names if name not in config}}

        cls.get_config = get_config
    return keras.saving.register_keras_serializable(package="keras_vit")(cls)
