"""Attention masks: what is masked might as well not be there, and without a mask nothing changes."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit import layers
from keras_vit.inspection import attention_weights
from keras_vit.models import encode, make_spec

LENGTHS = (6, 4, 1)  # tokens that are there, of 6
SPEC = {"depth": 2, "width": 16, "heads": 2, "mlp_dim": 32}


def filled(layer, shape=(None, 6, 16)):
    """The layer, built, with random weights."""
    layer.build(shape)
    rng = np.random.default_rng(1)
    for weight in layer.weights:
        if "seed" not in weight.path:
            weight.assign(0.3 * rng.normal(size=weight.shape))
    return layer


def attention(**kwargs):
    return filled(layers.MultiHeadSelfAttention(2, **kwargs))


def block(**kwargs):
    return filled(layers.TransformerBlock(2, 32, **kwargs))


@pytest.fixture
def tokens():
    return np.random.default_rng(0).normal(size=(3, 6, 16)).astype("float32")


@pytest.fixture
def mask():
    return np.arange(6) < np.array(LENGTHS)[:, None]  # (3, 6)


FORMS = {
    "mask": lambda m: {"mask": m},
    "padding": lambda m: {"attention_mask": m},
    "integers": lambda m: {"attention_mask": m.astype("int32")},
    "rows": lambda m: {"attention_mask": np.repeat(m[:, None], 6, 1)},
    "heads": lambda m: {"attention_mask": np.repeat(np.repeat(m[:, None, None], 6, 2), 2, 1)},
    "one head": lambda m: {"attention_mask": m[:, None, None]},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("make", [attention, block])
def test_what_is_there_is_computed_as_if_it_were_alone(make, form, tokens, mask):
    layer = make(qk_norm=True)
    y = layer(tokens, **FORMS[form](mask))
    assert np.isfinite(y).all()
    for i, n in enumerate(LENGTHS):
        np.testing.assert_allclose(y[i : i + 1, :n], layer(tokens[i : i + 1, :n]), atol=1e-6)


def test_both_masks_hold(tokens, mask):
    causal = np.tril(np.ones((1, 6, 6), bool))
    weights = np.asarray(block().attention_weights(tokens, mask, np.repeat(causal, 3, 0)))
    allowed = mask[:, None, None] & causal[:, None]
    assert (weights[~np.broadcast_to(allowed, weights.shape)] == 0).all()
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16", "float16"])
def test_a_row_without_any_token_is_finite_and_so_are_its_gradients(policy, tokens):
    layer = block(dtype=policy, remat=True)
    nothing = np.zeros((3, 6), bool)
    with tf.GradientTape() as tape:
        x = tf.Variable(tokens)
        y = layer(x, mask=nothing, training=True)
        loss = tf.reduce_sum(tf.cast(y, "float32"))
    assert np.isfinite(np.asarray(tf.cast(y, "float32"))).all()
    assert all(np.isfinite(np.asarray(g)).all() for g in tape.gradient(loss, layer.trainable_weights))
    assert not np.any(layer.attention_weights(keras.ops.cast(tokens, layer.compute_dtype), nothing))


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_masks_under_mixed_precision(policy, tokens, mask):
    y = tf.cast(block(dtype=policy)(tokens, mask=mask), "float32")
    expected = np.asarray(block()(tokens, mask=mask))
    assert np.abs(y - expected)[mask].max() <= 0.03 * np.abs(expected).max()


def test_keras_own_mask_goes_through_a_model():
    """Embedding(mask_zero=True), a class token, blocks and pooling: the padded words change nothing."""
    words = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(9, 16, mask_zero=True)(words)
    x = layers.ClassToken(initializer="normal")(x)
    x = layers.Dropout(0.1)(layers.DropPath(0.1)(layers.LayerScale(0.5)(layers.MlpBlock(8)(x))))
    x = encode(x, make_spec("Ti/4", **SPEC))
    pooled = [layers.MeanPooling(1)(x), layers.AttentionPooling(2, 16)(x), layers.TokenPooling()(x)]
    model = keras.Model(words, keras.layers.Concatenate()(pooled))
    padded = np.array([[1, 2, 3, 0, 0], [4, 5, 6, 7, 8]])
    np.testing.assert_allclose(model(padded)[:1], model(padded[:1, :3]), atol=1e-6)
    assert np.abs(model(padded)[:1] - model(np.array([[1, 2, 3, 1, 1]]))).max() > 1e-3


def test_keras_own_mask_holds_next_to_an_attention_mask(tokens, mask):
    inputs, allowed = keras.Input((None, 16)), keras.Input((None, None), dtype="bool")
    model = keras.Model([inputs, allowed], block()(keras.layers.Masking()(inputs), attention_mask=allowed))
    x = tokens * mask[..., None]  # Masking leaves out rows of zeros
    y = model([x, np.ones((3, 6, 6), bool)])
    for i, n in enumerate(LENGTHS):
        np.testing.assert_allclose(y[i : i + 1, :n], model([x[i : i + 1, :n], np.ones((1, n, n), bool)]), atol=1e-6)


def masked_vit(tmp=None):
    spec = make_spec("Ti/4", pool="gap", **SPEC)
    inputs, mask = keras.Input((6, 16), name="tokens"), keras.Input((6,), dtype="bool", name="mask")
    x = encode(inputs, spec, mask=mask)
    return keras_vit.Model([inputs, mask], keras.layers.Dense(3)(layers.MeanPooling()(x)))


def test_encode_takes_masks_which_are_saved_shown_and_trained(tokens, mask, tmp_path):
    model = masked_vit()
    y = model([tokens, mask])
    for i, n in enumerate(LENGTHS):
        alone = [np.pad(tokens[i : i + 1, :n], ((0, 0), (0, 6 - n), (0, 0)), constant_values=7.0), mask[i : i + 1]]
        np.testing.assert_allclose(model(alone), y[i : i + 1], atol=1e-5)
    model.compile("sgd", "mse", jit_compile=False)
    model.fit([tokens, mask], np.zeros((3, 3)), verbose=0)
    model.save(tmp_path / "m.keras")
    np.testing.assert_allclose(keras_vit.load(tmp_path / "m.keras")([tokens, mask]), model([tokens, mask]), atol=1e-6)
    shown = attention_weights(model, [tokens, mask])
    assert list(shown) == [0, 1]
    for weights in shown.values():
        assert (weights[~np.broadcast_to(mask[:, None, None], weights.shape)] == 0).all()


def test_pooling_leaves_out_what_is_not_there(tokens, mask):
    mean = layers.MeanPooling(1)(tokens, mask=mask)
    np.testing.assert_allclose(mean[1], tokens[1, 1:4].mean(0), atol=1e-6)
    np.testing.assert_array_equal(mean[2], np.zeros(16))  # nothing after the first token
    pool = filled(layers.AttentionPooling(2, 16))
    np.testing.assert_allclose(pool(tokens, mask=mask)[1:2], pool(tokens[1:2, :4]), atol=1e-6)
    broken = np.where(mask[..., None], tokens, np.nan)
    assert np.isfinite(layers.MeanPooling()(broken, mask=mask)).all()


def test_without_a_mask_the_graph_has_no_op_of_masks():
    layer = block()
    graph = tf.function(layer, autograph=False).get_concrete_function(tf.TensorSpec((None, 6, 16))).graph
    types = [op.type for op in graph.get_operations()]
    assert types.count("Softmax") == 1 and not {"SelectV2", "LogicalAnd", "Cast"} & set(types)


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ({"mask": np.ones((3, 5), bool)}, r"mask has the shape \(3, 5\), expected \(3, 6\)"),
        ({"mask": np.ones((3, 6, 6), bool)}, r"mask has the shape \(3, 6, 6\)"),
        ({"attention_mask": np.ones((6, 6), bool)}, r"shape \(6, 6\), expected \(3, 6\) or \(3, 6, 6\) or \(3, 2, 6, 6\)"),
        ({"attention_mask": np.ones((3, 4, 6, 6), bool)}, r"shape \(3, 4, 6, 6\)"),
        ({"attention_mask": np.ones((6,), bool)}, r"shape \(6,\)"),
        ({"attention_mask": np.zeros((3, 6), "float32")}, "must be boolean, or integers with 1 for yes, got float32.*mask == 0"),
    ],
)
def test_masks_of_another_form_are_refused(masks, message, tokens):
    with pytest.raises(ValueError, match=message):
        block()(tokens, **masks)


ON_JAX = """
import sys
import keras, numpy as np
assert keras.backend.backend() == "jax"
sys.path.insert(0, sys.argv[1])
from test_masks import attention, block, layers

