"""trainers/classify.py: the same answer by an export and by the model itself."""

import sys

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import keras_vit
from trainers import classify


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(tf.io.encode_png(np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype="uint8")).numpy())
    return str(path)


def answer(capsys, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["classify.py", *map(str, arguments)])
    classify.run()
    return capsys.readouterr().out


def test_an_export_and_its_model_say_the_same(tiny, image, tmp_path, capsys, monkeypatch):
    model = tiny(class_names=list("abcde"), preprocessing="decode|resize(8, 12)")
    keras_vit.save(model, tmp_path / "m.keras")
    keras_vit.export(model, tmp_path / "export")
    texts = [answer(capsys, monkeypatch, tmp_path / name, image, image) for name in ("m.keras", "export")]
    assert texts[0] == texts[1] and texts[0].count(f"{image}: ") == 2 and texts[0].count("%") == 6


def test_a_model_names_what_is_not_an_image(tiny, tmp_path, capsys, monkeypatch):
    keras_vit.save(tiny(), tmp_path / "m.keras")
    with pytest.raises(SystemExit, match="1"):
        answer(capsys, monkeypatch, tmp_path / "m.keras", "missing.jpg")
    assert capsys.readouterr().err.endswith('missing.jpg: There is no image file "missing.jpg".\n')


def test_what_cannot_be_read_is_named_and_the_others_classified(tiny, image, tmp_path, capsys, monkeypatch):
    model = tiny(class_names=list("abcde"), preprocessing="decode|resize(8, 12)")
    keras_vit.save(model, tmp_path / "m.keras")
    keras_vit.export(model, tmp_path / "export")
    Image.open(image).save(tmp_path / "a.tiff")
    (tmp_path / "text.jpg").write_text("no image")
    for name, readable in (("m.keras", 2), ("export", 1)):
        paths = [image, str(tmp_path / "a.tiff"), str(tmp_path / "text.jpg")]
        with pytest.raises(SystemExit, match="1"):
            answer(capsys, monkeypatch, tmp_path / name, *paths)
        shown = capsys.readouterr()
        assert [line.split(": ")[0] for line in shown.out.splitlines()] == paths[:readable]
        assert all(f"{path}: cannot be decoded" in shown.err for path in paths[readable:])
