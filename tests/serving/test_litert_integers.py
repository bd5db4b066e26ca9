"""Full-integer LiteRT files: bytes in, no tensor of floats, and outputs near the model's."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import every_weight, pixels, segmenting

import keras_vit

interpreter = pytest.importorskip("ai_edge_litert.interpreter")
pytest.importorskip("ai_edge_quantizer")
INTEGERS = ("full_int8", "full_int16")


def opened(path):
    return interpreter.Interpreter(str(path))


def types(path):
    """The types of all tensors in a file."""
    return {np.dtype(tensor["dtype"]).name for tensor in opened(path).get_tensor_details()}


def about(path):
    return json.loads(path.with_name(f"{path.name}.json").read_text())


def outputs(path, images):
    """The outputs of bytes (b, h, w, c), one by one, with the scales that the description gives."""
    run, scales = opened(path).get_signature_runner(), about(path)["outputs"]
    found = [run(images=image[None]) for image in images]
    return {
        name: (np.concatenate([one[name] for one in found]).astype("float32") - tensor["zero_point"]) * tensor["scale"]
        for name, tensor in scales.items()
    }


def difference(expected, found):
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


def in_bytes(n):
    return np.round(pixels(n)).astype("uint8")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """(a model, {quantization: its file})"""
    model, folder = every_weight(), tmp_path_factory.mktemp("integers")
    paths = {how: folder / f"{how}.tflite" for how in INTEGERS}
    for how, path in paths.items():
        keras_vit.export(model, path, quantization=how, calibration=pixels(24))
    return model, paths


@pytest.mark.extended
@pytest.mark.parametrize(("how", "bound"), [("full_int8", 0.15), ("full_int16", 0.1)])
def test_a_file_of_integers_takes_bytes_and_answers_nearly_as_the_model(exported, how, bound):
    model, path = exported[0], exported[1][how]
    assert types(path) <= {"uint8", "int8", "int16", "int32", "int64", "bool"}
    found, logits = outputs(path, in_bytes(9)), model(in_bytes(9).astype("float32")).numpy()
    assert 0 < difference(logits, found["logits"]) < bound
    np.testing.assert_allclose(found["probabilities"].sum(-1), 1, atol=0.02)
    assert list(found) == ["features", "logits", "probabilities"]


@pytest.mark.extended
def test_the_description_has_scales_operations_and_the_difference(exported):
    path = exported[1]["full_int8"]
    described = about(path)
    images = {"dtype": "uint8", "shape": [1, 16, 24, 3], "scale": 1.0, "zero_point": 0}
    assert described["inputs"] == {"images": images} and described["outputs"]["logits"]["dtype"] == "int8"
    report, operations = described["int8"], opened(path)._get_ops_details()
    assert report["operations"]["floats"] == {} and report["calibrated_on"] == 18 and report["held_out"] == 6
    assert sum(report["operations"]["integers"].values()) == len(operations)
    assert 0 < report["difference"] == max(report["differences"].values()) < 0.3


@pytest.mark.extended
def test_images_of_one_colour_do_not_break_the_normalisation(exported):
    images = np.stack([np.full((16, 24, 3), value, "uint8") for value in (0, 255)])
    expected = exported[0](images.astype("float32")).numpy()
    for path in exported[1].values():
        assert difference(expected, outputs(path, images)["logits"]) < 0.3


@pytest.mark.extended
def test_bytes_are_pixels_of_the_models_own_range(tmp_path):
    model = every_weight(mean=0.5, std=0.5, classes=None)
    path = tmp_path / "m.tflite"
    keras_vit.export(model, path, quantization="full_int16", calibration=pixels(16) / 255)
    assert about(path)["inputs"]["images"]["scale"] == pytest.approx(1 / 255)
    features = keras_vit.models.features(model)
    expected = keras.Model(model.input, features)(in_bytes(4) / np.float32(255)).numpy()
    assert difference(expected, outputs(path, in_bytes(4))["features"]) < 0.1


@pytest.mark.extended
def test_other_tasks_have_their_raw_outputs_in_integers(tmp_path):
    model, path = segmenting("setr_mla"), tmp_path / "m.tflite"
    keras_vit.export(model, path, quantization="full_int8", calibration=pixels(16))
    assert "float32" not in types(path)
    [found] = outputs(path, in_bytes(3)).values()
    assert difference(model(in_bytes(3).astype("float32")).numpy(), found) < 0.1


@pytest.mark.extended
def test_operations_without_integer_kernels_are_listed(tmp_path):
    model, path = every_weight(attention="strided"), tmp_path / "m.tflite"
    keras_vit.export(model, path, quantization="full_int8", calibration=pixels(16))
    floats = about(path)["int8"]["operations"]["floats"]
    assert floats["TILE"] == 2 and floats["DEQUANTIZE"] == 2 and "float32" in types(path)


@pytest.mark.extended
def test_causal_masks_are_refused(tmp_path):
    model = every_weight(causal=True, pool="gap")
    with pytest.raises(ValueError, match="it adds -3e.38, as in a causal mask. Take int8_static"):
        keras_vit.export(model, tmp_path / "m.tflite", quantization="full_int8", calibration=pixels(16))
    assert not list(tmp_path.iterdir())


@pytest.mark.extended
def test_a_file_that_differs_too_much_on_held_out_images_is_refused(tmp_path, monkeypatch):
    """Of a decoder's queries the check of three images compares sorted values, which hides large differences."""
    monkeypatch.setattr("keras_vit.serving.litert_integers._BOUND", 1e-3)
    with pytest.raises(ValueError, match=r"on 4 held-out inputs the outputs differ .* by \d+%; at most 0%"):
        keras_vit.export(every_weight(), tmp_path / "m.tflite", quantization="full_int8", calibration=pixels(16))
    assert not list(tmp_path.iterdir())


