"""Checkpoints of other code: files in their formats, loaded, give the logits that the code itself gave.

goldens/*.json holds, a case, the names and shapes of the file's arrays and the original's outputs; originals.py made them with the
libraries that each names. The arrays are drawn again from their names (drawn.py).

    python tests/checkpoints/test_goldens.py DIR    # the differences of all goldens in DIR, such as originals.py --full writes
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import safetensors.numpy
from drawn import draw, pixels

import keras_vit

GOLDENS = {path.stem: path for path in sorted((pathlib.Path(__file__).parent / "goldens").glob("*.json"))}
CASES = [name for name in GOLDENS if name != "resample"]


def write(name, folder):
    """Writes the file of a case, or of a golden's path, into `folder` as its library would; returns (golden, path, load's arguments)."""
    golden = json.loads(GOLDENS.get(name, name).read_text())
    arrays = {key: draw(key, shape, golden["scale"]) for key, shape in golden["shapes"].items()}
    if golden["format"] == "google":
        path = folder / "weights.npz"
        np.savez(path, **arrays)
    else:
        path = folder / "model.safetensors"
        safetensors.numpy.save_file(arrays, path)
        if golden["config"]:
            (folder / "config.json").write_text(json.dumps(golden["config"]))
    arguments = {"mean": golden["mean"], "std": golden["std"], "image_size": golden["image_size"], **golden["load"]}
    return golden, path, arguments


def difference(name, folder):
    """Largest absolute difference between our outputs and the original's."""
    golden, path, arguments = write(name, folder)
    model = keras_vit.load(path, **arguments)
    return np.abs(np.asarray(model(pixels(*golden["image_size"]))) - np.array(golden["values"])).max()


@pytest.mark.parametrize("name", CASES)
def test_outputs_are_the_originals(name, tmp_path):
    assert difference(name, tmp_path) <= 1e-4


def test_every_family_has_its_golden():
    families = "vit_token vit_gap vit_pre_logits hybrid_r50 hybrid_r26 hybrid_root_only bv_map bv_map_scanned bv_tok bv_gap_sincos bv_flexi"
    families += " bit_npz timm_bit timm_vit timm_gap_fc_norm timm_distilled timm_dinov2 timm_swiglu timm_siglip timm_hybrid hf_vit hf_deit"
    families += " hf_dinov2 hf_dinov2_swiglu hf_dinov2_registers hf_siglip hf_siglip_classifier lucidrains lucidrains_mean"
    assert set(families.split()) <= set(CASES)


def test_the_convention_is_set_from_the_source(tmp_path):
    """Form of GELU, epsilon, normalisation: wrong ones differ by little, and silently."""
    expected = {
        "vit_token": ("tanh", 1e-6, 127.5),
        "timm_vit": ("erf", 1e-6, None),
        "timm_siglip_tanh": ("tanh", 1e-6, 127.5),
        "hf_vit": ("erf", 1e-12, 127.5),
        "hf_dinov2": ("erf", 1e-6, 0.485 * 255),
        "hf_siglip": ("tanh", 1e-6, 127.5),
        "lucidrains": ("erf", 1e-5, 127.5),
    }
    for name, (gelu, epsilon, mean) in expected.items():
        folder = tmp_path / name
        folder.mkdir()
        golden, path, _ = write(name, folder)
        spec = keras_vit.load(path, **golden["load"]).spec
        assert (spec.gelu, spec.epsilon) == (gelu, epsilon), name
        if mean is not None:
            assert np.isclose(np.ravel(spec.mean)[0], mean), name


def test_jax_gives_the_originals_too(tmp_path):
    """A few of each family in a process on the JAX backend."""
    script = (
        "import pathlib, sys, keras\n"
        f"sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})\n"
        "from test_goldens import difference\n"
        "assert keras.backend.backend() == 'jax'\n"
        "for name in 'hybrid_root_only timm_dinov2'.split():\n"
        "    folder = pathlib.Path(sys.argv[1]) / name\n"
        "    folder.mkdir()\n"
        "    assert difference(name, folder) <= 1e-4, name\n"
    )
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("prefix", ["opt/target/", "params/", "params/img/"])
def test_prefixes_of_training_states_are_taken_off(prefix, tmp_path):
    golden, path, arguments = write("bv_map", tmp_path)
    arrays = {prefix + name: array for name, array in np.load(path).items()}
    others = {"opt/state/step": np.float32(3), **({"params/txt/x": np.ones(1, "float32")} if prefix != "params/" else {})}
    np.savez(path, **arrays, **others)
    model = keras_vit.load(path, **arguments)
    np.testing.assert_allclose(model(pixels(*golden["image_size"])), golden["values"], atol=1e-4)


def test_inlined_map_heads_and_old_places_of_positions_are_known(tmp_path):
    golden, path, arguments = write("bv_map", tmp_path)
    arrays = {name.removeprefix("MAPHead_0/"): array for name, array in np.load(path).items()}
    arrays["Transformer/pos_embedding"] = arrays.pop("pos_embedding")
    np.savez(path, **arrays)
    np.testing.assert_allclose(keras_vit.load(path, **arguments)(pixels(*golden["image_size"])), golden["values"], atol=1e-4)


def test_bfloat16_stored_as_void_is_recognised(tmp_path):
    import ml_dtypes

    golden, path, arguments = write("bv_map", tmp_path)
    halves = {name: array.astype(ml_dtypes.bfloat16) for name, array in np.load(path).items()}
    np.savez(path, **{name: array.view("V2") for name, array in halves.items()})
    values = np.asarray(keras_vit.load(path, **arguments)(pixels(*golden["image_size"])))
    assert 0 < np.abs(values - golden["values"]).max() < 0.1
    np.savez(path, **{name: array.astype("float32") for name, array in halves.items()})
    np.testing.assert_array_equal(keras_vit.load(path, **arguments)(pixels(*golden["image_size"])), values)


def test_names_of_the_original_repositories(tmp_path):
    """DINOv2's own names, in chunks, and DeiT III's layer scales."""
    golden, path, arguments = write("timm_swiglu", tmp_path)
    arrays = safetensors.numpy.load_file(path)
    theirs = {}
    for name, array in arrays.items():
        name = name.replace("reg_token", "register_tokens").replace("mlp.fc1", "mlp.w12").replace("mlp.fc2", "mlp.w3")
        name = name.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2").replace("blocks.", "blocks.0.")
        theirs[f"module.backbone.{name}"] = array
    theirs["module.backbone.mask_token"] = np.zeros((1, 16), "float32")
    theirs["module.head.mlp.0.weight"] = np.zeros((4, 4), "float32")
    safetensors.numpy.save_file(theirs, path)
    np.testing.assert_allclose(keras_vit.load(path, **arguments)(pixels(*golden["image_size"])), golden["values"], atol=1e-4)


def main():
    """Prints the largest difference of each golden in a folder, and the library it is of."""
    for golden in sorted(pathlib.Path(sys.argv[1]).glob("*.json")):
        if golden.stem != "resample":
            with tempfile.TemporaryDirectory() as folder:
                print(
                    f"{golden.stem:28} {difference(golden, pathlib.Path(folder)):.1e}  {json.loads(golden.read_text())['library']}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
