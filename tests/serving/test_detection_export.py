"""Exports of a detector: detections in TensorFlow alone, ONNX Runtime and LiteRT, equal to Keras'."""

import importlib
import importlib.util
import json

import numpy as np
import pytest
import tensorflow as tf
from small_models import NAMED, detecting, eager, pixels

import keras_vit
from keras_vit.answers import Boxes
from keras_vit.answers.boxes_in_graph import objects_of_encoded
from keras_vit.inference import engines
from keras_vit.serving.same_outputs import compare

THRESHOLD = 0.05


def png(shape, seed=0):
    return tf.io.encode_png(np.random.default_rng(seed).integers(0, 256, shape, "uint8")).numpy()


@pytest.fixture(scope="module")
def model():
    return detecting()


def assert_detections(model, found, images, atol=1e-5, **options):
    """Compares {"boxes", "scores", "labels"} with the model's."""
    with eager():
        boxes, scores, labels = model.detections(np.asarray(images, "float32"), **{"threshold": THRESHOLD, **options})
    assert (labels >= 0).any()
    np.testing.assert_array_equal(found["labels"], labels)
    np.testing.assert_allclose(found["scores"], scores, atol=atol)
    np.testing.assert_allclose(found["boxes"], boxes, atol=atol)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("exports") / "cells"
    keras_vit.export(model, path, threshold=THRESHOLD)
    return path


@pytest.mark.extended
def test_a_saved_model_finds_what_detect_finds(model, folder):
    signatures = tf.saved_model.load(folder).signatures
    files = [png((30, 50, 3)), b"no image", png((16, 24, 1), 1), png((90, 40, 3), 2)]
    found = {name: value.numpy() for name, value in signatures["serving_default"](tf.constant(files)).items()}
    assert [status == b"ok" for status in found["status"]] == [True, False, True, True]
    for i in (0, 2, 3):
        expected, there = model.detect(files[i], threshold=THRESHOLD), found["labels"][i] >= 0
        assert [name.decode() for name in found["classes"][i][there]] == list(expected.names) != []
        assert set(found["classes"][i][~there]) <= {b""}
        np.testing.assert_allclose(found["scores"][i][there], expected.scores, atol=1e-5)
        size = np.tile(expected.image.shape[:2], 2)
        np.testing.assert_allclose(found["boxes"][i][there] * size, expected.boxes, atol=1e-3)
    assert (found["labels"][1] == -1).all() and not found["scores"][1].any() and set(found["classes"][1]) == {b""}
    assert_detections(model, signatures["pixels"](tf.constant(pixels(2))), pixels(2))
    of_bytes = pixels(2).astype("uint8")
    assert_detections(model, signatures["pixels_uint8"](tf.constant(of_bytes)), of_bytes)
    assert sorted(signatures["pixels_training"](tf.constant(pixels(1)))) == ["boxes", "logits"]
    assert signatures["attention"](tf.constant(pixels(1)))["attention"].shape == (1, 2, 3)


@pytest.mark.extended
def test_boxes_of_letterboxed_files_are_mapped_back():
    model, file = detecting(preprocessing="decode|letterbox(16, 24)"), png((90, 40, 3), 2)
    named = Boxes(model, threshold=THRESHOLD).named
    signature = objects_of_encoded(model, lambda x: named(model(x, training=False)))
    found, expected = signature(tf.constant([file])), model.detect(file, threshold=THRESHOLD)
    assert len(expected)
    there = found["labels"].numpy()[0] >= 0
    np.testing.assert_allclose(found["boxes"].numpy()[0][there] * [90, 40, 90, 40], expected.boxes, atol=1e-3)


