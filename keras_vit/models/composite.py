"""A model made of other models: a file contains their configs in its own."""

from collections.abc import Mapping
from typing import Any, ClassVar

import keras

from keras_vit.fit import state
from keras_vit.fit.model import Model


class CompositeModel(Model):
    """A model whose constructor takes models: two towers, a student and its teacher.

    Attributes:
        PARTS: {the constructor's argument: the attribute with that model}.
    """

    PARTS: ClassVar[Mapping[str, str]] = {}
    made_from_arguments = True

    def options(self) -> dict[str, Any]:
        """The constructor's other arguments, as JSON."""
        return {"name": self.name}

    def get_config(self):
        parts = {name: keras.saving.serialize_keras_object(getattr(self, own)) for name, own in self.PARTS.items()}
        return {**parts, **self.options(), **state.to_config(self)}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        training = config.pop(state.KEY, None)
        parts = {
            name: keras.saving.deserialize_keras_object(config[name], custom_objects=custom_objects)
            for name in cls.PARTS
        }
        model = cls(**{**config, **parts})
        state.restore(model, training)
        return model
