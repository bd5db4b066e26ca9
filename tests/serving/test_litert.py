"""LiteRT files: what LiteRT computes from them is what Keras computes, in floats and int8."""

import json

import numpy as np
import pytest
from small_models import NAMED, assert_floats, every_weight, pixels

import keras_vit

interpreter = pytest.importorskip("ai_edge_litert.interpreter")
pytest.importorskip("ai_edge_quantizer")


def run(path, images):
    return interpreter.Interpreter(str(path)).get_signature_runner()(images=images)


@pytest.mark.parametrize(
    "kind", [{"distillation_token": True, "registers": 2}, {"pool": "map", "positions": "rope2d", "qk_norm": True}]
)
def test_floats_are_those_of_keras_in_batches_of_any_size(tmp_path, kind):
    model = every_weight(**kind)
    keras_vit.export(model, tmp_path / "m.tflite", format="litert")
    assert_floats(model, lambda images: run(tmp_path / "m.tflite", images))
    beside = json.loads((tmp_path / "m.tflite.json").read_text())
    assert beside["class_names"] == list(NAMED) and beside["outputs"]["features"]["shape"] == ["b", 32]


@pytest.mark.parametrize("quantization", ["int8_weights", "int8_dynamic"])
def test_int8_is_smaller_and_nearly_the_same(tmp_path, quantization):
    model = every_weight(pool="gap", width=64, mlp_dim=256)
    keras_vit.export(model, tmp_path / "m.tflite", format="litert", quantization=quantization)
    logits, found = model(pixels(5)).numpy(), run(tmp_path / "m.tflite", pixels(5))["logits"]
    assert 0 < np.linalg.norm(found - logits) < 0.05 * np.linalg.norm(logits)
    assert (tmp_path / "m.tflite").stat().st_size < 2.5 * model.count_params()


def test_what_litert_cannot_do_is_refused(tmp_path):
    path = tmp_path / "m.tflite"
    with pytest.raises(
        ValueError, match='LiteRT has no quantization "int8_static".* Valid for format="litert": int8_weights, int8_dynamic'
    ):
        keras_vit.export(every_weight(), path, format="litert", quantization="int8_static", calibration=pixels(16))
    with pytest.raises(ValueError, match="Token merging"):
        keras_vit.export(every_weight(token_merging=1), path, format="litert")
    assert not list(tmp_path.iterdir())
