"""Attention patterns: each equals attention among all tokens with a mask of the pairs, written out here."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.layers import AxialBlock, MultiHeadSelfAttention, TransformerBlock
from keras_vit.layers.attention.patch_groups import allowed, pattern_sizes
from keras_vit.layers.attention.patterns import parse

GRID = (5, 7)
WIDTH = 8
NUMBERS = np.arange(GRID[0] * GRID[1])
Y, X = NUMBERS // GRID[1], NUMBERS % GRID[1]


def same(a):
    return a[:, None] == a


# The pairs of patches, (h*w, h*w): queries before keys.
PAIRS = {
    "window(3)": same(Y // 3) & same(X // 3),
    "window(2)": same(Y // 2) & same(X // 2),
    "window(6)": same(X // 6),
    "window(9)": np.ones((35, 35), bool),
    "rows": same(Y),
    "columns": same(X),
    "strided": (abs(NUMBERS[:, None] - NUMBERS) < 7) | same(X),
    "strided(4)": (abs(NUMBERS[:, None] - NUMBERS) < 4) | same(NUMBERS % 4),
    "fixed(4, 2)": same(NUMBERS // 4) | (NUMBERS % 4 >= 2),
    "local(3)": (abs(Y[:, None] - Y) <= 1) & (abs(X[:, None] - X) <= 1),
    "local(11)": abs(X[:, None] - X) <= 5,
}


def group_mask(pattern, prefix, causal=False):
    """The mask (n, n) with tokens before the patches, which attend to all, and all to them."""
    mask = np.pad(PAIRS[pattern], ((prefix, 0), (prefix, 0)), constant_values=True)
    return mask & np.tri(len(mask), dtype=bool) if causal else mask


def tokens(prefix):
    return tf.constant(np.random.default_rng(0).normal(size=(2, prefix + 35, WIDTH)), "float32")


def attentions(pattern, prefix, **options):
    """The attention with a pattern, and the plain one with the same weights."""
    patterned = MultiHeadSelfAttention(2, grid=GRID, prefix=prefix, pattern=pattern, **options)
    plain = MultiHeadSelfAttention(2, grid=GRID, prefix=prefix, **options)
    rng = np.random.default_rng(1)
    for layer in (patterned, plain):
        layer.build((None, prefix + 35, WIDTH))
    plain.set_weights([0.3 * rng.normal(size=w.shape) for w in plain.weights])
    patterned.set_weights(plain.get_weights())
    return patterned, plain


def output_and_gradients(layer, x, **masks):
    weights = [w.value for w in layer.trainable_variables]
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x, **masks)
        loss = tf.reduce_sum(tf.sin(y))
    return [y, *tape.gradient(loss, [x, *weights], unconnected_gradients="zero")]


def check_equal(patterned, plain, x, mask):
    mask = np.broadcast_to(mask, (2, *mask.shape))
    for one, other in zip(output_and_gradients(patterned, x), output_and_gradients(plain, x, attention_mask=mask)):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.extended
@pytest.mark.parametrize("prefix", [0, 1, 5])
@pytest.mark.parametrize("pattern", PAIRS)
def test_a_pattern_equals_masked_attention_forward_and_gradient(pattern, prefix):
    patterned, plain = attentions(pattern, prefix)
    mask = group_mask(pattern, prefix)
    np.testing.assert_array_equal(allowed(pattern, GRID, prefix), mask)
    check_equal(patterned, plain, tokens(prefix), mask)
    assert pattern_sizes(pattern, GRID, prefix)[0] >= mask.sum()


@pytest.mark.parametrize("pattern", ["window(3)", "columns", "strided(4)", "fixed(4, 2)", "local(3)"])
def test_a_causal_pattern_leaves_out_later_patches(pattern):
    patterned, plain = attentions(pattern, 1, causal=True)
    check_equal(patterned, plain, tokens(1), group_mask(pattern, 1, causal=True))


def test_rotary_positions_and_normalised_queries_go_with_a_pattern():
    patterned, plain = attentions("window(3)", 1, positions="rope2d", qk_norm=True)
    check_equal(patterned, plain, tokens(1), group_mask("window(3)", 1))


def test_attention_weights_are_zero_outside_the_pattern():
    patterned, plain = attentions("window(3)", 2)
    x, mask = tokens(2), group_mask("window(3)", 2)
    weights = np.array(patterned.attention_weights(x))
    assert not weights[..., ~mask].any()
    expected = plain.attention_weights(x, attention_mask=np.broadcast_to(mask, (2, *mask.shape)))
    np.testing.assert_allclose(weights, expected, atol=1e-6)


def test_masks_of_the_call_add_to_the_pattern():
    patterned, plain = attentions("window(3)", 1)
    x, exists = tokens(1), np.arange(36) % 5 > 0
    mask = np.broadcast_to(group_mask("window(3)", 1) & exists, (2, 36, 36))
    expected = plain(x, attention_mask=mask)
    np.testing.assert_allclose(patterned(x, mask=np.stack([exists] * 2)), expected, atol=1e-5)


def test_an_axial_block_attends_in_rows_then_in_columns():
    axial = AxialBlock(2, 16, grid=GRID, prefix=1)
    axial.build((None, 36, WIDTH))
    halves = [TransformerBlock(2, 16) for _ in range(2)]
    for half in halves:
        half.build((None, 36, WIDTH))
    columns = axial.columns.get_weights()
    halves[1].set_weights(columns)
    of_columns = {id(w) for w in axial.columns.weights}
    halves[0].set_weights([w.numpy() for w in axial.weights if id(w) not in of_columns])
    x, weights = tokens(1), []
    y = x
    for half, pattern in zip(halves, ("rows", "columns")):
        masks = {"attention_mask": np.broadcast_to(group_mask(pattern, 1), (2, 36, 36))}
        weights.append(half.attention_weights(y, **masks))
        y = half(y, **masks)
    np.testing.assert_allclose(axial(x), y, atol=1e-5)
    np.testing.assert_allclose(axial.attention_weights(x), np.concatenate(weights, axis=1), atol=1e-6)


def test_dropout_of_the_weights_repeats_with_the_seed():
    layer, _ = attentions("window(3)", 1, attention_dropout=0.5)
    x, seed = tokens(1), tf.constant([1, 2])
    one, again, other = (np.array(layer(x, training=True, seed=s)) for s in (seed, seed, seed + 1))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any() and (one != np.array(layer(x))).any()


def test_half_precision_stays_near_float32():
    full, _ = attentions("window(3)", 1)
    half = MultiHeadSelfAttention(2, grid=GRID, prefix=1, pattern="window(3)", dtype="mixed_float16")
    half.build((None, 36, WIDTH))
    half.set_weights(full.get_weights())
    np.testing.assert_allclose(half(tokens(1)), full(tokens(1)), rtol=0.02, atol=0.2)


def test_the_text_has_one_spelling():
    found = parse(" window( 14 ,global = (5,2, 8) )", "attention")
    assert str(found) == "window(14, global=(2, 5, 8))"
    assert (found.of_block(2), found.of_block(3)) == (None, "window(14)")
    assert str(parse("window(7, global=3)", "attention")) == "window(7, global=(3,))"
    assert parse(str(parse("window(7, global=3)", "attention")), "attention").global_blocks == (3,)
    assert [str(parse(text, "attention")) for text in ("strided", "strided(4)")] == ["strided", "strided(4)"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("windw(14)", 'Did you mean "window"'),
        (14, "must be one of global, axial, window"),
        ("window", r"write window\(r\) with positive integers"),
        ("window(0)", "with positive integers"),
        ("window(7, 7)", "with positive integers"),
        ("window(7, global=all)", "with positive integers"),
        ("fixed(4)", r"write fixed\(l, c\)"),
        ("fixed(4, 5)", "c must be at most l=4, got 5"),
        ("local(4)", "k must be odd and at least 3, got 4"),
        ("axial(2)", '"axial" takes no arguments'),
        ("global(1)", '"global" takes no arguments'),
    ],
)
def test_other_texts_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text, "attention")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pattern": "window(3)"}, r"needs the grid \(h, w\)"),
        ({"pattern": "window(3)", "grid": GRID, "positions": "relative2d"}, "no terms of the scores"),
        ({"pattern": "axial", "grid": GRID}, "pattern must be one of window"),
    ],
)
def test_attention_that_cannot_have_a_pattern_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadSelfAttention(2, **options)
