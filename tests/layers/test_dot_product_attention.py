"""KERAS_VIT_DOT_PRODUCT_ATTENTION=on: attention by Keras' operation, and where it is not used."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit import layers

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


def test_an_unknown_setting_is_an_error(monkeypatch):
    with pytest.raises(ValueError, match=f"{SETTING}: unknown value 'yes'. Valid: off, on."):
        results(monkeypatch, "yes", {})
