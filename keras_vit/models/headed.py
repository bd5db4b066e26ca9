"""The base of models with a dense head: encoder, maps, and the constructor's common arguments."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import keras

from keras_vit.layers.embedding.patches import pair
from keras_vit.layers.pooling import TokenPooling
from keras_vit.models import families, taps
from keras_vit.models.checks import (
    check_count,
    class_count,
    float_policy,
    model_name,
    plain_names,
    preprocessing_or_none,
)
from keras_vit.models.classifier import Classifier, ModelOfArguments
from keras_vit.models.heads.decoder import Decoder, Encoder


class Shared(NamedTuple):
    """An encoder and the layers of a head, for another model of the same layers."""

    encoder: Classifier
    decoder: Decoder


def built_encoder(owner: str, encoder: Any, given: Mapping[str, Any], overrides: Mapping[str, Any]) -> Classifier:
    """The Classifier: the one given, which must agree with the arguments, or a new one without a head.

    Args:
        owner: the class that is built on it, for errors.
        encoder: name of a variant, a spec, or a model of a family.
        given: constructor arguments; None for those that were not.
        overrides: fields of the spec.

    Raises:
        ValueError: for another model, or arguments that would change the given one.
    """
    if isinstance(encoder, Classifier):
        own = {"image_size": encoder.image_size, "channels": encoder.channels, "remat": encoder.remat}
        own["dtype"] = encoder.dtype_policy.name
        given = {name: value for name, value in given.items() if value is not None} | dict(overrides)
        if "image_size" in given:
            given["image_size"] = pair(given["image_size"], "image_size")
        if "dtype" in given:
            given["dtype"] = float_policy(given["dtype"]).name
        different = {name: value for name, value in given.items() if name not in own or own[name] != value}
        if different:
            named = ", ".join(f"{name}={value!r}" for name, value in different.items())
            raise ValueError(
                f'{owner}: {named} would change the encoder "{encoder.name}", which is a model already. Make'
                f" or load it with these: keras_vit.load(path, {named}, ...)."
            )
        return encoder
    if isinstance(encoder, keras.Model):
        raise ValueError(
            f"{owner}: the encoder should be the name of a variant, a spec, or a {families.any_name()}, got"
            f' "{encoder.name}", a {type(encoder).__name__}. For a model built on one, give what get_encoder() returns.'
        )
    defaults = {"image_size": 224, "channels": 3, "remat": False, "name": None}
    arguments: dict[str, Any] = {name: defaults.get(name) if value is None else value for name, value in given.items()}
    return families.build(encoder, classes=None, **arguments, **overrides)


def decoder_maps(encoder: Classifier, decoder: Decoder) -> list:
    """The symbolic maps that a decoder takes, [(b, h, w, d), ...]."""
    return [
        taps.normalised_map(encoder, i) if i in decoder.normalised else taps.feature_map(encoder, i)
        for i in decoder.taps
    ]


def maps_for_head(encoder: Classifier, decoder: Decoder) -> list:
    """The symbolic maps that a decoder's head takes, behind its neck: [(b, h, w, d), ...]."""
    maps = decoder_maps(encoder, decoder)
    if decoder.neck is None:
        return maps
    if not decoder.class_tokens:
        return decoder.neck(maps)
    outputs, policy = taps.block_outputs(encoder), encoder.dtype_policy
    tokens = [TokenPooling(dtype=policy, name=f"readout_{i}")(outputs[n]) for i, n in enumerate(decoder.taps)]  # (b, d)
    return decoder.neck(maps, tokens)


