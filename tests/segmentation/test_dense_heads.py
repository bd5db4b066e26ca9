"""Dense heads: PyTorch's outputs with the same weights (goldens/dense_heads.npz, by dense_heads_torch.py)."""

import dataclasses

import keras
import numpy as np
import pytest
from dense_head_arrays import CLASSES, GOLDENS, SIZES, WIDTH, fill, maps, sample, thinned

import keras_vit
from keras_vit.depth.depth_model import DPTDepth
from keras_vit.layers.resizing import pool_to, resize_bilinear
from keras_vit.models.heads.decoder import Encoder
from keras_vit.planning import model_counts
from keras_vit.segmentation.heads.segmentation_heads import make_decoder

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


def outputs(decoder, features):
    """{"head": logits, "auxiliary": logits of the last auxiliary head} of a decoder with the sampled weights."""
    tokens = [sample(f"token_{i}", (1, WIDTH)) for i in range(4)] if decoder.class_tokens else []
    if decoder.neck is not None:
        arguments = [features, tokens] if tokens else [features]
        decoder.neck.build(*([x.shape for x in each] for each in arguments))
        fill(decoder.neck)
        declared = decoder.neck.compute_output_spec([keras.KerasTensor(x.shape, x.dtype) for x in features])
        features = decoder.neck(*arguments)
        assert [x.shape for x in declared] == [x.shape for x in features]
    found = {}
    for name, given, layer in [
        ("head", features, decoder.head),
        *(("auxiliary", [features[i]], a) for i, a in decoder.auxiliary),
    ]:
        layer.build([tuple(x.shape) for x in given])
        fill(layer)
        y = layer(given)
        declared = layer.compute_output_spec([keras.KerasTensor(x.shape, x.dtype) for x in given])
        assert (declared.shape, declared.dtype) == (y.shape, y.dtype.name), layer.name
        found[name] = thinned(y)
    return found


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("head", "auxiliary"), [("setr_naive", 1), ("setr_pup", 2), ("setr_mla", 3)])
def test_logits_of_setr_are_those_of_torch(head, auxiliary, size, goldens):
    decoder = make_decoder(head, PLAIN, CLASSES, True, FLOAT32, OPTIONS[head])
    decoder = dataclasses.replace(decoder, auxiliary=(decoder.auxiliary[auxiliary],))
    found = outputs(decoder, maps(SIZES[size]))
    np.testing.assert_allclose(found["head"], goldens[f"{head}/{size}"], atol=2e-5)
    np.testing.assert_allclose(found["auxiliary"], goldens[f"{head}/auxiliary/{size}"], atol=2e-5)


@pytest.mark.extended
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("readout", ["project", "add", "ignore"])
def test_dpt_is_that_of_transformers(readout, size, goldens):
    options = {"widths": (4, 6, 8, 10), "width": 6, "readout": readout}
    whole = readout == "project"
    decoder = make_decoder("dpt", PLAIN, CLASSES, whole, FLOAT32, options | ({} if whole else {"residual_norm": None}))
    found = outputs(decoder, maps(SIZES[size]))
    np.testing.assert_allclose(found["head"], goldens[f"dpt_{readout}/{size}"], atol=5e-5)
    if whole:
        np.testing.assert_allclose(found["auxiliary"], goldens[f"dpt_project/auxiliary/{size}"], atol=5e-5)
    else:
        decoder = DPTDepth(**options, depth="relative").decoder(PLAIN, 1, False, FLOAT32)
        depth = outputs(decoder, maps(SIZES[size]))["head"]
        np.testing.assert_allclose(depth, goldens[f"dpt_{readout}/depth/{size}"], atol=5e-5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("depth", "max_depth"), [("relative", 3), ("metric", 3)])
def test_depth_anything_is_that_of_transformers(depth, max_depth, size, goldens):
    h, w = SIZES[size]
    encoder = Encoder(keras_vit.models.make_spec("S/14"), (14 * h, 14 * w))
    options = {"widths": (4, 6, 8, 10), "width": 6, "readout": "ignore", "exact_sizes": True, "normalised": True}
    options |= {"depth": depth, "max_depth": max_depth, "depth_width": 4}
    found = outputs(DPTDepth(**options).decoder(encoder, 1, False, FLOAT32), maps((h, w)))
    np.testing.assert_allclose(found["head"], goldens[f"depth_anything/{depth}/{size}"], atol=2e-5)


