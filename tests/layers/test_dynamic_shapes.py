"""Layers on a number of tokens, and a batch, that are known only at run time."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit import layers

CASES = [
    ("ClassToken", {"count": 2, "after": 1}),
    ("TransformerBlock", {"heads": 2, "mlp_dim": 32, "layer_scale": 0.1, "qk_norm": True, "dropout": 0.5}),
    ("DropPath", {"rate": 0.5}),
    ("TokenPooling", {"index": 1}),
    ("MeanPooling", {"prefix": 1}),
    ("AttentionPooling", {"heads": 2, "mlp_dim": 32}),
    ("AddPositionEmbs", {"grid": (2, 3)}),
    ("PatchGrid", {"grid": (2, 3)}),
]


@pytest.mark.parametrize(("name", "arguments"), CASES, ids=[f"{name}-{i}" for i, (name, _) in enumerate(CASES)])
def test_a_dynamic_number_of_tokens(name, arguments):
    layer = getattr(layers, name)(**arguments)
    x = np.random.default_rng(0).normal(size=(2, 6, 16)).astype("float32")
    inputs = keras.Input((None, 16))
    model = keras.Model(inputs, layer(inputs))
    compiled = tf.function(model).get_concrete_function(tf.TensorSpec((None, None, 16)))
    for b in (1, 2):
        np.testing.assert_allclose(compiled(tf.constant(x[:b])), layer(x[:b]), atol=1e-6)
    assert model.output_shape == layer.compute_output_shape((None, None, 16))
    if "grid" not in arguments:
        assert np.isfinite(compiled(tf.constant(x[:, :4]))).all()


@pytest.mark.parametrize(
    "layer", [layers.PatchGrid((2, 3)), layers.AddPositionEmbs((2, 3))], ids=["PatchGrid", "AddPositionEmbs"]
)
def test_a_wrong_number_of_tokens_does_not_pass_for_another_batch(layer):
    inputs = keras.Input((None, 16))
    model = keras.Model(inputs, layer(inputs))
    compiled = tf.function(model).get_concrete_function(tf.TensorSpec((None, None, 16)))
    for n in (1, 12):
        with pytest.raises(tf.errors.InvalidArgumentError):
            compiled(tf.ones((2, n, 16)))
        with pytest.raises(ValueError, match=f"got {n} tokens, expected 6"):
            layer(tf.ones((2, n, 16)))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (layers.TokenPooling(6), "index=6, but there are only 6 tokens"),
        (layers.MeanPooling(6), "prefix=6 leaves none of 6 tokens"),
        (layers.ClassToken(after=7), "after=7, but there are only 6 tokens"),
    ],
)
def test_tokens_that_are_not_there_are_refused(layer, message):
    with pytest.raises(ValueError, match=message):
        layer(np.ones((2, 6, 16), "float32"))
