"""A model for another task: resolution, head, channels."""

import keras
import numpy as np
import pytest

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
    new = transfer(tiny(pre_logits=8, head_bias=-6.9), classes=3, class_names=list("xyz"), head="reset")
    assert new.spec.pre_logits is None and new.class_names == ("x", "y", "z")
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


def test_load_reads_files_and_run_directories(tiny, pixels, tmp_path):
    model = tiny()
    model.save(tmp_path / "model.keras")
    for path in (tmp_path, tmp_path / "model.keras", str(tmp_path)):
        np.testing.assert_array_equal(keras_vit.load(path)(pixels), model(pixels))
    assert keras_vit.load(tmp_path, image_size=16, classes=2, head="reset").output_shape == (None, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"head": "new"}, "Valid: keep, reset, drop"),
        ({"head": "reset"}, "needs classes"),
        ({"classes": 3}, 'cannot have 3 classes: the model has 5. Use head="reset"'),
        ({"depth": 3}, "Weights without values:.*block_02"),
        ({"width": 32}, "other shapes:.*patch_encoder/bias"),
        ({"image_size": 9}, "not divisible"),
        ({"resample": "nearest", "image_size": 16}, "Valid: google"),
    ],
)
def test_mistakes_are_clear_errors(tiny, arguments, message):
    with pytest.raises(ValueError, match=message):
        transfer(tiny(), **arguments)


def test_load_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        keras_vit.load(tmp_path / "none.keras")
    with pytest.raises(FileNotFoundError, match="the run has not ended"):
        keras_vit.load(tmp_path)
    (tmp_path / "x.npz").write_bytes(b"x")
    with pytest.raises(ValueError, match="Cannot tell the format"):
        keras_vit.load(tmp_path / "x.npz")
    (tmp_path / "broken.keras").write_bytes(b"not a zip file")
    with pytest.raises(ValueError, match="Cannot tell the format"):
        keras_vit.load(tmp_path / "broken.keras")
