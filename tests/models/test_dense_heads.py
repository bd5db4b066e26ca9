"""Dense heads: PyTorch's outputs with the same weights (goldens/dense_heads.npz, by dense_heads_torch.py)."""

import keras
import numpy as np
import pytest
from dense_head_arrays import CLASSES, GOLDENS, SIZES, fill, maps, thinned

import keras_vit
from keras_vit.layers.resizing import resize_bilinear
from keras_vit.models.heads.decoder import Encoder
from keras_vit.models.heads.dense import make_decoder

pytestmark = pytest.mark.usefixtures("eagerly")

FLOAT32 = keras.dtype_policies.get("float32")
PLAIN = Encoder(keras_vit.models.make_spec("Ti/16"), (48, 48))
OPTIONS = {
    "setr_naive": {"width": 6, "auxiliary_convs": 2},
    "setr_pup": {"width": 6},
    "setr_mla": {"width": 6, "branch_width": 4},
}


@pytest.fixture(scope="module")
def goldens():
    with np.load(GOLDENS) as file:
        return dict(file)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("head", "auxiliary"), [("setr_naive", 1), ("setr_pup", 2), ("setr_mla", 3)])
def test_logits_of_setr_are_those_of_torch(head, auxiliary, size, goldens):
    decoder = make_decoder(head, PLAIN, CLASSES, True, FLOAT32, OPTIONS[head])
    features = maps(SIZES[size])
    layers = [decoder.head, *(layer for _, layer in decoder.auxiliary)]
    if decoder.neck is not None:
        decoder.neck.build([x.shape for x in features])
        fill(decoder.neck)
        features = decoder.neck(features)
    place, other = decoder.auxiliary[auxiliary]
    decoder.head.build([tuple(x.shape) for x in features])
    other.build([tuple(features[place].shape)])
    for layer in layers:
        fill(layer)
    np.testing.assert_allclose(thinned(decoder.head(features)), goldens[f"{head}/{size}"], atol=2e-5)
    np.testing.assert_allclose(thinned(other([features[place]])), goldens[f"{head}/auxiliary/{size}"], atol=2e-5)


def test_the_taps_are_the_papers_and_spread_over_other_depths():
    large = Encoder(keras_vit.models.make_spec("L/16"), (64, 64))
    expected = {"setr_naive": (9, 14, 19, 23), "setr_pup": (9, 14, 19, 23), "setr_mla": (5, 11, 17, 23)}
    for head, taps in expected.items():
        assert make_decoder(head, large, 2, False, FLOAT32, {}).taps == taps
    assert make_decoder("setr_mla", PLAIN, 2, False, FLOAT32, {}).taps == (2, 5, 8, 11)


@pytest.mark.parametrize("aligned", [False, True])
def test_resizing_is_scipys_at_aligned_corners_and_its_weights_sum_to_one(aligned):
    ndimage = pytest.importorskip("scipy.ndimage")
    x = np.random.default_rng(0).normal(size=(2, 3, 5, 4)).astype("float32")
    y = np.asarray(resize_bilinear(x, (7, 4), aligned))
    if aligned:
        np.testing.assert_allclose(y, ndimage.zoom(x, (1, 7 / 3, 4 / 5, 1), order=1), atol=1e-6)
    np.testing.assert_allclose(resize_bilinear(np.ones_like(x), (7, 4), aligned), np.ones((2, 7, 4, 4)), atol=1e-6)
