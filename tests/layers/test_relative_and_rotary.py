"""Positions by formulas of their own: fixed sines, halves by row and column, terms by offset, rotations."""

import keras
import numpy as np
import pytest

from keras_vit import layers
from keras_vit.layers.positions.embeddings import sincos_1d
from keras_vit.layers.positions.relative import skewed
from keras_vit.layers.positions.rotary import rotary_angles

# transformers 5.23.0, DINOv3ViTRopePositionEmbedding and apply_rotary_pos_emb: cos(0), cos(1)... as (1, 2, 7, 8), one
# token before a grid of 2 x 3; the second head.
DINOV3 = [
    [0.85322, 0.899867, 0.11918, -0.77108, -0.952413, -0.258102, 0.673507, 0.985897],
    [-0.391857, -0.227951, -0.048646, -0.598697, -0.440143, 1.118578, -1.18238, -0.07171],
    [0.967251, -0.709733, 0.171717, 0.921751, -0.824331, 0.198037, -0.857803, -0.895971],
    [0.110387, 0.434483, -0.807132, -0.003772, 0.680023, -1.176207, -0.630596, 0.62199],
    [-0.999373, 0.387116, -0.615539, -0.611412, 0.626444, 0.459546, -0.872773, 1.071492],
    [0.180431, -1.155512, -0.819288, 0.039821, -0.862319, 0.562461, 0.101586, -0.782231],
    [0.946868, -0.050862, -1.208421, 1.102217, -0.37551, -0.623222, -0.095004, -0.059365],
]
# transformers 5.23.0, BeitRelativePositionBias: a table of 0 to 23 for 2 heads, class token and a grid of 2 x 2; the
# first head.
BEIT = [[22, 18, 18, 18, 18], [20, 8, 6, 2, 0], [20, 10, 8, 4, 2], [20, 14, 12, 8, 6], [20, 16, 14, 10, 8]]


def filled(layer, shape):
    layer.build(shape)
    rng = np.random.default_rng(1)
    for weight in layer.weights:
        weight.assign(0.5 * rng.normal(size=weight.shape))
    return layer


