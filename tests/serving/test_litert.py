"""LiteRT files: what LiteRT computes from them is what Keras computes, in floats and int8."""

import json

import keras
import numpy as np
import pytest
from small_models import NAMED, assert_floats, every_weight, pixels

import keras_vit

interpreter = pytest.importorskip("ai_edge_litert.interpreter")
pytest.importorskip("ai_edge_quantizer")


def run(path, images):
    return interpreter.Interpreter(str(path)).get_signature_runner()(images=images)


@pytest.mark.parametrize(
    "kind",
    [
        {"distillation_token": True, "registers": 2},
        pytest.param(
            {"pool": "map", "positions": "rope2d", "qk_norm": True, "attention": "local(3)"},
            marks=pytest.mark.extended,
        ),
        pytest.param(
            {"norm_first": False, "mlp_activation": "quick_gelu", "final_norm": False, "attention": "strided"},
            marks=pytest.mark.extended,
        ),
    ],
)
def test_floats_are_those_of_keras_in_batches_of_any_size(tmp_path, kind):
    model = every_weight(**kind)
    keras_vit.export(model, tmp_path / "m.tflite", format="litert")
    assert_floats(model, lambda images: run(tmp_path / "m.tflite", images))
    beside = json.loads((tmp_path / "m.tflite.json").read_text())
    assert beside["class_names"] == list(NAMED) and beside["outputs"]["features"]["shape"] == ["b", 32]


@pytest.mark.extended
def test_int8_is_smaller_and_nearly_the_same(tmp_path):
    from keras_vit.serving import litert_format

    model, floats = every_weight(pool="gap", width=64, mlp_dim=256), str(tmp_path / "floats.tflite")
    keras_vit.export(model, floats)
    for quantization in ("int8_weights", "int8_dynamic"):
        path = tmp_path / f"{quantization}.tflite"
        litert_format.quantize(floats, str(path), quantization)
        logits, found = model(pixels(5)).numpy(), run(path, pixels(5))["logits"]
        assert 0 < np.linalg.norm(found - logits) < 0.05 * np.linalg.norm(logits), quantization
        assert path.stat().st_size < 2.5 * model.count_params(), quantization


@pytest.mark.extended
def test_static_int8_has_scales_in_the_file_and_returns_floats_whatever_the_head(tmp_path):
    inner = every_weight(classes=None)
    model = inner.with_head(keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(2)]))
    keras_vit.export(model, tmp_path / "m.tflite", format="litert", quantization="int8_static", calibration=pixels(16))
    tensors = interpreter.Interpreter(str(tmp_path / "m.tflite")).get_tensor_details()
    values = [
        t
        for t in tensors
        if t["dtype"] == np.int8 and t["shape"][0] in (1, 7) and len(t["quantization_parameters"]["scales"]) == 1
    ]
    assert len(values) >= 2 * 6, "the values before and after each dense layer"
    operations = json.loads((tmp_path / "m.tflite.json").read_text())["int8"]["operations"]
    assert operations["integers"]["FULLY_CONNECTED"] + operations["floats"].get("FULLY_CONNECTED", 0) == 8
    assert operations["floats"]["SOFTMAX"] == 1
    found = run(tmp_path / "m.tflite", pixels(5))["outputs"]
    assert found.dtype == np.float32 and np.linalg.norm(found - model(pixels(5))) < 0.1 * np.linalg.norm(found)
