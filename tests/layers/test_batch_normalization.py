"""One operation for batch normalisation against Keras' layer, which is several."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.layers import BatchNormalization


def trained(layer, dtype):
    """(outputs, gradients of x, gamma and beta, running mean and variance) after one step in training."""
    x = tf.cast(np.random.default_rng(0).normal(2.0, 3.0, (4, 5, 6, 8)), dtype)
    weight = tf.cast(np.random.default_rng(1).normal(size=x.shape), dtype)
    layer.build(x.shape)
    layer.gamma.assign(np.linspace(0.5, 2, 8))
    layer.beta.assign(np.linspace(-1, 1, 8))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x, training=True)
        loss = tf.reduce_sum(tf.cast(weight * y, tf.float32))
    gradients = tape.gradient(loss, [x, layer.gamma.value, layer.beta.value])
    return [
        tf.cast(t, tf.float32).numpy() for t in (y, *gradients, layer.moving_mean.value, layer.moving_variance.value)
    ]


@pytest.mark.parametrize(("policy", "tolerance"), [("float32", 1e-5), ("mixed_bfloat16", 3e-2)])
def test_outputs_gradients_and_statistics_are_keras(policy, tolerance):
    dtype = keras.DTypePolicy(policy).compute_dtype
    ours = trained(BatchNormalization(0.9, dtype=policy), dtype)
    theirs = trained(keras.layers.BatchNormalization(momentum=0.9, dtype=policy), dtype)
    for a, b in zip(ours, theirs):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * np.abs(b).max())
    np.testing.assert_allclose(ours[-1], theirs[-1], rtol=1e-3)  # statistics are float32 under every policy


def test_the_operation_is_one_in_training_and_a_frozen_layer_keeps_its_statistics():
    layer = BatchNormalization(0.9)
    layer.build((4, 5, 6, 8))
    graph = tf.function(lambda x: layer(x, training=True)).get_concrete_function(tf.TensorSpec((4, 5, 6, 8))).graph
    assert "FusedBatchNormV3" in {op.type for op in graph.get_operations()}
    layer.trainable = False
    x = np.random.default_rng(0).normal(size=(4, 5, 6, 8)).astype("float32")
    np.testing.assert_allclose(layer(x, training=True), x / np.sqrt(1 + 1e-3), rtol=1e-5)
    assert not np.any(layer.moving_mean)
