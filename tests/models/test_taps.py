"""Tokens and feature maps are taps of the graph; the encoder's two functions make a ViT without its head."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.models import BiT, embed, encode, families, feature_map, make_spec, taps, tokens


def values(model, tensors, x):
    return keras.tree.map_structure(keras.ops.convert_to_numpy, keras.Model(model.input, tensors)(x))


@pytest.mark.parametrize(
    "options",
    [
        {"pool": "gap"},
        {"distillation_token": True, "registers": 3},
        {"pool": "gap", "class_token": True, "fc_norm": True},
    ],
    ids=lambda options: "-".join(options),
)
def test_feature_maps_are_the_blocks_outputs_without_prefix(tiny, pixels, options):
    model = tiny(**options)
    x, prefix = pixels.astype("float32"), model.spec.prefix
    outputs = [model.get_layer(name).output for name in ("block_00", "block_01")]
    last = outputs[-1] if model.spec.fc_norm else model.get_layer("encoder_norm").output
    first, second, final = values(model, [*outputs, last], x)
    np.testing.assert_array_equal(values(model, model.tokens, x), final)
    for numbers, expected in ((None, final), (0, first), (-1, second)):
        grid = expected[:, prefix:].reshape(4, 2, 3, 16)
        np.testing.assert_array_equal(values(model, model.feature_map(numbers), x), grid)
    maps = values(model, model.feature_map([-1, 0]), x)
    np.testing.assert_array_equal(maps[0], second[:, prefix:].reshape(4, 2, 3, 16))
    np.testing.assert_array_equal(maps[1], first[:, prefix:].reshape(4, 2, 3, 16))


def test_maps_keep_the_places_of_the_patches(tiny, pixels):
    """Changing one patch changes the tokens after the embedding there, and in row-major order."""
    spec = make_spec("Ti/4", depth=1, width=16, heads=2, mlp_dim=32)
    image = keras.Input((8, 12, 3))
    embedded = keras_vit.layers.PatchGrid((2, 3), prefix=1)(embed(image, spec))
    model = keras.Model(image, embedded)
    x = pixels[:1].astype("float32")
    other = x.copy()
    other[0, 4:8, 8:12] = 0
    changed = (np.asarray(model(x)) != np.asarray(model(other))).any(-1)[0]
    np.testing.assert_array_equal(changed, [[False, False, False], [False, False, True]])


def test_bit_has_a_map_after_each_unit():
    model = BiT("R50x1", image_size=64, classes=None, units=(1, 2), width_factor=0.5)
    x = np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3)).astype("float32")
    last = values(model, model.get_layer("relu").output, x)
    np.testing.assert_array_equal(values(model, model.feature_map(), x), last)
    np.testing.assert_allclose(last.mean((1, 2)), model(x), atol=1e-5)
    first, third = values(model, model.feature_map([0, -1]), x)
    assert first.shape == (2, 16, 16, 128) and third.shape == (2, 8, 8, 256)
    assert model.feature_map(1) is model.get_layer("block_01").output
    assert [tensor.shape[-1] for tensor in model.feature_map(model.spec.stage_ends)] == [128, 256]
    with pytest.raises(ValueError, match="a BiT, which has no tokens"):
        tokens(model)


def test_the_ends_of_stages():
    ends = {"Swin-T": (1, 3, 9, 11), "R50x1": (2, 6, 12, 15), "Ti/16": (11,)}
    assert {name: families.find(name).make_spec(name).stage_ends for name in ends} == ends


@pytest.mark.extended
def test_taps_of_a_nested_model_are_the_models_own(tiny, pixels):
    vit, x = tiny(registers=1), pixels.astype("float32")
    image = keras.Input((8, 12, 3))
    model = keras_vit.Model(image, keras.layers.Dense(2)(vit(255.0 - image)))
    twice = keras_vit.Model(image, keras.layers.Dense(2)(model(image)))
    for outer in (model, twice):
        np.testing.assert_array_equal(values(outer, tokens(outer), x), values(vit, vit.tokens, 255.0 - x))
        for ours, theirs in zip(
            values(outer, feature_map(outer, [0, 1]), x), values(vit, vit.feature_map([0, 1]), 255.0 - x)
        ):
            np.testing.assert_array_equal(ours, theirs)


def test_unknown_blocks_are_clear_errors_and_numbers_of_numpy_are_numbers(tiny):
    model = tiny()
    for numbers in (2, -3, [0, 5], [], "block_00", 0.5, True, [0, np.True_]):
        with pytest.raises(ValueError, match="the model has blocks 0 to 1"):
            model.feature_map(numbers)
    assert model.feature_map(np.int64(-1)).shape == model.feature_map(list(np.arange(2)))[1].shape == (None, 2, 3, 16)


def test_blocks_are_blocks_by_their_class(tiny):
    vit = tiny()
    model = keras_vit.Model(vit.input, keras.layers.Dense(2, name="block_99")(vit.features))
    assert [layer.name for layer in taps.blocks(model)] == ["block_00", "block_01"]


def test_embed_and_encode_make_the_encoder(tiny, pixels):
    """Its layers have the ViT's names and paths, and with its weights its tokens."""
    vit, x = tiny(registers=2, layer_scale=0.1), pixels.astype("float32")
    image = keras.Input((8, 12, 3), name="image")
    model = keras_vit.Model(image, encode(embed(image, vit.spec), vit.spec))
    paths = [weight.path for weight in vit.weights if not weight.path.startswith("head/")]
    assert [weight.path for weight in model.weights] == paths
    model.set_weights([weight for weight in vit.get_weights()][: len(paths)])
    np.testing.assert_array_equal(model(x), values(vit, vit.tokens, x))
    with pytest.raises(ValueError, match="not divisible by patches of 4x4"):
        embed(keras.Input((9, 12, 3)), vit.spec)
    with pytest.raises(ValueError, match=r"remat names blocks \[2\]"):
        encode(keras.Input((7, 16)), vit.spec, remat=(2,))


def test_features_of_a_distilled_model_are_the_mean_of_both_tokens_with_and_without_classes():
    vit = keras_vit.ViT(
        "Ti/4", image_size=8, depth=1, width=16, heads=2, mlp_dim=16, classes=3, distillation_token=True
    )
    x = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3)).astype("float32")
    tokens = np.asarray(keras.Model(vit.input, taps.tokens(vit))(x))
    for model in (vit, keras_vit.Model(vit.input, vit.output)):
        found = keras.Model(model.input, taps.features(model))(x)
        np.testing.assert_allclose(found, tokens[:, :2].mean(axis=1), atol=1e-6)
