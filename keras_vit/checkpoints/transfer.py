"""Adapt a trained model to another task: another resolution, head or number of channels."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import keras
import numpy as np

from keras_vit.checkpoints.formats.evaluation_steps import of_channels
from keras_vit.checkpoints.resample import (
    adapt_constants,
    adapt_kernel,
    check_method,
    fold_normalisation,
    resample_axis,
    resample_offsets,
    resample_patches,
    resample_positions,
)
from keras_vit.fit.model import Model, describe_input
from keras_vit.io.class_names import DATA_SETS
from keras_vit.io.suggest import did_you_mean
from keras_vit.layers.dense import dense_config
from keras_vit.layers.embedding.patches import grid_size, pair
from keras_vit.layers.positions.embeddings import FIXED, fixed_table
from keras_vit.models import Classifier, families, taps
from keras_vit.models.arguments import Changes
from keras_vit.models.checks import check_count, plain_names, preprocessing_or_none
from keras_vit.models.fields import WEIGHTS, named

HEADS = ("keep", "reset", "drop")
# Arguments that can change.
_CHANGEABLE = ("image_size", "head", "classes", "class_names", "channels", "remat", "dtype", "name", "preprocessing")
_PATCHES = "patch_encoder/kernel"
_STEMS = ("stem_conv1/kernel", "stem_conv/kernel")  # applied to the image before the patches


def check_plain(model: Classifier, purpose: str) -> None:
    """Refuses a model with kernels that are not plain floating-point matrices.

    Args:
        model: a ViT or BiT.
        purpose: what needs plain kernels, the start of the message.

    Raises:
        ValueError: if it is quantised or has unmerged LoRA, with the remedy.
    """
    adapted = dense_config(model)
    if "quantization" in adapted:
        raise ValueError(
            f'{purpose} needs weights in floating point, and "{model.name}" is quantised'
            f" ({len(adapted['quantization'])} layers). Do it with the model that you quantised, and quantise the"
            " result; .keras files and exports keep quantised models."
        )
    if "lora" in adapted:
        raise ValueError(
            f'{purpose} needs plain kernels, and "{model.name}" has LoRA ({len(adapted["lora"])} layers). Write'
            " model.merge_lora() first, or merge a copy, model.clone(); .keras files and exports keep LoRA as it is."
        )


def model_weights(model: Classifier) -> dict[str, np.ndarray]:
    """{path without the model's name: array} of a model's weights, without seed generators."""
    prefix = f"{model.name}/"
    return {v.path.removeprefix(prefix): keras.ops.convert_to_numpy(v) for v in model.weights}


def classifier_in(model: keras.Model) -> Classifier:
    """The ViT or BiT that a model is built on: itself, or a headless one with a copy of its weights.

    Args:
        model: a keras_vit.Model; one for pre-training counts by its `get_encoder`.

    Raises:
        ValueError: if it is not built on one ViT or BiT.
    """
    model = model.get_encoder()
    if isinstance(model, Classifier):
        return model
    holder, _ = taps.encoder_in(model)
    if isinstance(holder, Classifier):
        return holder
    if model.spec is None or model.image_size is None:
        raise ValueError(f'"{model.name}" is not built on one {families.any_name()} that takes its images.')
    check_plain(holder, f"Taking a {families.any_name()} out of a model")
    bare = families.build(
        model.spec,
        image_size=model.image_size,
        classes=None,
        channels=model.channels,
        preprocessing=model.preprocessing,
        dtype=model.dtype_policy,
    )
    for layer in bare.layers:
        if layer.weights:
            layer.set_weights(holder.get_layer(layer.name).get_weights())
    return bare


def assign(model: Classifier, weights: Mapping[str, np.ndarray], keep: Sequence[str] = ()) -> None:
    """Assigns `weights`, {path: array}; weights with paths that start with one of `keep` stay.

    ValueError lists weights without a value, values without a weight, and different shapes.
    """
    prefix = f"{model.name}/"
    target = {
        v.path.removeprefix(prefix): v for v in model.weights if not v.path.removeprefix(prefix).startswith(tuple(keep))
    }
    mismatches = [
        f"{path}: {weights[path].shape} to {tuple(v.shape)}"
        for path, v in target.items()
        if path in weights and weights[path].shape != tuple(v.shape)
    ]
    missing, unexpected = sorted(target.keys() - weights.keys()), sorted(weights.keys() - target.keys())
    if missing or unexpected or mismatches:
        raise ValueError(
            f"The weights do not fit the new model. Weights without values: {missing}; unused values: {unexpected};"
            f" other shapes: {mismatches}."
        )
    for path, variable in target.items():
        variable.assign(weights[path])


def without_own_head(model: keras.Model, head: str) -> Classifier:
    """The ViT or BiT to adapt: for `head` "reset" or "drop" also the one inside a model built on it.

    Raises:
        ValueError: if the head to keep is not a ViT's or BiT's.
    """
    if isinstance(model, Classifier):
        return model
    if head == "keep" or not isinstance(model, Model):
        inner = families.any_name()
        raise ValueError(
            f'"{model.name}" is a {type(model).__name__} built on a {inner}; loading with changes cannot keep its head.'
            f' head="drop" loads the {inner} inside it, head="reset" with classes=... gives it a new head; or rebuild'
            f" the model on a {inner} that was loaded with these changes."
        )
    return classifier_in(model)


def _check_head(head, classes, old):
    if head not in HEADS:
        raise ValueError(f'Unknown head "{head}".{did_you_mean(head, HEADS)} Valid: {", ".join(HEADS)}.')
    if head != "reset" and classes is not None and classes != old:
        raise ValueError(f'head="{head}" cannot have {classes} classes: the model has {old}. Use head="reset".')
    if head == "reset" and classes is None:
        raise ValueError('head="reset" needs classes, the number of classes of the new task.')


def read_class_names(names: Any) -> Any:
    """A list of names; those of a data set for a key of DATA_SETS, the lines of a file for its path.

    Raises:
        ValueError: for any other text, since its letters would be the names.
    """
    if not isinstance(names, (str, os.PathLike)):
        return names
    if names in DATA_SETS:
        return DATA_SETS[names]()
    from keras_vit.io.paths import locate, read_text

    try:
        lines = read_text(locate(os.fspath(names))).splitlines()
    except FileNotFoundError:
        quoted = ", ".join(f'"{known}"' for known in DATA_SETS)
        raise ValueError(
            f"class_names should be a list with one name per class, a file with one per line, or one of {quoted}, got"
            f' "{names}", and there is no such file.'
        ) from None
    return tuple(line.strip() for line in lines if line.strip())


def _check_fixed(spec, changes):
    """Refuses changes of fields that the weights determine: ValueError with each, and those that can change."""
    family = families.find(spec)
    given = {name: changes[name] for name in family.fields if name in changes}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    wanted = {name: value for name, value in given.items() if spec.fixes(name, value)}
    if wanted:
        own = ", ".join(f"{name}={getattr(spec, name)!r}" for name in wanted)
        changeable = [*_CHANGEABLE, *(name for name in family.fields if name not in named(type(spec), WEIGHTS))]
        raise ValueError(
            f"{', '.join(f'{name}={value!r}' for name, value in wanted.items())}: the weights fix {own}, which loading"
            f" cannot change. What can change: {', '.join(changeable)}. For another architecture create a new model,"
            f" keras_vit.{family.name}(...)."
        )


def adapted_arguments(
    config: Mapping[str, Any],
    image_size: int | tuple[int, int] | None = None,
    classes: int | None = None,
    class_names: Sequence[str] | str | os.PathLike | None = None,
    head: str = "keep",
    **changes: Any,
) -> dict[str, Any]:
    """The constructor's arguments of the model that `transfer` makes from `config`; other arguments as there.

    Args:
        config: the model's arguments, with its spec under "variant".

    Raises:
        ValueError: as `transfer`.
    """
    spec: Any = config["variant"]
    _check_head(head, classes, config["classes"])
    class_names = read_class_names(class_names)
    new = {**config, "image_size": config["image_size"] if image_size is None else pair(image_size, "image_size")}
    if head == "reset":
        spec = spec.with_new_head(changes)
        new.update(classes=classes, class_names=class_names)
    _check_fixed(spec, changes)
    if head == "drop":
        new.update(classes=None, class_names=None)
    elif head == "keep" and class_names is not None:
        new.update(class_names=class_names)
    if tuple(new["image_size"]) != tuple(config["image_size"]):
        new["preprocessing"] = None  # it is for the old size
    if "channels" in changes:
        new["preprocessing"] = of_channels(new["preprocessing"], changes["channels"])
    for name in ("remat", "preprocessing", "name", "dtype", "channels"):
        new[name] = changes.pop(name, new[name])
    if new["channels"] != config["channels"]:
        if getattr(spec, "palette", None) is not None:
            raise ValueError(
                f"channels={new['channels']}: the palette's colours have {config['channels']} values. Leave channels"
                " out."
            )
        for name in ("mean", "std"):
            changes.setdefault(name, adapt_constants(getattr(spec, name), new["channels"]))
    if "pool" in changes and spec.has_tokens:
        changes["class_token"] = spec.class_token  # another pooling leaves the tokens as they are
    return {**new, "variant": families.find(spec).make_spec(spec, **changes)}


def _resized(weights, spec, new_spec, config, target, method):
    """The weights for another resolution, patch size and channels: from (spec, config) to (new_spec, target)."""
    weights = dict(weights)
    check_method(method)
    if getattr(spec, "positions", None) in FIXED and new_spec.positions == "learned":
        table = fixed_table(spec.positions, grid_size(config["image_size"], spec.stride), spec.positioned, spec.width)
        numbers = [f"_{i:02d}" for i in range(spec.depth)] if spec.positions_at == "every" else [""]
        weights.update({f"position_embedding{number}/embedding": table for number in numbers})
    channels = target["channels"]
    first = next((name for name in _STEMS if name in weights), _PATCHES)
    if _PATCHES in weights and new_spec.patch_size != spec.patch_size:
        weights[_PATCHES] = resample_patches(weights[_PATCHES], new_spec.patch_size)
    if channels != config["channels"] and first in weights:
        if channels == 1 and first == _PATCHES and "patch_encoder/pixel_norm/gamma" not in weights:
            bias = _PATCHES.replace("kernel", "bias")
            if bias not in weights:
                raise ValueError(
                    f"channels=1: patches without a bias (pre_norm={spec.pre_norm}) cannot take on the normalisation of"
                    f" {config['channels']} channels. Repeat the grey channel instead."
                )
            folded = fold_normalisation(
                weights[first], weights[bias], (spec.mean, spec.std), (new_spec.mean, new_spec.std)
            )
            weights[first], weights[bias] = folded
        weights[first] = adapt_kernel(weights[first], channels)
    new_tables = new_spec.offset_tables(target["image_size"])
    for path, size in spec.offset_tables(config["image_size"]).items():
        weights[path] = resample_offsets(weights[path], size, new_tables[path], method)
    if not spec.has_tokens:
        return weights
    old_grid, new_grid = (grid_size(c["image_size"], s.strides[0]) for c, s in ((config, spec), (target, new_spec)))
    return weights if old_grid == new_grid else _on_grid(weights, spec, old_grid, new_grid, method)


def _on_grid(weights, spec, old_grid, new_grid, method):
    """The weights resampled to another patch grid; ValueError for positions that mean something else there."""
    kind = getattr(spec, "positions", None)
    along_rows = kind == "relative" or (kind == "sincos1d" and old_grid[1] != new_grid[1])
    if along_rows:
        raise ValueError(
            f'positions="{kind}" count patches along the rows of a grid of {old_grid[0]}x{old_grid[1]}, and'
            f" mean other places on one of {new_grid[0]}x{new_grid[1]}: they cannot be resampled. Keep the number of"
            " patches, or train with other positions."
        )
    weights = dict(weights)
    for path, array in weights.items():
        if re.fullmatch(r"position_embedding(_\d+)?/embedding", path):
            weights[path] = resample_positions(array, old_grid, new_grid, spec.positioned, method)
        elif re.fullmatch(r"position_embedding(_\d+)?/embedding/[xy]", path):
            weights[path] = resample_axis(array, new_grid[path[-1] == "x"], method)
    return weights


def describe(
    model: Model, class_names: Sequence[str] | str | os.PathLike | None = None, **preprocessing: str | None
) -> None:
    """Sets a model's class names or evaluation preprocessing in place; neither is part of its graph.

    Args:
        class_names: as in `transfer`; None leaves them.
        **preprocessing: `preprocessing=...`, text or None; left out, it stays.

    Raises:
        ValueError: if the number of names differs from the classes, or for invalid preprocessing.
    """
    if class_names is not None:
        names = plain_names(read_class_names(class_names))
        check_count(names, model.classes)
        model.class_names = names
    if preprocessing:
        model.preprocessing = preprocessing_or_none(**preprocessing)
        describe_input(model.input, model.spec, model.preprocessing, model.dtype_policy)  # for models built on it


def adapt(
    config: Mapping[str, Any],
    weights: Mapping[str, np.ndarray],
    image_size: int | tuple[int, int] | None = None,
    classes: int | None = None,
    class_names: Sequence[str] | str | os.PathLike | None = None,
    head: str = "keep",
    resample: str = "google",
    model: Classifier | None = None,
    activation: str | None = None,
    **changes: Any,
) -> Classifier:
    """A model from constructor arguments and another one's weights; other arguments as in `transfer`.

    Args:
        config: the model's arguments, with its spec under "variant".
        weights: {path: array}.
        model: a model of `config`, used if nothing changes.
        activation: from its head's logits to probabilities, see training.Model; kept or dropped with the head.
    """
    spec = config["variant"]
    target = adapted_arguments(config, image_size, classes, class_names, head, **changes)
    if model is None or {**target, "preprocessing": None} != {**config, "preprocessing": None}:
        model = families.build(**target)
    describe(model, preprocessing=target["preprocessing"])
    model.activation = activation if head == "keep" else None
    weights = _resized(weights, spec, target["variant"], config, target, resample)
    removed = {"keep": (), "reset": ("head/", "head_dist/", "pre_logits/"), "drop": ("head/", "head_dist/")}[head]
    kept: tuple[str, ...] = ("head/", "head_dist/") if head == "reset" else ()
    if getattr(target["variant"], "fc_norm", False) and not spec.fc_norm:
        removed, kept = (*removed, "encoder_norm/"), (*kept, "fc_norm/")
    weights = {path: a for path, a in weights.items() if not path.startswith(removed)}
    assign(model, weights, keep=kept)
    return model


def transfer(
    model: Classifier,
    image_size: int | tuple[int, int] | None = None,
    classes: int | None = None,
    class_names: Sequence[str] | str | os.PathLike | None = None,
    head: str = "keep",
    resample: str = "google",
    **changes: Unpack[Changes],
) -> Classifier:
    """A new model with the weights of `model`.

    Args:
        model: a ViT or BiT; with head="reset" or "drop" also a keras_vit.Model built on one, which loses its own head.
        image_size: pixels, a number or (height, width). Positions are resampled, the patch size stays; None for the
            model's.
        classes, class_names: of the new head; with the old head, class_names names its classes. Names may be a file
            with one per line, or "imagenet" for ImageNet-1k's 1000, "cifar10", "cifar100" or "coco" (91).
        head: "keep"; "reset" for a new zero head instead of the old one and pre_logits; "drop" for a model that returns
            features.
        resample: a row of resample.METHODS. How to resample positions.
        **changes: constructor arguments, such as dropout, drop_path, remat, dtype; channels (RGB weights are summed for
            1 channel, repeated for more); patch_size (the kernel is resampled as in FlexiViT). What the weights
            determine cannot change.

    Raises:
        ValueError: for a change that the weights do not allow; a quantised model or LoRA; weights without a value,
            values without a weight, or different shapes, all listed.
    """
    if not isinstance(model, keras.Model):
        raise ValueError(
            f"transfer takes a {families.any_name()}, got a {type(model).__name__}. keras_vit.load loads and"
            " transfers a file."
        )
    model = without_own_head(model, head)
    given = {
        "image_size": image_size,
        "classes": classes,
        "class_names": class_names,
        "head": None if head == "keep" else head,
        **changes,
    }
    named = ", ".join(name for name, value in given.items() if value is not None or name in changes)
    check_plain(model, f"Another {named}" if named else "A transfer")
    config = {**model.arguments(), "variant": model.spec}
    activation = model.activation
    return adapt(
        config, model_weights(model), image_size, classes, class_names, head, resample, activation=activation, **changes
    )
