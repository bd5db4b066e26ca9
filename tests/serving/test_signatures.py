"""What each signature returns, a bad image among good ones, what the export says of itself, and the requests of
docs/serving.md as TensorFlow Serving reads them.
"""

import base64
import json
import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import signatures_of

import keras_vit
from keras_vit.inspection import attention_maps
from keras_vit.serving import warmup
from keras_vit.serving.export import _check_place
from keras_vit.serving.saved_model import _title

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "serving.md"
TEXT = PAGE.read_text("utf-8").partition("## TensorFlow Serving")[2].partition("\n## ")[0]


def png(image):
    return tf.io.encode_png(image).numpy()


@pytest.mark.extended
def test_a_broken_image_fails_alone_and_says_why(exported):
    _, _, signatures, images = exported
    jpeg = tf.io.encode_jpeg(np.zeros((64, 64, 3), "uint8")).numpy()
    bad = {
        b"": "It is empty: there are no bytes.",
        b"<html>": "This is not an image: expected the bytes of a JPEG, PNG, BMP, GIF or WebP.",
        jpeg[:200]: "The JPEG cannot be decoded: it is damaged, cut short, or has more than 268,435,456 pixels",
        png(images[0])[:60]: "The PNG cannot be decoded",
        b"\0\0\0\x18ftypheic": "HEIC is not read here. Use JPEG, PNG",
        b"RIFF\0\0\0\0WEBPVP8 ": "The WebP cannot be decoded: it is damaged, cut short",
        b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\2" + bytes(20): "An animated WebP is not read here: save it as a PNG.",
        b"BM" + bytes(12) + b"\x7c" + bytes(40): "A BMP with bit fields, RLE, 1, 4 or 16 bits per pixel",
    }
    good = [png(image) for image in images]
    for name in ("serving_default", "encoded_features", "encoded_attention"):
        alone = signatures[name](tf.constant(good))
        mixed = signatures[name](tf.constant([*good[:2], *bad, *good[2:]]))
        rows = [0, 1, -2, -1]
        for key, values in alone.items():
            if values.dtype == tf.string:
                np.testing.assert_array_equal(values, mixed[key].numpy()[rows])
            else:
                np.testing.assert_allclose(values, mixed[key].numpy()[rows], atol=1e-6)
        assert [s.decode() for s in mixed["status"].numpy()[rows]] == ["ok"] * 4
        for status, text in zip(mixed["status"].numpy()[2:-2], bad.values()):
            assert status.decode().startswith(text)
        for key in set(mixed) - {"status"}:
            assert not np.any(mixed[key].numpy()[2:-2] != (b"" if mixed[key].dtype == tf.string else 0)), key


@pytest.mark.extended
def test_encoded_images_and_pixels_of_both_kinds_give_what_the_model_gives(exported):
    model, _, signatures, images = exported
    logits = np.asarray(model(images))
    for name, dtype in (("pixels", tf.float32), ("pixels_uint8", tf.uint8)):
        np.testing.assert_allclose(signatures[name](tf.constant(images, dtype))["logits"], logits, atol=1e-5)
    best = signatures["serving_default"](tf.constant([png(image) for image in images]))
    order = np.argsort(-logits, -1)[:, :2]
    named = np.char.decode(best["classes"].numpy().astype("S"), "utf-8")
    np.testing.assert_array_equal(named, np.array(model.class_names)[order])
    np.testing.assert_allclose(
        best["probabilities"], np.take_along_axis(np.asarray(tf.nn.softmax(logits)), order, -1), atol=1e-5
    )


@pytest.mark.extended
def test_features_and_attention_are_those_of_the_package(exported):
    model, _, signatures, images = exported
    pixels, encoded = tf.constant(images, tf.float32), tf.constant([png(image) for image in images])
    expected = {
        "features": keras.Model(model.input, model.features)(images),
        "attention": attention_maps(model, images),
    }
    for name, values in expected.items():
        for signature, given in ((name, pixels), (f"encoded_{name}", encoded)):
            np.testing.assert_allclose(signatures[signature](given)[name], values, atol=1e-5)
    assert expected["attention"].shape == (4, 2, 3)


@pytest.mark.extended
def test_attention_of_other_poolings_and_none_of_a_bit(eagerly):
    x = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3)).astype("float32")
    for pool in ("gap", "map", "token_gap"):
        model = keras_vit.ViT("Ti/4", image_size=8, depth=1, width=16, heads=2, mlp_dim=16, classes=3, pool=pool)
        found = signatures_of(model)["attention"](tf.constant(x))["attention"]
        np.testing.assert_allclose(found, attention_maps(model, x), atol=1e-5)
    bit = keras_vit.BiT("R26x1", image_size=32, units=(1,), width_factor=0.5, classes=2)
    assert not [name for name in signatures_of(bit) if "attention" in name]


@pytest.mark.extended
def test_the_export_says_what_it_is(exported):
    model, folder, signatures, _ = exported
    metadata = json.loads((folder / "metadata.json").read_text("utf-8"))
    assert set(metadata["signatures"]) == set(signatures)
    assert metadata["class_names"] == list(model.class_names) and metadata["activation"] == "softmax"
    assert metadata["preprocessing"] == "decode(3)|resize(8, 12)" and metadata["image_size"] == [8, 12]
    assert metadata["parameters"] == model.count_params()
    assert metadata["signatures"]["serving_default"]["inputs"] == {"encoded_images": "string (b,)"}
    assert metadata["signatures"]["pixels_uint8"]["inputs"] == {"images": "uint8 (b, 8, 12, 3)"}
    assert metadata["signatures"]["attention"]["outputs"] == {"attention": "float32 (b, 2, 3)"}
    readme = (folder / "README.md").read_text("utf-8")
    assert readme.startswith("# forest\n") and _title("models/forest/1") == "forest"
    assert all(f"`{name}`" in readme for name in signatures)
    assert (folder / "assets" / "classes.txt").read_text("utf-8").splitlines() == list(model.class_names)


