"""The HTTP service of a model of objects with masks: boxes and run lengths at the given image's size."""

import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit

pytest.importorskip("fastapi")
from fastapi.testclient import TestClient

from keras_vit.answers.boxes import LEAST_SCORE
from keras_vit.serving.http.app import application
from keras_vit.serving.http.served import Served


@pytest.mark.extended
def test_masks_are_those_of_detect_by_tiles_too():
    keras.utils.set_random_seed(0)
    fields = {"depth": 2, "width": 16, "heads": 2, "mlp_dim": 16, "head_options": {"queries": 5, "blocks": 1}}
    model = keras_vit.InstanceModel("Ti/8", classes=2, class_names=["cat", "dog"], image_size=32, **fields)
    for variable in model.trainable_variables:
        variable.assign(variable + keras.random.normal(variable.shape, stddev=0.3))
    image = tf.io.encode_png(np.random.default_rng(0).integers(0, 256, (50, 90, 3), "uint8")).numpy()
    with TestClient(application([Served("pets", model)])) as client:
        while client.get("/readyz").status_code != 200:
            time.sleep(0.01)
        for query, options in (("", {}), ("&tiles=40", {"tiles": 40})):
            address = f"/v1/models/pets:predict?threshold={LEAST_SCORE}{query}"
            [row] = client.post(address, content=image).json()["predictions"]
            expected = model.detect(image, threshold=LEAST_SCORE, **options)
            assert row["classes"] == list(expected.names) != [] and row["size"] == [50, 90]
            np.testing.assert_allclose(row["boxes"], expected.boxes, atol=1e-2)
            assert [mask["size"] for mask in row["masks"]] == [[50, 90]] * len(expected)
            same = [mask == other for mask, other in zip(row["masks"], expected.run_lengths())]
            assert np.mean(same) > 0.8  # rounding decides a pixel
