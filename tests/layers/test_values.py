"""Layers against what they should compute: numpy, other forms of the same thing, statistics of dropout."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from interpreters import Interpreter

from keras_vit import layers
from keras_vit.layers.positions.embeddings import sincos_2d


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def randomized(layer, shape):
    layer.build(shape)
    for i, weight in enumerate(layer.weights):
        if "seed" not in weight.path:
            weight.assign(0.3 * random(*weight.shape, seed=i))
    return layer


@pytest.mark.parametrize(("patch", "channels"), [((4, 4), 3), ((2, 6), 5), ((8, 3), 1)])
def test_flatten_and_dense_equals_convolution(patch, channels):
    images = random(3, 8, 12, channels)
    conv = randomized(layers.PatchEncoder(patch, 16, form="conv"), images.shape)
    dense = randomized(layers.PatchEncoder(patch, 16, form="dense"), images.shape)
    np.testing.assert_allclose(conv(images), dense(images), atol=1e-5)


def test_patches_are_in_row_major_order():
    images = np.zeros((1, 4, 6, 1), "float32")
    images[0, :2, 4:] = 1.0  # the third patch of the first row
    encoder = layers.PatchEncoder(2, 1)
    encoder.build(images.shape)
    encoder.kernel.assign(np.ones((2, 2, 1, 1)))
    np.testing.assert_array_equal(np.asarray(encoder(images))[0, :, 0], [0, 0, 4, 0, 0, 0])


def numpy_attention(x, layer):
    """The definition, one example and head at a time."""
    w = {name: np.asarray(getattr(layer, name).kernel) for name in ("query", "key", "value", "out")}
    b = {name: np.asarray(getattr(layer, name).bias) for name in w}
    c = layer.size
    out = np.zeros((*x.shape[:2], layer.heads * c))
    for i, tokens in enumerate(x):
        q, k, v = (tokens @ w[name] + b[name] for name in ("query", "key", "value"))
        for h in range(layer.heads):
            s = slice(h * c, (h + 1) * c)
            scores = np.exp(q[:, s] @ k[:, s].T / np.sqrt(c))
            out[i, :, s] = scores / scores.sum(-1, keepdims=True) @ v[:, s]
    return out @ w["out"] + b["out"]


def test_attention_is_its_definition():
    x = random(2, 7, 16)
    layer = randomized(layers.MultiHeadSelfAttention(4, head_dim=5), x.shape)
    np.testing.assert_allclose(layer(x), numpy_attention(x.astype("float64"), layer), atol=1e-5)


def keras_attention(ours, *shapes):
    """Keras' layer of 4 heads with the weights of ours, for shapes of queries and keys."""
    theirs, values = keras.layers.MultiHeadAttention(4, 4), []
    theirs.build(*shapes)
    for name in ("query", "key", "value"):
        dense = getattr(ours, name)
        values += [np.asarray(dense.kernel).reshape(16, 4, 4), np.asarray(dense.bias).reshape(4, 4)]
    theirs.set_weights([*values, np.asarray(ours.out.kernel).reshape(4, 4, 16), ours.out.bias])
    return theirs


def test_attention_equals_keras_multi_head_attention():
    x = random(2, 7, 16)
    ours = randomized(layers.MultiHeadSelfAttention(4), x.shape)
    theirs = keras_attention(ours, x.shape, x.shape)
    expected, weights = theirs(x, x, return_attention_scores=True)
    np.testing.assert_allclose(ours(x), expected, atol=1e-5)
    np.testing.assert_allclose(ours.attention_weights(x), weights, atol=1e-6)


def test_qk_norm_normalises_each_head_by_itself():
    x = random(2, 7, 16)
    layer = layers.MultiHeadSelfAttention(4, qk_norm=True)
    layer.build(x.shape)
    assert layer.query_norm.gamma.shape == (4,)
    q = np.asarray(layer.query_norm(layer._split(layer.query(x))))  # (b, k, n, c)
    np.testing.assert_allclose(q.mean(-1), 0, atol=1e-5)
    np.testing.assert_allclose(q.std(-1), 1, atol=1e-2)


def test_bias_free_qkv_has_no_biases():
    layer = layers.MultiHeadSelfAttention(4, qkv_bias=False)
    layer.build((None, 7, 16))
    assert layer.count_params() == 4 * 16 * 16 + 16


def test_sincos_positions_equal_the_published_formula():
    """Values of big_vision's posemb_sincos_2d for a 2x3 grid of width 8, from its formula by hand."""
    table = sincos_2d((2, 3), 8)
    assert table.shape == (6, 8)
    x, y = 2, 1  # the last patch
    omega = [1.0, 1e-4]
    expected = [np.sin(x * o) for o in omega] + [np.cos(x * o) for o in omega]
    expected += [np.sin(y * o) for o in omega] + [np.cos(y * o) for o in omega]
    np.testing.assert_allclose(table[5], expected, atol=1e-6)


