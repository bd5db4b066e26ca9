"""How examples weigh in losses and metrics, and what becomes of a model's weights after an error."""

import contextlib
from collections.abc import Iterator

import keras
from keras import ops

from keras_vit.fit.losses import sums_over_batch


def per_example(weights, outputs):
    """Weights as they are; of a structure of one, for the model's only output, that one."""
    each = keras.tree.flatten(weights) if keras.tree.is_nested(weights) else []
    return each[0] if len(each) == 1 and not keras.tree.is_nested(outputs) else weights


def per_value(weights, outputs):
    """Weights (b,) for every output: (b,) for an output (b, c), (b, h, w) for (b, h, w, c), as Keras' losses need.

    Args:
        weights: None, one tensor for all outputs, or one each. Weights of another shape than (b,) stay.
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


@contextlib.contextmanager
def weights_kept(model: keras.Model) -> Iterator[None]:
    """Gives a model its weights back after an error, such as one in its data.

    On JAX, Keras' loops take the values out of the variables, and put them back only at the end.
    """
    if keras.backend.backend() != "jax":
        yield
        return
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.variables, *model.metrics_variables, *(optimizer.variables if optimizer else ())]
    before = [variable.value for variable in variables]  # donated to the first step, and deleted by it
    try:
        yield
    except BaseException:
        model.jax_state_sync()
        for variable, value in zip(variables, before):
            if variable._value is None:
                variable._value = value
        model._jax_state = None
        raise


def check_parts(model) -> None:
    """Refuses (ValueError) a sum loss with regularizers over micro-batches, each of which would add them again."""
    if model.micro_batches > 1 and sums_over_batch(model.loss) and model.losses:
        raise ValueError(
            'With reduction="sum" and micro_batches, the model\'s regularizers would count once for every micro-batch.'
            " Use the default reduction, or the optimizer's weight_decay."
        )


def per_counted(weights):
    """A batch's weights, scaled so that a loss that Keras divides by their number is divided by the non-zero ones.

    Evaluation pads with weight 0: otherwise a half-padded batch would report half its loss.
    """

    def scaled(weight):
        if weight is None:
            return None
        weight = ops.cast(weight, "float32")
        return weight * (ops.cast(ops.size(weight), "float32") / ops.maximum(_counted(weight, "float32"), 1.0))

    return keras.tree.map_structure(scaled, weights, none_is_leaf=True)


def _counted(weight, dtype):
    """The number of non-zero weights, a scalar."""
    return ops.sum(ops.cast(weight != 0, dtype))


class RunningLoss(keras.metrics.Mean):
    """The loss of fit and evaluate: sum(weight * loss) over the number of examples with non-zero weight, so far.

    Attributes, set while a step is traced:
        weights: of the batch's examples; None where all count, or the loss is a sum.
        is_mean: whether the batch's losses are divided by the examples that count, rather than by all of them.
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
