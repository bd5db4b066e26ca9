"""Training steps on TensorFlow, correct under every tf.distribute strategy, and the loop of several steps per call.

A step runs in each replica on its share of the batch:
  1. gradients of the global mean loss: a replica's loss is weighted by its share of the examples, of any number;
  2. micro-batches one after the other, their gradients summed;
  3. one sum over replicas, one clip of the global gradient, one update;
  4. the model's `after_update`, such as moving a teacher.
Metrics are summed within each replica, and reduced over replicas when read, outside the replicas.
"""

from collections.abc import Callable

import keras
import tensorflow as tf

from keras_vit.fit.losses import divides_by_weights, sum_of_weights, sums_over_batch
from keras_vit.fit.mixing import Neighbours, check_pairs, check_unweighted
from keras_vit.layers.backend import replicas, sum_over_replicas
from keras_vit.optim.wrappers import batch_counter, innermost


def _rows(x):
    """The number of examples in a batch, a Python integer if static."""
    first = next(leaf for leaf in keras.tree.flatten(x) if leaf is not None)
    return first.shape[0] if first.shape[0] is not None else tf.shape(first)[0]


def _is_static(n):
    """Whether a number of examples is that of every replica: in eager steps every shape is known, and differs."""
    return isinstance(n, int) and not tf.executing_eagerly()


def _gradients(model, x, y, weights, share, n):
    """(gradients of `share` x the loss of some of `n` examples, results of the user's compute_metrics); updates the
    metrics.

    A gradient is None for a variable that the loss does not depend on.
    """
    with tf.GradientTape() as tape, model.weighing(weights, is_mean=False):
        y_pred = model(x, training=True)
        loss = model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=weights, training=True)
        # Keras divides mean losses by the number of replicas.
        whole = 1.0
        if sums_over_batch(model.loss):  # a part has only its share
            whole = tf.math.divide_no_nan(tf.cast(n, "float32"), tf.cast(_rows(x), "float32"))
        model._loss_tracker.update_state(loss * tf.cast(replicas() * whole, loss.dtype), sample_weight=_rows(x))
        scaled = model.optimizer.scale_loss(loss * tf.cast(share, loss.dtype))
    logs = model.compute_metrics(x, y, y_pred, sample_weight=weights)
    gradients = [None if g is None else tf.convert_to_tensor(g) for g in tape.gradient(scaled, model.trainable_weights)]
    return gradients, logs if model.has_own("compute_metrics") else {}


def _accumulated(model, batch, share_of):
    """As _gradients, summed over `model.micro_batches` parts of a batch, one in memory at a time.

    Part i has the rows i, i + parts, i + 2 parts...
    """
    parts, n = model.micro_batches, _rows(batch)
    static = _is_static(n)
    if static and n % parts:
        raise ValueError(
            f"A replica's batch of {n} cannot be split into {parts} micro-batches: choose a divisor of {n}."
        )
    if not static and replicas() == 1:  # replicas take the same number of parts: they may wait for each other in one
        parts = tf.minimum(parts, n)
    connected = [True] * len(model.trainable_weights)

    def body(i, sums, _):
        rows = i + parts * tf.range(n // parts) if static else tf.range(i, n, parts)
        x, y, weights = keras.tree.map_structure(
            lambda t: None if t is None else tf.gather(t, rows), batch, none_is_leaf=True
        )
        gradients, logs = _gradients(model, x, y, weights, share_of(_rows(x), weights), n)
        connected[:] = [g is not None for g in gradients]
        return i + 1, [s if g is None else s + g for s, g in zip(sums, gradients)], logs

    state = (tf.constant(0), [tf.zeros(v.shape, v.dtype) for v in model.trainable_weights], {})
    if model.has_own("compute_metrics"):
        state = body(*state)  # outside the loop: its variables need the structure of the logs from the start
    _, sums, logs = tf.while_loop(lambda i, *_: i < parts, body, state, parallel_iterations=1)
    return [g if used else None for g, used in zip(sums, connected)], logs


def _share(model, n, weights):
    """A function (number of examples, weights) -> factor of their loss in the global loss's gradient.

    `n` and `weights` are this replica's.
    """
    if sums_over_batch(model.loss):
        return lambda rows, _: 1.0
    if weights is not None and divides_by_weights(model.loss):
        return _share_by_weight(model, weights)
    if _is_static(n):  # all replicas have the same number
        return lambda rows, _: rows / n
    total = sum_over_replicas([tf.cast(n, "float32")])[0]
    return lambda rows, _: tf.math.divide_no_nan(tf.cast(rows, "float32") * replicas(), total)


def _share_by_weight(model, weights):
    """_share for a loss divided by the sum of the weights."""
    if replicas() == 1 and model.micro_batches == 1:
        return lambda *_: 1.0
    total = sum_over_replicas([sum_of_weights(weights)])[0]
    return lambda _, part: tf.math.divide_no_nan(sum_of_weights(part) * replicas(), total)


def train_step(model, batch) -> dict:
    """One step on a replica's share of the batch, (x,), (x, y) or (x, y, weights); returns its metrics so far."""
    x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
    share_of = _share(model, _rows(x), weights)
    if model.mixing is not None:
        check_unweighted(weights)
        if isinstance(model.mixing, Neighbours) and isinstance(_rows(x), int):
            check_pairs(_rows(x), replicas(), model.mixing.group)

    def gradients():
        mixed = (x, y) if model.mixing is None else model.mixing(x, y, batch_counter(model.optimizer))
        if model.micro_batches > 1:
            return _accumulated(model, (*mixed, weights), share_of)
        return _gradients(model, *mixed, weights, share_of(_rows(x), weights), _rows(x))

    if _compiles_gradients_alone(model):
        gradients = tf.function(gradients, jit_compile=True, autograph=False)
    summed, logs = gradients()
    _apply(model.optimizer, summed, model.trainable_weights)
    model.after_update()
    return logs if model.has_own("compute_metrics") else model.get_metrics_result()


def _compiles_gradients_alone(model):
    """Whether XLA compiles only the forward and backward pass, as with several replicas: their sum cannot be compiled.

    A TPUStrategy compiles the whole step by itself. Statistics over all replicas are sums too: a model with a layer
    that computes them is not compiled.
    """
    if replicas() == 1 or isinstance(model.distribute_strategy, tf.distribute.TPUStrategy):
        return False
    synchronized = any(getattr(layer, "synchronized", False) for layer in model._flatten_layers())
    return model.jit_compile and not model.run_eagerly and not synchronized


def _clips(optimizer):
    return any((optimizer.clipnorm, optimizer.global_clipnorm, optimizer.clipvalue))


def _reduces_first(optimizer):
    """Whether the optimizer clips the sum over replicas, as this package's do (Keras' clip each replica's part)."""
    return getattr(optimizer, "clips_global_gradient", False)


def _overflowing_alike(gradients):
    """This replica's gradients, one of them NaN if any replica's are not finite.

    A LossScaleOptimizer decides on skipping the step by one replica's gradients, before they are summed.
    """
    present = [i for i, g in enumerate(gradients) if g is not None]
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradients[i])) for i in present])
    [overflows] = sum_over_replicas([tf.cast(~finite, "float32")])
    for i in present[:1]:
        gradients[i] += tf.cast(tf.where(overflows > 0, float("nan"), 0.0), gradients[i].dtype)
    return gradients


