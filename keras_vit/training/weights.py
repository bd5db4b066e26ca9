"""Weights of examples in losses and metrics: how they reach every value of a dense output, and what a batch's mean divides by."""

import keras
from keras import ops


def per_value(weights, outputs):
    """Weights (b,) for every output: (b,) for an output (b, c), (b, h, w) for one of (b, h, w, c), as Keras' losses and metrics need.

    Args:
        weights: None, one tensor for all outputs, or a tensor for each. Weights of another shape than (b,) stay as they are.
        outputs: the model's output, or a structure of outputs.
    """
    if weights is None:
        return None

    def spread(weight, output):
        if weight is None or len(weight.shape) != 1 or len(output.shape) <= 2:
            return weight
        column = ops.reshape(weight, (-1, *[1] * (len(output.shape) - 2)))
        return ops.broadcast_to(column, ops.shape(output)[:-1])

    if not keras.tree.is_nested(weights):
        return keras.tree.map_structure(lambda output: spread(weights, output), outputs)
    each, flat = keras.tree.flatten(weights), keras.tree.flatten(outputs)
    if len(each) != len(flat):
        raise ValueError(
            f"There are sample weights for {len(each)} outputs, and the model has {len(flat)}. Give one for each, or None."
        )
    return keras.tree.pack_sequence_as(weights, [spread(weight, output) for weight, output in zip(each, flat)])


def with_mean_one(weights):
    """The weights of a batch, scaled so that a loss that Keras divides by their number is their weighted mean.

    Without it, a batch of which half is padding (weight 0) would report half its loss.
    """

    def scaled(weight):
        if weight is None:
            return None
        weight = ops.cast(weight, "float32")
        return weight * (ops.cast(ops.size(weight), "float32") / ops.maximum(ops.sum(weight), 1e-12))

    return keras.tree.map_structure(scaled, weights, none_is_leaf=True)


def sums_over_batch(loss) -> bool:
    """Whether a compiled loss, or each of a structure of them, is a sum over the batch rather than a mean.

    Raises:
        ValueError: for sums and means together: they would need different shares of a replica and of a micro-batch.
    """
    sums = {getattr(one, "reduction", None) == "sum" for one in keras.tree.flatten(loss) if one is not None}
    if len(sums) > 1:
        raise ValueError(
            "Some losses have reduction='sum' and others are means over the batch: give them all the same reduction."
        )
    return sums == {True}
