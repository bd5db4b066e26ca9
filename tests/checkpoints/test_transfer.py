"""A model for another task: resolution, head, channels."""

import keras
import numpy as np
import pytest
import safetensors.numpy

import keras_vit
from keras_vit.checkpoints import resample_positions, transfer


def weights(model):
    return {w.path: w.numpy() for w in model.weights}


def test_higher_resolution_keeps_all_but_the_positions(tiny):
    model = tiny(registers=1)
    new = transfer(model, image_size=(16, 24))
    old_weights, new_weights = weights(model), weights(new)
    assert new.grid == (4, 6)
    for path, value in new_weights.items():
        if path != "position_embedding/embedding":
            np.testing.assert_array_equal(value, old_weights[path])
    expected = resample_positions(old_weights["position_embedding/embedding"], (2, 3), (4, 6), 1)
    np.testing.assert_array_equal(new_weights["position_embedding/embedding"], expected)


def test_reset_removes_pre_logits_and_starts_from_zero(tiny, pixels):
    """As in the paper: one zero-initialised linear layer replaces the whole head, the hidden layer included."""
    text = "decode|resize(9)|central_crop(8, 12)"
    model = tiny(pre_logits=8, head_bias=-6.9, preprocessing=text)
    new = transfer(model, classes=3, class_names=list("xyz"), head="reset")
    assert new.spec.pre_logits is None and new.class_names == ("x", "y", "z")
    assert new.preprocessing == text and transfer(new, image_size=16).preprocessing is None
    np.testing.assert_array_equal(new(pixels), np.zeros((4, 3)))


def test_drop_returns_features(tiny, pixels):
    model = tiny(pre_logits=8)
    features = keras.Model(model.input, model.features)
    np.testing.assert_array_equal(transfer(model, head="drop")(pixels), features(pixels))


def test_keep_changes_nothing_and_takes_training_options(tiny, pixels):
    model = tiny()
    new = transfer(model, dropout=0.3, drop_path=0.2, remat=True)
    assert new.spec.dropout == 0.3 and new.remat is True
    np.testing.assert_array_equal(new(pixels), model(pixels))


@pytest.mark.extended
def test_load_reads_files_and_run_directories(tiny, pixels, tmp_path):
    model = tiny()
    model.save(tmp_path / "model.keras")
    for path in (tmp_path, str(tmp_path)):
        np.testing.assert_array_equal(keras_vit.load(path)(pixels), model(pixels))
    assert keras_vit.load(tmp_path, image_size=16, classes=2, head="reset").output_shape == (None, 2)


def test_mistakes_are_clear_errors(tiny):
    model = tiny()
    for arguments, message in (
        ({"head": "new"}, "Valid: keep, reset, drop"),
        ({"head": "reset"}, "needs classes"),
        ({"classes": 3}, 'cannot have 3 classes: the model has 5. Use head="reset"'),
        ({"depth": 3}, "depth=3: the weights fix depth=2, which .* cannot change. What can change: .*, dropout"),
        ({"width": 32, "mlp_dim": 8}, "width=32, mlp_dim=8: the weights fix width=16, mlp_dim=32"),
        ({"image_size": 9}, "not divisible"),
        ({"resample": "nearest", "image_size": 16}, "Valid: google"),
    ):
        with pytest.raises(ValueError, match=message):
            transfer(model, **arguments)


FIXED = {
    **{"heads": 4, "head_dim": 4, "mlp_form": "swiglu", "class_token": False, "distillation_token": True},
    **{"registers": 2, "positions": "sincos2d", "positions_at": "every", "pool": "map", "pre_logits": 8},
    **{"qkv_bias": False, "qk_norm": True, "patch_norm": True, "pre_norm": True, "layer_scale": 0.1},
    **{"stem": [1, 1], "stem_width": 32, "conv_stem": (8,)},
}


