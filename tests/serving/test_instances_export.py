"""Files of models of objects with masks: ONNX Runtime and LiteRT give Keras' outputs."""

import importlib

import keras
import numpy as np
import pytest

import keras_vit

HEADS = {
    "eomt": {"queries": 5, "blocks": 1},
    "rf_detr": {
        **{"width": 8, "layers": 1, "scales": (2.0, 1.0), "taps": (0,)},
        **{"queries": 4, "groups": 2, "heads": 2, "map_heads": 2, "mlp_dim": 8, "blocks": 1},
    },
}
ENGINES = {"onnx": ("onnxruntime", "onnx_format"), "tflite": ("ai_edge_litert", "litert_format")}


@pytest.mark.extended
@pytest.mark.parametrize(("head", "ending"), [("eomt", "tflite"), ("rf_detr", "tflite"), ("rf_detr", "onnx")])
def test_a_file_finds_the_same_objects_with_masks(head, ending, tmp_path):
    library, module = ENGINES[ending]
    pytest.importorskip(library)
    keras.utils.set_random_seed(0)
    fields = {"depth": 2, "width": 16, "heads": 2, "mlp_dim": 16, "head_options": HEADS[head]}
    model = keras_vit.InstanceModel("Ti/8", head, 2, image_size=(16, 24), class_names=["cat", "dog"], **fields)
    model = model.without_auxiliary()
    for variable in model.trainable_variables:
        variable.assign(variable + keras.random.normal(variable.shape, stddev=0.3))
    model.score_threshold, path = 0.02, tmp_path / f"model.{ending}"
    keras_vit.export(model, path)
    images = np.random.default_rng(0).integers(0, 256, (2, 16, 24, 3)).astype("float32")
    found, own = importlib.import_module(f"keras_vit.serving.{module}").runner(path)(images), model(images)
    names = {"logits": "logits", "query_masks": "masks", "query_boxes": "boxes"}
    for name, ours in names.items():
        assert (name in found) == (ours in own)
        if ours in own:
            np.testing.assert_allclose(found[name], own[ours], rtol=1e-4, atol=1e-4, err_msg=name)
    best = np.asarray(model.finder(100).predict_on_batch(images)["scores"])
    np.testing.assert_allclose(found["scores"], np.where(best > model.score_threshold, best, 0), atol=1e-4)
    assert found["masks"].shape == (*best.shape, *model.mask_grid) and (best > model.score_threshold).any()
