"""layers.gelu: values and gradients of plain GELU, by TensorFlow and by SciPy's functions; in a model on JAX."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from interpreters import Interpreter
from keras import ops

import keras_vit
from keras_vit.layers.blocks.gelu import gelu_from_input, gelu_in_training, gelu_slope, gelu_with_slope

FORMS = pytest.mark.parametrize("approximate", [False, True], ids=["erf", "tanh"])
SIZES = {"depth": 1, "width": 16, "heads": 2, "mlp_dim": 32, "classes": 3, "dropout": 0.2}
X = np.concatenate([np.linspace(-9, 9, 721), [-40.0, 40.0]]).astype("float32")


@FORMS
def test_values_and_gradients_are_those_of_gelu(approximate):
    upstream = tf.constant(np.random.default_rng(1).normal(size=X.shape).astype("float32"))
    results = []
    for function in (gelu_with_slope, ops.gelu):
        x = tf.constant(X)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x, approximate=approximate)
        results.append((y.numpy(), tape.gradient(y, x, upstream).numpy()))
    (y, gradient), (expected, expected_gradient) = results
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_allclose(gradient, expected_gradient, atol=5e-6)  # 1 - tanh^2 loses digits in both


def test_the_slope_is_the_derivative():
    exact = [
        0.5 * (1 + math.erf(x / math.sqrt(2))) + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        for x in X.astype(float)
    ]
    np.testing.assert_allclose(gelu_slope(ops.convert_to_tensor(X), False), exact, atol=1e-6)
    step = 1e-5

    def gelu(x):
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    numeric = (gelu(X.astype("float64") + step) - gelu(X.astype("float64") - step)) / (2 * step)
    np.testing.assert_allclose(gelu_slope(ops.convert_to_tensor(X), True), numeric, atol=5e-6)


def test_gradients_keep_the_type():
    x = tf.constant(X, tf.bfloat16)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = gelu_with_slope(x, True)
    gradient = tape.gradient(y, x)
    assert y.dtype == gradient.dtype == tf.bfloat16
    np.testing.assert_allclose(tf.cast(gradient, tf.float32), gelu_slope(ops.convert_to_tensor(X), True), atol=0.02)


def gradients_on_jax():
    """(loss, gradients) of a small model in training, with dropout and recomputed, and the same by plain GELU."""
    import jax

    from keras_vit.layers.blocks import gelu

    keras.utils.set_random_seed(0)
    model = keras_vit.ViT("Ti/4", image_size=8, **SIZES, remat=True)
    rng = np.random.default_rng(0)
    weights = [v.value + 0.1 * rng.normal(size=v.shape) for v in model.trainable_variables]
    images = rng.uniform(0, 255, (4, 8, 8, 3)).astype("float32")
    state = [v.value for v in model.non_trainable_variables]

    def loss(weights):
        outputs, _ = model.stateless_call(weights, state, images, training=True)
        return (outputs**2).sum()

    def measured():
        value, gradients = jax.jit(jax.value_and_grad(loss))(weights)
        return float(value), [np.asarray(g).tolist() for g in gradients]

    found = []
    for form in (gelu_with_slope, gelu_from_input, ops.gelu):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gelu, "gelu_in_training", form)
            found.append(measured())
        jax.clear_caches()
    return found


def form_on(platform):
    """What GELU keeps, and checks the gradient of a bias, on a platform of JAX."""
    import jax

    from keras_vit.layers import backend
    from keras_vit.layers.kernels import bias, cudnn

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cudnn, "platform", lambda: platform)
        found = backend.forms()
        g = np.random.default_rng(1).normal(size=(5, 2, 3)).astype("float32")
        zeros = np.zeros((5, 2, 3), "float32"), np.zeros(3, "float32")
        _, gradients = jax.vjp(lambda y, b: bias.add(y, b, found.bias_gradient), *zeros)
        np.testing.assert_allclose(gradients(g)[1], g.sum((0, 1)), rtol=1e-5, atol=1e-6)
        return list(found)


@pytest.mark.processes
def test_a_model_on_jax_has_the_gradients_of_plain_gelu():
    with Interpreter("jax") as other:
        *ours, (expected, expected_gradients) = other.run(gradients_on_jax)
        forms = [other.run(form_on, platform) for platform in ("cpu", "tpu", "gpu")]
    assert forms == [["slope", "product"], ["slope", "product"], ["input", "sum"]]
    for loss, gradients in ours:
        assert loss == pytest.approx(expected, rel=1e-6)
        for one, two in zip(gradients, expected_gradients, strict=True):  # biases of keys have none but rounding
            np.testing.assert_allclose(one, two, atol=1e-5 * max(np.abs(two).max(), 0.1))


@pytest.mark.extended
@FORMS
@pytest.mark.parametrize("dtype, atol", [("float32", 1e-5), ("float64", 1e-8), ("bfloat16", 0.04)])
def test_in_training_values_and_gradients_are_those_of_gelu(approximate, dtype, atol):
    upstream = tf.constant(np.random.default_rng(1).normal(size=X.shape), dtype)
    results = []
    for function in (gelu_in_training, ops.gelu):
        x = tf.constant(X, dtype)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x, approximate=approximate)
        gradient = tape.gradient(y, x, upstream)
        assert y.dtype == gradient.dtype == x.dtype
        results.append([tf.cast(t, "float64").numpy() for t in (y, gradient)])
    for found, expected in zip(*results):
        np.testing.assert_allclose(found, expected, atol=atol)


@pytest.mark.extended
def test_a_block_trains_as_with_plain_gelu_also_when_it_is_recomputed(monkeypatch):
    """Gradients of a small model, dropout and batches of an unknown size included."""
    from keras_vit.layers.blocks import gelu

    def gradients():
        keras.utils.set_random_seed(0)
        model = keras_vit.ViT("Ti/4", image_size=8, **SIZES, remat=True)
        model.get_layer("head").kernel.assign(np.random.default_rng(0).normal(size=(16, 3)))

        @tf.function(input_signature=[tf.TensorSpec((None, 8, 8, 3))])
        def step(images):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(images, training=True) ** 2)
            return tape.gradient(loss, [v.value for v in model.trainable_variables])

        return step(tf.constant(np.random.default_rng(0).uniform(0, 255, (4, 8, 8, 3)), "float32"))

    ours = gradients()
    monkeypatch.setattr(gelu, "gelu_in_training", ops.gelu)
    for one, two in zip(ours, gradients(), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-4 * max(np.abs(two).max(), 0.1))