@pytest.mark.parametrize("size", SIZES)
def test_upernet_is_that_of_transformers(size, goldens):
    bit = Encoder(keras_vit.BiTSpec((1, 1, 1, 1)), (64, 64))
    decoder = make_decoder("upernet", bit, CLASSES, True, FLOAT32, {"width": 6, "auxiliary_width": 5})
    found = outputs(decoder, maps(SIZES[size], scales=(4, 2, 1, 0.67)))
    np.testing.assert_allclose(found["head"], goldens[f"upernet/{size}"], atol=2e-5)
    np.testing.assert_allclose(found["auxiliary"], goldens[f"upernet/auxiliary/{size}"], atol=2e-5)


def test_heads_name_what_does_not_suit_them():
    no_token = Encoder(keras_vit.models.make_spec("Ti/16", pool="gap", class_token=False), (32, 32))
    bit = Encoder(keras_vit.BiTSpec((1, 1)), (64, 64))
    for head, encoder, options, text in (
        ("dpt", no_token, {"readout": "add"}, 'readout="add" reads the class token, and this encoder has none'),
        ("dpt", PLAIN, {"readout": "sum"}, 'Unknown readout "sum". Valid: project, add, ignore'),
        ("dpt", PLAIN, {"taps": (0, 1)}, "This head takes 4 taps, got 2"),
        ("dpt", bit, {}, 'The head "dpt" takes the maps of a ViT'),
        ("upernet", PLAIN, {"norm": "instance"}, 'unknown norm "instance".* Valid: batch, group'),
    ):
        with pytest.raises(ValueError, match=text):
            make_decoder(head, encoder, 2, False, FLOAT32, options)
    assert make_decoder("dpt", no_token, 2, False, FLOAT32, {}).class_tokens is False


def test_pooling_to_bins_is_their_mean():
    x = np.random.default_rng(0).normal(size=(2, 5, 7, 3)).astype("float32")
    bins = [[x[:, a:b, c:d].mean((1, 2)) for c, d in ((0, 3), (2, 5), (4, 7))] for a, b in ((0, 3), (2, 5))]
    np.testing.assert_allclose(pool_to(x, (2, 3)), np.stack([np.stack(row, 1) for row in bins], 1), atol=1e-6)


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


def parameters(decoder, grid, d):
    """The number of trained values in a decoder's layers."""
    h, w = grid
    decoder.neck.build([(None, h, w, d)] * 4, [(None, d)] * 4)
    width, fused = decoder.neck.width, [(None, 4 * h, 4 * w)] * 4
    for layer in decoder.layers[1:]:
        layer.build([(*shape, width) for shape in (fused if layer is decoder.head else fused[:1])])
    return sum(int(np.prod(weight.shape)) for layer in decoder.layers for weight in layer.trainable_weights)


@pytest.mark.extended
def test_dpt_large_has_the_parameters_of_transformers():
    spec = keras_vit.models.make_spec("L/16")
    decoder = make_decoder("dpt", Encoder(spec, (384, 384)), 150, True, FLOAT32, {})
    encoder = model_counts.parameters(model_counts.layer_counts(spec, 384, None))
    unused = 2 * (9 * 256 * 256 + 2 * 256)  # the lateral unit of the deepest fusion
    assert encoder + parameters(decoder, (24, 24), 1024) + unused == 343_960_364  # DPTForSemanticSegmentation, 5.24.0


def test_depth_anything_v2_small_has_the_parameters_of_transformers():
    spec = keras_vit.models.make_spec("S/14", layer_scale=1.0, pool="token")
    options = {"width": 64, "readout": "ignore", "residual_bias": True, "exact_sizes": True, "depth": "relative"}
    decoder = DPTDepth(**options).decoder(Encoder(spec, (518, 518)), 1, False, FLOAT32)
    encoder = model_counts.parameters(model_counts.layer_counts(spec, 518, None))
    unused = 2 * (9 * 64 * 64 + 64) + 384  # as above; and DINOv2's mask token
    assert encoder + parameters(decoder, (37, 37), 384) + unused == 24_785_089  # DepthAnythingForDepthEstimation
