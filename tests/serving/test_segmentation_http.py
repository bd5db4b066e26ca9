"""The HTTP service of a segmentation model: shares, colours, masks as PNG files."""

import base64
import io
import time

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from small_models import NAMED, every_weight, segmenting

pytest.importorskip("fastapi")
from fastapi.testclient import TestClient

from keras_vit.serving.http.app import application
from keras_vit.serving.http.served import Served

COLORS = [[0, 0, 200], [90, 90, 90], [200, 0, 0]]


def png(shape, seed=0):
    return tf.io.encode_png(np.random.default_rng(seed).integers(0, 256, shape, "uint8")).numpy()


@pytest.fixture(scope="module")
def model():
    return segmenting(preprocessing="decode|resize(20)|central_crop(16, 24)")


@pytest.fixture(scope="module")
def client(model):
    with TestClient(application([Served("streets", model), Served("forest", every_weight())])) as client:
        while client.get("/readyz").status_code != 200:
            time.sleep(0.01)
        yield client


@pytest.mark.extended
def test_predictions_are_shares_with_colours_and_a_mask(client, model):
    images = [png((30, 50, 3)), png((9, 7, 1), seed=1)]
    body = {"instances": [{"b64": base64.b64encode(image).decode()} for image in images]}
    rows = client.post("/v1/models/streets:predict", json=body).json()["predictions"]
    for row, image in zip(rows, images):
        pixels = tf.image.resize(tf.io.decode_image(image, 3), (16, 24), antialias=True).numpy().round()
        ids = model.predict_on_batch(pixels[None])[0].argmax(-1)
        mask = Image.open(io.BytesIO(base64.b64decode(row["mask"]["b64"])))
        np.testing.assert_array_equal(np.asarray(mask), ids)
        assert mask.getpalette()[:9] == sum(COLORS, [])
        found = dict(zip(row["classes"], zip(row["shares"], row["colors"])))
        expected = {NAMED[i]: (np.mean(ids == i), COLORS[i]) for i in np.unique(ids)}
        assert found == expected and row["shares"] == sorted(row["shares"], reverse=True)


@pytest.mark.extended
def test_a_mask_has_the_images_own_size(client, model):
    answer = client.post("/v1/models/streets:mask", content=png((30, 50, 3)))
    assert answer.headers["content-type"] == "image/png"
    found = np.asarray(Image.open(io.BytesIO(answer.content)))
    np.testing.assert_array_equal(found, model.segment(png((30, 50, 3))).classes)


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        ("streets:mask", b"no image", "It cannot be decoded"),
        ("forest:mask", png((9, 7, 3)), "does not give every pixel a class"),
        ("streets:masks", png((9, 7, 3)), "mask"),
        ("streets:features", png((9, 7, 3)), 'has no signature "encoded_features". Valid: serving_default'),
    ],
)
def test_what_is_refused(client, path, content, message):
    answer = client.post(f"/v1/models/{path}", content=content)
    assert answer.status_code in (400, 404) and message in answer.json()["error"]
