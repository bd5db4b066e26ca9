"""The forms of layers for TPUs in TensorFlow compute what the others do, without what is slow there."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit import layers
from keras_vit.layers import backend
from keras_vit.layers.dropout import keep_mask

B, N, D = 3, 7, 16


@pytest.fixture
def on_tpus(monkeypatch):
    """Switches the forms for TPUs on and off."""

    def switch(value):
        monkeypatch.setattr(backend, "_on_tpus", lambda: value)

    return switch


def tokens(dtype):
    return tf.cast(np.random.default_rng(0).normal(size=(B, N, D)), dtype)


def step(layer, dtype):
    """(outputs, the gradients of the input and of the weights) as a traced function, whose operations can be read."""

    @tf.function(autograph=False)
    def function(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True)
            loss = tf.reduce_sum(
                tf.cast(y, "float32") * tf.reshape(tf.range(B * N * D, dtype="float32") / 100 - 1, (B, N, D))
            )
        return y, *tape.gradient(loss, [x, *(v.value for v in layer.trainable_variables)])

    return function.get_concrete_function(tf.TensorSpec((B, N, D), dtype))


@pytest.mark.extended
@pytest.mark.parametrize(("dtype", "tolerance", "remat"), [("float32", 1e-5, False), ("mixed_bfloat16", 5e-2, True)])
def test_a_block_computes_the_same(on_tpus, dtype, tolerance, remat):
    layer = layers.TransformerBlock(heads=2, mlp_dim=32, remat=remat, dtype=dtype)
    layer.build((B, N, D))
    compute, results = layer.compute_dtype, []
    for value in (False, True):
        on_tpus(value)
        keras.utils.set_random_seed(0)
        results.append([np.asarray(tf.cast(r, "float32")) for r in step(layer, compute)(tokens(compute))])
    assert len(results[0]) == 2 + len(layer.trainable_variables)
    for plain, other in zip(*results, strict=True):
        # That of the key's bias is 0.
        np.testing.assert_allclose(other, plain, atol=tolerance * max(np.abs(plain).max(), 1.0))


def test_tokens_keep_their_shape_and_biases_sum_by_a_product(on_tpus):
    layer = layers.MlpBlock(mlp_dim=32, dtype="mixed_bfloat16")
    layer.build((B, N, D))
    for value in (False, True):
        on_tpus(value)
        inside = [op for op in step(layer, "bfloat16").graph.get_operations() if "mlp" in op.name]
        flattened = [
            op for op in inside if op.type == "Reshape" and op.inputs[0].shape.rank != op.outputs[0].shape.rank
        ]
        assert bool(flattened) == any(op.type == "BiasAddGrad" for op in inside) == (not value)


@pytest.mark.parametrize("rank", [2, 4])
def test_a_bias_has_the_gradient_of_a_sum_over_rows(rank):
    shape = (5, 2, 3)[: rank - 1] + (D,)
    # The CPU's sums in bfloat16 are rounded at each addition.
    g = np.random.default_rng(1).normal(size=shape).astype("float32")
    bias = tf.zeros(D)
    with tf.GradientTape() as tape:
        tape.watch(bias)
        y = backend._with_bias_on_tensorflow(tf.zeros(shape), bias)
    found = tape.gradient(y, bias, output_gradients=tf.constant(g))
    np.testing.assert_allclose(found, g.reshape(-1, D).sum(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "mask"), [("Dropout", (B, N, D)), ("DropPath", (B, 1, 1))])
def test_masks_come_from_the_hash(on_tpus, name, mask):
    seed = np.array([3, 4])
    layer = getattr(layers, name)(0.25)
    kept = np.asarray(keep_mask(mask, 0.25, seed))
    on_tpus(True)
    y = np.asarray(layer(tf.ones((B, N, D)), training=True, seed=seed))
    np.testing.assert_allclose(y, np.broadcast_to(kept / 0.75, y.shape), rtol=1e-6)


def test_a_mask_of_unknown_shape_is_drawn_by_the_engine(on_tpus):
    on_tpus(True)
    layer = layers.Dropout(0.25, seed=0)
    function = tf.function(lambda x: layer(x, training=True)).get_concrete_function(
        tf.TensorSpec((None, N, D), "float32")
    )
    share = np.mean(np.asarray(function(tf.ones((64, N, D)))) == 0)
    assert 0.2 < share < 0.3
