"""Exports of a dual encoder's towers: SavedModels and ONNX files give the embeddings."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit

SIZE = {"depth": 1, "width": 8, "heads": 1, "mlp_dim": 8}
IMAGES = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), "uint8")
IDS = np.random.default_rng(1).integers(0, 20, (2, 6)).astype("int32")


@pytest.fixture(scope="module")
def model():
    """As CLIP, which projects images and reads texts up to their end."""
    keras.utils.set_random_seed(0)
    image = keras_vit.ViT("B/8", image_size=16, classes=None, preprocessing="decode|resize(16, 16)", **SIZE)
    text = keras_vit.TextEncoder("CLIP-B", vocabulary=20, length=6, outputs=8, end=19, **SIZE)
    return keras_vit.DualEncoder(image, text, "softmax", projection=8)


@pytest.mark.extended
def test_towers_are_the_same_in_onnx(model, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    expected = {"image": model.encode_image(IMAGES), "text": model.encode_text(IDS)}
    for kind, given, name in (("image", IMAGES.astype("float32"), "outputs"), ("text", IDS, "embeddings")):
        path = tmp_path / f"{kind}.onnx"
        keras_vit.export(model.tower(kind), path)
        session = runtime.InferenceSession(str(path))
        [found] = session.run([name], {session.get_inputs()[0].name: given})
        np.testing.assert_allclose(found, expected[kind], atol=1e-5)
    assert json.loads((tmp_path / "text.onnx.json").read_text())["inputs"]["tokens"]["shape"] == ["b", 6]


@pytest.mark.extended
def test_the_text_tower_is_the_same_in_a_saved_model(model, tmp_path):
    keras_vit.export(model.tower("text"), tmp_path / "text")
    loaded = tf.saved_model.load(str(tmp_path / "text"))
    np.testing.assert_allclose(loaded.serve(IDS), model.encode_text(IDS), atol=1e-5)


def test_what_texts_do_not_have_is_refused(model, tmp_path):
    with pytest.raises(ValueError, match="top_k: without effect"):
        keras_vit.export(model.tower("text"), tmp_path / "text", top_k=3)
    with pytest.raises(ValueError, match='takes texts, which format="litert" does not'):
        keras_vit.export(model.tower("text"), tmp_path / "text.tflite")
