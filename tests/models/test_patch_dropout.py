"""Leaving out patches: random ones (PatchDropout, arXiv 2208.07220), or those attended to least (arXiv 2202.07800)."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import layers
from keras_vit.checkpoints import transfer
from keras_vit.models import make_spec


@pytest.mark.extended
def test_prediction_sees_the_same_patches_of_every_image(tiny, pixels):
    """By hand: the drawn tokens of a plain model go through its blocks."""
    plain = tiny("Ti/2", registers=2)  # 24 patches
    model = transfer(plain, patch_dropout=0.6)
    drawn = np.sort(np.random.default_rng(0).permutation(24)[:10])
    tokens = np.asarray(keras.Model(plain.input, plain.get_layer("embedding_dropout").output)(pixels))
    x = tokens[:, [0, 1, 2, *(drawn + 3)]]
    for name in ("block_00", "block_01", "encoder_norm", "pool", "head"):
        x = plain.get_layer(name)(x)
    np.testing.assert_allclose(model(pixels), x, atol=1e-5)
    np.testing.assert_array_equal(model(pixels), model(pixels))
    assert model.tokens.shape == (None, 13, 16)


def test_training_draws_anew_for_every_image():
    layer = layers.PatchDropout(0.5, prefix=1)
    x = np.broadcast_to(np.arange(41.0, dtype="float32")[None, :, None], (50, 41, 2))
    first, second = (np.asarray(layer(x, training=True))[..., 0] for _ in range(2))
    assert first.shape == (50, 21)
    assert (first[:, 0] == 0).all() and (np.diff(first, axis=1) > 0).all()
    assert (first != second).any(axis=1).all() and len(np.unique(first, axis=0)) == 50
    shares = np.bincount(np.concatenate([first, second])[:, 1:].astype(int).ravel(), minlength=41)[1:] / 100
    assert shares.mean() == 0.5 and 0.25 < shares.min() and shares.max() < 0.75


@pytest.mark.parametrize("class_token", [True, False])
def test_the_patches_that_are_heeded_least_are_left_out(class_token):
    """What stays is as after a plain block: the attention was over all, and the MLP looks at one token at a time."""
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(5, 14, 16)).astype("float32")
    plain = layers.TransformerBlock(2, 32)
    plain.build(x.shape)
    for weight in plain.weights:
        weight.assign(np.random.default_rng(1).normal(size=weight.shape) / 3)
    block = layers.ReducingBlock(2, 32, kept=4, prefix=2, class_token=class_token)
    block.build(x.shape)
    block.set_weights(plain.get_weights())
    weights = np.asarray(plain.attention_weights(x)).mean(1)  # (b, n, n)
    heeded = (weights[:, 0] if class_token else weights.mean(1))[:, 2:]
    stay = np.sort(np.argsort(-heeded)[:, :4]) + 2
    tokens, sizes = block(x)
    everything = np.asarray(plain(x))
    for image in range(5):
        np.testing.assert_allclose(tokens[image], everything[image, [0, 1, *stay[image]]], atol=1e-5)
    np.testing.assert_array_equal(sizes, 1)


@pytest.mark.extended
def test_both_ways_go_with_token_merging_and_can_be_undone(tiny, pixels):
    plain = tiny("Ti/2")
    for block, counts in ((None, (11, 9)), (1, (23, 10))):
        model = transfer(plain, patch_dropout=0.5, patch_dropout_block=block, token_merging=2)
        assert [model.get_layer(f"block_0{i}").output[0].shape[1] for i in range(2)] == list(counts)
        whole = transfer(model, patch_dropout=0.0, patch_dropout_block=None, token_merging=None)
        np.testing.assert_allclose(whole(pixels), plain(pixels), atol=1e-6)


@pytest.mark.extended
def test_it_trains(tiny, pixels, eagerly):
    model = tiny("Ti/2", depth=1, patch_dropout=0.5, pool="gap")
    model.compile(keras_vit.training.AdamW(1e-3), keras_vit.training.SoftmaxCrossEntropy())
    losses = model.fit(pixels, np.arange(4), epochs=2, verbose=0).history["loss"]
    assert np.isfinite(losses).all()


def test_what_needs_all_patches_is_refused(tiny):
    with pytest.raises(ValueError, match="leaves out patches, so that its tokens are no map"):
        tiny("Ti/2", patch_dropout=0.5).feature_map()
    spec = make_spec("Ti/16", patch_dropout=0.5, patch_dropout_block=0)
    with pytest.raises(ValueError, match="takes no attention_mask with token_merging or patch_dropout_block"):
        keras_vit.models.encode(keras.Input((7, 192)), spec, attention_mask=keras.Input((7,), dtype="bool"))
