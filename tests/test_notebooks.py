"""The notebooks of docs/notebooks run as they are, cell after cell, as far as a machine without a network and a TPU
can.
"""

import json
import os
import pathlib

import matplotlib
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.processes  # none is started, but whole trainings run

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def cells(path, kind):
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch, capsys, shared_data):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHECKPOINT", os.fspath(shared_data / "deit_tiny"))
    matplotlib.use("Agg")
    variables = {}
    for number, source in enumerate(cells(path, "code")):
        if path.stem == "tpu":  # trains the model of quick_start
            source = source.replace("epochs, steps = 25,", "epochs, steps = 4,")
        exec(compile(source, f"{path.name}, code cell {number}", "exec"), variables)
    matplotlib.pyplot.close("all")
    accuracy = variables["history"]["val_accuracy"]
    assert accuracy[-1] > {"quick_start": 0.9, "own_photographs": 0.5, "tpu": 0.2}[path.stem]
    assert [file for file in tmp_path.iterdir() if file.suffix == ".keras"]


def test_every_notebook_is_linked():
    readme = (ROOT / "README.md").read_text()
    assert len(NOTEBOOKS) == 3 and all(f"docs/notebooks/{path.name}" in readme for path in NOTEBOOKS)


def test_the_tpu_notebook_says_that_it_was_not_run_on_one():
    assert "No cell was run on a TPU" in cells(ROOT / "docs" / "notebooks" / "tpu.ipynb", "markdown")[0]
