"""timm's activation: that of model_args, else the architecture's own, else GELU."""

import json

import pytest
import safetensors.numpy
from golden_files import golden_arrays

from keras_vit.checkpoints.parse import parse
from keras_vit.checkpoints.reading.files import read


@pytest.mark.parametrize(
    ("architecture", "act_layer", "expected"),
    [
        ("vit_base_patch16_224", None, "gelu"),
        ("vit_base_patch16_224", "relu", "relu"),
        ("vit_base_patch16_224", "swish", "silu"),
        ("vit_so400m_patch16_siglip_256", None, "gelu_tanh"),
        ("vit_so400m_patch16_siglip_256", "relu", "relu"),
    ],
)
def test_model_args_outrank_the_architecture(architecture, act_layer, expected, tmp_path):
    name = "timm_siglip_tanh" if "siglip" in architecture else "timm_vit"
    safetensors.numpy.save_file(golden_arrays(name), tmp_path / "model.safetensors")
    config = {"architecture": architecture, "model_args": {"act_layer": act_layer}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert (
        parse(read(tmp_path / "model.safetensors"), {"heads": 2, "mean": 127.5, "std": 127.5}).fields["mlp_activation"]
        == expected
    )


@pytest.mark.parametrize(
    ("architecture", "heads"),
    [("vit_base_patch16_gap_224", 16), ("vit_giantopt_patch16_siglip_gap_256", 16), ("vit_base_patch16_224", 1)],
)
def test_an_architecture_has_its_heads(architecture, heads, tmp_path):
    """timm 1.0.31's: most have heads 64 wide. The golden is 16 wide."""
    safetensors.numpy.save_file(golden_arrays("timm_gap_norm"), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"architecture": architecture, "global_pool": "avg"}))
    found = parse(read(tmp_path / "model.safetensors"), {"mean": 127.5, "std": 127.5})
    assert found.fields["heads"] == heads
