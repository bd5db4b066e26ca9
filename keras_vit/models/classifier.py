"""The base of the families: pixels in, features, a head; and a config that describes the model completely."""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_vit.fit import state
from keras_vit.fit.model import Model, describe_input
from keras_vit.io.suggest import check_known
from keras_vit.layers.dense import apply_dense_config, dense_config
from keras_vit.models import taps
from keras_vit.models.checks import SHARED_NAMES, check_count, plain_names, preprocessing_or_none

if TYPE_CHECKING:
    from keras_vit.classification.classify import Prediction


class ModelOfArguments(Model):
    """A model made from constructor arguments. Its config also contains quantisation, LoRA and training state."""

    made_from_arguments = True

    def arguments(self) -> dict:
        """The constructor's arguments, as JSON, for an equal model with other weights."""
        raise NotImplementedError

    def get_config(self):
        return {**self.arguments(), **dense_config(self), **state.to_config(self)}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = {**config, "dtype": keras.dtype_policies.get(config["dtype"])}
        quantization, adapted, training = (config.pop(name, None) for name in ("quantization", "lora", state.KEY))
        with warnings.catch_warnings():  # names that classes share were reported when the model was made
            warnings.filterwarnings("ignore", SHARED_NAMES)
            model = cls(**config)
        apply_dense_config(model, quantization, adapted)
        if adapted:
            from keras_vit.models import finetuning

            finetuning.freeze_all_but_lora(model)
        state.restore(model, training)
        return model


