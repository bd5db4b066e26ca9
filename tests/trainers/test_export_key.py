"""`keras-vit export --key` chooses one of several models in a file."""

import types

import pytest

import keras_vit
from trainers import export, shared_flags


def test_the_key_reaches_load(monkeypatch, tmp_path):
    class Asked(Exception):
        pass

    def load(model, **arguments):
        raise Asked(model, arguments)

    monkeypatch.setattr(keras_vit, "load", load)
    others = ("class_names", "quantization", "calibration", "top_k", "activation", *shared_flags.FINDING)
    chosen = {"model": "m.pth", "key": "model_ema", "format": "keras", "output": str(tmp_path / "m.keras")}
    values = types.SimpleNamespace(**chosen, **dict.fromkeys(others), int8=None, calibration_images=export.IMAGES)
    with pytest.raises(Asked) as caught:
        export.export(values)
    assert caught.value.args == ("m.pth", {"key": "model_ema"})
