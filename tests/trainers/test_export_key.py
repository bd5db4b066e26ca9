"""`keras-vit export --key` chooses one of several models in a file."""

import types

import pytest

import keras_vit
from trainers import export


def test_the_key_reaches_load(monkeypatch, tmp_path):
    class Asked(Exception):
        pass

    def load(model, **arguments):
        raise Asked(model, arguments)

    monkeypatch.setattr(keras_vit, "load", load)
    values = types.SimpleNamespace(
        model="m.pth", key="model_ema", class_names=None, format="keras", output=str(tmp_path / "m.keras")
    )
    with pytest.raises(Asked) as caught:
        export.export(values)
    assert caught.value.args == ("m.pth", {"key": "model_ema"})