def random(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def test_the_1d_table_is_that_of_the_transformer():
    """Section 3.5 of arXiv 1706.03762, value by value."""
    table = sincos_1d(50, 6)
    for position in (0, 1, 49):
        for i in range(3):
            angle = position / 10_000 ** (2 * i / 6)
            np.testing.assert_allclose(table[position, 2 * i : 2 * i + 2], [np.sin(angle), np.cos(angle)], atol=1e-6)


def test_halves_are_of_column_and_row_and_registers_get_none():
    layer = filled(layers.AddPositionEmbs((2, 3), prefix=1, kind="learned2d", registers=2), (None, 9, 4))
    assert [w.path.removeprefix(f"{layer.path}/") for w in layer.weights] == [
        "embedding/prefix",
        "embedding/x",
        "embedding/y",
    ]
    prefix, x, y = (np.asarray(w) for w in layer.weights)
    added = np.asarray(layer(np.zeros((1, 9, 4), "float32")))[0]
    expected = [prefix[0], *np.zeros((2, 4)), *(np.concatenate([x[j], y[i]]) for i in range(2) for j in range(3))]
    np.testing.assert_array_equal(added, np.array(expected, "float32"))


@pytest.mark.parametrize("n", [1, 2, 5])
def test_skewing_takes_each_row_from_its_own_place(n):
    x = random(2, 3, n, 2 * n - 1)
    y = np.asarray(skewed(keras.ops.convert_to_tensor(x)))
    for i in range(n):
        for j in range(n):
            np.testing.assert_array_equal(y[:, :, i, j], x[:, :, i, j - i + n - 1])


@pytest.mark.parametrize("prefix", [0, 2])
def test_relative_attention_is_a_second_key_by_offset(prefix):
    layer = filled(layers.RelativeAttention((2, 2), prefix), (None, 3, prefix + 4, 8))
    q = random(2, 3, prefix + 4, 8)
    rows = np.asarray(layer.embedding)
    others = np.asarray(layer.prefix_embedding) if prefix else None
    found = np.asarray(layer(q))
    for i in range(prefix + 4):
        for j in range(prefix + 4):
            if i >= prefix and j >= prefix:
                row = rows[j - i + 3]
            else:
                row = others[0 if j >= prefix else 1 if i >= prefix else 2]
            np.testing.assert_allclose(found[:, :, i, j], (q[:, :, i] * row).sum(-1), atol=1e-5)


def test_the_relative_bias_is_beits():
    layer = layers.RelativeBias((2, 2), prefix=1)
    layer.build((None, 2, 5, 4))
    table = np.arange(24.0).reshape(12, 2)
    layer.bias.assign(table[:9].reshape(3, 3, 2))
    layer.prefix_bias.assign(table[9:])
    np.testing.assert_array_equal(np.asarray(layer(np.zeros((1, 2, 5, 4), "float32")))[0, 0], BEIT)


def test_the_relative_bias_of_a_rectangle():
    layer = filled(layers.RelativeBias((2, 3)), (None, 2, 6, 4))
    found, bias = np.asarray(layer(np.zeros((1, 2, 6, 4), "float32"))), np.asarray(layer.bias)
    for i in range(6):
        for j in range(6):
            np.testing.assert_array_equal(found[0, :, i, j], bias[i // 3 - j // 3 + 1, i % 3 - j % 3 + 2])


def test_rotation_is_dinov3s():
    x = np.cos(np.arange(2 * 7 * 8)).reshape(1, 2, 7, 8).astype("float32")
    np.testing.assert_allclose(np.asarray(layers.RotaryPositions((2, 3), prefix=1)(x))[0, 1], DINOV3, atol=1e-5)


def test_rotation_is_a_product_of_complex_numbers_that_knows_the_offset_alone():
    x, layer = random(1, 2, 6, 8), layers.RotaryPositions((2, 3))
    y = np.asarray(layer(x))
    turned = (x[..., :4] + 1j * x[..., 4:]) * np.exp(1j * rotary_angles((2, 3), 8))
    np.testing.assert_allclose(y, np.concatenate([turned.real, turned.imag], -1), atol=1e-5)
    same = np.asarray(layer(np.broadcast_to(x[:, :, :1], x.shape)))[0, 0]  # one query at all places
    products = same @ same.T
    np.testing.assert_allclose(products[0, 1], products[4, 5], atol=1e-5)  # one column further
    np.testing.assert_allclose(products[0, 5], products[5, 0], atol=1e-5)
    assert abs(products[0, 1] - products[0, 3]) > 1e-2


@pytest.mark.parametrize("positions", ["relative", "relative2d", "rope2d"])
def test_attention_adds_the_term_to_its_scores_or_turns_queries_and_keys(positions):
    """The whole layer against the plain one's weights and the formula of appendix A."""
    layer = filled(layers.MultiHeadSelfAttention(2, positions=positions, grid=(2, 2), prefix=1), (None, 5, 16))
    x = random(3, 5, 16)

    def heads(dense):
        return (x @ np.asarray(dense.kernel) + np.asarray(dense.bias)).reshape(3, 5, 2, 8).transpose(0, 2, 1, 3)

    q, k = heads(layer.query), heads(layer.key)
    if positions == "rope2d":
        q, k = np.asarray(layer.rotary(q)), np.asarray(layer.rotary(k))
    q = q / np.sqrt(8)
    scores = q @ k.swapaxes(-1, -2) + (0 if positions == "rope2d" else np.asarray(layer.relative(q)))
    expected = np.exp(scores - scores.max(-1, keepdims=True))
    expected /= expected.sum(-1, keepdims=True)
    np.testing.assert_allclose(layer.attention_weights(x), expected, atol=1e-5)
    mask = np.array([[1, 1, 1, 0, 1]] * 3, bool)
    assert (np.asarray(layer.attention_weights(x, mask))[..., 3] == 0).all()
