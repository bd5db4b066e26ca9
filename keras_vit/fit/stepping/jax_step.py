"""Additions to Keras' training step on JAX. The program is global: Keras' distributions need no other correction."""

import itertools

import jax
import keras
import numpy as np

from keras_vit.fit.losses import divides_by_weights, sum_of_weights, sums_over_batch


def _rows(batch):
    return jax.tree.leaves(batch)[0].shape[0]


def _parts(batch, count):
    """(b, ...) -> (count, b / count, ...) in every leaf. Part i has rows i, i + count...: devices keep their rows."""
    return jax.tree.map(lambda x: x.reshape(x.shape[0] // count, count, *x.shape[1:]).swapaxes(0, 1), batch)


def accumulated_step(model, state, batch):
    """One update from `model.micro_batches` parts of a batch, one in memory at a time; the last part may be smaller.

    Arguments and results as in Keras' JAX train_step: (state, batch) -> (logs, state).
    """
    trainable, non_trainable, optimizer_variables, metrics = state
    gradient = jax.value_and_grad(model.compute_loss_and_updates, has_aux=True)
    sums_up, n = sums_over_batch(model.loss), _rows(batch)
    x, y, all_weights = keras.utils.unpack_x_y_sample_weight(batch)
    by_weight = all_weights is not None and divides_by_weights(model.loss)

    def part(carry, data):
        non_trainable, metrics, sums = carry
        x, y, weights = data
        share = _rows(data) / n
        factor = 1.0 if sums_up else share
        if by_weight:
            factor = sum_of_weights(weights) / jax.numpy.maximum(sum_of_weights(all_weights), keras.config.epsilon())
        (_, aux), gradients = gradient(
            trainable, non_trainable, metrics, x, y, weights, training=True, optimizer_variables=optimizer_variables
        )
        loss, y_pred, non_trainable, metrics = aux
        with model.weighing(weights, is_mean=False):
            logs, metrics = model._update_metrics_variables(
                metrics, loss / share if sums_up else loss, x, y, y_pred, weights
            )
        sums = [s + (factor * g).astype(g.dtype) for s, g in zip(sums, gradients)]
        return (non_trainable, metrics, sums), logs

    start = (non_trainable, metrics, [jax.numpy.zeros_like(v) for v in trainable])
    data, size = (x, y, all_weights), -(-n // model.micro_batches)
    whole = n // size * size
    carry, logs = jax.lax.scan(part, start, _parts(jax.tree.map(lambda t: t[:whole], data), whole // size))
    logs = jax.tree.map(lambda each: each[-1], logs)  # (parts, ...) -> (...)
    if whole < n:
        carry, logs = part(carry, jax.tree.map(lambda t: t[whole:], data))
    non_trainable, metrics, gradients = carry
    trainable, optimizer_variables = model.optimizer.stateless_apply(optimizer_variables, gradients, trainable)
    return logs, (trainable, non_trainable, optimizer_variables, metrics)


def is_slow_in_loops():
    """Whether a step is slower in a loop of XLA's than alone: on CPUs, with convolutions (docs/performance.md)."""
    return jax.default_backend() == "cpu"


def execute_in_one_program(model):
    """Makes an execution of several steps, by Keras a loop of the host, one program, if the model compiles its steps.

    The host's work costs small models more than their steps (keras#23527). Keras' loop takes what is left at an epoch's
    end, and batches of other sizes.
    """
    count, execution = model.steps_per_execution, model.train_function
    if count == 1 or model.run_eagerly or not model.jit_compile or is_slow_in_loops():
        return

    def steps(state, batches):
        together = jax.tree.map(lambda *each: jax.numpy.stack(each), *batches)  # (steps, b, ...)
        state, logs = jax.lax.scan(lambda state, batch: model.train_step(state, batch)[::-1], state, together)
        return jax.tree.map(lambda each: each[-1], logs), state

    shardings = None if keras.distribution.distribution() is None else (None, model._get_state_sharding_spec())
    program = jax.jit(steps, donate_argnums=0, out_shardings=shardings)

    def run(state, batches):
        left = count if model._remaining is None else min(count, model._remaining)
        taken = list(itertools.islice(batches, left))
        shapes = {tuple(np.shape(leaf) for leaf in jax.tree.leaves(batch)) for batch in taken}
        if len(taken) == count and len(shapes) == 1:
            return program(state, taken)
        return execution(state, iter(taken))

    model.train_function = run


def after_update(model, state):
    """The state after the model's `after_update`, which assigns non-trainable variables.

    Args:
        model: a compiled model.
        state: (trainable, non-trainable, optimizer's, metrics') values, after an update.
    """
    trainable, non_trainable, optimizer_variables, metrics = state
    pairs = [
        *zip(model.trainable_variables, trainable),
        *zip(model.non_trainable_variables, non_trainable),
        *zip(model.optimizer.variables, optimizer_variables),
    ]
    with keras.StatelessScope(state_mapping=pairs) as scope:
        model.after_update()
    return trainable, [scope.get_current_value(v) for v in model.non_trainable_variables], optimizer_variables, metrics
