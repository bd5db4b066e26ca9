"""Weights of one model for another one of other sizes; paths of weights are without the model's name."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vit.checkpoints.formats.name_map import NameMap, unpack
from keras_vit.checkpoints.resample import (
    adapt_kernel,
    check_method,
    fold_normalisation,
    resample_axis,
    resample_offsets,
    resample_patches,
    resample_positions,
)
from keras_vit.layers.embedding.patches import grid_size
from keras_vit.layers.positions.embeddings import FIXED, fixed_table
from keras_vit.models import Classifier, families

_TABLE = re.compile(r"position_embedding(_\d+)?/embedding")
_AXIS = re.compile(r"position_embedding(_\d+)?/embedding/[xy]")
_KERNEL, _BIAS = "patch_encoder/kernel", "patch_encoder/bias"
_STEMS = ("stem_conv1/kernel", "stem_conv/kernel")  # applied to the image before the patches
_HEADS = ("head/", "head_dist/")


def variables(model: keras.Model) -> dict[str, keras.Variable]:
    """{path: variable} of a model's weights."""
    return {v.path.removeprefix(f"{model.name}/"): v for v in model.weights}


def model_weights(model: keras.Model) -> dict[str, np.ndarray]:
    """{path: array} of a model's weights."""
    return {path: keras.ops.convert_to_numpy(v) for path, v in variables(model).items()}


def assign(targets: Mapping[str, keras.Variable], weights: Mapping[str, np.ndarray]) -> None:
    """Assigns {path: array} to {path: variable}.

    ValueError lists weights without a value, values without a weight, and different shapes.
    """
    mismatches = [
        f"{path}: {weights[path].shape} to {tuple(v.shape)}"
        for path, v in targets.items()
        if path in weights and weights[path].shape != tuple(v.shape)
    ]
    missing, unexpected = sorted(targets.keys() - weights.keys()), sorted(weights.keys() - targets.keys())
    if missing or unexpected or mismatches:
        raise ValueError(
            f"The weights do not fit the new model. Weights without values: {missing}; unused values: {unexpected};"
            f" other shapes: {mismatches}."
        )
    for path, variable in targets.items():
        variable.assign(weights[path])


def assign_file(model: keras.Model, name_map: NameMap, arrays: Mapping[str, np.ndarray], path: Any) -> None:
    """Assigns the arrays of the file at `path` to its own model; ValueError as in name_map.unpack."""
    targets = variables(model)
    assign(targets, unpack(name_map, arrays, {name: tuple(v.shape) for name, v in targets.items()}, path))


def _resize(weights, config, target, method):
    """{path: array} for another grid, patch size and number of channels: from `config` to `target`, as in Adaptation.

    The number of channels changes as in `adapt_kernel`; constants are folded into a grey kernel where it has a bias.
    """
    weights, old, new = dict(weights), config["variant"], target["variant"]
    first = next((path for path in _STEMS if path in weights), _KERNEL)
    if _KERNEL in weights and new.patch_size != old.patch_size:
        weights[_KERNEL] = resample_patches(weights[_KERNEL], new.patch_size)
    if target["channels"] != config["channels"] and first in weights:
        plain = first == _KERNEL and "patch_encoder/pixel_norm/gamma" not in weights
        if target["channels"] == 1 and plain and _BIAS in weights:
            constants = (old.mean, old.std), (new.mean, new.std)
            weights[_KERNEL], weights[_BIAS] = fold_normalisation(weights[_KERNEL], weights[_BIAS], *constants)
        weights[first] = adapt_kernel(weights[first], target["channels"])
    tables = new.offset_tables(target["image_size"])
    for path, size in old.offset_tables(config["image_size"]).items():
        weights[path] = resample_offsets(weights[path], size, tables[path], method)
    if not old.has_tokens:
        return weights
    old_grid, new_grid = (grid_size(c["image_size"], c["variant"].strides[0]) for c in (config, target))
    for path in weights if old_grid != new_grid else ():
        if _TABLE.fullmatch(path):
            weights[path] = resample_positions(weights[path], old_grid, new_grid, old.positioned, method)
        elif _AXIS.fullmatch(path):
            weights[path] = resample_axis(weights[path], new_grid[path.endswith("x")], method)
    return weights


