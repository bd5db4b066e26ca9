"""The HTTP service of a dual encoder: labels that a request names, and images of an index that fit a text."""

import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit

pytest.importorskip("fastapi")
from fastapi.testclient import TestClient

from keras_vit.serving.http.app import application
from keras_vit.serving.http.served import Served

SIZE = {"depth": 1, "width": 8, "heads": 1, "mlp_dim": 8}
IMAGE = tf.io.encode_png(np.random.default_rng(0).integers(0, 256, (16, 16, 3), "uint8")).numpy()


def codes(texts):
    """A tokenizer: the codes of a text's last letters."""
    return np.array([list(text.encode()[-8:].ljust(8)) for text in texts], "int32")


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    image = keras_vit.ViT("B/8", image_size=16, classes=None, preprocessing="decode|resize(16, 16)", **SIZE)
    text = keras_vit.TextEncoder("SigLIP-B", vocabulary=128, length=8, outputs=8, **SIZE)
    made = keras_vit.DualEncoder(image, text, "softmax")
    made.tokenizer = codes
    return made


def search(embedding, count):
    return [("a.png", float(embedding[0]), np.zeros((2, 2, 3), "uint8"))] * count


@pytest.fixture(scope="module")
def client(model):
    with TestClient(application([Served("pair", model, search=search), Served("alone", model.image_encoder)])) as made:
        while made.get("/readyz").status_code != 200:
            time.sleep(0.01)
        yield made


@pytest.mark.extended
def test_labels_of_a_request_are_those_of_zero_shot(client, model):
    address = "/v1/models/pair:zero_shot?label=a cat&label=a dog&label=an emu&templates=label"
    [row] = client.post(address, content=IMAGE).json()["predictions"]
    [expected] = [model.zero_shot(IMAGE, ["a cat", "a dog", "an emu"], "label")]
    assert row["classes"] == [each.name for each in expected] and row["status"] == "ok"
    assert row["probabilities"] == pytest.approx([each.probability for each in expected], abs=1e-5)


@pytest.mark.extended
def test_a_text_finds_images_of_the_index(client, model):
    found = client.get("/v1/models/pair:search?text=a cat&count=2").json()["images"]
    assert [each["name"] for each in found] == ["a.png"] * 2 and found[0]["image"].startswith("data:image/png;base64,")
    assert found[0]["similarity"] == pytest.approx(float(model.encode_text(["a cat"])[0, 0]), abs=1e-5)


@pytest.mark.extended
def test_the_page_learns_what_a_model_can(client):
    described = client.get("/v1/models").json()["models"]
    assert [(each.get("texts"), each.get("search")) for each in described] == [(True, True), (None, None)]


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("alone:zero_shot?label=a", "no text encoder"),
        ("pair:zero_shot?label=", "Expected 1 to 200 labels"),
        ("pair:zero_shot?label=a&label=a", "The labels repeat"),
        ("pair:zero_shot?label=a&templates=x", 'Unknown templates "x"'),
    ],
)
def test_unusable_labels_are_refused(client, address, words):
    answer = client.post(f"/v1/models/{address}", content=IMAGE)
    assert answer.status_code == 400 and words in answer.json()["error"]
