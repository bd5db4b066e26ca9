"""The fingerprint of a job's model, a dict for JSON: weights alone determine neither outputs nor class names.

"weights" and "architecture" are checksums. If classes are requested, "model_class_names" is a list or None, and
"activation" names the function from logits to probabilities.
"""

import json
import os
import zlib
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
from etils import epath

from keras_vit.answers.classes import Classes
from keras_vit.fit.state import KEY as TRAINING
from keras_vit.io.checksum import checksum
from keras_vit.io.paths import paths_in

EXPORT = "export "  # prefix of an export's checksums, which differ from those of its model

# Config entries that change no answer, or that a job records elsewhere. Layer names, also in connections, depend on
# what else the process has created.
_LEFT_OUT = {"name", "inbound_nodes", "input_layers", "output_layers", "build_config", "compile_config", TRAINING}
_LEFT_OUT |= {"class_names", "preprocessing", "remat", "trainable", "seed", "shared_object_id", "score_threshold"}


def _plain(config):
    """A config without the entries in _LEFT_OUT and without falsy values, so that new fields keep old fingerprints."""
    if isinstance(config, (list, tuple)):
        return [_plain(value) for value in config]
    if not isinstance(config, dict):
        return config
    if str(config.get("class_name")).endswith("DTypePolicy"):
        return config["config"]  # the policy's name matters
    plain = {key: _plain(value) for key, value in config.items() if key not in _LEFT_OUT}
    return {key: value for key, value in plain.items() if value}


def _architecture(model):
    """Checksum of the model's config, or of its layers' classes where a custom layer cannot be serialised."""
    try:
        config = _plain(keras.saving.serialize_keras_object(model))
    except (NotImplementedError, TypeError, ValueError):
        config = [type(layer).__qualname__ for layer in model._flatten_layers()]
    return f"{zlib.crc32(json.dumps(config, sort_keys=True).encode()):08x}"


def _class_entries(names, activation):
    return {"model_class_names": None if names is None else list(names), "activation": activation}


def fingerprint_of_model(model: keras.Model, kinds: Iterable[str]) -> dict[str, Any]:
    """The fingerprint of a model for these kinds of answers.

    It is the same in every process, and changes with weights, spec, precision or normalisation.
    """
    weights = checksum({f"{i:06d}": np.asarray(variable) for i, variable in enumerate(model.weights)})
    own = {"weights": weights, "architecture": _architecture(model)}
    return own | (
        _class_entries(model.class_names, model.classes and Classes(model).activation) if "classes" in kinds else {}
    )


def fingerprint_of_export(folder: str, metadata: dict[str, Any], kinds: Iterable[str]) -> dict[str, Any]:
    """The fingerprint of a SavedModel with this metadata.json; exporting the same model again may change it.

    Raises:
        ValueError: the SavedModel is incomplete.
    """
    files = paths_in(os.path.join(folder, "variables"), "variables.data-")
    program = epath.Path(folder, "saved_model.pb")
    if not files or not program.exists():
        lacks = program.name if files else "variables/variables.data-..."
        raise ValueError(
            f'"{folder}" is not a complete SavedModel: it has no {lacks}. Copy it again, or export the model again.'
        )
    weights = checksum({file.name: np.frombuffer(file.read_bytes(), "uint8") for file in files})
    own = {"weights": EXPORT + weights, "architecture": f"{EXPORT}{zlib.crc32(program.read_bytes()):08x}"}
    return own | (_class_entries(metadata["class_names"], metadata["activation"]) if "classes" in kinds else {})