class Classifier(ModelOfArguments):
    """A functional model from images to features and, with classes, logits: the base of every family's model.

    Attributes:
        spec: the architecture, a frozen dataclass.
        image_size: pixels (height, width).
        classes, channels, class_names, preprocessing, remat: as in the constructors.
        features: symbolic features before the head, (b, d); `keras_vit.Model(model.input, model.features)` extracts
            them.
    """

    image_size: tuple[int, int]
    channels: int
    outputs_are_logits = True

    def __init__(
        self,
        image: keras.KerasTensor,
        features: keras.KerasTensor,
        outputs: keras.KerasTensor,
        spec: Any,
        classes: int | None,
        class_names: Sequence[str] | None,
        preprocessing: str | None,
        remat: bool | Sequence[int],
        name: str,
        policy: keras.DTypePolicy,
    ):
        class_names = None if class_names is None else plain_names(class_names)
        check_count(class_names, classes)
        preprocessing = preprocessing_or_none(preprocessing)
        super().__init__(image, outputs, name=name)
        describe_input(image, spec, preprocessing, policy)
        self.dtype_policy = policy
        self.spec = spec
        self.classes = classes
        self.class_names = class_names
        self.preprocessing = preprocessing
        self.remat = remat
        self._features = features

    def _usual_answers(self) -> tuple[str, ...]:
        return ("features",) if self.classes is None else ("classes",)

    @property
    def features(self) -> keras.KerasTensor:
        """The symbolic features before the head, (b, d)."""
        return self._features

    def feature_map(self, blocks: int | Sequence[int] | None = None) -> Any:
        """Symbolic feature maps (b, h, w, d) after the blocks with these numbers; see models.taps.feature_map."""
        return taps.feature_map(self, blocks)

    def with_head(
        self,
        layer: keras.layers.Layer,
        on: str = "features",
        class_names: Sequence[str] | None = None,
        name: str | None = None,
    ) -> Model:
        """This model with another head: its output is layer(self.features).

        It shares this model's layers and weights (copy with `clone()`), without this model's head.

        Args:
            layer: any Keras layer: Dense, a Sequential, or your own. To load a file with your own class, register it
                first (keras.saving.register_keras_serializable).
            on: the layer's input: "features" (b, d), a ViT's "tokens" (b, n, d), or "feature_map" (b, h, w, d).
            class_names: names of the classes, if the layer returns one logit each; exported models return them.
            name: of the model; None for this model's name.

        Returns:
            A keras_vit.Model: trained, saved, loaded, exported and inspected like this one.

        Raises:
            ValueError: for anything but a layer, a Lambda (also inside another layer), a layer name of this model, an
                unknown `on`, another number of names than logits, or names for probabilities.
        """
        self._check_new_head(layer)
        inputs = {
            "features": lambda: self.features,
            "tokens": lambda: taps.tokens(self),
            "feature_map": lambda: taps.feature_map(self),
        }
        check_known(on, "with_head: on=", inputs)
        model = Model(self.input, layer(inputs[on]()), name=name or self.name)
        if class_names is not None:
            class_names = plain_names(class_names)
            if model.output_shape != (None, len(class_names)):
                raise ValueError(f"class_names has {len(class_names)} names for outputs of shape {model.output_shape}.")
            if taps.ends_in_probabilities(model):
                raise ValueError(
                    "class_names are for a head that returns logits, and this one ends in a softmax or sigmoid: leave"
                    " that out. An exported model applies the softmax itself."
                )
            model.classes, model.class_names = len(class_names), class_names
        return model

    def enable_lora(
        self, rank: int, targets: str | Sequence[str] = ("query", "value"), alpha: float | None = None
    ) -> list[str]:
        """LoRA: only small matrices next to the kernels train, and the head; see models.finetuning.lora.enable_lora."""
        from keras_vit.models import finetuning

        return finetuning.enable_lora(self, rank, targets, alpha)

    def merge_lora(self) -> None:
        """Adds LoRA's matrices to the kernels; see models.finetuning.lora.merge_lora."""
        from keras_vit.models import finetuning

        finetuning.merge_lora(self)

    def _check_new_head(self, layer):
        inner = layer._flatten_layers() if isinstance(layer, keras.layers.Layer) else []
        if not inner or any(isinstance(part, keras.layers.Lambda) for part in inner):
            raise ValueError(
                f"with_head expected a Keras layer other than Lambda, and without one inside, got {layer!r}. Put"
                " functions into a layer class of your own."
            )
        taken = {other.name for other in self.layers if other not in self.heads()}
        if taps.is_reserved(layer.name, self.spec) or layer.name in taken:
            raise ValueError(
                f'with_head: a head cannot have the name "{layer.name}", which is one of the model\'s layers.'
                " Rename it."
            )

    def heads(self) -> list:
        """The layers of the head: [] without classes, else "head" and, with a distillation token, "head_dist"."""
        return [layer for layer in self.layers if layer.name in ("head", "head_dist")]

    def has_zero_head(self) -> bool:
        """Whether a head's kernel is all zeros, as before training and in Google's ImageNet-21k files of 2020."""
        return any(not np.any(np.asarray(head.kernel)) for head in self.heads())

    def predict(self, x, *args, **kwargs):
        self.check_head()
        return super().predict(x, *args, **kwargs)

    def predict_on_batch(self, x):
        self.check_head()
        return super().predict_on_batch(x)

    def classify(
        self,
        x: Any,
        top_k: int = 5,
        batch_size: int = 32,
        activation: str | None = None,
        verbose: bool | int | str = "auto",
    ) -> "list[Prediction] | list[list[Prediction]]":
        self.check_head()
        if self.has_zero_head():
            raise ValueError(
                "The head is all zeros, as before any training: every class would be as probable. Train the model"
                " first."
            )
        return super().classify(x, top_k, batch_size, activation, verbose)

    def arguments(self) -> dict:
        """The constructor's arguments, as JSON, for an equal model with other weights."""
        return {
            "variant": dataclasses.asdict(self.spec),
            "image_size": self.image_size,
            "classes": self.classes,
            "channels": self.channels,
            "class_names": self.class_names,
            "preprocessing": self.preprocessing,
            "remat": self.remat,
            "name": self.name,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
        }
