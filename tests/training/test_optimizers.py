"""The paper's optimizer forms, against their formulas in numpy."""

import keras
import numpy as np
import pytest

from keras_vit.training import AdamW, Momentum, WarmupSchedule, resolve_steps
from keras_vit.training.optimizers import layer_depth, layer_multipliers


def variables():
    """A kernel and a bias, float32."""
    rng = np.random.default_rng(0)
    return [keras.Variable(rng.normal(size=(3, 2)), name="kernel"), keras.Variable(rng.normal(size=(2,)), name="bias")]


def gradients(step):
    rng = np.random.default_rng(100 + step)
    return [rng.normal(size=shape).astype("float32") for shape in ((3, 2), (2,))]


def run(optimizer, steps=6):
    found = variables()
    optimizer.build(found)
    for step in range(steps):
        optimizer.apply(gradients(step), found)
    return [v.numpy() for v in found]


RATES = WarmupSchedule(0.1, total=6, warmup=2)


def rate(step):
    return 0.1 * step / 2 if step < 2 else 0.05 * (1 + np.cos(np.pi * (step - 2) / 4))


def test_momentum_keeps_the_velocity_free_of_the_learning_rate():
    expected = [v.numpy().astype("float64") for v in variables()]
    velocity = [np.zeros_like(w) for w in expected]
    for step in range(6):
        for i, g in enumerate(gradients(step)):
            velocity[i] = 0.9 * velocity[i] + g
            expected[i] -= rate(step) * (velocity[i] + (0.01 * expected[i] if i == 0 else 0))
    for ours, theirs in zip(run(Momentum(RATES, decay=0.01)), expected):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_adamw_adds_epsilon_behind_the_bias_correction_and_decays_kernels_only():
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


@pytest.mark.parametrize("optimizer", [AdamW, Momentum])
def test_clipping_bounds_the_global_norm(optimizer):
    found = variables()
    scale = 0.5 / np.sqrt(sum((g**2).sum() for g in gradients(0)))
    clipped, given = optimizer(0.1, global_clipnorm=0.5), optimizer(0.1)
    clipped.build(found)
    clipped.apply(gradients(0), found)
    other = variables()
    given.build(other)
    given.apply([g * scale for g in gradients(0)], other)
    for a, b in zip(found, other):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("optimizer", [AdamW(0.1, decay=0.2, layer_decay=0.5), Momentum(RATES, momentum=0.8, use_ema=True)])
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


def test_fit_leaves_weights_and_averages_apart(tiny, pixels):
    """Keras' optimizers overwrite the weights with their averages when fit ends."""
    from keras_vit.training.callbacks import swap_averages

    model = tiny()
    model.compile(Momentum(0.1, use_ema=True, ema_momentum=0.5), "mse")
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


@pytest.mark.parametrize(
    ("decay", "values"),
    [
        ("cosine", {0: 0.0, 5: 0.5, 10: 1.0, 55: 0.5, 100: 0.0}),
        ("linear", {0: 0.0, 10: 1.0, 55: 0.5, 100: 0.0}),
        ("constant", {5: 0.5, 10: 1.0, 100: 1.0}),
        ("rsqrt", {10: 1.0, 40: 0.5, 90: 1 / 3}),
    ],
)
def test_schedules(decay, values):
    schedule = WarmupSchedule(1.0, total=100, warmup=10, decay=decay, timescale=10)
    for step, value in values.items():
        assert float(schedule(step)) == pytest.approx(value, abs=1e-6)


def test_rsqrt_cools_down_to_zero():
    schedule = WarmupSchedule(1.0, total=100, decay="rsqrt", timescale=10, cooldown=20)
    assert float(schedule(100)) == 0.0
    assert float(schedule(90)) == pytest.approx(0.5 / np.sqrt(10), rel=1e-5)


def test_schedule_mistakes():
    with pytest.raises(ValueError, match="Valid: cosine, linear, rsqrt, constant"):
        WarmupSchedule(1.0, 10, decay="cosin")
    with pytest.raises(ValueError, match="warmup=20 of total=10"):
        WarmupSchedule(1.0, 10, warmup=20)


@pytest.mark.parametrize(
    ("duration", "steps"),
    [
        (7, 7),
        ("7", 7),
        ("2k", 2000),
        ("7 steps", 7),
        ("10k steps", 10_000),
        ("3 epochs", 30),
        ("1 epoch", 10),
        ("1k examples", 10),
        ("5%", 10),
        ("0.5M examples", 5000),
    ],
)
def test_durations(duration, steps):
    assert resolve_steps(duration, batch_size=100, examples=1000, total=200) == steps


def test_duration_mistakes():
    with pytest.raises(ValueError, match='"3 epoches" is no duration'):
        resolve_steps("3 epoches", 1, 1)
    with pytest.raises(ValueError, match="cannot be"):
        resolve_steps("5%", 1, 1)
