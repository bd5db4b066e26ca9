"""KERAS_VIT_DOT_PRODUCT_ATTENTION: attention by Keras' operation, and where it is not used."""

import types
import unittest.mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from interpreters import Interpreter

from keras_vit import layers
from keras_vit.layers import backend
from keras_vit.layers.attention import self_attention

B, N, D = 3, 6, 16
SETTING = "KERAS_VIT_DOT_PRODUCT_ATTENTION"
THERE = np.arange(N) < np.array([6, 4, 0])[:, None]  # the last image has no tokens


@pytest.fixture
def used(monkeypatch):
    """Counts the calls of Keras' operation."""
    calls, operation = [], keras.ops.dot_product_attention
    monkeypatch.setattr(keras.ops, "dot_product_attention", lambda *x, **o: (calls.append(1), operation(*x, **o))[1])
    return calls


def results(monkeypatch, setting, arguments, **options):
    """The output and the gradients of a layer in training, with the setting."""
    monkeypatch.setenv(SETTING, setting)
    keras.utils.set_random_seed(0)
    layer = layers.MultiHeadSelfAttention(2, grid=(2, 3), **options)
    layer.build((B, N, D))
    x = tf.constant(np.random.default_rng(0).normal(size=(B, N, D)), "float32")
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x, training=True, seed=np.array([1, 2]), **arguments)
        loss = tf.reduce_sum(y * tf.range(D, dtype="float32"))
    given = [x, *(v.value for v in layer.trainable_variables)]
    return [tf.convert_to_tensor(each) for each in (y, *tape.gradient(loss, given))]


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({"dropout": 0.2}, {}),
        ({"causal": True}, {"mask": THERE}),
        ({"positions": "rope2d"}, {"mask": THERE}),
        ({"qk_norm": True, "causal": True}, {"attention_mask": np.tri(N, dtype=bool)[None, ::-1].repeat(B, 0)}),
    ],
)
def test_it_computes_what_the_plain_form_does(monkeypatch, used, options, arguments):
    plain = results(monkeypatch, "off", arguments, **options)
    assert not used
    found = results(monkeypatch, "on", arguments, **options)
    assert used
    for ours, theirs in zip(found, plain, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{"positions": "relative"}, {"attention_dropout": 0.2}])