def _apply(optimizer, gradients, variables):
    """One update with the sum of `gradients` over replicas."""
    inner = innermost(optimizer)
    if replicas() > 1 and isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        gradients = _overflowing_alike(gradients)
    if replicas() > 1 and _clips(inner) and not _reduces_first(inner):
        # Clip the sum here. Each replica gets an N-th of it, which the optimizer's own clipping leaves alone and its
        # sum over replicas restores.
        indices, scale = [i for i, g in enumerate(gradients) if g is not None], inner.loss_scale_factor or 1.0
        clipped = inner._clip_gradients([g / scale for g in sum_over_replicas([gradients[i] for i in indices])])
        for i, g in zip(indices, clipped):
            gradients[i] = g * scale / replicas()
    optimizer.apply(gradients, variables)


def check_optimizer(optimizer: keras.optimizers.Optimizer | None, strategy: tf.distribute.Strategy) -> None:
    """Refuses options that would be silently wrong under `strategy`: ValueError with the alternative."""
    if optimizer is None or strategy.num_replicas_in_sync == 1:
        return
    inner = innermost(optimizer)
    if inner.gradient_accumulation_steps or optimizer.gradient_accumulation_steps:
        raise ValueError(
            "gradient_accumulation_steps does not work under tf.distribute. Set model.micro_batches = k before fit"
            " instead: each replica then processes its batch in k parts, with one update."
        )
    if inner.ema_overwrite_frequency:
        raise ValueError(
            "ema_overwrite_frequency does not work under tf.distribute. Leave it out: with keras_vit.training.AdamW or"
            " Momentum the averages stay in the optimizer, next to the weights (training.EvaluateAverage evaluates with"
            " them)."
        )
    if isinstance(inner, keras.optimizers.ScheduleFreeAdamW):
        raise ValueError(
            "ScheduleFreeAdamW reads weights that it has just changed, so its results under tf.distribute differ from"
            " those of one device. Use keras_vit.training.AdamW."
        )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) and _clips(inner) and not _reduces_first(inner):
        raise ValueError(
            f"{type(inner).__name__} with clipping and loss scaling (mixed_float16) would clip each replica's gradient"
            " separately. Use keras_vit.training.AdamW or Momentum, or mixed_bfloat16, which needs no loss scaling."
        )


def check_made_inside(optimizer: keras.optimizers.Optimizer | None, strategy: tf.distribute.Strategy) -> None:
    """ValueError if the optimizer was made outside the strategy's scope."""
    if optimizer is not None and not strategy.extended.variable_created_in_scope(optimizer.variables[0].value):
        raise ValueError(
            "The optimizer was made outside the strategy's scope. Make and compile it inside: with"
            " strategy.scope(): ..."
        )


