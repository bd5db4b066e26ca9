"""Models with a dense head as checkpoints: the encoder that head="drop" takes out of a file."""

import keras
import numpy as np
import pytest

import keras_vit

SIZES = {"image_size": 16, "depth": 4, "width": 16, "heads": 2, "mlp_dim": 16}


def encoder():
    vit = keras_vit.ViT("Ti/4", classes=None, **SIZES)
    rng = np.random.default_rng(0)
    for variable in vit.weights:
        variable.assign(rng.normal(size=variable.shape) / 4)
    return vit


@pytest.mark.parametrize(("head", "taps", "depth"), [("setr_naive", None, 4), ("dpt", (0, 1, 1, 2), 3)])
def test_the_encoder_of_a_file_has_no_layer_with_initial_values(head, taps, depth, tmp_path, caplog):
    """Neither the normalisation that raw taps skip, nor blocks after the last of them."""
    vit = encoder()
    options = {"head_options": {"taps": taps}} if taps else {}
    keras_vit.SegmentationModel(vit, head, 3, **options).save(tmp_path / "m.keras")
    found = keras_vit.load(tmp_path / "m.keras", head="drop")
    assert (found.spec.depth, found.spec.final_norm) == (depth, False)
    assert "encoder_norm" in caplog.text
    pixels = np.random.default_rng(1).integers(0, 256, (2, 16, 16, 3), dtype="uint8")
    tokens = keras.Model(vit.input, vit.get_layer(f"block_{depth - 1:02d}").output)(pixels)
    np.testing.assert_allclose(found(pixels), tokens[:, 0], atol=1e-6)


def test_a_new_head_gets_a_new_normalisation(tmp_path):
    keras_vit.SegmentationModel(encoder(), "setr_naive", 3).save(tmp_path / "m.keras")
    found = keras_vit.load(tmp_path / "m.keras", head="reset", classes=5)
    assert found.spec.final_norm and found.classes == 5
    np.testing.assert_array_equal(found.get_layer("encoder_norm").gamma, 1)
