"""Exports of a segmentation model: class numbers and probabilities of pixels, equal to Keras'."""

import io
import json
import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from small_models import NAMED, pixels, segmenting, signatures_of

import keras_vit
from keras_vit.answers import bind
from keras_vit.inference.answer_rows import check_kinds
from keras_vit.serving import tensorflow_process
from keras_vit.serving.export_description import describe, readme
from keras_vit.serving.http.served import DEFAULT, Served
from keras_vit.serving.same_outputs import compare
from keras_vit.serving.signatures import all_outputs

COLORS = [[0, 0, 200], [90, 90, 90], [200, 0, 0]]


def png(shape, seed=0):
    return tf.io.encode_png(np.random.default_rng(seed).integers(0, 256, shape, "uint8")).numpy()


@pytest.fixture(scope="module")
def model():
    return segmenting(preprocessing="decode|resize(16, 24)")


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("exports") / "streets"
    keras_vit.export(model, path)
    return path


@pytest.fixture(scope="module")
def signatures(folder):
    return tf.saved_model.load(folder).signatures


def assert_pixel_classes(model, found, images):
    """Holds {"ids", "probabilities"} to the model's."""
    logits = model.predict_on_batch(np.asarray(images, "float32"))
    np.testing.assert_array_equal(found["ids"], logits.argmax(-1))
    np.testing.assert_allclose(found["probabilities"], keras.ops.softmax(logits), atol=1e-5)
    assert np.asarray(found["ids"]).dtype == np.int32


@pytest.mark.extended
def test_a_saved_model_takes_pixels(model, signatures):
    assert_pixel_classes(model, signatures["pixels"](tf.constant(pixels(2))), pixels(2))
    of_bytes = pixels(2).astype("uint8")
    assert_pixel_classes(model, signatures["pixels_uint8"](tf.constant(of_bytes)), of_bytes)


@pytest.mark.extended
def test_a_saved_model_takes_files_and_one_of_them_fails_alone(model, signatures):
    files = [png((30, 20, 3)), b"no image", png((16, 24, 1))]
    found = signatures["serving_default"](tf.constant(files))
    good = {name: value.numpy()[[0, 2]] for name, value in found.items() if name != "status"}
    assert_pixel_classes(model, good, model.preprocess([files[0], files[2]]))
    assert [status == b"ok" for status in found["status"].numpy()] == [True, False, True]
    assert not found["ids"].numpy()[1].any()


@pytest.mark.extended
def test_masks_have_the_images_own_sizes(model, signatures):
    files = [png((30, 50, 3)), b"no image", png((9, 7, 3), seed=1)]
    found = signatures["encoded_masks"](tf.constant(files))
    masks = found["mask_bytes"].numpy()
    for i in (0, 2):
        mask = np.asarray(Image.open(io.BytesIO(masks[i])))
        np.testing.assert_array_equal(mask, model.segment(files[i]).classes)
    assert masks[1] == b"" and b"not an image" in found["status"].numpy()[1]


@pytest.mark.extended
def test_the_description_names_task_classes_colours_and_void(folder):
    metadata = json.loads((folder / "metadata.json").read_text())
    assert metadata["task"] == "segmentation" and metadata["class_names"] == list(NAMED)
    assert metadata["colors"] == COLORS and metadata["void"] == 255
    assert metadata["signatures"]["pixels"]["outputs"]["ids"] == "int32 (b, 16, 24)"
    assert "`mask_bytes` are PNG files" in (folder / "README.md").read_text()


