"""Checks arguments of models, and of functions of a model and a path; returns plain Python values."""

import collections
import re
import warnings

import keras
import numpy as np

from keras_vit.layers.arguments import integer, is_integer
from keras_vit.layers.embedding.patches import pair


def model_name(name: str | None, default: str) -> str:
    """The model's name, by default an unused vit_1, vit_2...; ValueError if Keras' weight paths cannot start so."""
    if name is not None and (not isinstance(name, str) or not name or "/" in name):
        raise ValueError(f'name must be text without "/", or None, got {name!r}.')
    return f"{default}_{keras.backend.get_uid(default)}" if name is None else str(name)


def image_input(image_size, channels, name: str, default: str):
    """A model's input, pixels 0..255 (b, height, width, c): "image", or "left_image" for a model called "left".

    The names let several models into one graph. Never uint8: Keras would truncate floats. ValueError for invalid sizes.
    """
    shape = (*pair(image_size, "image_size"), integer(channels, "channels"))
    return keras.Input(shape, dtype="float32", name="image" if name == default else f"{name}_image")


def class_count(classes) -> int | None:
    """The argument `classes`, a positive integer or None; ValueError for anything else."""
    if classes is not None and (not is_integer(classes) or classes < 1):
        raise ValueError(f"classes must be a positive integer, or None for a model without a head, got {classes!r}.")
    return None if classes is None else int(classes)


def float_policy(dtype):
    """Keras' dtype policy of `dtype`, a policy, its name or None; ValueError unless it computes in floating point."""
    policy = keras.dtype_policies.get(dtype or keras.config.dtype_policy())
    if "float" not in policy.compute_dtype:
        raise ValueError(
            f'dtype must be a policy of floating-point numbers, such as "float32" or "mixed_bfloat16", got {dtype!r}.'
        )
    return policy


def output_policy(policy, name):
    """The policy of the layer `name` that returns outputs: full precision, unless a DTypePolicyMap names the layer."""
    keys = policy if isinstance(policy, keras.dtype_policies.DTypePolicyMap) else ()
    return policy[name] if any(re.fullmatch(key, name) for key in keys) else policy.variable_dtype


def plain_remat(remat) -> bool | tuple[int, ...]:
    """`remat`, a bool, None or block numbers, as a bool or tuple; ValueError for others, such as the ambiguous 1."""
    if remat is None or isinstance(remat, (bool, np.bool_)):
        return bool(remat)
    numbers = sorted(remat) if isinstance(remat, (set, frozenset)) else remat
    if not isinstance(numbers, (list, tuple, range, np.ndarray)) or not all(map(is_integer, numbers)):
        raise ValueError(f"remat must be True, False or a tuple of block numbers, such as (0, 1), got {remat!r}.")
    return tuple(int(number) for number in numbers)


def blocks_to_remat(remat, count: int) -> set[int]:
    """The numbers of the rematerialised blocks, of `count`; ValueError for an invalid `remat` or block number."""
    remat = plain_remat(remat)
    blocks = set(range(count if remat else 0)) if isinstance(remat, bool) else set(remat)
    if not blocks <= set(range(count)):
        raise ValueError(
            f"remat names blocks {sorted(blocks - set(range(count)))}; the model has blocks 0 to {count - 1}."
        )
    return blocks


SHARED_NAMES = "Several classes have the same name"


def plain_names(class_names) -> tuple[str, ...]:
    """`class_names` as a tuple of strings; duplicates other than COCO's "N/A" trigger a warning, ValueError for text, a
    set or a dict.
    """
    if isinstance(class_names, (str, bytes, set, frozenset, dict)):
        shown = f'"{class_names}"' if isinstance(class_names, str) else repr(class_names)
        raise ValueError(f"class_names should be a list with one name per class, got {shown}.")
    names = class_names.tolist() if isinstance(class_names, np.ndarray) else list(class_names)
    wrong = [name for name in names if not isinstance(name, str) and not is_integer(name)]
    if wrong:
        raise ValueError(f"class_names must be text, got {wrong[0]!r}.")
    names = tuple(str(name) for name in names)
    twice = [name for name, count in collections.Counter(names).items() if count > 1 and name != "N/A"]
    if twice:
        warnings.warn(f"{SHARED_NAMES}: {', '.join(twice[:8])}.", stacklevel=2)
    return names


def check_count(class_names: tuple[str, ...] | None, classes: int | None) -> None:
    """Refuses names for another number of classes; ValueError with both numbers."""
    if class_names is not None and len(class_names) != classes:
        fix = (
            "leave them out, or set classes"
            if classes is None
            else f"set classes={len(class_names)}, or give all names"
        )
        raise ValueError(f"class_names has {len(class_names)} names for {classes or 'no'} classes: {fix}.")


def preprocessing_or_none(preprocessing) -> str | None:
    """The argument `preprocessing`, text or None; ValueError for anything else."""
    if not isinstance(preprocessing, str | None):
        raise ValueError(f'preprocessing must be text such as "decode|resize(224, 224)", got {preprocessing!r}.')
    return None if preprocessing is None else str(preprocessing)
