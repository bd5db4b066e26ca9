"""A small model with classes, and requests for it."""

import base64
import contextlib
import time

import numpy as np
import tensorflow as tf
from fastapi.testclient import TestClient

import keras_vit

NAMES = ("red deer", "Rotmilan", "ロバ")
RNG = np.random.default_rng(0)
PREDICT = "/v1/models/forest:predict"
IMAGES = RNG.integers(0, 256, (3, 8, 12, 3), dtype="uint8")


def png(image):
    return tf.io.encode_png(image).numpy()


def instances(*images, **more):
    return {"instances": [{"b64": base64.b64encode(image).decode()} for image in images], **more}


def small_vit(classes=3, seed=0):
    size = dict(depth=2, width=16, heads=2, mlp_dim=16, classes=classes)
    model = keras_vit.ViT("Ti/4", image_size=(8, 12), class_names=NAMES[:classes] if classes else None, **size)
    if classes:
        model.get_layer("head").kernel.assign(np.random.default_rng(seed).normal(size=(16, classes)))
    return model


@contextlib.contextmanager
def answering(app, **options):
    """A client of an application, once its models are ready."""
    with TestClient(app, **options) as client:
        while client.get("/readyz").status_code != 200:
            time.sleep(0.01)
        yield client


def predictions(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["predictions"]
