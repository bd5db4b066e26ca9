"""The HTTP service of a detector: names, scores, and boxes in pixels of the given image."""

import base64
import time

import numpy as np
import pytest
import tensorflow as tf
from small_models import detecting

pytest.importorskip("fastapi")
from fastapi.testclient import TestClient

from keras_vit.answers.boxes import LEAST_SCORE
from keras_vit.serving.http.app import application
from keras_vit.serving.http.served import Served


def png(shape, seed=0):
    return tf.io.encode_png(np.random.default_rng(seed).integers(0, 256, shape, "uint8")).numpy()


@pytest.fixture(scope="module", params=[None, "decode|letterbox(16, 24)"], ids=["resized", "letterboxed"])
def model(request):
    return detecting(preprocessing=request.param)


@pytest.fixture(scope="module")
def client(model):
    with TestClient(application([Served("cells", model)])) as client:
        while client.get("/readyz").status_code != 200:
            time.sleep(0.01)
        yield client


@pytest.mark.extended
def test_predictions_are_what_detect_finds(client, model):
    images = [png((30, 50, 3)), b"no image", png((90, 40, 1), seed=1)]
    body = {"instances": [{"b64": base64.b64encode(image).decode()} for image in images]}
    rows = client.post(f"/v1/models/cells:predict?threshold={LEAST_SCORE}", json=body).json()["predictions"]
    assert "cannot be decoded" in rows[1]["status"] and "boxes" not in rows[1]
    for i in (0, 2):
        expected, row = model.detect(images[i], threshold=LEAST_SCORE), rows[i]
        assert row["classes"] == list(expected.names) != [] and row["labels"] == expected.labels.tolist()
        np.testing.assert_allclose(row["scores"], expected.scores, atol=1e-5)
        np.testing.assert_allclose(row["boxes"], expected.boxes, atol=1e-3)
        assert row["size"] == list(expected.image.shape[:2]) and row["status"] == "ok"


@pytest.mark.extended
def test_tiles_are_those_of_detect(client, model):
    images = [png((40, 70, 3)), b"no image", png((15, 9, 3))]  # the last is smaller than a tile
    body = {"instances": [{"b64": base64.b64encode(image).decode()} for image in images]}
    address = f"/v1/models/cells:predict?threshold={LEAST_SCORE}&tiles=30"
    rows = client.post(address, json=body).json()["predictions"]
    assert "cannot be decoded" in rows[1]["status"]
    for i in (0, 2):
        expected, row = model.detect(images[i], threshold=LEAST_SCORE, tiles=30), rows[i]
        assert row["classes"] == list(expected.names) != [] and row["size"] == list(expected.image.shape[:2])
        np.testing.assert_allclose(row["boxes"], expected.boxes, atol=1e-3)
    twice = {"instances": body["instances"][:1] * 2}
    for query, code, message, sent in (
        ("tiles=0", 400, "tiles", {"json": body}),
        ("tiles=x", 422, "tiles", {"json": body}),
        ("tiles=8", 413, "Its tiles are 85 images, of 64 at most", {"content": images[0]}),
        ("tiles=9", 413, "Its tiles are 122 images, of 64 at most", {"json": twice}),
    ):
        answer = client.post(f"/v1/models/cells:predict?{query}", **sent)
        assert answer.status_code == code and message in answer.json()["error"]
    answer = client.post(address, json={**body, "signature_name": "encoded_attention"})
    assert answer.status_code == 400 and "is of whole images" in answer.json()["error"]
    answer = client.post(address, json={**body, "signature_name": "serving"})
    assert answer.status_code == 400 and 'has no signature "serving"' in answer.json()["error"]


@pytest.mark.extended
def test_without_a_threshold_it_is_the_models(client, model):
    image = png((30, 50, 3))
    model.score_threshold = float(model.detect(image, threshold=0.0).scores[2])
    try:
        [row] = client.post("/v1/models/cells:predict", content=image).json()["predictions"]
        assert row["scores"] == pytest.approx(model.detect(image).scores.tolist(), abs=1e-5) and len(row["boxes"]) == 2
    finally:
        model.score_threshold = 0.3
    for given, message in (("0.01", "expected a score from 0.05 to 1"), ("x", "threshold")):
        assert message in client.post(f"/v1/models/cells:predict?threshold={given}", content=image).json()["error"]


@pytest.mark.extended
def test_detectors_have_no_masks_and_their_own_activation(client, model):
    assert "does not give every pixel a class" in client.post("/v1/models/cells:mask", content=png((9, 7, 3))).text
    with pytest.raises(ValueError, match="are by sigmoid"):
        Served("cells", model, activation="softmax")


def test_the_size_of_a_large_jpeg_is_its_files(model, large_jpeg):
    pixels, size = Served("cells", model).decode_with_size(large_jpeg.read_bytes())
    assert size == (4400, 8000) and pixels.shape == (16, 24, 3)
