"""trainers/export.py: the output's ending chooses the format."""

import pytest

import keras_vit
from trainers import export


@pytest.mark.parametrize(
    ["output", "format", "expected"],
    [
        ("m.TFLITE", None, ("export", "litert")),
        ("m.npz", None, ("save", "google")),
        ("m.keras", None, ("save", "keras")),
        ("m", "timm", ("save", "timm")),
        ("m.onnx", "tf_saved_model", ("export", "tf_saved_model")),  # which export refuses
    ],
)
def test_the_ending_chooses_the_format(binary, tiny, tmp_path, monkeypatch, output, format, expected):
    written = []
    for name in ("export", "save"):
        monkeypatch.setattr(keras_vit, name, lambda *_, name=name, format, **__: written.append((name, format)))
    monkeypatch.setattr(keras_vit, "load", lambda *_, **__: tiny(depth=1))
    binary(export, model="m", output=str(tmp_path / output), format=format)
    assert written == [expected]


def test_the_flags_of_detectors_are_passed_on_or_refused(binary, tiny, tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(keras_vit, "export", lambda *_, **options: given.append(options))
    monkeypatch.setattr(keras_vit, "load", lambda *_, **__: tiny(depth=1))
    binary(export, model="m", output=str(tmp_path / "m.onnx"), threshold=0.4, soft=True)
    assert (given[0]["threshold"], given[0]["soft"]) == (0.4, True) and "iou" not in given[0]
    with pytest.raises(ValueError, match="--limit would be ignored: format=keras is for weights"):
        binary(export, model="m", output=str(tmp_path / "m.keras"), limit=5)