@pytest.mark.extended
def test_an_export_with_its_description_is_replaced_and_a_lone_readme_is_not(exported, tmp_path):
    model, folder, _, _ = exported
    _check_place(folder)
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(
        ValueError, match="contains other files than an export of keras_vit, which would be lost: README.md"
    ):
        keras_vit.export(model, tmp_path)


@pytest.mark.extended
def test_the_warm_up_requests_are_ones_that_the_signatures_answer(exported):
    prediction_log_pb2 = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
    _, folder, signatures, _ = exported
    asked = set()
    for record in tf.data.TFRecordDataset(str(folder / warmup.PATH)).as_numpy_iterator():
        request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
        assert request.model_spec.name == "forest"
        inputs = {name: tf.constant(tf.make_ndarray(tensor)) for name, tensor in request.inputs.items()}
        results = signatures[request.model_spec.signature_name](**inputs)
        assert all(len(value) == 1 for value in results.values())
        assert "status" not in results or results["status"].numpy().tolist() == [b"ok"]
        asked.add(request.model_spec.signature_name)
    assert asked == {name for name in signatures if not name.endswith("_training")}


def decoded(value):
    """A JSON value with {"b64": ...}, an object of that one key, as the bytes it stands for."""
    if isinstance(value, dict) and set(value) == {"b64"}:
        return base64.b64decode(value["b64"], validate=True)
    return [decoded(part) for part in value] if isinstance(value, list) else value


def rest(body, signatures):
    """The answer to a body: as https://www.tensorflow.org/tfx/serving/api_rest says, a list of "instances" is the one
    input's rows, or each is an object of inputs by name; "predictions" has a value for each row, an object where there
    are several outputs. Strings of outputs are base64 only where their name ends in _bytes.
    """
    request = json.loads(body)
    signature = signatures[request.get("signature_name", "serving_default")]
    [(name, spec)] = signature.structured_input_signature[1].items()
    rows = [decoded(row[name] if isinstance(row, dict) and name in row else row) for row in request["instances"]]
    results = {key: value.numpy().tolist() for key, value in signature(**{name: tf.constant(rows, spec.dtype)}).items()}
    assert not any(key.endswith("_bytes") for key in results)

    def text(x):
        return [text(y) for y in x] if isinstance(x, list) else x.decode() if isinstance(x, bytes) else x

    return [{key: text(value[i]) for key, value in results.items()} for i in range(len(rows))]


def body_of_the_page(images):
    body = re.search(r"```json\n(.*?)```", TEXT, re.DOTALL)[1]
    for words, image in zip(("BASE64 OF A FILE", "BASE64 OF ANOTHER"), images):
        assert words in body
        body = body.replace(words, base64.b64encode(png(image)).decode())
    return body


@pytest.mark.extended
def test_the_json_of_the_page_gives_the_classes_of_the_model(exported):
    model, _, signatures, images = exported
    expected, short = model.classify(list(images[:2]), top_k=2), body_of_the_page(images)
    for body in (short, short.replace('{"b64"', '{"encoded_images": {"b64"').replace('"}', '"}}')):
        for row, best in zip(rest(body, signatures), expected, strict=True):
            assert row["classes"] == [guess.name for guess in best] and row["status"] == "ok"
            np.testing.assert_allclose(row["probabilities"], [guess.probability for guess in best], atol=1e-5)


@pytest.mark.extended
def test_pixels_as_lists_give_the_logits_of_the_model(exported):
    model, _, signatures, images = exported
    assert '"signature_name": "pixels_uint8"' in TEXT
    rows = rest(json.dumps({"signature_name": "pixels_uint8", "instances": images.tolist()}), signatures)
    np.testing.assert_allclose([row["logits"] for row in rows], model(images), atol=1e-5)


@pytest.mark.extended
def test_the_grpc_program_of_the_page_gives_the_classes_of_the_model(exported, tmp_path, monkeypatch):
    pytest.importorskip("grpc")
    stubs = pytest.importorskip("tensorflow_serving.apis.prediction_service_pb2_grpc")
    from tensorflow_serving.apis import predict_pb2

    model, _, signatures, images = exported

    class Service:
        """Stands for the stub: the request and the answer pass as the bytes that a network would carry."""

        def __init__(self, channel):
            pass

        def Predict(self, request, timeout):
            request = predict_pb2.PredictRequest.FromString(request.SerializeToString())
            assert request.model_spec.name == "digits"
            inputs = {name: tf.constant(tf.make_ndarray(tensor)) for name, tensor in request.inputs.items()}
            answer = predict_pb2.PredictResponse()
            for name, value in signatures[request.model_spec.signature_name](**inputs).items():
                answer.outputs[name].CopyFrom(tf.make_tensor_proto(value))
            return answer

    monkeypatch.setattr(stubs, "PredictionServiceStub", Service)
    monkeypatch.chdir(tmp_path)
    pathlib.Path("scan.png").write_bytes(png(images[0]))
    lines = re.search(r"(?:^    .*\n|^\n)*^    import grpc(?:.*\n|\n)(?:^    .*\n|^\n)*", TEXT, re.MULTILINE)[0]
    found: dict = {}
    exec("\n".join(line.removeprefix("    ") for line in lines.splitlines()), found)
    assert [name.decode() for name in found["classes"][0]] == [
        guess.name for guess in model.classify(images[0], top_k=2)
    ]