@pytest.mark.extended
def test_rewritten_operations_compute_the_same(tmp_path):
    from keras_vit.serving import litert_format
    from keras_vit.serving.litert_rewrites import rewritten

    def everything(images):  # (1, 6, 5, 2)
        squares = tf.math.squared_difference(images, tf.reduce_mean(images, -1, keepdims=True))
        kept = tf.where(squares > 0.5, -squares, tf.zeros_like(images)) + tf.square(images + squares)
        return {"outputs": tf.concat(tf.split(kept, [4, 2], axis=1)[::-1], axis=1)}

    spec, path = tf.TensorSpec((1, 6, 5, 2), name="images"), tmp_path / "m.tflite"
    litert_format.convert(tf.function(everything, input_signature=[spec]), spec, str(path))
    images = np.random.default_rng(0).normal(size=spec.shape).astype("float32")
    before, after = opened(path), interpreter.Interpreter(model_content=bytes(rewritten(str(path))))
    names = [{node["op_name"] for node in one._get_ops_details()} for one in (before, after)]
    lacking = {"SQUARED_DIFFERENCE", "SQUARE", "SPLIT_V", "NEG"}
    assert lacking <= names[0] and not names[1] & (lacking | {"ZEROS_LIKE"})
    for one in (before, after):
        found = one.get_signature_runner()(images=images)["outputs"]
        np.testing.assert_allclose(found, everything(tf.constant(images))["outputs"], rtol=1e-5, atol=1e-5)


@pytest.mark.extended
def test_names_are_of_the_tensors_that_a_file_returns(tmp_path):
    """A mean, of 16 bits, is returned in 8: the memory of the former may be another tensor's in the end."""
    model, path = every_weight(pool="gap"), tmp_path / "m.tflite"
    keras_vit.export(model, path, quantization="full_int8", calibration=pixels(24))
    file = opened(path)
    named = {tensor["index"] for tensor in file.get_signature_runner().get_output_details().values()}
    assert named == {tensor["index"] for tensor in file.get_output_details()}
    expected = keras.Model(model.input, model.features)(in_bytes(4).astype("float32")).numpy()
    assert difference(expected, outputs(path, in_bytes(4))["features"]) < 0.1
