"""Models that are more than their layers: a constructor makes them of arguments, which their configs hold."""

import keras

from keras_vit.layers.dense import apply_dense_config, dense_config
from keras_vit.models.finetuning import lora
from keras_vit.training import state
from keras_vit.training.model import Model


class ModelOfArguments(Model):
    """The base of such models. A config also says what is quantised or has LoRA, and how the model is trained."""

    made_from_arguments = True

    def arguments(self) -> dict:
        """The constructor's arguments, as JSON, that make an equal model with other weights."""
        raise NotImplementedError

    def get_config(self):
        return {**self.arguments(), **dense_config(self), **state.to_config(self)}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = {**config, "dtype": keras.dtype_policies.get(config["dtype"])}
        quantization, adapted, training = (config.pop(name, None) for name in ("quantization", "lora", state.KEY))
        model = cls(**config)
        apply_dense_config(model, quantization, adapted)
        if adapted:
            lora.freeze_all_but_lora(model)
        state.restore(model, training)
        return model
