"""trainers/export.py: the output's ending chooses the format."""

import json

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


def test_a_misspelt_ending_is_refused_before_the_model_loads(binary, tmp_path):
    with pytest.raises(ValueError, match="did you mean .keras[?].* needs --format=tf_saved_model"):
        binary(export, model="m", output=str(tmp_path / "m.kers"))


def test_the_flags_of_detectors_are_passed_on_or_refused(binary, tiny, tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(keras_vit, "export", lambda *_, **options: given.append(options))
    monkeypatch.setattr(keras_vit, "load", lambda *_, **__: tiny(depth=1))
    binary(export, model="m", output=str(tmp_path / "m.onnx"), threshold=0.4, soft=True)
    assert (given[0]["threshold"], given[0]["soft"]) == (0.4, True) and "iou" not in given[0]
    for name, value in {"limit": 5, "top_k": 3, "activation": "sigmoid"}.items():
        with pytest.raises(ValueError, match=f"--{name} would be ignored: format=keras is for weights"):
            binary(export, model="m", output=str(tmp_path / "m.keras"), **{name: value})


def test_int8_calibrates_on_the_images_of_the_run_or_asks_for_some(binary, tiny, tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(keras_vit, "export", lambda *_, **options: given.append(options))
    monkeypatch.setattr(keras_vit, "load", lambda *_, **__: tiny(depth=1))
    run, output = tmp_path / "run", str(tmp_path / "m.onnx")
    with pytest.raises(ValueError, match="m is not a run directory, .* pass --calibration"):
        binary(export, model="m", output=output, int8=True)
    run.mkdir()
    data = {"source": "digits", "train": "train", "evaluation": "test"}
    (run / "config.json").write_text(json.dumps({"total": 1, "data": data}))
    binary(export, model=str(run), output=output, int8=True, calibration_images=20)
    assert given[0]["quantization"] == "int8_static" and len(given[0]["calibration"]) == 20
    lite = str(tmp_path / "m.tflite")
    binary(export, model=str(run), output=lite, quantization="full_int8", calibration_images=16)
    assert given[1]["quantization"] == "full_int8" and len(given[1]["calibration"]) == 16
    with pytest.raises(ValueError, match='is for format="onnx" or "litert" or "web", got format="keras"'):
        binary(export, model="m", output=str(tmp_path / "m.keras"), int8=True)
    with pytest.raises(ValueError, match="--int8 is short for --quantization=int8_static, got .*int8_dynamic"):
        binary(export, model="m", output=output, int8=True, quantization="int8_dynamic")
    with pytest.raises(
        ValueError, match="--calibration is for --int8 and --quantization=full_int8 or full_int16, and would"
    ):
        binary(export, model="m", output=output, calibration="digits")
