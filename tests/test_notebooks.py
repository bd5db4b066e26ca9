"""The notebooks of docs/notebooks run as they are, cell after cell, as far as a machine without a network and a TPU
can.
"""

import json
import os
import pathlib

import matplotlib
import numpy as np
import pytest
from PIL import Image

ROOT = pathlib.Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.processes  # none is started, but whole trainings run

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


# {notebook: {its code: what trains shorter}}; the last row is for own_photographs with twenty photographs.
SHORTER = {
    "quick_start": {"batch_size, epochs = 64, 25": "batch_size, epochs = 64, 10"},
    "tpu": {"epochs, steps = 25,": "epochs, steps = 4,"},  # the model of quick_start
    "own_photographs": {"IMAGE_SIZE = 96": "IMAGE_SIZE = 64"},
    "few": {"IMAGE_SIZE = 96": "IMAGE_SIZE = 32", "epochs, steps = 3,": "epochs, steps = 1,"},
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


@pytest.mark.parametrize(
    ("path", "own"),
    [*((path, False) for path in NOTEBOOKS), (ROOT / "docs" / "notebooks" / "own_photographs.ipynb", True)],
    ids=lambda value: value.stem if isinstance(value, pathlib.Path) else "few" if value else "",
)
def test_a_notebook_runs(path, own, tmp_path, monkeypatch, capsys, shared_data):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHECKPOINT", os.fspath(shared_data / "deit_tiny"))
    monkeypatch.setenv("PHOTOS", os.fspath(few_photographs(tmp_path / "own")) if own else "")
    matplotlib.use("Agg")
    variables, shorter = {}, SHORTER["few" if own else path.stem]
    assert all(sum(whole in source for source in cells(path, "code")) == 1 for whole in shorter)
    for number, source in enumerate(cells(path, "code")):
        for whole, part in shorter.items():
            source = source.replace(whole, part)
        exec(compile(source, f"{path.name}, code cell {number}", "exec"), variables)
    matplotlib.pyplot.close("all")
    accuracy = variables["history"]["val_accuracy"]
    assert accuracy[-1] > {"quick_start": 0.8, "own_photographs": 0.5, "tpu": 0.2}[path.stem]
    assert [file for file in tmp_path.iterdir() if file.suffix == ".keras"]
    if own:
        assert len(variables["errors"].names) == 2 and len(variables["paths"]) in (3, 4)


def test_every_notebook_is_linked():
    readme = (ROOT / "README.md").read_text()
    assert len(NOTEBOOKS) == 3 and all(f"docs/notebooks/{path.name}" in readme for path in NOTEBOOKS)


def test_the_tpu_notebook_says_that_it_was_not_run_on_one():
    assert "No cell was run on a TPU" in cells(ROOT / "docs" / "notebooks" / "tpu.ipynb", "markdown")[0]
