"""What models with a dense head share: the encoder they stand on, and its maps."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import keras

from keras_vit.layers.embedding.patches import pair
from keras_vit.models import families, taps
from keras_vit.models.checks import float_policy
from keras_vit.models.classifier import Classifier
from keras_vit.models.heads.decoder import Decoder


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


def maps_of(encoder: Classifier, decoder: Decoder) -> list:
    """The symbolic maps that a decoder takes, [(b, h, w, d), ...]."""
    return [
        taps.normalised_map(encoder, i) if i in decoder.normalised else taps.feature_map(encoder, i)
        for i in decoder.taps
    ]
