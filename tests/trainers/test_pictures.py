"""What segment and detect print, as text, CSV and JSON, with pictures and without."""

import json
import types

import pytest
from PIL import Image

from trainers import pictures

SHOWN = pictures.Shown(
    picture=lambda answer: Image.new("RGB", (2, 2)),
    header=("class",),
    rows=lambda answer: [(name,) for name in answer],
    line=", ".join,
    fields=lambda answer: {"objects": [{"name": name} for name in answer]},
)


def answers(images):
    for path, _ in images:
        if path.endswith("broken.png"):
            raise ValueError("It cannot be decoded.")
        yield ["cat", "dog"]


@pytest.fixture
def printed(tmp_path, capsys):
    """printed(name, ..., flag=value...): (standard output, exit code) for images of these names."""

    def ran(*names, **given):
        paths = [tmp_path / name for name in names]
        for path in paths:
            path.touch()
        values, code = types.SimpleNamespace(**{"output": None, "csv": False, "json": False, **given}), 0
        try:
            pictures.run(["model", *map(str, paths)], values, lambda model: answers, SHOWN, "example")
        except SystemExit as ended:
            code = ended.code
        return capsys.readouterr().out.replace(f"{tmp_path}/", ""), code

    return ran


@pytest.mark.parametrize("drawn", [False, True])
def test_content_goes_to_standard_output_with_and_without_pictures(printed, tmp_path, drawn):
    look = tmp_path / "look" if drawn else None
    assert printed("a.png", csv=True, output=look) == ("image,class\na.png,cat\na.png,dog\n", 0)
    out, code = printed("a.png", "broken.png", json=True, output=look)
    assert code == 1 and json.loads(out) == [
        {"image": "a.png", "objects": [{"name": "cat"}, {"name": "dog"}], "error": None},
        {"image": "broken.png", "error": "It cannot be decoded."},
    ]
    text = "a.png: cat, dog -> look/a.png\n" if drawn else "a.png: cat, dog\n"
    assert printed("a.png", output=look) == (text, 0)
    assert (tmp_path / "look" / "a.png").exists() == drawn and not (tmp_path / "look" / "broken.png").exists()


def test_one_format_at_a_time(printed):
    with pytest.raises(ValueError, match="Give --json or --csv, not both"):
        printed("a.png", csv=True, json=True)
