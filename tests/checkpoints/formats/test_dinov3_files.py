"""DINOv3's files: its own names, transformers' in memory, what config.json may not say, other image sizes."""

import json

import numpy as np
import pytest
import safetensors.numpy
from golden_files import golden_arrays, write

import keras_vit
from keras_vit.checkpoints.parse import parse
from keras_vit.checkpoints.reading.files import read

TOLD = {"mean": 127.5, "std": 127.5}  # no preprocessor_config.json states them


def parsed(path, **options):
    return parse(read(path), {**TOLD, **options})


def assert_same(one, other):
    """The same model and arrays."""
    assert one.fields == other.fields and one.name_map.keys() == one.arrays.keys()
    for name, array in other.arrays.items():
        np.testing.assert_array_equal(one.arrays[name], array, err_msg=name)


def original(arrays):
    """timm's arrays under DINOv3's own names, with what they have besides."""
    pairs = {"reg_token": "storage_tokens", "gamma_": "ls", "fc1_g": "w1", "fc1_x": "w2"}
    found = {"mask_token": np.zeros((1, 16), "float32"), "rope_embed.periods": np.ones(2, "float32")}
    for name, array in arrays.items():
        if name.endswith("v_bias"):
            continue
        if name.endswith("q_bias"):
            bias = np.concatenate([array, np.ones_like(array), arrays[name.replace("q_bias", "v_bias")]])
            found[name.replace("q_bias", "qkv.bias")] = bias
            found[name.replace("q_bias", "qkv.bias_mask")] = np.ones_like(bias)
            continue
        for new, old in pairs.items():
            name = name.replace(new, old)
        found[f"{name}.gamma" if ".ls" in name else name] = array
    return found


def test_its_own_names_are_timms_model(tmp_path):
    _, path, _ = write("timm_dinov3", tmp_path)
    expected, model = parsed(path), keras_vit.load(path, **TOLD)
    safetensors.numpy.save_file(original(golden_arrays("timm_dinov3")), path)
    found, same = parsed(path), keras_vit.load(path, **TOLD)
    assert found.fields == expected.fields
    for array, other in zip(same.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(array, other)
    assert sorted(found.dropped)[-1] == "rope_embed.periods"


def test_names_in_memory_are_those_of_files(tmp_path):
    _, path, _ = write("hf_dinov3_gated", tmp_path)
    expected, arrays = parsed(path), golden_arrays("hf_dinov3_gated")
    memory = {name.replace("model.layer.", "layer.").replace("layer.", "model.layer."): a for name, a in arrays.items()}
    safetensors.numpy.save_file(memory, path)
    assert_same(parsed(path), expected)


def test_without_a_config_what_the_arrays_do_not_show_is_asked_for(tmp_path):
    _, path, _ = write("timm_dinov3", tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ValueError, match=r"\(\".*\", heads=\?, epsilon=\?, image_size=\?\)"):
        parsed(path, pool="token", mlp_activation="gelu")
    told = {"heads": 2, "pool": "gap", "epsilon": 1e-5, "mlp_activation": "gelu", "image_size": (8, 20)}
    found = parsed(path, **told)
    assert (found.fields["heads"], found.fields["pool"], found.image_size) == (2, "gap", (8, 20))


def test_any_image_size_takes_the_same_weights(tmp_path):
    _, path, options = write("hf_dinov3", tmp_path)
    model, wide = keras_vit.load(path, **TOLD), keras_vit.load(path, **TOLD, image_size=(8, 20))
    assert (model.image_size, wide.image_size, wide.grid) == ((12, 12), (8, 20), (2, 5))
    for one, other in zip(model.trainable_variables, wide.trainable_variables, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("timm_dinov3", {"architecture": "vit_small_patch16_rope_224"}, "other rotary positions are not implemented"),
        ("timm_dinov3", {"model_args": {"rope_temperature": 10000}}, "rope_temperature is 10000 in config.json"),
        ("timm_dinov3", {"model_args": {"num_reg_tokens": 1}}, "num_reg_tokens is 1 in config.json, 4 by the arrays"),
        ("timm_pe", {"model_args": {"rope_grid_offset": 0}}, "rope_grid_offset is 0.* in config.json"),
        ("hf_dinov3", {"rope_theta": 10000.0}, "rope_theta is 10000.0 in config.json, 100"),
        ("hf_dinov3", {"key_bias": True}, "key_bias is True in config.json, False by the arrays"),
        ("hf_dinov3_gated", {"hidden_act": "gelu"}, "hidden_act='gelu' in a gated MLP"),
    ],
)
def test_configs_of_another_model_are_refused(name, changes, message, tmp_path):
    fields, path, _ = write(name, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**fields["config"], **changes}))
    with pytest.raises(ValueError, match=message):
        parsed(path)


def test_transformers_has_no_head_for_it(tmp_path):
    model = keras_vit.ViT("DINOv3-S/4", image_size=8, classes=3, depth=1, width=8, heads=1, mlp_dim=8)
    with pytest.raises(ValueError, match="a DINOv3 with a head, which transformers lacks"):
        keras_vit.save(model, tmp_path / "m", format="huggingface")