@pytest.mark.extended
def test_what_the_weights_determine_cannot_change(tiny):
    """heads=4 would have computed something else with the same weights; the others listed every array."""
    model = tiny()
    for name, value in FIXED.items():
        for head in ({}, {"head": "reset", "classes": 3}, {"head": "drop"}):
            with pytest.raises(ValueError, match=f"{name}=.*: the weights fix {name}="):
                transfer(model, **head, **{name: value})


def test_the_same_values_are_no_change(tiny, pixels):
    model = tiny(layer_scale=1e-4, registers=1)
    same = dict(
        depth=2, width=16, heads=2, registers=1, positions="learned", layer_scale=0.1, class_token=None, stem=None
    )
    np.testing.assert_array_equal(transfer(model, **same)(pixels), model(pixels))


def test_a_bit_is_fixed_as_well():
    model = keras_vit.BiT("R50x1", image_size=32, classes=5, units=(1, 1), width_factor=0.5)
    with pytest.raises(ValueError, match=r"units=\(1, 2\): the weights fix units=\(1, 1\)"):
        transfer(model, units=[1, 2])


def test_another_pooling_keeps_the_tokens(tiny, pixels):
    """It listed the class token as an unused value."""
    model = tiny()
    new = transfer(model, pool="gap", classes=3, head="reset")
    assert new.spec.pool == "gap" and new.spec.class_token
    np.testing.assert_array_equal(new.get_layer("class_token").tokens, model.get_layer("class_token").tokens)


def test_channels_are_those_of_the_first_convolution(tiny):
    """Of a convolutional stem, too: a grey image gives what it gives as RGB."""
    rgb = tiny("Ti/1", conv_stem=(4, 8))
    grey = transfer(rgb, channels=1)
    image = np.random.default_rng(0).integers(0, 256, (2, 8, 12, 1)).astype("float32")
    assert grey.get_layer("stem_conv1").kernel.shape == (3, 3, 1, 4)
    np.testing.assert_allclose(grey(image), rgb(np.repeat(image, 3, axis=-1)), atol=1e-4)
    assert transfer(rgb, channels=4).get_layer("stem_conv1").kernel.shape == (3, 3, 4, 4)


@pytest.mark.extended
def test_images_are_decoded_in_the_models_channels(tiny, tmp_path):
    """Of what it takes them for: a grey model that is given colours would refuse its own preprocessing's images."""
    text = "decode|resize(8, 12, method='bilinear')"
    model = tiny(preprocessing=text)
    grey = transfer(model, channels=1)
    assert grey.preprocessing == "decode(1)|resize(8, 12, method='bilinear')"
    assert grey.preprocess(np.zeros((20, 30, 3), "uint8")).shape == (8, 12, 1)
    assert transfer(grey, channels=3).preprocessing == transfer(model, dropout=0.1).preprocessing == text
    assert transfer(model, channels=1, preprocessing="resize(8, 12)").preprocessing == "resize(8, 12)"
    keras_vit.save(grey, tmp_path / "timm", "timm")
    arrays = safetensors.numpy.load_file(tmp_path / "timm" / "model.safetensors")
    safetensors.numpy.save_file(arrays, tmp_path / "timm" / "model.safetensors")  # without this package's metadata
    assert keras_vit.load(tmp_path / "timm", heads=2).preprocessing == grey.preprocessing
    assert keras_vit.load(tmp_path / "timm", heads=2, channels=3).preprocessing == text


def test_a_path_is_for_load():
    with pytest.raises(
        ValueError, match="transfer takes a ViT, BiT or Swin, got a str. keras_vit.load loads and transfers a file"
    ):
        transfer("model.keras")


def test_load_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        keras_vit.load(tmp_path / "none.keras")
    with pytest.raises(FileNotFoundError, match="the run has not ended"):
        keras_vit.load(tmp_path)
    (tmp_path / "x.npz").write_bytes(b"x")
    with pytest.raises(ValueError, match="Cannot tell the format"):
        keras_vit.load(tmp_path / "x.npz")
