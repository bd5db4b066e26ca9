"""What released versions saved still loads and gives the same outputs (released/VERSION, written by release.py)."""

import json
import os
import pathlib
import shutil

import keras
import numpy as np
import pytest
import safetensors.numpy
from release import STEPS, configured
from sampled import pixels

import keras_vit
from keras_vit.runs import training_run
from keras_vit.runs.saving.rundir import RunDirectory

ROOT = pathlib.Path(__file__).resolve().parents[2]

RELEASED = pathlib.Path(__file__).parent / "released"
FILES = [
    path
    for version in sorted(RELEASED.iterdir())
    for path in sorted(version.iterdir())
    if path.name not in ("expected.json", "runs")
]
RUNS = [path for path in sorted(RELEASED.glob("*/runs/*")) if path.is_dir()]


OLDEST, *BETWEEN, NEWEST = sorted({path.parent.name for path in FILES})


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.extended] * (path.parent.name in BETWEEN)) for path in FILES],
    ids=lambda path: f"{path.parent.name}-{path.name}",
)
def test_files_of_released_versions_load(path):
    expected = json.loads((path.parent / "expected.json").read_text())[path.name]
    model = keras_vit.load(path)
    assert model.class_names == ("a", "b", "c")
    tolerance = 1e-5 if model.compute_dtype == "float32" else 2e-2
    np.testing.assert_allclose(model(pixels(*model.image_size)), expected, atol=tolerance)
    if path.name == "vit.keras":
        np.testing.assert_allclose(keras.saving.load_model(path)(pixels(*model.image_size)), expected, atol=tolerance)


@pytest.mark.extended
@pytest.mark.parametrize("path", RUNS, ids=lambda path: f"{path.parent.parent.name}-{path.name}")
def test_runs_of_released_versions_resume_to_the_same_end(path, tmp_path, monkeypatch, eagerly):
    monkeypatch.chdir(ROOT)
    if path != RUNS[0]:  # one ends whole, with a report
        measures = {"top1": 0.0, "loss": 0.0, "examples": 32}
        monkeypatch.setattr(training_run, "finish", lambda prepared, model, *_: (model, measures))
    shutil.copytree(path, tmp_path / "run")
    init = os.path.relpath(path.parent / "pretrain.init.keras") if path.name == "finetune" else ""
    training_run.run(configured(path.name, init), tmp_path / "run")
    end, expected = (
        safetensors.numpy.load_file(file)
        for file in (RunDirectory(tmp_path / "run").checkpoint(STEPS), path.parent / f"{path.name}.end.safetensors")
    )
    assert end.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(end[name], array, atol=1e-5, err_msg=name)
    assert [record["step"] for record in RunDirectory(tmp_path / "run").metrics()] == [STEPS // 2, STEPS]


def test_this_version_or_the_one_before_is_among_them():
    """A released version has its files; one in the making is newer than all of them."""
    versions = [tuple(map(int, path.name.split("."))) for path in RELEASED.iterdir()]
    assert max(versions) <= tuple(map(int, keras_vit.__version__.split(".")))
    assert (0, 1, 0) in versions
