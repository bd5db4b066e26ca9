"""Which weights train: by name pattern, or the head only."""

import fnmatch

import keras


def freeze(model, patterns):
    """Freezes the layers whose names match any of `patterns`, with * and ? as in file names: "block_0*", "patch_encoder".

    Returns the frozen names. Call it before compile.

    Raises:
        ValueError: if a pattern matches no layer.
    """
    names = [layer.name for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]
    frozen = set()
    for pattern in patterns:
        matched = fnmatch.filter(names, pattern)
        if not matched:
            raise ValueError(f'No layer matches "{pattern}". Layers: {", ".join(names)}.')
        frozen.update(matched)
    for name in frozen:
        model.get_layer(name).trainable = False
    return sorted(frozen)


def freeze_all_but_head(model):
    """Linear probing: only "head", and "head_dist" of a DeiT with two heads, train. Returns the frozen names."""
    return freeze(model, [layer.name for layer in model.layers if layer.name not in ("head", "head_dist", "image")])
