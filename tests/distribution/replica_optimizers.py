"""Updates of optimizers on two replicas and on one device: Keras' own, wrappers, and loss scaling."""

import keras
import numpy as np
import pytest
from small_models import dense, distance, reordered, rows, trained
from two_replicas import alone, two

import keras_vit
from keras_vit.distribution import strategy
from keras_vit.runs.saving import run_state
from keras_vit.training import AdamW, Lookahead, RectifiedAdam, StochasticWeightAveraging, WarmupSchedule


def adam():
    return AdamW(1e-3, epsilon=1e-4, global_clipnorm=1.0)


class GlobalSGD(keras_vit.training.GlobalGradient, keras.optimizers.SGD):
    """The mixin with one of Keras' optimizers."""


OPTIMIZERS = {
    "clipvalue": lambda: keras.optimizers.SGD(0.1, clipvalue=0.02),
    "clipnorm, EMA": lambda: keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.1, use_ema=True, ema_momentum=0.9),
    "global_clipnorm": lambda: keras.optimizers.Adam(1e-3, epsilon=1e-4, global_clipnorm=0.1, loss_scale_factor=8.0),
    "Muon": lambda: keras_vit.training.Muon(1e-3, epsilon=1e-4, global_clipnorm=0.1),
    "mixin": lambda: GlobalSGD(0.1, global_clipnorm=0.1),
}


def stock_optimizers():
    """{optimizer: (distance of two replicas from one device, that of another order of summation)}."""
    (x, y), distances = rows(24), {}
    for name, make in OPTIMIZERS.items():
        one, rounding = alone(make, x, y, make=dense)
        distances[name] = distance(one, trained(two(), make, x, y, make=dense)), rounding
    return distances


def inner():
    return RectifiedAdam(WarmupSchedule(1e-3, 6, warmup=2), epsilon=1e-4, global_clipnorm=0.1, decay=0.1)


WRAPPED = {
    "all wrappers": lambda: StochasticWeightAveraging(Lookahead(inner(), k=2), start=2),
    "keras' own clips": lambda: Lookahead(
        keras.optimizers.Adam(1e-3, epsilon=1e-4, global_clipnorm=0.1), k=3, use_ema=True
    ),
}


def states(chosen, make, x, y):
    """The arrays of weights, averages and slow weights after an epoch."""
    model = dense(chosen, make, **({"run_eagerly": True} if chosen.replicas == 1 else {"steps_per_execution": 3}))
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    return list(run_state.collect(model).values())


def wrapped_optimizers():
    one, (x, y) = strategy("one"), rows(48)
    for name, make in WRAPPED.items():
        a, b = states(one, make, x, y), states(two(), make, x, y)
        other = states(one, make, reordered(x), reordered(y))
        assert len(a) == len(b)
        for i, (expected, value, rounded) in enumerate(zip(a, b, other)):
            atol = max(1e-5, 10 * np.abs(np.subtract(expected, rounded, dtype="float64")).max())
            np.testing.assert_allclose(value, expected, atol=min(atol, 1e-3), rtol=1e-4, err_msg=f"{name}: {i}")
    keras.config.set_dtype_policy("mixed_float16")  # compile then adds a LossScaleOptimizer
    for name, make in WRAPPED.items():
        model = dense(two(), make, dtype="mixed_float16")
        if name == "all wrappers":
            model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
            assert model.optimizer.inner_optimizer.iterations.numpy() == 6
        else:
            with pytest.raises(ValueError, match="Adam with clipping and loss scaling"):
                model.fit(x, y, batch_size=8, verbose=0)


def overflows():
    """{rows that overflow in float16: (what a step did to the weights, the loss scale, the number of updates)}, of a
    batch of 8, one step after another.
    """
    seen = {}
    model = dense(two(), lambda: keras.optimizers.LossScaleOptimizer(adam()), dtype="mixed_float16")
    for name, rows_of in (("none", []), ("first replica", [1]), ("second replica", [6])):
        x, y = rows(8)
        x[rows_of] = 1e9  # infinite in float16
        before = model.get_weights()
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        moved = max(float(np.abs(a - b).max()) for a, b in zip(model.get_weights(), before))
        seen[name] = moved, float(model.optimizer.dynamic_scale.numpy()), int(model.optimizer.iterations.numpy())
    return seen