given = np.load(sys.argv[2])
x, mask = given["x"], given["mask"]
out = [make(mask=mask, x=x) for make in (lambda x, mask: attention()(x, mask=mask), lambda x, mask: block()(x, attention_mask=mask))]
out.append(block().attention_weights(x, np.zeros_like(mask)))
words = keras.Input((5,), dtype="int32")
model = keras.Model(words, layers.MeanPooling()(layers.TransformerBlock(2, 32)(keras.layers.Embedding(9, 16, mask_zero=True)(words))))
padded = np.array([[1, 2, 3, 0, 0]])
y = model(padded)
model.get_layer(index=1).embeddings.assign(np.concatenate([np.ones((1, 16)), np.asarray(model.get_layer(index=1).embeddings)[1:]]))
out.append(np.asarray(y) - np.asarray(model(padded)))
np.savez(sys.argv[3], *out)
"""


@pytest.mark.processes
def test_masks_on_jax(tokens, mask, tmp_path):
    np.savez(tmp_path / "in.npz", x=tokens, mask=mask)
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    arguments = [os.path.dirname(__file__), str(tmp_path / "in.npz"), str(tmp_path / "out.npz")]
    subprocess.run([sys.executable, "-c", ON_JAX, *arguments], check=True, env=environment)
    first, second, weights, moved = np.load(tmp_path / "out.npz").values()
    np.testing.assert_allclose(first, attention()(tokens, mask=mask), atol=1e-5)
    np.testing.assert_allclose(second, block()(tokens, attention_mask=mask), atol=1e-5)
    assert not weights.any()
    np.testing.assert_allclose(moved, 0, atol=1e-6)  # the padding's embedding has no effect
