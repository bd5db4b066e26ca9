"""Every kind of positions: models differ, train, are saved, cloned and resampled, or say why not."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.inspection import attention_maps, attention_weights, head_statistics
from keras_vit.models import embed, encode, make_spec
from keras_vit.optim.optimizers import layer_multipliers


def made(tiny, positions, positions_at, **options):
    """A tiny ViT whose learned positions are large enough to matter."""
    model = tiny(positions=positions, positions_at=positions_at, **options)
    rng = np.random.default_rng(2)
    for weight in model.weights:
        if "position_embedding" in weight.path or "relative" in weight.path:
            weight.assign(rng.normal(size=weight.shape))
    return model


def kinds(quick, extended=""):
    """Cases of a test: "positions-positions_at" each."""
    cases = [pytest.param(*name.split("-"), id=name) for name in quick.split()]
    cases += [pytest.param(*name.split("-"), id=name, marks=pytest.mark.extended) for name in extended.split()]
    return pytest.mark.parametrize(("positions", "at"), cases)


@pytest.mark.extended
@kinds("learned-every rope2d-stem", "learned2d-shared sincos2d-shared relative-stem relative2d-stem")
def test_every_kind_trains_and_comes_back(positions, at, tiny, pixels, tmp_path):
    options = {"registers": 1, "distillation_token": True} if at != "stem" else {"remat": True, "dropout": 0.1}
    model = made(tiny, positions, at, **options)
    expected = model(pixels)
    keras_vit.save(model, tmp_path / "model.keras")
    for copy in (keras_vit.load(tmp_path / "model.keras"), model.clone()):
        assert copy.spec == model.spec
        np.testing.assert_array_equal(copy(pixels), expected)
    before = [w.numpy() for w in model.trainable_weights]
    model.compile(keras_vit.training.AdamW(1e-2), keras_vit.training.SoftmaxCrossEntropy(), run_eagerly=True)
    model.train_on_batch(pixels, np.arange(len(pixels)) % 5)
    moved = {w.path for w, old in zip(model.trainable_weights, before) if np.abs(w.numpy() - old).max() > 0}
    # The head reads the class token: in the last block no patch looks at anything.
    still = {w.path for w in model.trainable_weights} - moved
    assert all(path.endswith("key/bias") or "block_01/attention/relative" in path for path in still), still


def swapped(images):
    """Two patches of 4x4 exchanged."""
    images = images.copy()
    images[:, :4, :4], images[:, 4:, 8:] = images[:, 4:, 8:].copy(), images[:, :4, :4].copy()
    return images


@kinds("none-stem sincos1d-every learned2d-shared relative2d-stem")
def test_only_a_model_without_positions_sees_a_set_of_patches(positions, at, tiny, pixels):
    model = made(tiny, positions, at)
    difference = np.abs(np.asarray(model(pixels) - model(swapped(pixels)))).max()
    assert difference < 1e-4 if positions == "none" else difference > 1e-3


def test_a_shared_table_is_added_at_each_block(tiny, pixels):
    """The same model with tables of its own at every block, all of them equal."""
    shared, every = made(tiny, "learned2d", "shared"), made(tiny, "learned2d", "every")
    table = shared.get_layer("position_embedding").get_weights()
    for layer in every.layers:
        if layer.name.startswith("position_embedding"):
            layer.set_weights(table)
        else:
            layer.set_weights(shared.get_layer(layer.name).get_weights())
    np.testing.assert_allclose(every(pixels), shared(pixels), atol=1e-5)
    first = keras.Model(shared.input, shared.get_layer("block_00").input)(pixels)
    plain = tiny(positions="none")
    plain.get_layer("patch_encoder").set_weights(shared.get_layer("patch_encoder").get_weights())
    plain.get_layer("class_token").set_weights(shared.get_layer("class_token").get_weights())
    added = first - keras.Model(plain.input, plain.get_layer("block_00").input)(pixels)
    np.testing.assert_allclose(added[0], shared.get_layer("position_embedding").table()[0], atol=1e-5)


def test_paths_of_the_weights_can_be_read_and_are_of_their_block(tiny):
    paths = {
        "learned2d": [f"position_embedding_01/embedding/{part}" for part in ("prefix", "x", "y")],
        "relative": ["block_01/attention/relative/embedding", "block_01/attention/relative/prefix_embedding"],
        "relative2d": ["block_01/attention/relative2d/bias", "block_01/attention/relative2d/prefix_bias"],
    }
    for positions, expected in paths.items():
        model = tiny(positions=positions, positions_at="every" if positions == "learned2d" else "stem")
        found = [
            w.path.removeprefix("vit/")
            for w in model.weights
            if "_01" in w.path and ("posi" in w.path or "rela" in w.path)
        ]
        assert found == expected
        assert layer_multipliers([*found, "vit/head/kernel"], 0.5) == [0.5] * len(found) + [1.0]


@pytest.mark.extended
@kinds("learned-every learned2d-stem sincos1d-stem rope2d-stem", "relative-stem relative2d-stem sincos2d-shared")
def test_another_size_resamples_or_says_why_not(positions, at, tiny, pixels):
    model = made(tiny, positions, at)
    if positions in ("relative", "sincos1d"):
        with pytest.raises(
            ValueError, match=f'positions="{positions}" count patches along the rows.*cannot be resampled'
        ):
            keras_vit.checkpoints.transfer(model, image_size=(16, 24))
        assert keras_vit.checkpoints.transfer(model, image_size=(16, 24), patch_size=8).grid == model.grid
        return
    larger = keras_vit.checkpoints.transfer(model, image_size=(16, 24))
    large = np.repeat(np.repeat(pixels, 2, 1), 2, 2)
    assert np.isfinite(larger(large)).all() and larger.grid == (4, 6)
    # Corners are aligned: every old place is a new one.
    back = keras_vit.checkpoints.transfer(larger, image_size=(8, 12))
    if positions in ("none", "sincos2d", "rope2d"):
        np.testing.assert_array_equal(back(pixels), model(pixels))


def test_sines_in_one_dimension_may_become_longer(tiny):
    assert keras_vit.checkpoints.transfer(tiny(positions="sincos1d"), image_size=(16, 12)).grid == (4, 3)


def test_halves_and_offsets_are_interpolated_along_their_axes(tiny):
    model = made(tiny, "learned2d", "stem")
    x, y = (np.asarray(w) for w in model.get_layer("position_embedding").weights[1:])
    new_x, new_y = (
        np.asarray(w)
        for w in keras_vit.checkpoints.transfer(model, image_size=(12, 20)).get_layer("position_embedding").weights[1:]
    )
    np.testing.assert_allclose(new_x, [x[0], (x[0] + x[1]) / 2, x[1], (x[1] + x[2]) / 2, x[2]], atol=1e-6)
    np.testing.assert_allclose(new_y, [y[0], (y[0] + y[1]) / 2, y[1]], atol=1e-6)
    model = made(tiny, "relative2d", "stem")
    bias = np.asarray(model.get_layer("block_00").attention.relative.bias)  # (3, 5, k)
    # (5, 9, k)
    new = np.asarray(
        keras_vit.checkpoints.transfer(model, image_size=(12, 20)).get_layer("block_00").attention.relative.bias
    )
    np.testing.assert_allclose(new[::2, ::2], bias, atol=1e-6)
    np.testing.assert_allclose(new[1, 1], bias[:2, :2].mean((0, 1)), atol=1e-6)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("positions", "at"), [("rope2d", "stem"), ("relative", "stem"), ("learned2d", "every"), ("none", "stem")]
)
def test_inspection_sees_the_attention_that_the_model_has(positions, at, tiny, pixels):
    model = made(tiny, positions, at, registers=2, pool="gap", class_token=True)
    weights = attention_weights(model, pixels)
    x = keras.Model(model.input, model.get_layer("block_01").input)(pixels)
    np.testing.assert_allclose(weights[1], model.get_layer("block_01").attention_weights(x), atol=1e-6)
    np.testing.assert_allclose(weights[1].sum(-1), 1, atol=1e-5)
    assert attention_maps(model, pixels).shape == (len(pixels), 2, 3)
    assert head_statistics(model, pixels).distance.shape == (2, 2)
    assert model.feature_map(-1).shape == (None, 2, 3, 16)


def test_the_encoder_alone_needs_the_grid_where_its_blocks_do(tiny):
    spec, image = make_spec(tiny().spec, positions="rope2d"), keras.Input((8, 12, 3))
    with pytest.raises(ValueError, match=r'needs the grid \(h, w\) of the patches for positions="rope2d"'):
        encode(embed(image, spec), spec)
    own = keras_vit.Model(image, encode(embed(image, spec), spec, grid=(2, 3)))
    assert own.output.shape == (None, 7, 16)


def test_masks_and_mixed_precision(tiny):
    """What is masked might as well not be there, in bfloat16 too."""
    spec = make_spec(tiny().spec, positions="rope2d", class_token=False, pool="gap")
    tokens, mask = keras.Input((6, 16)), keras.Input((6,), dtype="bool")
    model = keras_vit.Model([tokens, mask], encode(tokens, spec, dtype="mixed_bfloat16", mask=mask, grid=(2, 3)))
    x = np.random.default_rng(0).normal(size=(2, 6, 16)).astype("float32")
    there = np.array([[1, 1, 1, 1, 0, 1]] * 2, bool)
    other = np.where(there[..., None], x, 7.0)
    np.testing.assert_array_equal(
        np.asarray(keras.ops.cast(model([x, there]), "float32"))[there],
        np.asarray(keras.ops.cast(model([other, there]), "float32"))[there],
    )
