"""Operations of forward pass and training step: matrix products and convolutions, 2 per multiply-add."""

import keras

from keras_vit.models.families import Spec
from keras_vit.planning import counting
from keras_vit.planning.model_counts import count, counted_layers


def forward_flops(
    spec: Spec, image_size: int | tuple[int, int] = 224, channels: int = 3, classes: int | None = 1000
) -> int:
    """Operations of one image's forward pass, head included; arguments and errors as in `counting.layer_counts`."""
    return counting.flops(counting.layer_counts(spec, image_size, classes, channels))


def run_costs(model: keras.Model, examples: int) -> dict[str, int]:
    """{"forward_flops": per image, "training_flops": for all `examples`}; {} if the model cannot be counted."""
    try:
        rows = count(model)
    except ValueError:  # shapes known only at run time
        return {}
    if any(row.flops is None for row in rows):  # a custom layer
        return {}
    return {"forward_flops": counting.flops(rows), "training_flops": training_flops(model) * examples}


def training_flops(model: keras.Model) -> int:
    """Operations of one image's training step, for a model that `count` accepts.

    The sum of the forward pass, as much again for the gradients of trainable weights, and for those of activations down
    to the lowest trainable layer: three forward passes if all weights train, hardly more than one if only a head does.
    """
    layers = [(row.flops or 0, bool(layer.trainable_variables)) for row, layer in counted_layers(model)]
    lowest = next((i for i, (_, trains) in enumerate(layers) if trains), len(layers))
    weights = sum(cost for cost, trains in layers if trains)
    return sum(cost for cost, _ in layers) + weights + sum(cost for cost, _ in layers[lowest:])
