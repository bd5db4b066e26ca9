"""A trained model made ready for another task: another resolution, another head, other channels."""

import dataclasses

import keras
import numpy as np

from keras_vit.checkpoints.channels import adapt_constants, adapt_kernel, fold_normalisation
from keras_vit.checkpoints.resample import check_method, resample_patches, resample_positions
from keras_vit.layers.patches import grid_size, pair
from keras_vit.models import BiT, BiTSpec, ViT, make_bit_spec, make_spec

HEADS = ("keep", "reset", "drop")
_PATCHES = "patch_encoder/kernel"
_POSITIONS = "position_embedding/embedding"


def model_weights(model):
    """{path without the model's own name: array} of a model's weights, seed generators left out."""
    prefix = f"{model.name}/"
    return {v.path.removeprefix(prefix): keras.ops.convert_to_numpy(v) for v in model.weights}


def assign(model, weights, keep=()):
    """Puts `weights`, {path: array}, into the model; those whose paths start with `keep` stay as they are.

    Raises:
        ValueError: if weights would be left without values, or values without a weight, or shapes differ, listing them.
    """
    prefix = f"{model.name}/"
    target = {v.path.removeprefix(prefix): v for v in model.weights if not v.path.removeprefix(prefix).startswith(tuple(keep))}
    wrong = [
        f"{path}: {weights[path].shape} to {tuple(v.shape)}"
        for path, v in target.items()
        if path in weights and weights[path].shape != tuple(v.shape)
    ]
    missing, unexpected = sorted(target.keys() - weights.keys()), sorted(weights.keys() - target.keys())
    if missing or unexpected or wrong:
        raise ValueError(
            f"The weights do not fit the new model. Without values: {missing}; left over: {unexpected}; other shapes: {wrong}."
        )
    for path, variable in target.items():
        variable.assign(weights[path])


def _check_head(head, classes, old):
    if head not in HEADS:
        raise ValueError(f'Unknown head "{head}". Valid: {", ".join(HEADS)}.')
    if head != "reset" and classes is not None and classes != old:
        raise ValueError(f'head="{head}" cannot have {classes} classes: the model has {old}. Use head="reset".')
    if head == "reset" and classes is None:
        raise ValueError('head="reset" needs classes, the number of the new task\'s.')


def _new_config(config, spec, image_size, classes, class_names, head, changes):
    """The constructor's arguments of the model that is to be made; `changes` is used up."""
    _check_head(head, classes, config["classes"])
    new = {**config, "image_size": config["image_size"] if image_size is None else pair(image_size, "image_size")}
    if head == "reset":
        # The paper's transfer: the hidden layer goes with the head; one zero-initialised linear layer comes.
        fresh = {"head_bias": 0.0} if isinstance(spec, BiTSpec) else {"pre_logits": None, "head_bias": 0.0}
        changes = {**fresh, **changes}
        new.update(classes=classes, class_names=class_names, preprocessing=None)
    elif head == "drop":
        new.update(classes=None, class_names=None)
    elif class_names is not None:
        new.update(class_names=class_names)
    if tuple(new["image_size"]) != tuple(config["image_size"]):
        new["preprocessing"] = None  # it names the old size
    for name in ("remat", "preprocessing", "name", "dtype", "channels"):
        new[name] = changes.pop(name, new[name])
    if new["channels"] != config["channels"]:
        for name in ("mean", "std"):
            changes.setdefault(name, adapt_constants(getattr(spec, name), new["channels"]))
    make = make_bit_spec if isinstance(spec, BiTSpec) else make_spec
    return {**new, "variant": make(spec, **changes)}


def _resized(weights, spec, new, config, target, method):
    """The weights for another resolution, patch size and channels: from (spec, config) to (new, target)."""
    weights = dict(weights)
    check_method(method)
    channels = target["channels"]
    first = "stem_conv/kernel" if "stem_conv/kernel" in weights else _PATCHES
    if _PATCHES in weights and new.patch_size != spec.patch_size:
        weights[_PATCHES] = resample_patches(weights[_PATCHES], new.patch_size)
    if channels != config["channels"] and first in weights:
        if channels == 1 and first == _PATCHES and not spec.patch_norm:
            bias = _PATCHES.replace("kernel", "bias")
            folded = fold_normalisation(weights[first], weights[bias], (spec.mean, spec.std), (new.mean, new.std))
            weights[first], weights[bias] = folded
        weights[first] = adapt_kernel(weights[first], channels)
    if _POSITIONS in weights:
        old_grid, new_grid = (grid_size(c["image_size"], s.stride) for c, s in ((config, spec), (target, new)))
        weights[_POSITIONS] = resample_positions(weights[_POSITIONS], old_grid, new_grid, spec.positioned, method)
    return weights


def adapt(
    config, weights, image_size=None, classes=None, class_names=None, head="keep", resample="google", ready=None, **changes
):
    """A new model from another's constructor arguments and weights; the rest as in `transfer`.

    Args:
        config: of a ViT or BiT, with a ViTSpec or BiTSpec under "variant".
        weights: {path: array}.
        ready: a model of `config`, which is filled and returned where nothing is to be changed.
    """
    spec = config["variant"]
    target = _new_config(config, spec, image_size, classes, class_names, head, dict(changes))
    if ready is None or {**target, "preprocessing": None} != {**config, "preprocessing": None}:
        ready = (BiT if isinstance(spec, BiTSpec) else ViT)(**target)
    model = ready
    model.preprocessing = target["preprocessing"]
    weights = _resized(weights, spec, target["variant"], config, target, resample)
    gone = {"keep": (), "reset": ("head/", "head_dist/", "pre_logits/"), "drop": ("head/", "head_dist/")}[head]
    weights = {path: a for path, a in weights.items() if not path.startswith(gone)} if gone else weights
    assign(model, weights, keep=("head/", "head_dist/") if head == "reset" else ())
    return model


def source_config(model):
    """What `adapt` takes as `config`, of a model."""
    config = model.get_config()
    spec = model.spec
    assert dataclasses.is_dataclass(spec)
    return {**config, "variant": spec}


def transfer(model, image_size=None, classes=None, class_names=None, head="keep", resample="google", **changes):
    """Returns a new model with `model`'s weights.

    Args:
        model: a ViT or BiT.
        image_size: pixels, a number or (height, width); positions are resampled, the patch size stays. None for the model's.
        classes, class_names: of the new head.
        head: "keep"; "reset" for a new zero head (the old one goes, pre_logits too); "drop" for none: features come out.
        resample: how positions are resampled, a row of resample.METHODS.
        **changes: constructor arguments: dropout, drop_path, remat, dtype...; channels (RGB weights are summed into 1, tiled into
            others); patch_size (the patch kernel is resampled as FlexiViT's).

    Raises:
        ValueError: if weights would be left without values, or values without a weight, listing them.
    """
    seeds = {path: np.asarray(a) for path, a in model_weights(model).items()}
    return adapt(source_config(model), seeds, image_size, classes, class_names, head, resample, **changes)
