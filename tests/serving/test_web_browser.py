"""Exported pages in headless Chromium: what they answer for pictures, and what they say about bad ones."""

import io
import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from PIL import ExifTags, Image
from small_models import NAMED, detecting, for_files, segmenting

import keras_vit
from keras_vit.serving.web import runtime

pytest.importorskip("tf2onnx")
from page_server import CHROMIUM, seen

LIBRARIES = os.environ.get("KERAS_VIT_WEB_RUNTIME")  # node_modules, with onnxruntime-web
pytestmark = [
    pytest.mark.release("keras_vit/serving/web", "keras_vit/serving/page"),
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
    pytest.mark.skipif(
        LIBRARIES is None or not pathlib.Path(LIBRARIES, runtime.ENGINE).is_dir(),
        reason="needs KERAS_VIT_WEB_RUNTIME=node_modules, with onnxruntime-web",
    ),
]


def png(shape, seed=0):
    return tf.io.encode_png(np.random.default_rng(seed).integers(0, 256, shape, "uint8")).numpy()


def transparent():
    """A PNG whose colours are those of `png`, under an alpha that a canvas would multiply them with."""
    image = np.random.default_rng(0).integers(0, 256, (40, 60, 4), "uint8")
    image[..., 3] = np.linspace(0, 255, 60)
    return tf.io.encode_png(image).numpy()


def turned(kind):
    """A smooth picture that viewers turn by 90 degrees: "JPEG" or "PNG"."""
    small = Image.fromarray(np.random.default_rng(0).integers(0, 256, (5, 8, 3), "uint8"))
    exif, file = Image.Exif(), io.BytesIO()
    exif[ExifTags.Base.Orientation] = 6
    small.resize((61, 37), Image.Resampling.BICUBIC).save(file, kind, exif=exif)
    return file.getvalue()


PICTURES = {"a.png": png((40, 60, 3)), "grey.png": png((90, 30, 1), 1), "clear.png": transparent()}
TURNED = {"turned.jpg": turned("JPEG"), "turned.png": turned("PNG")}
BAD = {"text.png": b"not a picture", "cut.png": PICTURES["a.png"][:60]}


def exported(model, folder):
    model.preprocessing = "decode|resize(16, 24)"
    keras_vit.export(model, folder, format="web", runtime=LIBRARIES)
    return folder


def test_classes_are_those_of_classify(tmp_path):
    model = for_files()
    good = {**PICTURES, **TURNED}
    first, *found = seen(exported(model, tmp_path / "page"), {**good, **BAD}, tmp_path / "profile")
    assert first["engine"].startswith("WebAssembly") and "threads" in first["engine"], first
    for (name, data), page in zip(good.items(), found):
        expected = {each.name: each.probability for each in model.classify(data, top_k=3)}
        assert {row[0] for row in page["rows"]} == set(NAMED)
        for label, shown in page["rows"]:
            assert abs(float(shown.rstrip("%")) / 100 - expected[label]) < 2e-3, (name, label)
    for page in found[len(good) :]:
        assert not page["rows"] and ("is not a picture that" in page["status"] or "cannot decode" in page["status"])


def test_masks_and_objects_are_drawn(tmp_path):
    picture = {"a.png": PICTURES["a.png"]}
    _, masks = seen(exported(segmenting(), tmp_path / "masks"), picture, tmp_path / "first")
    assert masks["mask"] and {row[0] for row in masks["rows"]} <= set(NAMED)
    model = detecting()
    model.score_threshold = 0.05
    _, objects = seen(exported(model, tmp_path / "objects"), picture, tmp_path / "second")
    expected = model.detect(picture["a.png"], threshold=0.05)
    assert objects["boxes"] == len(objects["rows"]) > 0 and abs(len(expected) - objects["boxes"]) <= 1


def test_missing_files_are_named(tmp_path):
    folder = exported(for_files(), tmp_path / "page")
    (folder / "model.onnx").unlink()
    assert "model.onnx is missing: the server answers 404" in seen(folder, {}, tmp_path / "profile")[0]["status"]
