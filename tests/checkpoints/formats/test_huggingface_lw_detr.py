"""LW-DETR, RF-DETR and RF-DETR-Seg in Hugging Face's names: transformers' answers, equal files, parameters."""

import json
import math

import numpy as np
import pytest
import safetensors.numpy
from as_transformers import assert_detects_as_transformers
from dense_files import golden, image, write

import keras_vit
from keras_vit.checkpoints.formats import huggingface_lw_detr

KINDS = ("lw_detr", "rf_detr", "rf_detr_seg")
# What a model here lacks: blocks that nothing reads (RF-DETR's golden has one), and a table's row of no token.
IDLE = ("mask_token", "encoder.encoder.encoder.layer.3.")


@pytest.fixture(scope="module", params=KINDS)
def found(request, tmp_path_factory):
    """(name of a golden, its folder, the model)"""
    path = tmp_path_factory.mktemp(request.param)
    write(request.param, path)
    return request.param, path, keras_vit.load(path)


@pytest.mark.extended
def test_answers_are_transformers(found):
    assert_detects_as_transformers(*found)
    name, _, model = found
    assert model.head_name == name.removesuffix("_seg")
    assert isinstance(model, keras_vit.InstanceModel if name.endswith("_seg") else keras_vit.DetectionModel)


@pytest.mark.extended
def test_a_round_trip_is_bit_identical(found, tmp_path):
    name, folder, model = found
    keras_vit.save(model, tmp_path / "copy", format="huggingface")
    written, original = (
        safetensors.numpy.load_file(path / "model.safetensors") for path in (tmp_path / "copy", folder)
    )
    original = {key: array for key, array in original.items() if not any(part in key for part in IDLE)}
    table = next(key for key in original if key.endswith("position_embeddings"))
    if name == "lw_detr":
        original[table][:, 0] = 0.0
    assert {key for key in written if not key.endswith("num_batches_tracked")} == original.keys()
    for key, array in original.items():
        np.testing.assert_array_equal(written[key], array, err_msg=key)
    config, theirs = json.loads((tmp_path / "copy" / "config.json").read_text()), golden(name)["config"]
    ours, parts = config.pop("backbone_config"), theirs["backbone_config"]
    assert {key for key, value in config.items() if theirs.get(key, value) != value} <= {"transformers_version"}
    different = {key for key, value in ours.items() if parts.get(key, value) != value}
    assert different <= {"num_hidden_layers", "image_size", "use_mask_token"}
    again = keras_vit.load(tmp_path / "copy")
    np.testing.assert_array_equal(again(image(*again.image_size))["boxes"], model(image(*model.image_size))["boxes"])


# {size: (image size, head options, transformers' parameters)}; those of a token for masked patches are not here.
RF_DETR = {
    "N": (384, {"layers": 2}, 30_467_298),
    "S": (512, {"layers": 3}, 32_111_170),
    "M": (576, {"layers": 4}, 33_687_458),
    "L": (704, {"layers": 4}, 33_933_218),
}
_FOUR, _LARGE = (2, 4, 5, 9), {"scales": (2.0, 0.5), "width": 384, "heads": 12, "map_heads": 24, "points": 4}
# {size: (width, depth, head options, transformers' parameters)}.
LW_DETR = {
    "tiny": (192, 6, {"taps": (1, 3, 5), "queries": 100}, 12_052_002),
    "small": (192, 10, {"taps": _FOUR}, 14_557_378),
    "medium": (384, 10, {"taps": _FOUR}, 28_237_378),
    "large": (384, 10, {"taps": _FOUR, **_LARGE}, 46_823_650),
    "xlarge": (768, 10, {"taps": _FOUR, **_LARGE}, 118_033_378),
}


@pytest.mark.extended
@pytest.mark.parametrize("size", RF_DETR)
def test_sizes_of_rf_detr_have_transformers_parameters(size, without_values):
    image_size, options, parameters = RF_DETR[size]
    fields = {"windows": 2, "global_blocks": (3, 6, 9), "layer_scale": 1.0}
    with without_values():
        model = keras_vit.DetectionModel(
            "S/16", head="rf_detr", classes=91, image_size=image_size, head_options=options, **fields
        )
        huggingface_lw_detr.check(model)
        assert model.count_params() + 384 == parameters


# {size: (image size, windows, layers, queries, transformers' parameters)}, as in rfdetr 1.11.2.
RF_DETR_SEG = {
    "preview": (432, 2, 4, 200, 34_153_555),
    "N": (312, 1, 4, 100, 33_577_475),
    "S": (384, 2, 4, 100, 33_711_107),
    "M": (432, 2, 5, 200, 35_694_259),
    "L": (504, 2, 5, 200, 35_873_971),
    "XL": (624, 2, 6, 300, 38_113_635),
    "2XL": (768, 2, 6, 300, 38_648_163),
}


@pytest.mark.extended
@pytest.mark.parametrize("size", RF_DETR_SEG)
def test_sizes_of_rf_detr_seg_have_transformers_parameters(size, without_values):
    image_size, windows, layers, queries, parameters = RF_DETR_SEG[size]
    fields = {"windows": windows, "global_blocks": (3, 6, 9) if windows > 1 else (), "layer_scale": 1.0}
    with without_values():
        options = {"layers": layers, "queries": queries}
        model = keras_vit.InstanceModel(
            "S/12", head="rf_detr", classes=91, image_size=image_size, head_options=options, **fields
        )
        huggingface_lw_detr.check(model)
        assert model.count_params() + 384 == parameters
        assert model.mask_grid == (image_size // 4, image_size // 4)


@pytest.mark.extended
@pytest.mark.parametrize("size", LW_DETR)
def test_sizes_of_lw_detr_have_transformers_parameters(size, without_values):
    width, depth, options, parameters = LW_DETR[size]
    fields = {"width": width, "depth": depth, "heads": 12, "mlp_dim": 4 * width, "windows": 4, "layer_scale": 0.1}
    with without_values():
        model = keras_vit.DetectionModel(
            "Ti/16",
            head="lw_detr",
            classes=91,
            image_size=640,
            head_options=options,
            pool="gap",
            final_norm=False,
            global_blocks=[1, 3, 5] if depth == 6 else [2, 4, 5, 8],
            **fields,
        )
        huggingface_lw_detr.check(model)
        count = sum(math.prod(weight.shape) for weight in model.trainable_weights)  # without batch statistics
        # Theirs has a table for 224 pixels with an idle row, and no biases of keys.
        assert count + width * (14**2 + 1 - 40**2 - depth) == parameters


@pytest.mark.extended
def test_a_model_that_the_format_cannot_express_is_refused(tmp_path):
    options = {"queries": 4, "width": 8, "heads": 2, "map_heads": 2, "mlp_dim": 8, "groups": 1, "layers": 1}
    sizes = {"depth": 2, "width": 8, "heads": 2, "mlp_dim": 16, "image_size": (16, 24), "layer_scale": 1.0}
    model = keras_vit.DetectionModel("Ti/4", head="rf_detr", head_options={**options, "norm": "batch"}, **sizes)
    with pytest.raises(ValueError, match=r'cannot express this rf_detr: image_size=\(16, 24\).*norm="batch"'):
        keras_vit.save(model, tmp_path / "copy", format="huggingface")
