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


@pytest.fixture
def file(tiny, tmp_path):
    keras_vit.save(tiny(class_names=list("abcde"), preprocessing="decode|resize(8, 12)"), tmp_path / "m.keras")
    return tmp_path / "m.keras"


@pytest.mark.extended
def test_an_export_and_its_model_say_the_same(file, image, tmp_path, capsys, monkeypatch, eagerly):
    eagerly(False)
    keras_vit.export(keras_vit.load(file), tmp_path / "export")
    texts = [answer(capsys, monkeypatch, path, image, image) for path in (file, tmp_path / "export")]
    assert texts[0] == texts[1] and texts[0].count(f"{image}: ") == 2 and texts[0].count("%") == 6
    check_unreadable(tmp_path / "export", image, 1, tmp_path, capsys, monkeypatch)


def test_what_cannot_be_read_is_named_and_the_others_classified(file, image, tmp_path, capsys, monkeypatch):
    with pytest.raises(SystemExit, match="1"):
        answer(capsys, monkeypatch, file, "missing.jpg")
    assert capsys.readouterr().err.endswith('missing.jpg: There is no image file "missing.jpg".\n')
    check_unreadable(file, image, 2, tmp_path, capsys, monkeypatch)


def check_unreadable(model, image, readable, tmp_path, capsys, monkeypatch):
    """Of a PNG, a TIFF and a text the first `readable` are classified, and the others named."""
    Image.open(image).save(tmp_path / "a.tiff")
    (tmp_path / "text.jpg").write_text("no image")
    paths = [image, str(tmp_path / "a.tiff"), str(tmp_path / "text.jpg")]
    with pytest.raises(SystemExit, match="1"):
        answer(capsys, monkeypatch, model, *paths)
    shown = capsys.readouterr()
    assert [line.split(": ")[0] for line in shown.out.splitlines()] == paths[:readable]
    assert all(f"{path}: cannot be decoded" in shown.err for path in paths[readable:])
