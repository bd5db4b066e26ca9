"""Freezing layers, by name patterns or all but the head."""

import fnmatch
from collections.abc import Sequence

import keras

from keras_vit.models import taps


def freeze(model: keras.Model, patterns: Sequence[str]) -> list[str]:
    """Freezes layers in place by name. Call it before compile.

    Args:
        model: the model to freeze layers of.
        patterns: one or several, with * and ? as in file names: "block_0*", "patch_encoder".

    Returns:
        The names of the frozen layers, sorted.

    Raises:
        ValueError: if a pattern matches no layer.
    """
    names = [layer.name for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]
    frozen = set()
    for pattern in [patterns] if isinstance(patterns, str | int) else patterns:
        matched = fnmatch.filter(names, str(pattern))
        if not matched:
            raise ValueError(f'No layer matches "{pattern}". Layers: {", ".join(names)}.')
        frozen.update(matched)
    for name in frozen:
        model.get_layer(name).trainable = False
    return sorted(frozen)


def freeze_all_but_head(model: keras.Model) -> list[str]:
    """Linear probing: trains only the layers after the features, or after tokens or feature map without pooling.

    Args:
        model: a ViT or BiT, or a model built on one or calling one; frozen in place. Call it before compile.

    Returns:
        The names of the frozen layers, sorted.

    Raises:
        ValueError: if nothing would train, or the model does not contain one ViT or BiT.
    """
    trunk = [layer for layer in taps.trunk(model) if not isinstance(layer, keras.layers.InputLayer)]
    frozen = {id(weight) for layer in trunk for weight in layer.trainable_weights}
    if all(id(weight) in frozen for weight in model.trainable_weights):
        raise ValueError(f'"{model.name}" has no head that could train: nothing trainable comes after its features.')
    for layer in trunk:
        layer.trainable = False
    return sorted({layer.name for layer in trunk})
