"""Weights of examples in losses and metrics: how they reach every value of a dense output, and what a batch's mean
divides by.
"""

import keras
from keras import ops


def per_value(weights, outputs):
    """Weights (b,) for every output: (b,) for an output (b, c), (b, h, w) for one of (b, h, w, c), as Keras' losses and
    metrics need.

    Args:
        weights: None, one tensor for all outputs, or a tensor for each. Weights of another shape than (b,) stay as they
            are.
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
    if not keras.tree.is_nested(outputs) and len(each) == 1:
        return spread(each[0], outputs)
    if len(each) != len(flat):
        raise ValueError(
            f"There are sample weights for {len(each)} outputs, and the model has {len(flat)}. Give one for each, or"
            " None."
        )
    return keras.tree.pack_sequence_as(weights, [spread(weight, output) for weight, output in zip(each, flat)])


def check_unweighted(weights) -> None:
    """Refuses weights of examples that are mixed with each other.

    Raises:
        ValueError: unless the weights are None.
    """
    if weights is not None:
        raise ValueError(
            "model.mixing mixes pairs of examples, so that sample_weight and class_weight have no one example to belong"
            " to. Leave one of the two out, or weight classes in the loss: SoftmaxCrossEntropy(class_weights=...)."
        )


def sum_of_weights(weights):
    """The sum of the weights of some examples: what a loss with reduction="mean_with_sample_weight" divides by.

    Raises:
        ValueError: for weights of each output, which have no one sum.
    """
    each = keras.tree.flatten(weights)
    if len(each) > 1:
        raise ValueError(
            'With reduction="mean_with_sample_weight" and weights for each output, the parts of a batch have no one'
            " share: use the default reduction under several replicas or micro_batches."
        )
    return ops.sum(ops.cast(each[0], "float32"))


def check_parts(model) -> None:
    """Refuses what would not add up over micro-batches.

    Raises:
        ValueError: for a loss that is a sum, with regularizers, which each micro-batch would add again.
    """
    if model.micro_batches > 1 and sums_over_batch(model.loss) and model.losses:
        raise ValueError(
            'With reduction="sum" and micro_batches, the model\'s regularizers would count once for every micro-batch.'
            " Use the default reduction, or the optimizer's weight_decay."
        )


def per_counted(weights):
    """The weights of a batch, scaled so that a loss that Keras divides by their number is divided by those that are not
    0.

    Rows of weight 0 are padding in evaluation: a batch of which half is padding would report half its loss.
    """

    def scaled(weight):
        if weight is None:
            return None
        weight = ops.cast(weight, "float32")
        return weight * (ops.cast(ops.size(weight), "float32") / ops.maximum(_counted(weight, "float32"), 1.0))

    return keras.tree.map_structure(scaled, weights, none_is_leaf=True)


def _counted(weight, dtype):
    """How many of the weights are not 0, a scalar."""
    return ops.sum(ops.cast(weight != 0, dtype))


class RunningLoss(keras.metrics.Mean):
    """The loss of fit and evaluate: sum(weight * loss) over the number of examples whose weight is not 0, so far.

    Attributes, set while a step is traced:
        weights: of the batch's examples; None where all count, or the loss is a sum.
        is_mean: whether the losses of the batch are already divided by the examples that count, or else by all of them.
        by_weight: whether they are divided by the sum of the weights (reduction="mean_with_sample_weight").
    """

    weights = None
    is_mean = True
    by_weight = False

    def update_state(self, values, sample_weight=None):
        if self.weights is None:
            return super().update_state(values, sample_weight=sample_weight)
        weights = ops.cast(self.weights, self.dtype)
        if self.by_weight:
            return super().update_state(values, sample_weight=ops.sum(weights))
        counted = _counted(weights, self.dtype)
        if not self.is_mean:
            values = values * ops.divide_no_nan(ops.cast(ops.size(weights), self.dtype), counted)
        return super().update_state(values, sample_weight=counted)


def divides_by_weights(loss) -> bool:
    """Whether a compiled loss, or each of a structure of them, is divided by the sum of the weights."""
    losses = [one for one in keras.tree.flatten(loss) if one is not None]
    return bool(losses) and all(getattr(one, "reduction", None) == "mean_with_sample_weight" for one in losses)


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
