"""Engines are compared by the measure of the model's own task, with outputs of the engine in place of the model's."""

import keras
import numpy as np
import pytest
from ml_collections import ConfigDict

import keras_vit
from keras_vit.data import from_arrays
from keras_vit.evaluation import Setting
from keras_vit.inference import engines
from keras_vit.layers.fake_quantization import fake_quantizers
from keras_vit.models import quantize_aware
from keras_vit.tasks import find_task

if keras.backend.backend() != "tensorflow":
    pytest.skip("engines are compared on TensorFlow", allow_module_level=True)
IMAGES = np.random.default_rng(0).integers(0, 256, (24, 8, 8, 1), "uint8")
SIZE = {"image_size": 8, "depth": 1, "width": 16, "heads": 2, "mlp_dim": 16}


@pytest.fixture(scope="module")
def classifier():
    keras.utils.set_random_seed(0)
    model = keras_vit.ViT("Ti/4", channels=1, classes=3, preprocessing="decode(1)|resize(8, 8)", **SIZE)
    model.get_layer("head").kernel.assign(np.random.default_rng(0).normal(size=(16, 3)))
    return model


@pytest.fixture
def setting(classifier):
    source = from_arrays(IMAGES, np.arange(24) % 3)
    return Setting(classifier, batch_size=8, source=source, preprocess=classifier.preprocessing)


@pytest.mark.extended
def test_a_classifier_is_measured_with_the_outputs_of_another_engine(classifier, setting):
    def run(images):
        first = [int(np.flatnonzero((IMAGES == image).all((1, 2, 3)))[0]) for image in images.astype("uint8")]
        return {"outputs": np.eye(3, dtype="float32")[np.array(first) % 3]}

    computed = engines.with_outputs_of(classifier, run)
    evaluator = find_task("classification")(ConfigDict()).evaluator()
    assert evaluator.prepare(engines.dataclasses.replace(setting, model=computed))().measures["top1"] == 1
    assert classifier.output is not computed.output, "the model itself is unchanged"


@pytest.mark.extended
def test_a_detector_finds_what_the_engine_returns():
    model = keras_vit.DetectionModel("Ti/4", "dense", classes=2, channels=1, head_options={"width": 8}, **SIZE)
    logits, boxes = (np.zeros((1, *tensor.shape[1:]), "float32") for tensor in model.output.values())
    outputs = dict(zip(model.output, (logits, boxes)))
    outputs["logits"] = np.full_like(outputs["logits"], -9.0)
    outputs["logits"][0, 3, 1] = 5.0
    outputs["boxes"][0, 3] = (0.1, 0.2, 0.5, 0.6)

    def run(images):
        assert images.dtype == "float32", "what files take"
        return outputs

    found, scores, labels = engines.with_outputs_of(model, run).detections(IMAGES[:1].astype("uint8"))
    np.testing.assert_allclose(found[0][0], (0.1, 0.2, 0.5, 0.6), atol=1e-6)
    assert labels[0][0] == 1 and scores[0][0] == pytest.approx(1 / (1 + np.exp(-5)), abs=1e-4)


@pytest.mark.parametrize("format", ["onnx", "litert"])
def test_a_model_trained_for_int8_is_written_as_trained_and_otherwise_in_floats(
    monkeypatch, classifier, tmp_path, format
):
    kind, written = engines.single_file.FILES[format], {}
    for library in kind.libraries:
        pytest.importorskip(library)

    def write(model, path, quantization, calibration):
        written[quantization] = bool(fake_quantizers(model)), calibration is not None

    monkeypatch.setattr(engines, "write_outputs", write)
    monkeypatch.setattr(engines, "_openvino", lambda path: None)
    monkeypatch.setattr(f"{kind.module}.runner", lambda path: None)
    monkeypatch.setattr(engines.single_file, "FILES", {format: kind})
    aware, images = classifier.clone(), IMAGES.astype("float32")
    quantize_aware(aware, images)
    assert list(engines._forms(aware, str(tmp_path), images, integers=True))
    static = (True, format == "litert")  # which calibrates what training does not round
    full = dict.fromkeys(("full_int8", "full_int16"), (False, True)) if format == "litert" else {}
    assert written == {None: (False, False), "int8_dynamic": (False, False), "int8_static": static, **full}


def test_a_model_without_a_file_of_integers_has_the_other_rows(monkeypatch, classifier, tmp_path):
    kind = engines.single_file.FILES["litert"]
    for library in kind.libraries:
        pytest.importorskip(library)

    def write(model, path, quantization, calibration):
        if quantization == "full_int8":
            raise ValueError("LiteRT's integers cannot express this model.")

    monkeypatch.setattr(engines, "write_outputs", write)
    monkeypatch.setattr(f"{kind.module}.runner", lambda path: None)
    monkeypatch.setattr(engines.single_file, "FILES", {"litert": kind})
    forms = engines._forms(classifier, str(tmp_path), IMAGES.astype("float32"), integers=True)
    assert [form.weights for form in forms] == ["float32", "int8_dynamic", "int8_static", "full_int16"]


@pytest.mark.extended
def test_the_table_has_a_row_for_every_engine_that_is_installed(setting):
    pytest.importorskip("tf2onnx")
    pytest.importorskip("onnxruntime")
    rows = engines.compare(
        find_task("classification")(ConfigDict()).evaluator(), setting, IMAGES.astype("float32"), turns=2
    )
    named = [(row.engine, row.weights) for row in rows]
    assert named[0] == ("Keras", "float32")
    assert {("ONNX Runtime", how) for how in ("float32", "int8_dynamic", "int8_static")} <= set(named)
    exact = [row for row in rows if row.weights == "float32"]
    assert all(row.difference < 1e-3 and row.speed == 1 and row.score == rows[0].score for row in exact)
    lines = engines.table(rows, "top1").splitlines()
    assert len(lines) == 2 + len(rows) and "| Keras | float32 | - |" in lines[2]