def _mean_over_replicas(strategy, logs):
    """The mean over replicas of a step's results, as one structure."""
    if strategy.num_replicas_in_sync == 1:
        return {name: strategy.experimental_local_results(value)[0] for name, value in logs.items()}
    return {name: strategy.reduce("MEAN", value, axis=None) for name, value in logs.items()}


def _replica_step(model, step, own_logs):
    """`step` for every replica; returns its result if `own_logs`."""

    def replica_step(batch):
        # Keras wraps a dataset element's None as an Optional.
        batch = keras.tree.map_structure(lambda t: None if isinstance(t, tf.experimental.Optional) else t, batch)
        # At the end of the data, code that reads no value of the batch, such as counting the step, would still run.
        # XLA's programs need their whole batch, and cannot make variables after waiting for it.
        arrived = [] if model.jit_compile else [t for t in keras.tree.flatten(batch) if t is not None]
        with tf.control_dependencies(arrived):
            logs = step(batch)
        if not own_logs:
            return None
        return {name: tf.cast(value, "float32") if replicas() > 1 else value for name, value in logs.items()}

    if model.jit_compile and not model.run_eagerly and model.distribute_strategy.num_replicas_in_sync == 1:
        return tf.function(replica_step, jit_compile=True, reduce_retracing=True, autograph=False)
    return replica_step


def _repeat(function, iterator, steps):
    """Calls a function with each of the next `steps` batches, in one loop of the graph."""

    def body(i):
        function(iterator.get_next())
        return (i + 1,)

    tf.while_loop(lambda i: i < steps, body, (tf.constant(0),), parallel_iterations=1)


def _run_steps(function, iterator, steps):
    """Calls a function with each of the next `steps` batches, in one loop of the graph; returns the last result."""
    first = (tf.constant(1), function(iterator.get_next()))

    def body(i, _):
        return i + 1, function(iterator.get_next())

    return tf.while_loop(lambda i, _: i < steps, body, first, parallel_iterations=1)[1]


def _compiled_by_shape(function):
    """tf.function of a batch or iterator and more, one for examples of each shape.

    A common one, which traces as little as possible, would see labels (b,) and (b, 1) with an unknown rank.
    """
    made = {}

    def call(data, *more):
        parts = tf.nest.flatten(getattr(data, "element_spec", data), expand_composites=True)
        shapes = str([tf.TensorShape(getattr(part, "shape", ()))[1:] for part in parts])
        if shapes not in made:
            made[shapes] = tf.function(function, reduce_retracing=True)
        return made[shapes](data, *more)

    return call


def make_function(model, step: Callable, remaining: Callable[[], int], own_logs: bool = False) -> Callable:
    """Keras' train or test function: batches -> the metrics so far, after `model.steps_per_execution` steps.

    Args:
        model: a compiled model.
        step: function of a batch, run in every replica.
        remaining: returns the steps left in the epoch; called if steps_per_execution is above 1.
        own_logs: return what `step` returns, averaged over replicas, instead of the model's metrics.
    """
    strategy, replica_step = model.distribute_strategy, _replica_step(model, step, own_logs)

    def on_batch(batch):
        logs = strategy.run(replica_step, args=(batch,))
        return _mean_over_replicas(strategy, logs) if own_logs else model.get_metrics_result()

    def on_iterator(iterator, steps):
        if steps is None:
            return on_batch(iterator.get_next())
        if own_logs:
            return _run_steps(on_batch, iterator, steps)
        _repeat(lambda batch: strategy.run(replica_step, args=(batch,)), iterator, steps)
        return model.get_metrics_result()

    # Without autograph: it is not needed, and would rewrite the layers' code.
    on_batch, on_iterator = (tf.autograph.experimental.do_not_convert(f) for f in (on_batch, on_iterator))
    if not model.run_eagerly:
        on_batch, on_iterator = (_compiled_by_shape(f) for f in (on_batch, on_iterator))

    def function(iterator):
        if not isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator)):
            logs = None
            for batch in iterator:  # from train_on_batch
                logs = on_batch(batch)
            return logs
        if model.steps_per_execution == 1:
            return on_iterator(iterator, None)
        return on_iterator(iterator, tf.constant(min(model.steps_per_execution, remaining())))

    return function


def make_gathering_function(model, step: Callable) -> Callable:
    """Keras' predict function for several workers: batches -> the outputs of all, in order, on every worker."""
    strategy = model.distribute_strategy

    def function(batches):
        outputs = [strategy.run(step, args=(batch,)) for batch in batches]
        gathered = [keras.tree.map_structure(lambda t: strategy.gather(t, axis=0), out) for out in outputs]
        return keras.tree.map_structure(lambda *parts: tf.concat(parts, axis=0), *gathered)

    function = tf.autograph.experimental.do_not_convert(function)
    return function if model.run_eagerly else tf.function(function, reduce_retracing=True)


def local_spec(element_spec):
    """Shapes and dtypes of a replica's part of a dataset element; None where the element has None."""

    def first(spec):
        parts = tf.nest.flatten(spec, expand_composites=True)
        return parts[0] if hasattr(parts[0], "shape") else None

    return keras.tree.map_structure(first, element_spec)
