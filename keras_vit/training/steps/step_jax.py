"""A training step in micro-batches on the JAX backend. The program is global, so Keras' distributions need no other correction."""

import jax
import keras


def _parts(batch, parts):
    """(b, ...) -> (parts, b / parts, ...) in every leaf. Part i has the rows i, i + parts...: every device keeps its own rows."""

    def split(x):
        if x.shape[0] % parts:
            raise ValueError(f"A batch of {x.shape[0]} cannot be split into {parts} micro-batches: choose a divisor of it.")
        return x.reshape(x.shape[0] // parts, parts, *x.shape[1:]).swapaxes(0, 1)

    return jax.tree.map(split, batch)


def accumulated_step(model, state, batch):
    """One update from `model.micro_batches` parts of a batch, only one of which is in memory at a time.

    The arguments and results are those of Keras' JAX train_step: (state, batch) -> (logs, state).
    """
    trainable, non_trainable, optimizer_variables, metrics = state
    gradient = jax.value_and_grad(model.compute_loss_and_updates, has_aux=True)

    def part(carry, data):
        non_trainable, metrics, sums = carry
        x, y, weights = data
        (_, aux), gradients = gradient(
            trainable, non_trainable, metrics, x, y, weights, training=True, optimizer_variables=optimizer_variables
        )
        loss, y_pred, non_trainable, metrics = aux
        with model.weighing(weights, is_mean=False):
            logs, metrics = model._update_metrics_variables(metrics, loss, x, y, y_pred, weights)
        sums = [s + g / model.micro_batches for s, g in zip(sums, gradients)]
        return (non_trainable, metrics, sums), logs

    parts = _parts(keras.utils.unpack_x_y_sample_weight(batch), model.micro_batches)
    start = (non_trainable, metrics, [jax.numpy.zeros_like(v) for v in trainable])
    (non_trainable, metrics, gradients), logs = jax.lax.scan(part, start, parts)
    trainable, optimizer_variables = model.optimizer.stateless_apply(optimizer_variables, gradients, trainable)
    logs = jax.tree.map(lambda each: each[-1], logs)  # (parts, ...) -> (...)
    return logs, (trainable, non_trainable, optimizer_variables, metrics)
