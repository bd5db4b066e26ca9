"""keras-vit inspect: from files to a page, in a process."""

import json
import pathlib

import numpy as np
import pytest
from interpreters import Fork
from PIL import Image


@pytest.mark.processes
def test_the_command_writes_a_page_names_what_is_broken_and_replaces_nothing_else(tiny, tmp_path):
    tiny(classes=2, class_names=["猫", "dog"]).save(tmp_path / "m.keras")
    for i in range(6):
        Image.fromarray(np.full((20, 30, 3), 40 * i, "uint8")).save(tmp_path / f"{i}.png")
    (tmp_path / "7 שבור.jpg").write_bytes(b"\xff\xd8\xff")
    arguments = [f"--model={tmp_path}/m.keras", f"--images={tmp_path}/*.png,{tmp_path}/*.jpg", "--class=猫"]
    arguments += ["--max_images=7", "--show=2", f"--output={tmp_path}/look"]
    first = Fork("trainers.inspect_", *arguments, output=tmp_path / "first")
    assert first.wait() == 0 and f"6 images; page and pictures: {tmp_path}/look" in first.printed(), first.printed()
    assert f"Inspecting {tmp_path}/m.keras." in first.printed()
    assert f"Skipping {tmp_path}/7 שבור.jpg: cannot be decoded as an image" in first.printed()
    page = (tmp_path / "look" / "index.html").read_text("utf-8")
    assert "Left out" in page and "7 שבור.jpg" in page and "class map: <bdi>猫</bdi>" in page
    images = json.loads((tmp_path / "look" / "inspection.json").read_text())["images"]
    assert [pathlib.Path(name).name for name in images] == [f"{i}.png" for i in range(6)]
    (tmp_path / "look" / "notes.txt").write_text("mine")
    again = Fork("trainers.inspect_", *arguments, output=tmp_path / "again")
    assert (
        again.wait() == 1
        and "from an earlier page and would be lost" in again.printed()
        and "Traceback" not in again.printed()
    )
