"""Lookahead and averaged weights against their papers' algorithms. In training: tests/fit/test_averages.py."""

import keras
import numpy as np
import pytest
from trajectories import averages, everything, gradients, momentum_by_hand, run, variables

from keras_vit.training import Lookahead, Momentum, StochasticWeightAveraging, swap_averages


@pytest.mark.parametrize(("k", "alpha"), [(5, 0.5), (3, 0.8), (1, 0.5), (4, 1.0)])
def test_lookahead_is_the_papers_algorithm(k, alpha):
    for steps in (k - 1 or 1, k, 20):
        ours = run(Lookahead(Momentum(0.1, decay=0.01), k=k, alpha=alpha), steps)
        for a, b in zip(ours, momentum_by_hand(steps, k, alpha)[-1]):
            np.testing.assert_allclose(a, b, atol=1e-5)


def test_lookahead_takes_any_keras_optimizer_by_hand():
    weights = variables()
    fast, slow = keras.optimizers.Lion(0.01), [v.numpy() for v in weights]
    for t in range(1, 13):
        fast.apply(gradients(t - 1), weights)
        if t % 4 == 0:
            slow = [s + (v.numpy() - s) * np.float32(0.25) for s, v in zip(slow, weights)]
            for v, s in zip(weights, slow):
                v.assign(s)
    for a, b in zip(run(Lookahead(keras.optimizers.Lion(0.01), k=4, alpha=0.25), 12), weights):
        np.testing.assert_allclose(a, b, atol=1e-7)


def test_slow_weights_start_where_training_does_and_not_where_the_optimizer_was_built():
    weights = variables()
    optimizer = Lookahead(Momentum(0.1, decay=0.01), k=2)
    optimizer.build(weights)
    loaded = [v.numpy() for v in weights]
    for v in weights:
        v.assign(v + 1.0)
    for v, w in zip(weights, loaded):
        v.assign(w)
    for t in range(4):
        optimizer.apply(gradients(t), weights)
    for a, b in zip(weights, momentum_by_hand(4, 2, 0.5)[-1]):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize(("start", "every"), [(8, 1), (5, 4), (1, 1), (13, 20)])
def test_weight_averages_are_the_equal_mean_of_the_weights_since_the_start(start, every):
    optimizer = StochasticWeightAveraging(Momentum(0.1, decay=0.01), start, every)
    weights = run(optimizer, 20)
    trajectory = momentum_by_hand(20)
    for i, (w, average) in enumerate(zip(weights, averages(optimizer))):
        np.testing.assert_allclose(w, trajectory[-1][i], atol=1e-5)
        np.testing.assert_allclose(average, np.mean([t[i] for t in trajectory[start - 1 :: every]], axis=0), atol=1e-5)


def test_before_the_start_the_averages_are_the_weights():
    optimizer = StochasticWeightAveraging(Momentum(0.1), start=6)
    for w, average in zip(run(optimizer, 6), averages(optimizer)):
        np.testing.assert_array_equal(w, average)


def test_moving_averages_around_lookahead_are_of_the_weights_after_it():
    optimizer = Lookahead(Momentum(0.1, decay=0.01), k=3, use_ema=True, ema_momentum=0.8)
    run(optimizer, 10)
    trajectory = momentum_by_hand(10, 3, 0.5)
    for i, average in enumerate(averages(optimizer)):
        expected = trajectory[0][i]
        for weights in trajectory[1:]:
            expected = 0.8 * expected + 0.2 * weights[i]
        np.testing.assert_allclose(average, expected, atol=1e-5)


@pytest.mark.parametrize(
    "optimizer",
    [everything(), Lookahead("adam", k=7, alpha=0.8, use_ema=True, ema_momentum=0.9), Lookahead(Momentum(0.5))],
)
def test_wrappers_round_trip(optimizer):
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(optimizer))
    assert type(copy) is type(optimizer) and copy.get_config() == optimizer.get_config()


def test_the_learning_rate_is_the_inner_optimizers():
    optimizer = Lookahead(Momentum(0.1))
    optimizer.learning_rate = 0.25
    assert float(optimizer.learning_rate) == float(optimizer.inner_optimizer.learning_rate) == 0.25


def test_mistakes():
    with pytest.raises(ValueError, match="a whole k of at least 1.*Got k=0"):
        Lookahead(Momentum(0.1), k=0)
    with pytest.raises(ValueError, match="alpha=1.5"):
        Lookahead(Momentum(0.1), alpha=1.5)
    with pytest.raises(ValueError, match="at least 1. Got start=0"):
        StochasticWeightAveraging(Momentum(0.1), start=0)
    with pytest.raises(
        ValueError, match=r"Lookahead accepts no inner optimizer with use_ema.*Lookahead\(inner, use_ema=True\)"
    ):
        Lookahead(Momentum(0.1, use_ema=True))
    with pytest.raises(ValueError, match="StochasticWeightAveraging accepts no inner optimizer with use_ema"):
        StochasticWeightAveraging(Lookahead("sgd", use_ema=True), start=1)
    with pytest.raises(ValueError, match="model.micro_batches = k"):
        Lookahead(keras.optimizers.SGD(gradient_accumulation_steps=2))
    with pytest.raises(ValueError, match=r"LossScaleOptimizer\(Lookahead\(inner\)\)"):
        Lookahead(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))


def test_swapping_without_averages_says_so(tiny):
    model = tiny()
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="keeps no averages: set use_ema=True"):
        swap_averages(model)