def test_auxiliary_heads_are_left_out(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(tensorflow_process, "write", lambda model, *_: written.append(model))
    keras_vit.export(segmenting("setr_naive", auxiliary=0.4), tmp_path / "m")
    assert written[0].auxiliary == 0 and written[0].output_shape == (None, 16, 24, 3)


@pytest.mark.extended
def test_onnx_equals_keras(model, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    keras_vit.export(model, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    for n in (1, 3):
        assert_pixel_classes(model, dict(zip(names, session.run(None, {"images": pixels(n)}))), pixels(n))
    beside = json.loads((tmp_path / "m.onnx.json").read_text())
    assert beside["outputs"]["ids"] == {"dtype": "int32", "shape": ["b", 16, 24]} and beside["colors"] == COLORS


@pytest.mark.extended
def test_litert_equals_keras(model, tmp_path):
    pytest.importorskip("ai_edge_litert")
    from keras_vit.serving.litert_format import runner

    keras_vit.export(model, tmp_path / "m.tflite")
    assert_pixel_classes(model, runner(str(tmp_path / "m.tflite"))(pixels(3)), pixels(3))


@pytest.fixture(scope="module")
def depth_model():
    options = {"width": 8, "widths": (4, 4, 4, 4)}
    size = {"image_size": (16, 24), "depth": 1, "width": 16, "heads": 2, "mlp_dim": 16}
    return keras_vit.DepthModel("Ti/8", max_depth=3.0, head_options=options, **size)


@pytest.mark.extended
def test_depth_is_exported_as_the_model_returns_it(depth_model, eagerly):
    found, expected = signatures_of(depth_model), depth_model.predict_on_batch(pixels(2))[..., 0]
    assert "encoded_masks" not in found
    answers = found["pixels"](tf.constant(pixels(2)))
    assert list(answers) == ["depth"] and np.ptp(expected) > 0
    np.testing.assert_allclose(answers["depth"], expected, atol=1e-5)
    assert sorted(found["serving_default"](tf.constant([png((16, 24, 3))]))) == ["depth", "status"]


def test_the_description_of_a_depth_model_says_which_depth(depth_model):
    metadata = describe(depth_model, bind(depth_model))
    assert (metadata["task"], metadata["depth"], metadata["classes"]) == ("depth", "metric", None)
    assert metadata["activation"] is None
    signatures = {"serving_default": {"inputs": {}, "outputs": {}, "purpose": ""}}
    assert "`depth` is the metric depth" in readme("m", {**metadata, "signatures": signatures})


def test_files_return_depth_too(depth_model, eagerly):
    """ONNX and LiteRT files return what `all_outputs` computes."""
    found = all_outputs(depth_model, bind(depth_model)).function(tf.constant(pixels(1)))
    np.testing.assert_allclose(found["depth"], depth_model.predict_on_batch(pixels(1))[..., 0], atol=1e-5)
    assert "probabilities" not in found


@pytest.mark.extended
def test_an_onnx_file_of_depth_equals_keras(depth_model, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    keras_vit.export(depth_model, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    [found] = session.run(["depth"], {"images": pixels(2)})
    np.testing.assert_allclose(found, depth_model.predict_on_batch(pixels(2))[..., 0], atol=1e-5, rtol=1e-4)


def test_a_served_depth_is_the_models(depth_model, eagerly):
    images = pixels(1).astype("uint8")
    [row] = Served("depth", depth_model).signatures[DEFAULT](images)
    np.testing.assert_allclose(row["depth"], depth_model.predict_on_batch(images)[0, ..., 0], atol=1e-5)


def test_depth_has_no_classes(depth_model, tmp_path):
    for use, message in (
        (lambda: depth_model.classify(pixels(1)), "gives every pixel a depth, and no classes"),
        (
            lambda: keras_vit.export(depth_model, tmp_path / "m", top_k=2),
            "gives every pixel a depth, and has no classes",
        ),
        (lambda: keras_vit.export(depth_model, tmp_path / "m", activation="sigmoid"), "has no classes. Leave it out"),
        (lambda: check_kinds(depth_model, ["classes"]), "Use model.predict, or request only features"),
    ):
        with pytest.raises(ValueError, match=message):
            use()


@pytest.mark.extended
@pytest.mark.parametrize("head", ["setr_mla", "dpt", "upernet"])
def test_litert_files_of_every_head_equal_keras(head, tmp_path):
    """keras_vit.export compares the outputs itself; int8 has quantised dense layers."""
    pytest.importorskip("ai_edge_quantizer")
    from keras_vit.serving import litert_format

    options = {"width": 8, **({"widths": (4, 4, 4, 4)} if head == "dpt" else {})}
    model = segmenting(head, head_options=options)
    floats, small = str(tmp_path / "m.tflite"), str(tmp_path / "small.tflite")
    keras_vit.export(model, floats)
    litert_format.quantize(floats, small, "int8_dynamic")
    assert os.path.getsize(small) < os.path.getsize(floats)
    expected, found = (litert_format.runner(path)(pixels(3)) for path in (floats, small))
    compare(expected, found, "LiteRT", exact=False)


@pytest.mark.extended
def test_the_mask_of_a_large_jpeg_has_its_files_size(signatures, large_jpeg):
    found = signatures["encoded_masks"](tf.constant([large_jpeg.read_bytes()]))
    assert Image.open(io.BytesIO(found["mask_bytes"].numpy()[0])).size == (8000, 4400)
