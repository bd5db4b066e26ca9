"""Files in other libraries' formats give the outputs that the library itself gave (goldens/*.json)."""

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from golden_files import GOLDENS, difference, write

from keras_vit.checkpoints.parse import parse
from keras_vit.checkpoints.reading.files import read


def parsed(path, **options):
    return parse(read(path), options)


def assert_same_parse(one, other):
    """The same model, names and arrays: both load to the same weights."""
    assert (one.fields, one.image_size, one.classes) == (other.fields, other.image_size, other.classes)
    assert one.name_map.keys() == other.name_map.keys() == one.arrays.keys() == other.arrays.keys()
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, other.arrays[name])


# One of each format and block; the others in the extended tier.
QUICK = set(
    "vit_token hybrid_r26 bv_map_scanned bv_gap_sincos bit_npz timm_vit timm_distilled timm_swiglu timm_siglip hf_deit"
    " hf_dinov2_registers hf_siglip timm_swin timm_swinv2 hf_swin_state hf_swinv2 lucidrains_mean".split()
)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.extended) for name in GOLDENS]
)
def test_outputs_are_the_originals(name, tmp_path):
    assert difference(name, tmp_path) <= 1e-4


@pytest.mark.parametrize(
    ("name", "activation", "epsilon", "mean"),
    [
        ("vit_token", "gelu_tanh", 1e-6, 127.5),
        ("timm_vit", "gelu", 1e-6, None),
        ("timm_siglip_tanh", "gelu_tanh", 1e-6, 127.5),
        ("hf_vit", "gelu", 1e-12, 127.5),
        ("hf_dinov2", "gelu", 1e-6, 0.485 * 255),
        ("lucidrains", "gelu", 1e-5, 127.5),
    ],
)
def test_the_conventions_are_those_of_the_source(name, activation, epsilon, mean, tmp_path):
    """Form of GELU, epsilon and normalisation: wrong ones change the outputs by little, and silently."""
    golden, path, _ = write(name, tmp_path)
    fields = {"mlp_activation": "gelu", **parse(read(path), golden["load"], is_published=True).fields}
    assert (fields["mlp_activation"], fields["epsilon"]) == (activation, epsilon)
    assert mean is None or np.isclose(np.ravel(fields["mean"])[0], mean)


@pytest.mark.parametrize("prefix", ["opt/target/", "params/", "params/img/"])
def test_prefixes_of_training_states_are_removed(prefix, tmp_path):
    _, path, _ = write("bv_map", tmp_path)
    expected = parsed(path)
    arrays = {prefix + name: array for name, array in np.load(path).items()}
    others = {
        "opt/state/step": np.float32(3),
        **({"params/txt/x": np.ones(1, "float32")} if prefix != "params/" else {}),
    }
    np.savez(path, **arrays, **others)
    assert_same_parse(parsed(path), expected)


def test_inlined_map_heads_and_old_names_of_positions_are_known(tmp_path):
    _, path, _ = write("bv_map", tmp_path)
    expected = parsed(path)
    arrays = {name.removeprefix("MAPHead_0/"): array for name, array in np.load(path).items()}
    arrays["Transformer/pos_embedding"] = arrays.pop("pos_embedding")
    np.savez(path, **arrays)
    assert_same_parse(parsed(path), expected)


def test_bfloat16_stored_as_void_is_recognised(tmp_path):
    _, path, _ = write("bv_map", tmp_path)
    singles = parsed(path)
    halves = {name: array.astype(ml_dtypes.bfloat16) for name, array in np.load(path).items()}
    np.savez(path, **{name: array.view("V2") for name, array in halves.items()})
    from_void = parsed(path)
    np.savez(path, **{name: array.astype("float32") for name, array in halves.items()})
    assert_same_parse(from_void, parsed(path))
    kernel = "Transformer/encoderblock_0/MlpBlock_0/Dense_0/kernel"
    assert 0 < np.abs(from_void.arrays[kernel] - singles.arrays[kernel]).max() < 0.01


def test_names_of_the_original_repositories(tmp_path):
    """DINOv2's own names, in chunks, and DeiT III's layer scales."""
    _, path, _ = write("timm_swiglu", tmp_path)
    expected = parsed(path)
    theirs = {}
    for name, array in safetensors.numpy.load_file(path).items():
        name = name.replace("reg_token", "register_tokens").replace("mlp.fc1", "mlp.w12").replace("mlp.fc2", "mlp.w3")
        name = name.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2").replace("blocks.", "blocks.0.")
        theirs[f"module.backbone.{name}"] = array
    theirs["module.backbone.mask_token"] = np.zeros((1, 16), "float32")
    theirs["module.head.mlp.0.weight"] = np.zeros((4, 4), "float32")
    safetensors.numpy.save_file(theirs, path)
    assert_same_parse(parsed(path), expected)
