"""The evaluator of reconstructions: its picture and its measure."""

import numpy as np
import pytest

import keras_vit
from keras_vit.data import from_arrays
from keras_vit.evaluation import Setting, make_evaluator
from keras_vit.evaluation.reconstructions import picture, signal_to_noise
from keras_vit.models import MaskedAutoencoder, Reconstruction

SIZES = {"depth": 1, "width": 16, "heads": 2, "mlp_dim": 16, "decoder_depth": 1, "decoder_width": 8, "decoder_heads": 2}
IMAGES = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), dtype="uint8")


@pytest.fixture(scope="module")
def setting():
    source = from_arrays(IMAGES, np.zeros(20, int), class_names=("a", "b"))
    return Setting(MaskedAutoencoder("Ti/4", 8, **SIZES), source=source, preprocess="decode")


@pytest.mark.extended
def test_it_shows_the_same_patches_each_time(setting):
    evaluate = make_evaluator("reconstructions", {"images": 3}).prepare(setting)
    first, second = evaluate(), evaluate()
    assert first.measures == second.measures and first.measures["images"] == 3 and first.details["mask_ratio"] == 0.75
    pixels = first.pictures["images"]
    # 8 times larger, 2 pixels between them.
    assert pixels.shape == (3 * 64 + 4, 3 * 64 + 4, 3) and pixels.dtype == np.uint8
    np.testing.assert_array_equal(pixels, second.pictures["images"])
    shown = pixels[:64:8, [i * 66 + j for i in range(3) for j in range(0, 64, 8)]].reshape(8, 3, 8, 3).swapaxes(0, 1)
    np.testing.assert_array_equal(shown, IMAGES[[0, 9, 19]])
    other = make_evaluator("reconstructions", {"images": 3, "seed": 1, "mask_ratio": 0.5}).prepare(setting)()
    assert (other.pictures["images"] != pixels).any() and other.details["mask_ratio"] == 0.5


def test_the_measure_is_of_hidden_pixels_alone():
    images = np.full((1, 4, 4, 1), 100, "uint8")
    hidden, painted = images.copy(), images.copy()
    hidden[:, :2, :3], painted[:, :2, :3] = 128, 110
    assert signal_to_noise(Reconstruction(images, hidden, painted)) == pytest.approx(10 * np.log10(255**2 / 100))
    assert picture(Reconstruction(images, hidden, painted)).shape == (3 * 64 + 4, 64, 3)


def test_other_models_and_no_images_are_refused(setting):
    vit = keras_vit.ViT("Ti/4", 8, 2, depth=1, width=16, heads=2, mlp_dim=16)
    with pytest.raises(ValueError, match="needs a keras_vit.MaskedAutoencoder or MaskedPatchPredictor, got a ViT"):
        make_evaluator("reconstructions", {}).prepare(Setting(vit, source=setting.source, preprocess="decode"))
    with pytest.raises(ValueError, match="images=0: expected 1 or more"):
        make_evaluator("reconstructions", {"images": 0}).prepare(setting)
