"""The notebooks of docs/notebooks run as they are, cell after cell, as far as a machine without a network and a TPU
can.
"""

import json
import os
import pathlib

import keras
import matplotlib
import matplotlib.pyplot
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit.serving.export import _check

ROOT = pathlib.Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.release("docs/notebooks", "fit", "runs", "configs")  # none is started, but whole trainings run

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


# {notebook: {its code: what is smaller}}
SMALLER = {
    "quick_start": {"batch_size, epochs = 64, 25": "batch_size, epochs = 64, 10", "depth=4": "depth=1"},
    "tpu": {"epochs, steps = 25,": "epochs, steps = 4,", "depth=4": "depth=1"},
    "own_photographs": {"IMAGE_SIZE = 96": "IMAGE_SIZE = 32", "// batch_size, 20)": "// batch_size, 6)"},
}


def cells(path, kind):
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


def few_photographs(folder):
    """Twenty images of two classes, PNG and JPEG, and a broken file in each."""
    rng = np.random.default_rng(0)
    for i in range(20):
        pixels = np.clip(rng.normal((200, 60, 60) if i % 2 else (60, 60, 200), 40, (100, 120, 3)), 0, 255)
        path = folder / ("red" if i % 2 else "blue") / (f"{i}.png" if i % 3 else f"{i}.JPEG")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype("uint8")).save(path)
    for name in ("red", "blue"):
        (folder / name / "0_broken.png").write_bytes(b"not an image")
    return folder


def checkpoint(folder):
    """A tiny ViT for images of another size, as timm would save it."""
    keras.utils.set_random_seed(0)
    size = {"image_size": 48, "classes": 7, "depth": 1, "width": 48, "heads": 3, "mlp_dim": 96}
    keras_vit.save(keras_vit.ViT("Ti/16", **size), folder, "timm")
    return folder


@pytest.fixture
def ran(tmp_path, monkeypatch, capsys):
    """ran(name, cells): the variables of a notebook after its first code cells, all by default."""
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")

    def run(name, count=None):
        path = ROOT / "docs" / "notebooks" / f"{name}.ipynb"
        variables, smaller = {}, SMALLER[name]
        assert all(sum(whole in source for source in cells(path, "code")) == 1 for whole in smaller)
        for number, source in enumerate(cells(path, "code")[:count]):
            for whole, part in smaller.items():
                source = source.replace(whole, part)
            exec(compile(source, f"{path.name}, code cell {number}", "exec"), variables)
        return variables

    yield run
    matplotlib.pyplot.close("all")


def test_the_quick_start_learns_the_digits(ran, tmp_path):
    assert ran("quick_start")["history"]["val_accuracy"][-1] > 0.8
    assert list(tmp_path.glob("*.keras"))


def test_the_tpu_notebook_runs_on_a_cpu(ran, tmp_path):
    assert ran("tpu")["history"]["val_accuracy"][-1] > 0.2
    assert list(tmp_path.glob("*.keras"))


def test_it_fine_tunes_on_photographs_of_ones_own(ran, tmp_path, monkeypatch, eagerly):
    """The tests of exports write one."""
    exported = []
    monkeypatch.setattr(keras_vit, "export", lambda *arguments: exported.append(arguments))
    monkeypatch.setenv("CHECKPOINT", os.fspath(checkpoint(tmp_path / "published")))
    monkeypatch.setenv("PHOTOS", os.fspath(few_photographs(tmp_path / "own")))
    variables = ran("own_photographs")
    assert variables["history"]["val_accuracy"][-1] > 0.5
    assert len(variables["errors"].names) == 2 and len(variables["paths"]) in (3, 4)
    assert (tmp_path / "photographs.keras").exists() and exported == [(variables["model"], "photographs")]
    _check(*exported[0], "tf_saved_model")


def test_without_photographs_it_draws_some(ran):
    """Up to the batches: the rest is as with one's own."""
    train = ran("own_photographs", 4)["train"]
    assert train.size == 96 and train.class_names == ("circle", "square", "triangle")


def test_every_notebook_is_linked():
    readme = (ROOT / "README.md").read_text()
    assert {path.stem for path in NOTEBOOKS} == set(SMALLER)
    assert all(f"docs/notebooks/{path.name}" in readme for path in NOTEBOOKS)


def test_the_tpu_notebook_says_that_it_was_not_run_on_one():
    assert "No cell was run on a TPU" in cells(ROOT / "docs" / "notebooks" / "tpu.ipynb", "markdown")[0]
