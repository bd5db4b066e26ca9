"""Lookahead and averaged weights against their papers' algorithms, and out of a config; in training: test_averaging_runs.py."""

import keras
import numpy as np
import pytest
from test_optimizers import RATES, gradients, run, variables

from keras_vit.training import (
    AdamW,
    Lookahead,
    Momentum,
    RectifiedAdam,
    StochasticWeightAveraging,
    swap_averages,
)
from trainers.assemble import make_optimizer


def averages(optimizer):
    return [v.numpy() for v in optimizer._model_variables_moving_average]


def momentum_by_hand(steps, k=0, alpha=1.0):
    """The weights behind each step of Momentum(0.1, decay=0.01), which Lookahead draws back every k steps; float64."""
    weights, trajectory = [v.numpy().astype("float64") for v in variables()], []
    slow, velocity = [w.copy() for w in weights], [np.zeros_like(w) for w in weights]
    for t in range(1, steps + 1):
        for i, g in enumerate(gradients(t - 1)):
            velocity[i] = 0.9 * velocity[i] + g
            weights[i] = weights[i] - 0.1 * (velocity[i] + (0.01 * weights[i] if i == 0 else 0))
            if k and t % k == 0:
                slow[i] = slow[i] + alpha * (weights[i] - slow[i])
                weights[i] = slow[i].copy()
        trajectory.append([w.copy() for w in weights])
    return trajectory


@pytest.mark.parametrize(("k", "alpha"), [(5, 0.5), (3, 0.8), (1, 0.5), (4, 1.0)])
def test_lookahead_is_the_papers_algorithm(k, alpha):
    for steps in (k - 1 or 1, k, 20):
        ours = run(Lookahead(Momentum(0.1, decay=0.01), k=k, alpha=alpha), steps)
        for a, b in zip(ours, momentum_by_hand(steps, k, alpha)[-1]):
            np.testing.assert_allclose(a, b, atol=1e-5)


def test_lookahead_takes_any_keras_optimizer_by_hand():
    found = variables()
    fast, slow = keras.optimizers.Lion(0.01), [v.numpy() for v in found]
    for t in range(1, 13):
        fast.apply(gradients(t - 1), found)
        if t % 4 == 0:
            slow = [s + (v.numpy() - s) * np.float32(0.25) for s, v in zip(slow, found)]
            for v, s in zip(found, slow):
                v.assign(s)
    for a, b in zip(run(Lookahead(keras.optimizers.Lion(0.01), k=4, alpha=0.25), 12), found):
        np.testing.assert_allclose(a, b, atol=1e-7)


def test_slow_weights_start_where_training_does_and_not_where_the_optimizer_was_built():
    found = variables()
    optimizer = Lookahead(Momentum(0.1, decay=0.01), k=2)
    optimizer.build(found)
    loaded = [v.numpy() for v in found]
    for v in found:
        v.assign(v + 1.0)
    for v, w in zip(found, loaded):
        v.assign(w)
    for t in range(4):
        optimizer.apply(gradients(t), found)
    for a, b in zip(found, momentum_by_hand(4, 2, 0.5)[-1]):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize(("start", "every"), [(8, 1), (5, 4), (1, 1), (13, 20)])
def test_weight_averages_are_the_equal_mean_of_the_weights_from_start_on(start, every):
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


def test_moving_averages_around_lookahead_take_the_drawn_back_weights():
    optimizer = Lookahead(Momentum(0.1, decay=0.01), k=3, use_ema=True, ema_momentum=0.8)
    run(optimizer, 10)
    trajectory = momentum_by_hand(10, 3, 0.5)
    for i, average in enumerate(averages(optimizer)):
        expected = trajectory[0][i]
        for weights in trajectory[1:]:
            expected = 0.8 * expected + 0.2 * weights[i]
        np.testing.assert_allclose(average, expected, atol=1e-5)