class Adaptation(NamedTuple):
    """A change from one model to another one that takes its weights.

    Attributes:
        config, target: the constructor's arguments of the two models, with specs under "variant".
        head: "keep"; "reset" for a new head; "drop" for none.
        method: a row of resample.METHODS. How to resample positions.
    """

    config: Mapping[str, Any]
    target: Mapping[str, Any]
    head: str = "keep"
    method: str = "google"

    @property
    def changes_model(self) -> bool:
        """Whether the models differ in more than the preprocessing."""
        return {**self.target, "preprocessing": None} != {**self.config, "preprocessing": None}

    @property
    def _replaced(self):
        """(starts of the paths that the old model alone has, and of those that stay as initialised in the new one)."""
        removed = {"keep": (), "reset": (*_HEADS, "pre_logits/"), "drop": _HEADS}[self.head]
        kept = _HEADS if self.head == "reset" else ()
        if getattr(self.target["variant"], "fc_norm", False) and not self.config["variant"].fc_norm:
            return (*removed, "encoder_norm/"), (*kept, "fc_norm/")
        return removed, kept

    @property
    def _fixed(self):
        """The fixed position table that becomes the first value of learned ones, or None."""
        spec, kind = self.config["variant"], getattr(self.config["variant"], "positions", None)
        if kind not in FIXED or self.target["variant"].positions != "learned":
            return None
        return fixed_table(kind, grid_size(self.config["image_size"], spec.stride), spec.positioned, spec.width)

    def _targets(self, targets):
        """({path: variable} of the new model's weights that the old one has, too, paths of tables that it computes)."""
        targets = {path: v for path, v in targets.items() if not path.startswith(self._replaced[1])}
        computed = [path for path in targets if _TABLE.fullmatch(path)] if self._fixed is not None else []
        return {path: v for path, v in targets.items() if path not in computed}, computed

    def unpack(
        self, name_map: NameMap, arrays: Mapping[str, np.ndarray], targets: Mapping[str, keras.Variable], where: Any
    ) -> dict[str, np.ndarray]:
        """{path: array} from a file with the old model, for the new model's {path: variable}; see name_map.unpack."""
        entries = {name: entry for name, entry in name_map.items() if not entry.ours[0].startswith(self._replaced[0])}
        arrays = {name: array for name, array in arrays.items() if name in entries or name not in name_map}
        # Resized the other way, zeros have the shapes in the file. Broadcast ones take no memory.
        zeros = {path: np.broadcast_to(np.float32(0), v.shape) for path, v in self._targets(targets)[0].items()}
        shapes = {path: a.shape for path, a in _resize(zeros, self.target, self.config, "google").items()}
        return unpack(entries, arrays, shapes, where)

    def assign(self, weights: Mapping[str, np.ndarray], targets: Mapping[str, keras.Variable]) -> None:
        """Assigns the old model's {path: array} to the new one's {path: variable}.

        Raises:
            ValueError: for an unknown method, or weights that do not fit.
        """
        check_method(self.method)
        stored, computed = self._targets(targets)
        weights = {path: array for path, array in weights.items() if not path.startswith(self._replaced[0])}
        weights |= dict.fromkeys(computed, self._fixed)
        weights = _resize(weights, self.config, self.target, self.method)
        assign({path: targets[path] for path in (*stored, *computed)}, weights)

    def build(self, weights: Mapping[str, np.ndarray]) -> Classifier:
        """The new model from the old one's {path: array}; ValueError as in `assign`, or if it cannot be built."""
        model = families.build(**self.target)
        self.assign(weights, variables(model))
        return model
