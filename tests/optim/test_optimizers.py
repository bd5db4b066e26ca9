"""The paper's optimizers against their formulas in numpy."""

import keras
import numpy as np
import pytest
from small_models import dense_on_images
from trajectories import RATES, gradients, rate, run, variables

from keras_vit.optim import optimizers
from keras_vit.optim.optimizers import layer_depth, layer_multipliers
from keras_vit.training import AdamW, Momentum, WarmupSchedule


def test_momentum_keeps_the_velocity_independent_of_the_learning_rate():
    expected = [v.numpy().astype("float64") for v in variables()]
    velocity = [np.zeros_like(w) for w in expected]
    for step in range(6):
        for i, g in enumerate(gradients(step)):
            velocity[i] = 0.9 * velocity[i] + g
            expected[i] -= rate(step) * (velocity[i] + (0.01 * expected[i] if i == 0 else 0))
    for ours, theirs in zip(run(Momentum(RATES, decay=0.01)), expected):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_adamw_adds_epsilon_after_the_bias_correction_and_decays_kernels_only():
    expected = [v.numpy().astype("float64") for v in variables()]
    m, v = ([np.zeros_like(w) for w in expected] for _ in range(2))
    for step in range(6):
        for i, g in enumerate(gradients(step)):
            m[i] = 0.9 * m[i] + 0.1 * g
            v[i] = 0.999 * v[i] + 0.001 * g.astype("float64") ** 2
            update = (m[i] / (1 - 0.9 ** (step + 1))) / (np.sqrt(v[i] / (1 - 0.999 ** (step + 1))) + 0.01)
            expected[i] -= rate(step) * (update + (0.1 * expected[i] if i == 0 else 0))
    for ours, theirs in zip(run(AdamW(RATES, epsilon=0.01, decay=0.1)), expected):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


def test_decay_follows_its_own_schedule():
    expected, velocity = [v.numpy().astype("float64") for v in variables()], [0, 0]
    for step in range(6):
        decay = 0.4 + (0.04 - 0.4) * 0.5 * (1 + np.cos(np.pi * step / 6))
        for i, g in enumerate(gradients(step)):
            velocity[i] = 0.9 * velocity[i] + g
            expected[i] = expected[i] - rate(step) * (velocity[i] + (decay * expected[i] if i == 0 else 0))
    for ours, theirs in zip(run(Momentum(RATES, decay=WarmupSchedule(0.04, 6, final=0.4))), expected):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_a_schedule_of_decay_counts_batches_as_that_of_the_rate_does():
    schedule, weight = WarmupSchedule(0.04, 6, final=0.4), keras.Variable(np.ones((2, 2), "float32"), name="kernel")
    optimizer = Momentum(1.0, decay=schedule, gradient_accumulation_steps=2)
    optimizer.build([weight])
    for _ in range(6):
        optimizer.apply([np.zeros((2, 2), "float32")])
    expected = np.prod([1.0 - float(schedule(step)) for step in (1, 3, 5)])
    np.testing.assert_allclose(weight, np.full((2, 2), expected), rtol=1e-5)


@pytest.mark.parametrize("optimizer", [AdamW, Momentum])
def test_clipping_bounds_the_global_norm(optimizer):
    scale = 0.5 / np.sqrt(sum((g**2).sum() for g in gradients(0)))
    clipping, scaled = optimizer(0.1, global_clipnorm=0.5), optimizer(0.1)
    clipped, expected = variables(), variables()
    clipping.build(clipped)
    clipping.apply(gradients(0), clipped)
    scaled.build(expected)
    scaled.apply([g * scale for g in gradients(0)], expected)
    for a, b in zip(clipped, expected):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize(
    "optimizer",
    [
        AdamW(0.1, decay=0.2, layer_decay=0.5, head_rate=3.0),
        Momentum(RATES, momentum=0.8, use_ema=True),
        AdamW(0.1, decay=RATES),
    ],
)
def test_optimizers_round_trip(optimizer):
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(optimizer))
    assert type(copy) is type(optimizer) and copy.get_config() == optimizer.get_config()


def test_layer_depths_and_multipliers():
    paths = [
        "patch_encoder/kernel",
        "class_token/tokens",
        "block_00/mlp/out/kernel",
        "block_01/mlp/out/kernel",
        "encoder_norm/gamma",
        "head/kernel",
    ]
    assert [layer_depth(path, 2) for path in paths] == [0, 0, 1, 2, 3, 3]
    assert layer_multipliers(paths, 0.5) == [0.125, 0.125, 0.25, 0.5, 1.0, 1.0]
    assert layer_multipliers(paths, 0.5, 10.0) == [0.125, 0.125, 0.25, 0.5, 10.0, 10.0]
    assert layer_multipliers(paths, 1.0, 10.0) == [1.0, 1.0, 1.0, 1.0, 10.0, 10.0]