def test_what_needs_the_weights_takes_the_plain_form(monkeypatch, used, options):
    plain, other = (results(monkeypatch, setting, {}, **options) for setting in ("off", "on"))
    assert not used
    for ours, theirs in zip(other, plain, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("options", "arguments", "by_cudnn"),
    [({"positions": "rope2d"}, {}, True), ({}, {"mask": THERE}, False), ({"causal": True}, {}, False)],
)
def test_by_default_cudnn_attends_without_masks(monkeypatch, used, options, arguments, by_cudnn):
    plain = results(monkeypatch, "check", arguments, **options)
    assert not used, "there is no GPU here"
    monkeypatch.setattr(self_attention, "cudnn_attends", lambda x, width: width == D // 2)
    found = results(monkeypatch, "check", arguments, **options)
    assert bool(used) == by_cudnn
    np.testing.assert_allclose(found[0], plain[0], rtol=1e-5, atol=1e-5)


def test_an_unknown_setting_is_an_error(monkeypatch):
    with pytest.raises(ValueError, match=f'{SETTING}: unknown value "yes". Valid: check, on, off.'):
        results(monkeypatch, "yes", {})


def largest_difference(n):
    """Of outputs and gradients of attention among n tokens, as on a GPU and plain, relative to the largest values."""
    import jax

    from keras_vit.layers.kernels import cudnn, self_check

    q, k, v = np.random.default_rng(0).normal(size=(3, 2, n, 2, 8)).astype("bfloat16")
    called, kernel = [], jax.nn.dot_product_attention
    card = types.SimpleNamespace(platform="gpu", compute_capability="9.0")

    def counted(q, *rest, **options):
        called.append(q.shape[1])
        return kernel(q, *rest, **options)

    def results(function):
        values, backward = jax.vjp(function, q, k, v)
        return [np.asarray(x, "float32") for x in (values, *backward(values))]

    plain = results(keras.ops.dot_product_attention)
    with (
        unittest.mock.patch.object(cudnn, "_IMPLEMENTATION", "xla"),
        unittest.mock.patch.object(cudnn, "usable", lambda q, width: True),
        unittest.mock.patch.object(jax.nn, "dot_product_attention", counted),
    ):
        found = results(backend.dot_product_attention)
    with (
        unittest.mock.patch.object(jax, "devices", lambda: [card]),
        unittest.mock.patch.object(self_check, "trusted", lambda dtype: True),
    ):
        tokens = jax.numpy.zeros((2, 197, 8), "bfloat16")
        assert backend.cudnn_attends(tokens, 64) and not backend.cudnn_attends(tokens.astype("float32"), 64)
        assert not backend.cudnn_attends(tokens, 20) and not backend.cudnn_attends(tokens, 256)
        assert not backend.cudnn_attends(tokens[:, :100], 64)
    card.platform = "tpu"
    with (
        unittest.mock.patch.object(jax, "devices", lambda: [card]),
        unittest.mock.patch("keras.src.backend.jax.nn.wrap_flash_attention") as causal_without_masks,
    ):
        backend.dot_product_attention(q, k, v)
    assert not causal_without_masks.called
    return called[-1], max(float(abs(a - b).max() / abs(b).max()) for a, b in zip(found, plain, strict=True))


def layer_differences(n, given):
    """(tokens that the kernel got, rows of the attention's last product, differences of a layer's output and gradients
    to those without the kernel, relative to the largest values), among n tokens.
    """
    import os

    import jax

    from keras_vit.layers.kernels import cudnn, self_check

    called, rows, kernel = [], [], jax.nn.dot_product_attention

    def counted(q, *rest, **options):
        called.append(q.shape[1])
        return kernel(q, *rest, **options)

    def results(setting):
        os.environ[SETTING] = setting
        keras.utils.set_random_seed(0)
        options = {"grid": (1, n - 1), "prefix": 1, **given}
        layer = layers.MultiHeadSelfAttention(2, **options)
        layer.build((2, n, 16))
        product = layer.out.call
        layer.out.call = lambda x: (rows.append(x.shape[1]), product(x))[1]
        rng = np.random.default_rng(0)
        x, upstream = rng.normal(size=(2, 2, n, 16)).astype("float32")
        weights = [v.value + 0.3 * rng.normal(size=v.shape) for v in layer.trainable_variables]
        state = [v.value for v in layer.non_trainable_variables]

        def loss(x, weights):
            return (layer.stateless_call(weights, state, x, training=True)[0] * upstream).sum()

        value, (of_x, of_weights) = jax.value_and_grad(loss, (0, 1))(x, weights)
        return [np.asarray(result) for result in (value, of_x, *of_weights)]

    plain = results("off")
    rows.clear()
    with (
        unittest.mock.patch.object(cudnn, "_IMPLEMENTATION", "xla"),
        unittest.mock.patch.object(cudnn, "usable", lambda q, width: True),
        unittest.mock.patch.object(self_check, "_FEWEST", 2),
        unittest.mock.patch.object(self_check, "trusted", lambda dtype: True),
        unittest.mock.patch.object(jax.nn, "dot_product_attention", counted),
    ):
        found = results("check")
    scales = [max(abs(b).max(), 1.0) for b in plain]  # what shifts all keys has no gradient but rounding
    return called, rows, [float(abs(a - b).max() / s) for a, b, s in zip(found, plain, scales, strict=True)]


@pytest.mark.processes
def test_on_a_gpu_an_odd_number_of_tokens_gets_one_more():
    with Interpreter("jax") as other:
        for n in (5, 6):
            count, difference = other.run(largest_difference, n)
            assert count == 6 and difference <= 2**-7
        for options, rows in (({}, 6), ({"qk_norm": True}, 6), ({"positions": "rope2d"}, 5)):
            tokens, of_product, differences = other.run(layer_differences, 5, options)
            assert tokens == [6] and of_product == [rows] and max(differences) <= 1e-5, (options, differences)