def test_sincos_positions_are_not_weights_and_leave_the_prefix():
    x = random(2, 7, 16)
    layer = layers.AddPositionEmbs((2, 3), prefix=1, kind="sincos2d")
    y = np.asarray(layer(x))
    assert not layer.weights
    np.testing.assert_array_equal(y[:, 0], x[:, 0])


def test_registers_come_after_the_class_token():
    x = random(2, 5, 16)
    layer = layers.ClassToken(3, after=1, initializer="normal")
    y = np.asarray(layer(x))
    np.testing.assert_array_equal(y[:, 0], x[:, 0])
    np.testing.assert_array_equal(y[:, 4:], x[:, 1:])
    np.testing.assert_array_equal(y[0, 1:4], np.asarray(layer.tokens)[0])


def test_mean_pooling_leaves_the_prefix_out():
    x = random(2, 7, 16)
    np.testing.assert_allclose(layers.MeanPooling(3)(x), x[:, 3:].mean(1), atol=1e-6)
    np.testing.assert_array_equal(layers.TokenPooling()(x), x[:, 0])


def test_normalization_is_exact_under_mixed_precision():
    """100.3 would become 100.5 in bfloat16 before the subtraction."""
    layer = layers.PixelNormalization(100.0, 1.0, dtype="mixed_bfloat16")
    y = float(layer(np.full((1, 2, 2, 1), 100.3, "float32"))[0, 0, 0, 0])
    assert abs(y - 0.3) < 1e-3


def test_integers_and_floats_normalise_alike():
    layer = layers.PixelNormalization()
    x = np.arange(0, 256, 3, dtype="uint8").reshape(1, -1, 1, 1)
    np.testing.assert_array_equal(layer(x), layer(x.astype("float32")))
    assert float(layer(x).numpy().min()) == -1.0


def test_dropout_keeps_the_mean_and_differs_between_calls():
    layer = layers.Dropout(0.25, seed=1)
    ones = np.ones((100, 100), "float32")
    first, second = np.asarray(layer(ones, training=True)), np.asarray(layer(ones, training=True))
    assert abs((first == 0).mean() - 0.25) < 0.02
    np.testing.assert_allclose(first[first > 0], 1 / 0.75, rtol=1e-6)
    assert (first != second).any()
    np.testing.assert_array_equal(layer(ones), ones)


def test_drop_path_drops_whole_examples():
    layer = layers.DropPath(0.5, seed=1)
    y = np.asarray(layer(np.ones((200, 3, 4), "float32"), training=True)).reshape(200, -1)
    assert set(np.unique(y)) == {0.0, 2.0}
    assert (y == y[:, :1]).all()
    assert 0.35 < (y[:, 0] == 0).mean() < 0.65


def masks_of_two_replicas():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        layer = layers.Dropout(0.5, seed=1)
    run = tf.function(lambda: strategy.run(lambda: layer(tf.ones((8, 8)), training=True)))
    return [mask.numpy().tolist() for mask in strategy.experimental_local_results(run())]


@pytest.mark.processes
def test_dropout_differs_between_replicas():
    """Keras' own dropout has the same mask on every replica."""
    with Interpreter(devices=2) as other:
        one, two = other.run(masks_of_two_replicas)
    assert one != two


@pytest.mark.extended
def test_rematerialisation_gives_the_same_gradients():
    """The recomputed pass must repeat the masks of the first."""
    x, results = tf.constant(random(4, 6, 16)), []
    rates = {"dropout": 0.3, "drop_path": 0.3, "attention_dropout": 0.2}
    for remat in (False, True):
        block = randomized(layers.TransformerBlock(2, 32, remat=remat, **rates), x.shape)
        block.seed_generator.state.assign([7, 0])

        @tf.function
        def step(block=block):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(block(x, training=True)))
            return loss, tape.gradient(loss, [w.value for w in block.trainable_weights])

        results.append(step())
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-6)
    for a, b in zip(results[0][1], results[1][1]):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_block_is_two_residual_lines():
    x = random(2, 6, 16)
    block = randomized(layers.TransformerBlock(2, 32), x.shape)
    y = x + np.asarray(block.attention(block.attention_norm(x)))
    y = y + np.asarray(block.mlp(block.mlp_norm(y)))
    np.testing.assert_allclose(block(x), y, atol=1e-5)


def test_layer_scale_starts_a_block_near_the_identity():
    x = random(2, 6, 16)
    block = layers.TransformerBlock(2, 32, layer_scale=1e-5)
    assert 0 < np.abs(np.asarray(block(x)) - x).max() < 1e-3


def test_map_pooling_equals_keras_attention_and_mlp():
    x = random(2, 7, 16)
    ours = randomized(layers.AttentionPooling(4, 32), x.shape)
    theirs = keras_attention(ours, (None, 1, 16), x.shape)
    y = theirs(np.repeat(np.asarray(ours.probe), 2, axis=0), x)
    y = y + ours.mlp(ours.norm(y))
    np.testing.assert_allclose(ours(x), y[:, 0], atol=1e-5)
