"""Depth models: outputs, files from before there were any, depth maps, and a short run."""

import io

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit.answers import bind

SIZE = {"image_size": (16, 24), "depth": 1, "width": 8, "heads": 1, "mlp_dim": 8}
SMALL = {"width": 8, "widths": (4, 4, 4, 4)}
PIXELS = np.random.default_rng(0).integers(0, 256, (2, 16, 24, 3)).astype("float32")


def model_of(head="dpt", **options):
    options = {"head_options": SMALL} | options if head == "dpt" else options
    return keras_vit.DepthModel("Ti/8", head, **{**SIZE, **options})


@pytest.mark.parametrize("head", ["dpt", "linear"])
@pytest.mark.parametrize(("kind", "most"), [("metric", 10.0), ("relative", np.inf)])
def test_outputs_are_depths_and_files_keep_them(head, kind, most, tmp_path):
    model = model_of(head, kind=kind)
    depth = model.predict_on_batch(PIXELS)
    assert depth.shape == (2, 16, 24, 1) and depth.min() >= 0 and depth.max() < most
    model.save(tmp_path / "m.keras")
    again = keras_vit.load(tmp_path / "m.keras")
    assert isinstance(again, keras_vit.DepthModel) and again.arguments() == model.arguments()
    np.testing.assert_array_equal(again.predict_on_batch(PIXELS), depth)


def test_a_segmentation_model_with_a_depth_is_read_as_a_depth_model():
    """The config of a file of 0.5.0, whose head's options had the kind of depth."""
    model = model_of(max_depth=3.0)
    options = {**SMALL, "depth": "metric", "max_depth": 3.0, "residual_norm": "same"}
    old = {name: value for name, value in model.get_config().items() if name not in ("kind", "max_depth")}
    old |= {"classes": 1, "class_names": None, "colors": None, "auxiliary": 0.0, "head_options": options}
    read = keras_vit.SegmentationModel.from_config(old)
    assert isinstance(read, keras_vit.DepthModel) and read.arguments() == model.arguments()
    with pytest.raises(ValueError, match=r'keras_vit\.DepthModel\(encoder, kind="metric"\)'):
        keras_vit.SegmentationModel("Ti/8", "dpt", 1, head_options=options, **SIZE)


def test_estimate_gives_the_images_own_size_and_files_of_it():
    model = model_of()
    small = Image.fromarray(PIXELS[0].astype("uint8"))
    one, other = model.estimate([small, small.resize((50, 31))])
    np.testing.assert_allclose(one.depth, model.predict_on_batch(PIXELS[:1])[0, ..., 0], rtol=1e-4, atol=1e-6)
    assert other.depth.shape == (31, 50) and one.picture().width == 48 and "metric" in repr(one)
    stored = np.asarray(Image.open(io.BytesIO(one.png())))
    assert stored.dtype == np.uint16 and abs(stored / 1000 - one.depth).max() <= 0.00051
    with pytest.raises(ValueError, match="millimetres holds metric depths"):
        model_of(kind="relative").estimate(small).png()


def test_the_answer_draws_depths_with_a_scale():
    model = model_of()
    [answer] = bind(model)
    [look] = answer.looks(PIXELS, PIXELS.astype("uint8"))
    assert look.pictures[0].shape[0] > 16 and look.pictures[0].shape[1:] == (24, 3)
    assert look.captions[0][0].text.endswith(" m")
    np.testing.assert_array_equal(np.load(io.BytesIO(model.estimate(PIXELS[0].astype("uint8")).npy())).shape, (16, 24))


@pytest.mark.extended
def test_training_lowers_the_error_of_drawn_scenes():
    from depth_scenes import scene

    keras.utils.set_random_seed(0)
    images, depths = map(np.stack, zip(*(scene(i, 16, 24) for i in range(16))))
    model = model_of("linear", width=32)
    loss, scores = keras_vit.training.ScaleInvariantLogLoss(), keras_vit.training.DepthScores()
    model.compile(keras_vit.training.AdamW(3e-3), loss, weighted_metrics=[scores])
    before = model.evaluate(images, depths, verbose=0, return_dict=True)
    model.fit(images, depths, batch_size=8, epochs=20, verbose=0)
    after = model.evaluate(images, depths, verbose=0, return_dict=True)
    assert after["abs_rel"] < 0.7 * before["abs_rel"] and after["delta1"] > before["delta1"]