def everything(start=3):
    return StochasticWeightAveraging(
        Lookahead(RectifiedAdam(RATES, decay=0.1, global_clipnorm=1.0, layer_decay=0.8), k=2), start, every=2
    )


@pytest.mark.parametrize(
    "optimizer", [everything(), Lookahead("adam", k=7, alpha=0.8, use_ema=True, ema_momentum=0.9), Lookahead(Momentum(0.5))]
)
def test_optimizers_around_others_round_trip(optimizer):
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(optimizer))
    assert type(copy) is type(optimizer) and copy.get_config() == optimizer.get_config()


def test_the_learning_rate_is_the_inner_optimizers():
    optimizer = Lookahead(Momentum(0.1))
    optimizer.learning_rate = 0.25
    assert float(optimizer.learning_rate) == float(optimizer.inner_optimizer.learning_rate) == 0.25


def test_mistakes():
    with pytest.raises(ValueError, match="a whole k from 1 on.*Got k=0"):
        Lookahead(Momentum(0.1), k=0)
    with pytest.raises(ValueError, match="alpha=1.5"):
        Lookahead(Momentum(0.1), alpha=1.5)
    with pytest.raises(ValueError, match="from 1 on. Got start=0"):
        StochasticWeightAveraging(Momentum(0.1), start=0)
    with pytest.raises(ValueError, match=r"Lookahead takes no inner optimizer with use_ema.*Lookahead\(inner, use_ema=True\)"):
        Lookahead(Momentum(0.1, use_ema=True))
    with pytest.raises(ValueError, match="StochasticWeightAveraging takes no inner optimizer with use_ema"):
        StochasticWeightAveraging(Lookahead("sgd", use_ema=True), start=1)
    with pytest.raises(ValueError, match="model.micro_batches = k"):
        Lookahead(keras.optimizers.SGD(gradient_accumulation_steps=2))
    with pytest.raises(ValueError, match=r"LossScaleOptimizer\(Lookahead\(inner\)\)"):
        Lookahead(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))


def test_swapping_without_averages_says_so(tiny):
    model = tiny()
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="keeps no averages: use use_ema=True"):
        swap_averages(model)


PLAIN = {
    "total": 100,
    "schedule": {"warmup": 10, "decay": "cosine", "cooldown": 0},
    "optimizer": {
        "name": "radam",
        "learning_rate": 0.1,
        "weight_decay": 0.2,
        "clip_norm": 1.0,
        "beta_2": 0.99,
        "momentum": 0.8,
        "layer_decay": 0.0,
        "ema": 0.0,
        "swa": "",
        "lookahead": 0,
        "lookahead_rate": 0.5,
    },
}


def configured(**changes):
    return make_optimizer({**PLAIN, "optimizer": {**PLAIN["optimizer"], **changes}})


def test_configs_name_their_optimizers():
    assert type(configured()) is RectifiedAdam and configured().beta_2 == 0.99 and configured().decay == 0.2
    assert type(configured(name="adamw", ema=0.9)) is AdamW and configured(name="adamw", ema=0.9).ema_momentum == 0.9
    assert type(configured(name="momentum")) is Momentum and configured(name="momentum").momentum == 0.8
    found = configured(lookahead=4, lookahead_rate=0.8, swa=75)
    assert (type(found), found.start, type(found.inner_optimizer)) == (StochasticWeightAveraging, 75, Lookahead)
    assert (found.inner_optimizer.k, found.inner_optimizer.alpha) == (4, 0.8)
    found = configured(lookahead=4, ema=0.9)
    assert found.use_ema and found.ema_momentum == 0.9 and not found.inner_optimizer.use_ema
    with pytest.raises(ValueError, match='Unknown optimizer "adam". Valid: adamw, radam, momentum'):
        configured(name="adam")
    with pytest.raises(ValueError, match="one kind of averaged weights"):
        configured(swa=75, ema=0.9)
    with pytest.raises(ValueError, match="swa begins at step 100 of 100"):
        configured(swa=100)
