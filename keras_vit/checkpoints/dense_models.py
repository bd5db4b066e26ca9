"""Models with a dense head, for pixels or objects: from parsed checkpoints, at another size, with another encoder."""

import dataclasses
from typing import Any

import keras
import numpy as np
from absl import logging

from keras_vit.checkpoints.adapt import model_weights, variables
from keras_vit.checkpoints.formats.parsed import Dense
from keras_vit.checkpoints.transfer import LoadOptions, adapt, check_plain, describe, rounded_as
from keras_vit.depth.depth_model import DepthModel
from keras_vit.detection.detection_model import DetectionModel
from keras_vit.detection.heads import detection_heads
from keras_vit.instances.instance_model import InstanceModel
from keras_vit.layers.fake_quantization import fake_quantizers
from keras_vit.models import Classifier
from keras_vit.models.headed import HeadedModel
from keras_vit.segmentation.segmentation_model import SegmentationModel


def encoder_options(options: LoadOptions) -> LoadOptions:
    """Of the options for a model with a dense head those for its encoder."""
    changes = {**options.changes, "preprocessing": None}
    changes.pop("name", None)
    return dataclasses.replace(options, classes=None, class_names=None, changes=changes)


def describe_adapted(
    model: HeadedModel, options: LoadOptions, size: tuple[int, int], preprocessing: str | None
) -> None:
    """Names a model's classes and sets its preprocessing: the options', or one for images of `size` at that size."""
    own = preprocessing if model.image_size == tuple(size) else None
    describe(model, options.class_names, preprocessing=options.changes.get("preprocessing", own))


def _named(options):
    """The argument `name`, if the options have it."""
    return {name: value for name, value in options.changes.items() if name == "name"}


def moved(model: HeadedModel, options: LoadOptions) -> HeadedModel:
    """A new model with the weights of `model`; the head stays as it is.

    Args:
        options: image_size, resample and changes for the encoder; class_names in order, None for the model's.

    Raises:
        ValueError: as in `transfer`, or if the head does not suit the new maps.
    """
    if options.keeps_layers and fake_quantizers(model):
        return rounded_as(model, lambda plain: moved(plain, options))
    check_plain(model, "Another size or option of a model with a dense head")
    new = model.with_encoder(adapt(model.get_encoder(), encoder_options(options)), **_named(options))
    describe_adapted(new, options, model.image_size, model.preprocessing)
    return new


def head_variables(model: HeadedModel) -> dict[str, keras.Variable]:
    """{path without the model's name: variable} of the layers on the encoder."""
    return {v.path.removeprefix(f"{model.name}/"): v for layer in model.decoder.layers for v in layer.weights}


def all_weights(model: HeadedModel) -> dict[str, np.ndarray]:
    """{path without the model's name: array} of encoder and heads, including layers that the heads do not read."""
    heads = {path: keras.ops.convert_to_numpy(v) for path, v in head_variables(model).items()}
    return {**model_weights(model.get_encoder()), **heads}


def stored_encoder(model: HeadedModel, path: Any, head: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(constructor arguments, weights) of the encoder in a `.keras` file, without the layers that its head skips.

    These are not in the file, and would have their initial values: the normalisation behind raw taps, an attention
    pool, blocks after the last tap. With head="reset" the normalisation is new, like the head that it is trained with.
    """
    encoder, stored = model.get_encoder(), {id(variable) for variable in model.weights}
    check_plain(encoder, "Taking the encoder out of a model")
    spec: Any = encoder.spec
    config = {**encoder.arguments(), "variant": spec}
    missing = {name.partition("/")[0] for name, v in variables(encoder).items() if id(v) not in stored}
    if not missing or not hasattr(spec, "final_norm"):
        return config, model_weights(encoder)
    blocks = [int(name.removeprefix("block_")) for name in missing if name.startswith("block_")]
    changes: dict[str, Any] = {"depth": min(blocks)} if blocks else {}
    if spec.pool == "map":
        changes |= {"pool": "token" if spec.class_token else "gap", "class_token": spec.class_token}
    norms = missing & {"encoder_norm", "fc_norm"}
    if head == "drop" and norms:
        changes |= {"final_norm": False, "fc_norm": False}
    weights = {}
    for name, array in model_weights(encoder).items():
        layer = name.partition("/")[0]
        if layer in norms and head == "reset":
            weights[name] = np.full_like(array, name.endswith("/gamma"))
        elif layer not in missing or layer == "pre_logits":
            weights[name] = array
    names = ", ".join(sorted(missing))
    result = "the encoder comes without" if changes else "new, with its initial values"
    logging.warning("%s: the file lacks the layers that its head does not read: %s (%s).", path, names, result)
    return {**config, "variant": dataclasses.replace(spec, **changes)}, weights


def with_head(encoder: Classifier, dense: Dense, options: LoadOptions) -> HeadedModel:
    """The model of a file with a dense head, on an encoder; ValueError if the head does not suit its maps."""
    if dense.options.get("depth"):
        return DepthModel(encoder, dense.head, **DepthModel.constructor_arguments(dense.options), **_named(options))
    model: type[HeadedModel] = SegmentationModel
    arguments: dict[str, Any] = {"colors": dense.colors, "auxiliary": dense.auxiliary}
    if dense.instances or dense.head in detection_heads.HEADS:
        model, arguments = InstanceModel if dense.instances else DetectionModel, {}
    return model(
        encoder,
        head=dense.head,
        classes=dense.classes,
        class_names=dense.class_names,
        head_options=dense.options,
        **arguments,
        **_named(options),
    )
