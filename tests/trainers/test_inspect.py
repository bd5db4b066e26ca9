"""keras-vit inspect: from files to a page, in a process."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.processes
def test_the_command_writes_a_page_names_what_is_broken_and_replaces_nothing_else(tiny, tmp_path):
    tiny(classes=2, class_names=["猫", "dog"]).save(tmp_path / "m.keras")
    for i in range(6):
        Image.fromarray(np.full((20, 30, 3), 40 * i, "uint8")).save(tmp_path / f"{i}.png")
    (tmp_path / "7 שבור.jpg").write_bytes(b"\xff\xd8\xff")
    program = [sys.executable, "-m", "trainers", "inspect"]
    arguments = ["--model=m.keras", "--images=*.png,*.jpg", "--class=猫", "--max_images=7", "--show=2"]
    run = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}, "capture_output": True, "text": True}
    done = subprocess.run([*program, *arguments, "--output=look"], **run, check=False)
    assert done.returncode == 0 and "6 images; page and pictures: look" in done.stdout, done.stderr
    assert (
        done.stdout.startswith("Inspecting m.keras.")
        and "Skipping 7 שבור.jpg: cannot be decoded as an image" in done.stderr
    )
    page = (tmp_path / "look" / "index.html").read_text("utf-8")
    assert "Left out" in page and "7 שבור.jpg" in page and "class map: <bdi>猫</bdi>" in page
    assert json.loads((tmp_path / "look" / "inspection.json").read_text())["images"] == [f"{i}.png" for i in range(6)]
    (tmp_path / "look" / "notes.txt").write_text("mine")
    again = subprocess.run([*program, *arguments, "--output=look"], **run, check=False)
    assert again.returncode == 1 and "holds other files" in again.stderr and "Traceback" not in again.stderr