class HeadedModel(ModelOfArguments):
    """The base of models that consist of an encoder and a head on its maps.

    Args:
        encoder: as in the subclasses; or Shared.
        head: name of the head, a row of the subclass's table.
        classes, class_names, preprocessing, head_options, name: as in the subclasses.
        given: the other arguments of the encoder, "image_size", "channels", "remat" and "dtype".
        overrides: fields of the encoder's spec.
        make: (Encoder, classes, policy, options) -> Decoder, the layers of the head.
        outputs: (encoder, Decoder) -> the symbolic outputs.

    Attributes:
        task: the task that trains and evaluates the model, which is also its default name.
        things: the things that are classified, for errors.
    """

    task: str
    things: str
    image_size: tuple[int, int]
    classes: int
    weighs_examples = True
    labels_are_classes = False

    def __init__(
        self,
        encoder: Any,
        head: str,
        classes: int,
        class_names: Sequence[str] | None,
        preprocessing: str | None,
        head_options: Mapping[str, Any] | None,
        name: str | None,
        given: Mapping[str, Any],
        overrides: Mapping[str, Any],
        make: Callable[..., Decoder],
        outputs: Callable[[Classifier, Decoder], Any],
    ):
        class_names = None if class_names is None else plain_names(class_names)
        check_count(class_names, classes)
        preprocessing, name = preprocessing_or_none(preprocessing), model_name(name, self.task)
        options: dict[str, Any] = dict(head_options or {})
        options |= {key: tuple(value) for key, value in options.items() if isinstance(value, list)}  # JSON has lists
        decoder = None
        if isinstance(encoder, Shared):
            encoder, decoder = encoder
        if not isinstance(encoder, keras.Model):
            given = {**given, "name": None if name == self.task else name}
        encoder = built_encoder(type(self).__name__, encoder, given, overrides)
        if decoder is None:
            decoder = make(Encoder(encoder.spec, encoder.image_size), classes, encoder.dtype_policy, options)
        super().__init__(encoder.input, outputs(encoder, decoder), name=name)
        # In the instance's own dict: as an attribute Keras would count and save these layers twice.
        self.__dict__.update(_encoder=encoder, _decoder=decoder)
        self.spec, self.dtype_policy, self.remat = encoder.spec, encoder.dtype_policy, encoder.remat
        self.classes, self.class_names, self.preprocessing = classes, class_names, preprocessing
        self.head_name, self.head_options = head, options

    @classmethod
    def counted_classes(cls, classes: Any) -> int:
        """`classes` as a number; ValueError for anything else."""
        count = class_count(classes)
        if count is None:
            raise ValueError(f"classes must be the number of classes that {cls.things} can have, got None.")
        return count

    @property
    def head(self) -> keras.layers.Layer:
        """The head's last layer."""
        return self.decoder.head

    @property
    def decoder(self) -> Decoder:
        """The numbers of the tapped blocks, and the layers on them."""
        return self._decoder

    def get_encoder(self) -> Classifier:
        """The encoder, of this model's own layers.

        Layers that the head does not use, such as the last normalisation behind raw taps, are not in this model's
        files: here they have their initial values, and `load(..., head="drop")` leaves them out.
        """
        return self._encoder

    def with_encoder(self, encoder: Classifier, **changes: Any) -> Self:
        """A new model: another encoder, such as the same one at another image size, and a copy of this model's head.

        Args:
            encoder: a ViT or BiT, with layers and weights that the new model shares.
            **changes: the constructor's other arguments, such as name; preprocessing, for this size, is left out.

        Raises:
            ValueError: if its maps do not suit the head.
        """
        model = self._with(encoder, **{"preprocessing": None, **changes})
        for old, new in zip(self._decoder.layers, model.decoder.layers):
            new.set_weights(old.get_weights())
        return model

    def _with(self, encoder, **changes):
        model = self.on_encoder(encoder, {**self.arguments(), **changes})
        model.activation = self.activation
        return model

    @classmethod
    def on_encoder(cls, encoder: Classifier, arguments: Mapping[str, Any]) -> Self:
        """A model with a new head on `encoder`, which has its own size; the others of `arguments()` as they are."""
        own = ("encoder", "image_size", "channels", "remat", "dtype")
        return cls(encoder, **{name: value for name, value in arguments.items() if name not in own})

    def arguments(self) -> dict:
        return {
            "encoder": self.spec.to_dict(),
            "head": self.head_name,
            "classes": self.classes,
            "image_size": self.image_size,
            "channels": self.channels,
            "class_names": self.class_names,
            "preprocessing": self.preprocessing,
            "head_options": self.head_options,
            "remat": self.remat,
            "name": self.name,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
        }
