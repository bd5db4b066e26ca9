"""Attention on demand, and rollout."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.inspection import attention_maps, attention_weights, head_maps, rollout


def test_attention_weights_are_those_of_the_forward_pass(tiny, pixels):
    model = tiny(registers=1)
    weights = attention_weights(model, pixels)
    assert sorted(weights) == [0, 1]
    for value in weights.values():
        assert value.shape == (4, 2, 8, 8)
        np.testing.assert_allclose(value.sum(-1), 1, atol=1e-5)
    block = model.get_layer("block_01")
    x = keras.Model(model.input, model.get_layer("block_00").output)(pixels.astype("float32"))
    np.testing.assert_allclose(weights[1], block.attention_weights(x), atol=1e-5)
    np.testing.assert_allclose(attention_weights(model, pixels, [-1])[1], weights[1], atol=1e-6)


def test_attention_mistakes(tiny, pixels):
    with pytest.raises(ValueError, match="the model has blocks 0 to 1"):
        attention_weights(tiny(), pixels, [2])
    with pytest.raises(ValueError, match="should contain one ViT, BiT or Swin, with blocks named block_00"):
        attention_weights(
            keras_vit.Model(image := keras.Input((8, 12, 3)), keras.layers.Flatten(name="flat")(image)), pixels
        )
    with pytest.raises(ValueError, match="has no attention: it is a BiT"):
        bit = keras_vit.BiT("R50x1", image_size=32, classes=2, units=(1,), width_factor=0.5)
        attention_weights(bit, np.zeros((1, 32, 32, 3)))
    with pytest.raises(ValueError, match="should contain one ViT, BiT or Swin"):
        attention_weights(keras.Sequential([keras.Input((8, 12, 3)), keras.layers.Flatten(name="flat")]), pixels)


def test_rollout_is_its_definition():
    rng = np.random.default_rng(0)
    weights = rng.random((3, 2, 4, 5, 5))
    weights /= weights.sum(-1, keepdims=True)
    expected = np.eye(5)
    for block in weights:
        mixed = 0.5 * block[1].mean(0) + 0.5 * np.eye(5)  # rows of weights sum to 1: re-normalising halves
        expected = mixed @ expected
    result = rollout(list(weights))
    np.testing.assert_allclose(result[1], expected, atol=1e-12)
    np.testing.assert_allclose(result.sum(-1), 1, atol=1e-12)


READ = {
    "token": ({"registers": 2}, lambda rows: rows[..., 0, :]),
    "both tokens": ({"distillation_token": True}, lambda rows: rows[..., :2, :].mean(-2)),
    "token_gap": ({"pool": "token_gap"}, lambda rows: (rows[..., 0, :] + rows[..., 1:, :].mean(-2)) / 2),
    "all tokens": ({"pool": "mean"}, lambda rows: rows.mean(-2)),
    "patches": ({"pool": "gap", "registers": 2}, lambda rows: rows[..., 2:, :].mean(-2)),
}


@pytest.mark.parametrize("name", READ)
def test_maps_are_the_rows_of_the_tokens_that_the_output_reads(tiny, pixels, name):
    options, rows = READ[name]
    model = tiny(**options)
    weights, maps = attention_weights(model, pixels), head_maps(model, pixels)
    for block in (0, 1):
        np.testing.assert_allclose(
            maps[block], rows(weights[block])[..., model.spec.prefix :].reshape(4, 2, 2, 3), atol=1e-6
        )
    flow = rows(rollout(weights.values()))[:, model.spec.prefix :].reshape(4, 2, 3)
    np.testing.assert_allclose(attention_maps(model, pixels), flow / flow.max((1, 2), keepdims=True), atol=1e-5)
    assert list(head_maps(model, pixels, [-1])) == [1]


def test_of_attention_pooling_each_token_counts_as_the_pooling_weighs_it(tiny, pixels):
    model = tiny(pool="map", registers=1)
    pool = model.get_layer("pool")
    tokens = np.asarray(keras.Model(model.input, model.tokens)(pixels.astype("float32")))  # (4, 7, 16)
    probe, k = np.asarray(pool.query(pool.probe))[0, 0], np.asarray(pool.key(tokens))
    scores = np.stack([k[..., i : i + 8] @ probe[i : i + 8] / 8**0.5 for i in (0, 8)], 1)  # (4, 2, 7), two heads of 8
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(np.asarray(pool.attention_weights(tokens))[:, :, 0], weights, atol=1e-5)
    reads = weights.mean(1)
    flow = np.stack([r @ f for r, f in zip(reads, rollout(attention_weights(model, pixels).values()))])[:, 1:].reshape(
        4, 2, 3
    )
    expected = flow / flow.max((1, 2), keepdims=True)
    np.testing.assert_allclose(attention_maps(model, pixels), expected, atol=1e-5)
    image = keras.Input((8, 12, 3))
    np.testing.assert_allclose(attention_maps(keras_vit.Model(image, model(image)), pixels), expected, atol=1e-5)
