"""Windows of a ViT's tokens: the attention of a windowed block is attention with a mask of windows."""

import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.layers import TransformerBlock, WindowTokens
from keras_vit.layers.attention.window_tokens import from_windows, to_windows, window_of_each

PLACES = {"grid": (4, 6), "windows": 2, "prefix": 3}
COUNT = 4 * 3 + 4 * 6
TOKENS = np.random.default_rng(0).normal(size=(2, COUNT, 8)).astype("float32")
SIZES = {"depth": 2, "width": 8, "heads": 2, "mlp_dim": 8, "classes": 3}


def test_windows_hold_their_copies_and_patches_and_come_back():
    sorted_tokens = to_windows(TOKENS, **PLACES)
    assert sorted_tokens.shape == (8, 9, 8)
    np.testing.assert_array_equal(from_windows(sorted_tokens, **PLACES), TOKENS)
    place = np.argsort(window_of_each(**PLACES), kind="stable")
    np.testing.assert_array_equal(tf.reshape(sorted_tokens, (2, COUNT, 8)), TOKENS[:, place])
    patches = window_of_each(**PLACES)[12:].reshape(4, 6)
    np.testing.assert_array_equal(patches, np.kron([[0, 1], [2, 3]], np.ones((2, 3), int)))


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_windowed_block_attends_inside_its_windows(norm_first):
    block = TransformerBlock if norm_first else keras_vit.layers.PostNormBlock
    windowed, plain = block(2, 8, **PLACES), block(2, 8)
    for layer in (windowed, plain):
        layer.build(TOKENS.shape)
    plain.set_weights(windowed.get_weights())
    window = window_of_each(**PLACES)
    mask = np.broadcast_to(window[:, None] == window, (2, COUNT, COUNT))
    np.testing.assert_allclose(windowed(TOKENS), plain(TOKENS, attention_mask=mask), rtol=0, atol=1e-5)
    weights = windowed.attention_weights(TOKENS)
    np.testing.assert_allclose(weights, plain.attention_weights(TOKENS, attention_mask=mask), rtol=0, atol=1e-6)


def test_each_window_gets_a_copy_of_the_tokens_before_the_patches():
    copied = np.array(WindowTokens(2, 1)(TOKENS))
    np.testing.assert_array_equal(copied[:, :4], TOKENS[:, [0] * 4])
    np.testing.assert_array_equal(copied[:, 4:], TOKENS[:, 1:])


def test_a_vit_with_windows_mixes_them_in_its_global_blocks():
    local = keras_vit.ViT("Ti/4", image_size=16, windows=2, **SIZES)
    mixed = keras_vit.ViT("Ti/4", image_size=16, windows=2, global_blocks=[1], **SIZES)
    mixed.set_weights(local.get_weights())
    x = np.random.default_rng(0).integers(0, 256, (1, 16, 16, 3)).astype("float32")
    changed = x.copy()
    changed[:, :8, :8] = 255 - changed[:, :8, :8]  # the first window

    def change(model):
        maps = keras_vit.Model(model.input, model.feature_map(1))
        return np.abs(np.array(maps(x)) - np.array(maps(changed)))[0].max(-1) > 1e-6  # (4, 4) places

    first = np.kron([[True, False], [False, False]], np.ones((2, 2), bool))
    np.testing.assert_array_equal(change(local), first)
    assert change(mixed).all()
    assert local(x).shape == (1, 3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"windows": 3}, "windows=3 do not divide a grid of 4x4"),
        ({"windows": 2, "positions": "rope2d"}, 'do not go with positions="rope2d"'),
        ({"windows": 2, "token_merging": 1}, "do not go with token_merging"),
        ({"windows": 2, "global_blocks": (2,)}, r"global_blocks has \[2\]: the model has blocks 0 to 1"),
        ({"global_blocks": (1,)}, "there are no windows"),
        ({"windows": 2, "global_blocks": "last"}, "should be numbers of blocks"),
    ],
)
def test_windows_that_do_not_fit_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.ViT("Ti/4", image_size=16, **fields, **SIZES)


def test_a_windowed_block_takes_no_masks():
    block = TransformerBlock(2, 8, **PLACES)
    with pytest.raises(ValueError, match="windows=2 takes no masks"):
        block(TOKENS, mask=np.ones((2, COUNT), bool))
