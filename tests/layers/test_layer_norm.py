"""layers.layer_norm: values and gradients of Keras' own, in every dtype, in training and outside."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.layers.normalization import LayerNormalization


def both(dtype, epsilon=1e-3):
    """This package's layer and Keras', of the same random weights."""
    rng = np.random.default_rng(0)
    made = [cls(epsilon=epsilon, dtype=dtype) for cls in (LayerNormalization, keras.layers.LayerNormalization)]
    weights = rng.normal(size=(2, 24))
    for layer in made:
        layer.build((None, None, 24))
        layer.set_weights(weights)
    return made


def values_and_gradients(layer, x, upstream, training):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x, training=training) if training is not None else layer(x)
    gradients = tape.gradient(y, [x, *layer.trainable_variables], tf.cast(upstream, y.dtype))
    return [tf.cast(t, "float64").numpy() for t in (y, *gradients)], [t.dtype for t in (y, *gradients)]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("dtype", "atol", "training"),
    [("float32", 2e-5, True), ("float32", 2e-5, False), ("float64", 1e-13, True), ("mixed_bfloat16", 0.05, True)],
)
def test_values_and_gradients_are_keras_own(dtype, atol, training):
    rng = np.random.default_rng(1)
    ours, theirs = both(dtype)
    x = tf.constant(3 + 2 * rng.normal(size=(5, 7, 24)), ours.compute_dtype)
    upstream = tf.constant(rng.normal(size=x.shape))
    found, dtypes = values_and_gradients(ours, x, upstream, training)
    expected, expected_dtypes = values_and_gradients(theirs, x, upstream, None)
    assert dtypes == expected_dtypes
    for one, two in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, two, atol=atol)


def test_batches_of_an_unknown_size_in_a_graph():
    ours, theirs = both("float32")
    step = tf.function(lambda x: ours(x, training=True), input_signature=[tf.TensorSpec((None, None, 24))])
    for b in (2, 3):
        x = tf.random.normal((b, 4, 24))
        np.testing.assert_allclose(step(x), theirs(x), atol=1e-5)


def test_an_input_of_more_digits_than_the_policy_keeps_them_until_the_end():
    ours, theirs = both("mixed_bfloat16", epsilon=1e-6)
    x = tf.constant(1000 + np.random.default_rng(0).normal(size=(2, 3, 24)), "float32")
    assert ours(x).dtype == tf.bfloat16
    np.testing.assert_allclose(tf.cast(ours(x, training=True), "float32"), tf.cast(theirs(x), "float32"), atol=0.02)
