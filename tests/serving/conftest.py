"""An export, and a served model, that several files of tests read."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit

NAMES = ("red deer", "Rotmilan", "ロバ")


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """(model, the SavedModel's folder, its signatures, images (4, 8, 12, 3) uint8)."""
    keras.utils.set_random_seed(0)
    size = dict(depth=2, width=16, heads=2, mlp_dim=16, classes=3)
    model = keras_vit.ViT("Ti/4", image_size=(8, 12), class_names=NAMES, name="forest", **size)
    model.get_layer("head").kernel.assign(np.random.default_rng(0).normal(size=(16, 3)))
    folder = tmp_path_factory.mktemp("signatures") / "forest"
    keras_vit.export(model, folder, top_k=2)
    images = np.random.default_rng(1).integers(0, 256, (4, 8, 12, 3), dtype="uint8")
    return model, folder, tf.saved_model.load(folder).signatures, images


@pytest.fixture(scope="session")
def vit():
    from forest import small_vit

    return small_vit()


@pytest.fixture(scope="session")
def forest(vit):
    """The model as it is served. Tests serve copies, which compute by the same traced functions."""
    from keras_vit.serving.http.served import Served

    return Served("forest", vit, top_k=2)