@pytest.mark.extended
def test_boxes_in_the_padding_of_a_letterbox_are_left_out(monkeypatch):
    model, file = detecting(preprocessing="decode|letterbox(16, 24)"), png((90, 40, 3), 2)
    boxes = [[0, 0, 1, 0.1], [0.2, 0.4, 0.8, 0.6]]
    rows = {"boxes": np.float32([boxes]), "scores": np.float32([[0.9, 0.8]]), "labels": np.int32([[0, 1]])}
    signature = objects_of_encoded(model, lambda _: {name: tf.constant(x) for name, x in rows.items()})
    found = signature(tf.constant([file]))
    assert found["labels"].numpy().tolist() == [[1, -1]] and found["classes"].numpy().tolist() == [[b"dog", b""]]
    monkeypatch.setattr(model, "detections", lambda *_, **__: tuple(rows.values()))
    assert model.detect(file).labels.tolist() == [1]


@pytest.mark.extended
def test_the_description_names_task_classes_and_threshold(folder):
    metadata = json.loads((folder / "metadata.json").read_text())
    assert metadata["task"] == "detection" and metadata["class_names"] == list(NAMED)
    assert (metadata["threshold"], metadata["iou"], metadata["activation"]) == (THRESHOLD, 0.6, "sigmoid")
    assert metadata["signatures"]["pixels"]["outputs"]["boxes"] == "float32 (b, 100, 4)"
    assert "Scores are above 0.05; of boxes of one class" in (folder / "README.md").read_text()


ENGINES = {"onnx": ("tf2onnx", "onnx_format"), "tflite": ("ai_edge_litert", "litert_format")}


def exported_file(model, path, threshold=THRESHOLD, **options):
    """Exports a detector as a file, for which its ending tells the engine; returns what runs it."""
    library, module = ENGINES[path.suffix[1:]]
    pytest.importorskip(library)
    keras_vit.export(model, path, threshold=threshold, **options)
    return importlib.import_module(f"keras_vit.serving.{module}").runner(str(path))


@pytest.mark.extended
@pytest.mark.parametrize("ending", ENGINES)
def test_a_file_finds_the_same(model, tmp_path, ending):
    path = tmp_path / f"m.{ending}"
    options = {"limit": 7, "soft": True, "across_classes": True}
    run = exported_file(model, path, **options)
    for n in (1, 3):
        found = run(pixels(n))
        assert_detections(model, found, pixels(n), **options)
        assert found["candidates"].shape == (n, 30, 4) and found["logits"].shape == (n, 30, 3)
    assert json.loads((tmp_path / f"m.{ending}.json").read_text())["threshold"] == THRESHOLD
    if ending == "onnx" and importlib.util.find_spec("openvino"):
        assert_detections(model, engines._openvino(str(path))(pixels(3)), pixels(3), **options)


# One engine per head: a format converts operations, and the heads share theirs. The dense head has both engines above.
FILES = [("yolos", "tflite"), ("frcnn", "tflite"), ("rf_detr", "tflite"), ("lw_detr", "onnx")]


@pytest.mark.extended
@pytest.mark.parametrize(("head", "ending"), FILES)
def test_files_of_other_heads_find_the_same(head, ending, tmp_path):
    """For one image, too: the export itself compares the file's outputs with the model's for 3 images and for 1."""
    model = detecting(head)
    run = exported_file(model, tmp_path / f"m.{ending}", 0.002)
    assert_detections(model, run(pixels(2)), pixels(2), atol=1e-4, threshold=0.002)


def detections(labels):
    """One image's, d = 60: the box of place i is (i, i, 1, 1) / 100."""
    steps = np.arange(60, dtype="float32")[:, None] / 100
    boxes = np.concatenate([steps, steps, np.ones((60, 2), "float32")], axis=1)
    labels = np.array(labels, "int32")
    return {"labels": labels[None], "scores": np.where(labels < 0, 0, 1 - steps[:, 0])[None], "boxes": boxes[None]}


def test_detections_are_compared_in_any_order_and_without_empty_places():
    ours = detections([0] * 30 + [1] * 20 + [-1] * 10)
    theirs = {name: value[:, [1, 0, *range(2, 60)]] for name, value in ours.items()}
    theirs["boxes"][0, 50:] = 7
    compare(ours, theirs, "Engine")
    with pytest.raises(ValueError, match="misses or invents 40 of 100 detections"):
        compare(ours, detections([0] * 50 + [-1] * 10), "Engine")
