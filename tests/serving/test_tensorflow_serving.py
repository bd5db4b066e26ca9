"""The bodies of requests in docs/serving.md, as TensorFlow Serving reads them, against the signatures of an export."""

import base64
import json
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "serving.md"
TEXT = PAGE.read_text("utf-8").partition("## TensorFlow Serving")[2].partition("\n## ")[0]


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
    text = lambda x: [text(y) for y in x] if isinstance(x, list) else x.decode() if isinstance(x, bytes) else x  # noqa: E731
    return [{key: text(value[i]) for key, value in results.items()} for i in range(len(rows))]


def body_of_the_page(images):
    body = re.search(r"```json\n(.*?)```", TEXT, re.DOTALL)[1]
    for words, image in zip(("BASE64 OF A FILE", "BASE64 OF ANOTHER"), images):
        assert words in body
        body = body.replace(words, base64.b64encode(tf.io.encode_png(image).numpy()).decode())
    return body


def test_the_json_of_the_page_gives_the_classes_of_the_model(exported):
    model, _, signatures, images = exported
    expected, short = model.classify(list(images[:2]), top_k=2), body_of_the_page(images)
    for body in (short, short.replace('{"b64"', '{"encoded_images": {"b64"').replace('"}', '"}}')):
        for row, best in zip(rest(body, signatures), expected, strict=True):
            assert row["classes"] == [guess.name for guess in best] and row["status"] == "ok"
            np.testing.assert_allclose(row["probabilities"], [guess.probability for guess in best], atol=1e-5)


def test_pixels_as_lists_give_the_logits_of_the_model(exported):
    model, _, signatures, images = exported
    assert '"signature_name": "pixels_uint8"' in TEXT
    rows = rest(json.dumps({"signature_name": "pixels_uint8", "instances": images.tolist()}), signatures)
    np.testing.assert_allclose([row["logits"] for row in rows], model(images), atol=1e-5)


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
    pathlib.Path("scan.png").write_bytes(tf.io.encode_png(images[0]).numpy())
    lines = re.search(r"(?:^    .*\n|^\n)*^    import grpc(?:.*\n|\n)(?:^    .*\n|^\n)*", TEXT, re.MULTILINE)[0]
    found: dict = {}
    exec("\n".join(line.removeprefix("    ") for line in lines.splitlines()), found)
    assert [name.decode() for name in found["classes"][0]] == [
        guess.name for guess in model.classify(images[0], top_k=2)
    ]