def test_layer_decay_scales_the_steps(tiny):
    model, moved = tiny(), {}
    before = {w.path: w.numpy() for w in model.trainable_weights}
    optimizer = Momentum(1.0, layer_decay=0.1)
    optimizer.build(model.trainable_variables)
    optimizer.apply([np.ones(w.shape, "float32") for w in model.trainable_weights], model.trainable_variables)
    for w in model.trainable_weights:
        moved[w.path] = float(np.abs(w.numpy() - before[w.path]).mean())
    assert moved["head/kernel"] == pytest.approx(1.0, rel=1e-4)
    assert moved["block_01/mlp/out/kernel"] == pytest.approx(0.1, rel=1e-4)
    assert moved["patch_encoder/kernel"] == pytest.approx(0.001, rel=1e-2)


def test_fit_does_not_overwrite_the_weights_with_their_averages(pixels):
    """Keras' optimizers overwrite them when fit ends."""
    from keras_vit.optim.wrappers import swap_averages

    model = dense_on_images()
    model.compile(Momentum(0.1, use_ema=True, ema_momentum=0.5), "mse", jit_compile=False)
    trajectory = []
    record = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: trajectory.append(model.get_layer("head").bias.numpy())
    )
    model.fit(pixels, np.ones((4, 5)), epochs=3, verbose=0, callbacks=[record])
    np.testing.assert_array_equal(model.get_layer("head").bias.numpy(), trajectory[-1])
    average = trajectory[0]
    for value in trajectory[1:]:
        average = 0.5 * average + 0.5 * value
    swap_averages(model)
    np.testing.assert_allclose(model.get_layer("head").bias.numpy(), average, rtol=1e-5)
    swap_averages(model)
    np.testing.assert_array_equal(model.get_layer("head").bias.numpy(), trajectory[-1])


@pytest.mark.parametrize("optimizer", [AdamW, Momentum])
@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"weight_decay": 0.1}, "has no weight_decay.*write decay="),
        ({"decay": -0.1}, "decay >= 0"),
        ({"layer_decay": 0.0}, "layer_decay None or above 0"),
        ({"layer_decay": 1.5}, "at most 1"),
        ({"head_rate": 0.0}, "head_rate must be above 0"),
        ({"global_clipnorm": -1.0}, "global_clipnorm must be positive"),
        ({"clipnorm": 0.0}, "clipnorm must be positive"),
        ({"use_ema": True, "ema_momentum": 3.0}, "ema_momentum"),
    ],
    ids=str,
)
def test_arguments_that_mean_something_else_are_refused(optimizer, arguments, message):
    with pytest.raises(ValueError, match=message):
        optimizer(0.1, **arguments)


def test_rates_outside_their_range_are_refused():
    for make in (lambda: AdamW(beta_1=1.0), lambda: AdamW(beta_2=-0.1), lambda: Momentum(momentum=1.5)):
        with pytest.raises(ValueError, match="at least 0 and below 1"):
            make()
    with pytest.raises(ValueError, match="epsilon must be positive"):
        AdamW(epsilon=0.0)


def test_keras_list_of_what_not_to_decay_is_refused():
    with pytest.raises(ValueError, match="decays kernels only.*write decay=0"):
        AdamW(0.1, decay=0.1).exclude_from_weight_decay(var_names=["bias"])


def test_adamw_in_one_operation_is_adamw_step_by_step(monkeypatch):
    """With layer decay and weight decay; a class that changes `step` goes without the operation."""
    results = []
    for one_operation in (True, False):
        monkeypatch.setattr(optimizers, "has_adam", lambda one_operation=one_operation: one_operation)
        results.append(run(AdamW(RATES, epsilon=0.01, decay=0.1, layer_decay=0.7)))
    for ours, theirs in zip(*results):
        np.testing.assert_allclose(ours, theirs, atol=2e-6)

    class Still(AdamW):
        def step(self, gradient, m, v):
            return 0.0 * gradient

    monkeypatch.setattr(optimizers, "has_adam", lambda: True)
    for ours, theirs in zip(run(Still(RATES)), variables()):
        np.testing.assert_array_equal(ours, theirs)
