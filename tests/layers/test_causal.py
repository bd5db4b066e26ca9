"""Causal attention: each token sees itself and those before it, also token by token with kept keys and values."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit import layers
from keras_vit.models import make_spec

N, WIDTH = 6, 16
BEFORE = np.tri(N, dtype=bool)


def filled(layer):
    layer.build((None, N, WIDTH))
    rng = np.random.default_rng(1)
    for weight in layer.weights:
        if "seed" not in weight.path:
            weight.assign(0.3 * rng.normal(size=weight.shape))
    return layer


def attention(**options):
    return filled(layers.MultiHeadSelfAttention(2, **options))


def block(**options):
    return filled(layers.TransformerBlock(2, 32, **options))


@pytest.fixture
def tokens():
    return np.random.default_rng(0).normal(size=(3, N, WIDTH)).astype("float32")


@pytest.mark.parametrize(("make", "options"), [(attention, {}), (block, {"qk_norm": True, "qkv_bias": False})])
def test_it_is_a_lower_triangle_given_as_a_mask(make, options, tokens):
    causal, plain = make(causal=True, **options), make(**options)
    mask = np.broadcast_to(BEFORE, (3, N, N))
    np.testing.assert_allclose(causal(tokens), plain(tokens, attention_mask=mask), atol=1e-6)
    weights = np.asarray(causal.attention_weights(tokens))
    assert (weights[..., ~BEFORE] == 0).all()
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-6)


def test_other_masks_are_applied_as_well(tokens):
    there = np.arange(N) < np.array([6, 4, 1])[:, None]
    both = BEFORE & there[:, None]
    expected = block()(tokens, attention_mask=both)
    for name in ("mask", "attention_mask"):
        np.testing.assert_allclose(block(causal=True)(tokens, **{name: there}), expected, atol=1e-6)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_a_later_token_changes_nothing_before_it(policy, tokens):
    layer, changed = block(causal=True, dtype=policy), tokens.copy()
    changed[:, 3] += 100.0
    a, b = (np.asarray(tf.cast(layer(x), "float32")) for x in (tokens, changed))
    np.testing.assert_array_equal(a[:, :3], b[:, :3])
    assert (a[:, 3:] != b[:, 3:]).any(axis=-1).all()


@pytest.mark.extended
def test_rematerialised_blocks_have_the_same_gradient(tokens):
    gradients = []
    for remat in (False, True):
        layer, x = block(causal=True, remat=remat), tf.constant(tokens)
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(layer(x, training=True)[:, 2] ** 2)
        gradients.append(tape.gradient(loss, x).numpy())
    np.testing.assert_allclose(*gradients, atol=1e-6)
    assert (gradients[0][:, 3:] == 0).all() and (gradients[0][:, :3] != 0).any()


@pytest.mark.extended
def test_the_number_of_tokens_may_be_known_only_at_run_time(tokens):
    layer = attention(causal=True)
    dynamic = tf.function(layer.call, input_signature=[tf.TensorSpec((None, None, WIDTH))])
    for n in (6, 4):
        np.testing.assert_allclose(dynamic(tokens[:, :n]), layer(tokens[:, :n]), atol=1e-6)


def test_token_by_token_is_all_at_once(tokens):
    layer = block(causal=True, qk_norm=True, layer_scale=0.3)
    keys = values = keras.ops.ones((3, 2, N, WIDTH // 2)) * 7.0  # what has not been written yet has no effect
    steps = []
    for place in range(N):
        y, keys, values = layer.next_token(tokens[:, place : place + 1], keys, values, place)
        steps.append(np.asarray(y)[:, 0])
    np.testing.assert_allclose(np.stack(steps, axis=1), layer(tokens), atol=1e-5)


def test_what_needs_all_tokens_is_refused_token_by_token(tokens):
    keys = keras.ops.zeros((3, 2, N, WIDTH // 2))
    for options in ({}, {"causal": True, "positions": "rope2d", "grid": (2, 3)}):
        with pytest.raises(ValueError, match="must be causal and without positions inside attention"):
            attention(**options).attend_next(tokens[:, :1], keys, keys, 0)


def test_what_would_not_be_causal_or_would_learn_nothing_is_refused():
    for options, message in (
        ({}, 'causal=True lets the tokens before the patches see no patch, so that pool="token"'),
        ({"pool": "token_gap"}, 'pool="token_gap" would read the same of every image'),
        ({"pool": "gap", "token_merging": 2}, "causal=True needs all patches in their order"),
        ({"pool": "map", "patch_dropout": 0.5}, "causal=True needs all patches in their order"),
        ({"pool": "gap", "causal": "yes"}, "causal must be True or False"),
    ):
        with pytest.raises(ValueError, match=message):
            make_spec("Ti/16", **{"causal": True, **options})
    with pytest.raises(ValueError, match="distillation_token would read the same"):
        make_spec("Ti/16", causal=True, distillation_token=True)
