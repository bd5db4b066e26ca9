"""Models with a dense head, for pixels or objects: from parsed checkpoints, at another size, with another encoder."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import keras
import numpy as np
from absl import logging

from keras_vit.checkpoints.formats.name_map import unpack
from keras_vit.checkpoints.formats.parsed import ParsedCheckpoint
from keras_vit.checkpoints.reading import metadata
from keras_vit.checkpoints.transfer import check_plain, describe, transfer
from keras_vit.detection.heads import rows as detection
from keras_vit.detection.model import DetectionModel
from keras_vit.models import Classifier, families
from keras_vit.segmentation.model import SegmentationModel

_WithHead = TypeVar("_WithHead", SegmentationModel, DetectionModel)
_OWN = ("name", "preprocessing")  # of the model, not of its encoder


def moved(
    model: _WithHead,
    image_size: int | tuple[int, int] | None = None,
    class_names: Sequence[str] | str | os.PathLike | None = None,
    resample: str = "google",
    **changes: Any,
) -> _WithHead:
    """A new model with the weights of `model`; the head stays as it is.

    Args:
        image_size, resample, **changes: as in `transfer`, for the encoder.
        class_names: in order; None for the model's.

    Raises:
        ValueError: as in `transfer`, or if the head does not suit the new maps.
    """
    check_plain(model, "Another size or option of a model with a dense head")
    own = {name: changes.pop(name) for name in _OWN if name in changes}
    encoder = transfer(model.get_encoder(), image_size, head="drop", resample=resample, **changes)
    new = model.with_encoder(encoder, **({"name": own["name"]} if "name" in own else {}))
    same = new.image_size == model.image_size
    describe(new, class_names, preprocessing=own.get("preprocessing", model.preprocessing if same else None))
    return new


def variables(model: SegmentationModel | DetectionModel) -> dict[str, keras.Variable]:
    """{path without the model's name: variable} of encoder and heads, including layers that the heads do not read."""
    owners = (model.get_encoder(), *model.decoder.layers)
    return {v.path.removeprefix(f"{model.name}/"): v for owner in owners for v in owner.weights}


def all_weights(model: SegmentationModel | DetectionModel) -> dict[str, np.ndarray]:
    """`variables` as arrays, without seed generators."""
    found = variables(model)
    return {path: keras.ops.convert_to_numpy(v) for path, v in found.items() if "seed_generator" not in path}


def stored_encoder(model: SegmentationModel | DetectionModel, path: Any, head: str) -> Classifier:
    """The encoder of a model from a `.keras` file, without the layers that its head does not read.

    These are not in the file, and would have their initial values: the normalisation behind raw taps, an attention
    pool, blocks after the last tap. With head="reset" the normalisation is new, like the head that it is trained with.
    """
    encoder, stored = model.get_encoder(), {id(variable) for variable in model.weights}
    kept, missing = {}, set()
    for name, variable in model_variables(encoder).items():
        if id(variable) in stored:
            kept[name] = keras.ops.convert_to_numpy(variable)
        else:
            missing.add(name.partition("/")[0])
    spec: Any = encoder.spec
    if not missing or not hasattr(spec, "final_norm"):
        return encoder
    blocks = [int(name.removeprefix("block_")) for name in missing if name.startswith("block_")]
    changes: dict[str, Any] = {"depth": min(blocks)} if blocks else {}
    if spec.pool == "map":
        changes |= {"pool": "token" if spec.class_token else "gap", "class_token": spec.class_token}
    if head == "drop" and not {"encoder_norm", "fc_norm"}.isdisjoint(missing):
        changes |= {"final_norm": False, "fc_norm": False}
    new = families.build(**{**encoder.arguments(), "variant": dataclasses.replace(spec, **changes)})
    for name, variable in model_variables(new).items():
        if name in kept:
            variable.assign(kept[name])
    names = ", ".join(sorted(missing))
    result = "the encoder comes without" if changes else "new, with its initial values"
    logging.warning("%s: the file lacks the layers that its head does not read: %s (%s).", path, names, result)
    return new


def model_variables(model: Classifier) -> dict[str, keras.Variable]:
    """{path without the model's name: variable}, without seed generators."""
    found = {variable.path.removeprefix(f"{model.name}/"): variable for variable in model.weights}
    return {path: variable for path, variable in found.items() if "seed_generator" not in path}


def _built(dense, config):
    """The model of a file's dense head and its encoder's constructor arguments, with random weights."""
    finds = dense.head in detection.HEADS
    own: dict[str, Any] = {} if finds else {"colors": dense.colors, "auxiliary": dense.auxiliary}
    return (DetectionModel if finds else SegmentationModel)(
        families.build(**{**config, "preprocessing": None}),
        head=dense.head,
        classes=dense.classes,
        class_names=dense.class_names,
        preprocessing=config["preprocessing"],
        head_options=dense.options,
        **own,
    )


def model_with_head(
    parsed: ParsedCheckpoint,
    config: Mapping[str, Any],
    path: Any,
    image_size: int | tuple[int, int] | None = None,
    class_names: Sequence[str] | str | os.PathLike | None = None,
    resample: str = "google",
    activation: str | None = None,
    **changes: Any,
) -> SegmentationModel | DetectionModel:
    """The SegmentationModel or DetectionModel of a file with a dense head.

    Args:
        parsed: with its `dense`.
        config: the encoder's constructor arguments.
        path: the file's, for messages.
        image_size, class_names, resample, **changes: as in `moved`.
        activation: as in training.Model.

    Raises:
        ValueError: for misfit names or shapes in the file, a model that cannot be built, or as in `moved`.
    """
    arrays = {**parsed.arrays, **parsed.dense.arrays}
    try:
        values = sum(a.size for a in arrays.values())
        metadata.check_size(config["variant"], config, len(arrays), values, path)
        model = _built(parsed.dense, config)
    except ValueError as error:
        raise ValueError(f'"{path}" describes a model that cannot be built: {error}') from None
    targets = {path: v for path, v in variables(model).items() if "seed_generator" not in path}
    shapes = {name: tuple(v.shape) for name, v in targets.items()}
    weights = unpack({**parsed.name_map, **parsed.dense.name_map}, arrays, shapes, path)
    for name, variable in targets.items():
        variable.assign(weights[name])
    model.activation = activation
    if image_size is None and changes.keys() <= {"preprocessing"}:
        describe(model, class_names, **changes)
        return model
    return moved(model, image_size, class_names, resample, **changes)
