"""A kind of answer of one's own, in one file: a count of dots, which no file of the package knows."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import eager, every_weight, pixels, signatures_of, write_pngs
from starlette.testclient import TestClient

import keras_vit
from keras_vit import evaluation, inference
from keras_vit.answers import ANSWERS, Answer, Entry, register
from keras_vit.evaluation.registry import EVALUATORS, Evaluation, Evaluator
from keras_vit.inspection.model_page.page import inspect_model
from keras_vit.serving.http.app import application
from keras_vit.serving.http.served import DEFAULT, Served


class Dots(Answer):
    """The number of dots in an image, (b, 1)."""

    kind, does = "dots", "counts dots"
    command = "keras-vit predict --model={} --data=images:FOLDER --output=FOLDER"
    title, reading = "dots", "the number of dots"

    def named(self, outputs):
        return {"count": keras.ops.relu(keras.ops.cast(outputs, "float32"))}

    def entries(self, values):
        return [Entry(f"{values['count'][0]:.1f} dots")]


@dataclasses.dataclass(frozen=True)
class CountError(Evaluator):
    """The mean distance of counts to labels."""

    score, higher_is_better = "error", False

    def prepare(self, setting):
        def evaluate():
            errors = []
            for images, labels, _ in keras_vit.data.evaluation_batches(setting.source, "decode|resize(16, 24)", 2):
                counts = Dots(setting.model).named(setting.model.predict_on_batch(images))["count"]
                errors += np.abs(np.asarray(counts)[:, 0] - np.asarray(labels)).tolist()
            return Evaluation({"error": float(np.mean(errors)), "examples": len(errors)})

        return evaluate


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setitem(ANSWERS, "dots", Dots)
    made = every_weight(classes=None).with_head(keras.layers.Dense(1, bias_initializer=keras.initializers.Constant(3)))
    made.answers = "dots"
    return made


def expected(model, images):
    with eager():
        return np.maximum(model.predict_on_batch(images), 0)


def test_registering_adds_a_row(monkeypatch):
    monkeypatch.delitem(ANSWERS, "dots", raising=False)
    assert register(Dots) is ANSWERS.pop("dots")
    model = every_weight()
    model.answers = "dots"
    with pytest.raises(ValueError, match='Unknown answer "dots".* import the file that registers it'):
        Served("m", model)


def test_files_keep_the_kind(model, tmp_path):
    model.save(tmp_path / "m.keras")
    assert keras_vit.load(tmp_path / "m.keras").answers == ("dots",) == model.clone().answers


def test_rows_of_a_table(model, tmp_path):
    import pyarrow.parquet

    source = keras_vit.data.open_source(f"images:{write_pngs(tmp_path, 3)}", "train")
    inference.predict(model, source, tmp_path / "out", batch_size=2)
    table = pyarrow.parquet.read_table(tmp_path / "out").to_pydict()
    for name, count in zip(table["name"], table["count"]):
        if not name.endswith("broken.png"):
            np.testing.assert_allclose(count, expected(model, model.preprocess([name]))[0], rtol=1e-4)
    assert len(table["count"]) == 4 and table["count"].count(None) == 1


def test_json_of_a_service(model, tmp_path):
    served = Served("m", model)
    path = write_pngs(tmp_path, 1) / "a" / "0.png"
    with TestClient(application([served])) as client:
        served.warm_up()
        client.app.state.service.state = "AVAILABLE"
        answer = client.post("/v1/models/m:predict", content=path.read_bytes()).json()
    np.testing.assert_allclose(
        answer["predictions"][0]["count"], expected(model, model.preprocess([path]))[0], rtol=1e-4
    )
    assert served.description["answers"] == ["dots"] and DEFAULT in served.signatures


def test_signatures_of_an_export(model, tmp_path):
    found = signatures_of(model)
    np.testing.assert_allclose(found["pixels"](tf.constant(pixels(2)))["count"], expected(model, pixels(2)), rtol=1e-4)
    path = write_pngs(tmp_path, 1) / "a" / "0.png"
    assert sorted(found["serving_default"](tf.constant([path.read_bytes()]))) == ["count", "status"]


def test_pictures_of_a_page(model):
    page = inspect_model(model, pixels(2), ["a", "b"], show=2)
    body = "".join(section.body for section in page)
    counts = expected(model, pixels(2))[:, 0]
    assert "the number of dots" in body and all(f"{count:.1f} dots" in body for count in counts)


def test_an_evaluator(model, tmp_path, monkeypatch):
    monkeypatch.setitem(EVALUATORS, "count_error", CountError)
    images = pixels(4).astype("uint8")
    setting = evaluation.Setting(model, source=keras_vit.data.from_arrays(images, np.arange(4)))
    with eager():
        measures = CountError().prepare(setting)().measures
    np.testing.assert_allclose(
        measures["error"], np.abs(expected(model, images)[:, 0] - np.arange(4)).mean(), rtol=1e-4
    )
