"""Files and folders by their names: export and save take the format from the ending, or refuse what contradicts it."""

import json
import os

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.serving import tensorflow_process


@pytest.fixture
def written(monkeypatch):
    """The format and path of each export that would be written."""
    found = []
    monkeypatch.setattr(
        tensorflow_process, "write", lambda model, path, options: found.append((options["format"], path))
    )
    return found


@pytest.mark.parametrize(
    ["path", "given", "format"],
    [
        ("m.onnx", None, "onnx"),
        ("M.ONNX", None, "onnx"),
        ("m.tflite", None, "litert"),
        ("m.v1.2", None, "tf_saved_model"),
        ("m.onnx", "onnx", "onnx"),
    ],
)
def test_the_ending_chooses_the_format(tiny, tmp_path, written, path, given, format):
    keras_vit.export(tiny(depth=1), tmp_path / path, format=given)
    assert written == [(format, str(tmp_path / path))]


@pytest.mark.parametrize(
    ["path", "format", "message"],
    [
        ("m.onnx", "tf_saved_model", 'writes a folder, got ".*m.onnx", a file of format="onnx". Leave format out'),
        ("m.tflite", "onnx", 'format="onnx" writes a file that ends in .onnx, got'),
        ("m.keras", None, "ends in .keras, which is not an export format.*keras_vit.save writes .keras"),
        ("m.h5", "tf_saved_model", "ends in .h5, which is not an export format. Valid: a folder.*.onnx or .tflite"),
        ("m.safetensors", None, "ends in .safetensors"),
        ("m.onx", None, 'ends in .onx: did you mean .onnx[?] A SavedModel in a folder .* format="tf_saved_model"'),
        ("m.safetensor", None, "did you mean .safetensors"),
    ],
)
def test_an_ending_that_contradicts_the_format_is_refused(tiny, tmp_path, path, format, message):
    model = tiny(depth=1)
    with pytest.raises(ValueError, match=message):
        keras_vit.export(model, tmp_path / path, format=format)
    with pytest.raises(ValueError, match=message):
        model.export(tmp_path / path, format=format)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ["text", "message"],
    [
        (
            "decode(1)|resize(8, 12)",
            r"gives images of \(8, 12, 1\), and the model takes \(8, 12, 3\). Set.*decode\(3\)",
        ),
        ("decode(3)|resize(9, 9)", r"gives images of \(9, 9, 3\), and"),
        ("decode(3)|random_crop(8, 12)", 'of "vit" has random ops'),
        ("decode(3)", "gives images of different sizes"),
    ],
)
def test_a_preprocessing_text_for_other_images_is_refused(tiny, tmp_path, text, message):
    model = tiny(depth=1)
    model.preprocessing = text
    for path in ("m", "m.tflite"):
        with pytest.raises(ValueError, match=message):
            keras_vit.export(model, tmp_path / path)
    assert not os.listdir(tmp_path)


def test_hdf5_is_refused_where_it_is_written(tiny, tmp_path):
    vit = tiny(depth=1)
    for model in (vit, vit.with_head(keras.layers.Dense(2, name="two"))):
        for name in ("m.h5", "M.H5", "m.hdf5", "m.weights.h5"):
            with pytest.raises(ValueError, match='would not load again. Write model.save\\("model.keras"\\), or'):
                model.save(tmp_path / name)
    vit.save_weights(tmp_path / "m.weights.h5")  # Keras' format for weights alone
    copy = tiny(depth=1)
    copy.load_weights(tmp_path / "m.weights.h5")
    assert os.listdir(tmp_path) == ["m.weights.h5"]


@pytest.mark.parametrize("with_head", [False, True])
def test_a_folder_of_an_unzipped_model_loads(tiny, tmp_path, pixels, with_head):
    model = tiny(depth=1)
    if with_head:
        model = model.with_head(keras.layers.Dense(2, name="two"), class_names=["a", "b"])
    model.save(tmp_path / "m", zipped=False)
    loaded = keras_vit.load(tmp_path / "m")
    assert type(loaded) is type(model) and loaded.class_names == model.class_names
    np.testing.assert_array_equal(loaded(pixels), model(pixels))
    adapted = keras_vit.load(tmp_path / "m", classes=7, head="reset") if not with_head else loaded
    assert adapted.classes == (2 if with_head else 7)


def test_a_folder_with_a_damaged_part_is_refused(tiny, tmp_path):
    tiny(depth=1).save(tmp_path / "m", zipped=False)
    weights = tmp_path / "m" / "model.weights.h5"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match="are not a complete HDF5 file"):
        keras_vit.load(tmp_path / "m")
    weights.unlink()
    with pytest.raises(FileNotFoundError, match="contains no model.keras"):
        keras_vit.load(tmp_path / "m")


@pytest.mark.extended
def test_the_models_own_export_writes_a_valid_onnx_file(tiny, tmp_path, pixels):
    """Keras' exporter leaves Erfc, of exact GELU, in the file, which no engine reads."""
    onnxruntime = pytest.importorskip("onnxruntime")
    model = tiny(depth=1)
    model.export(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    [given], [taken] = session.get_outputs(), session.get_inputs()
    for images in (pixels, pixels[:1]):
        [found] = session.run(None, {taken.name: images.astype("float32")})
        np.testing.assert_allclose(found, model(images), atol=1e-5)
    assert given.name == "outputs"
    with pytest.raises(ValueError, match="opset_version: without effect"):
        model.export(tmp_path / "m.onnx", opset_version=18)


@pytest.mark.extended
def test_an_export_gives_the_range_that_the_model_expects(tiny, tmp_path, pixels, caplog):
    """Files are 0..255, and the model behind a Rescaling takes [-1, 1]."""
    import tensorflow as tf

    inputs = keras.Input((8, 12, 3), name="image")
    model = keras_vit.Model(inputs, tiny(depth=1)(keras.layers.Rescaling(127.5, 127.5)(inputs)))
    model.classes = 5
    expected = keras.ops.softmax(tiny(depth=1)(pixels))
    with caplog.at_level("INFO", logger="absl"):
        keras_vit.export(model, tmp_path / "m")
    lines = [record.getMessage() for record in caplog.records if record.name == "absl"]
    assert lines[:2] == ["Writing the SavedModel.", "Tracing the signature serving_default."]
    assert all(line.startswith("Tracing the signature ") for line in lines[1:]), "and none of TensorFlow's"
    assert len(lines) == len(set(lines)), "each is traced once"
    served = tf.saved_model.load(tmp_path / "m")
    encoded = tf.constant([tf.io.encode_png(image).numpy() for image in pixels])
    found = served.signatures["serving_default"](encoded)["probabilities"]
    np.testing.assert_allclose(found[:, 0], np.max(expected, axis=-1), rtol=1e-4)
    own = pixels / np.float32(127.5) - 1
    for name, images in (("pixels", own), ("pixels_uint8", pixels)):
        np.testing.assert_allclose(served.signatures[name](tf.constant(images))["probabilities"], expected, rtol=1e-4)
    described = json.loads((tmp_path / "m" / "metadata.json").read_text())
    assert described["pixels"].startswith("in [-1, 1], not normalised") and (described["mean"], described["std"]) == (
        0,
        1,
    )
    assert "`images` are pixels in [-1, 1], or bytes 0..255" in (tmp_path / "m" / "README.md").read_text()
