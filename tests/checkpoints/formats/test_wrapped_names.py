"""The names of the modules around a model are removed for every format, and heads and models beside it found."""

import numpy as np
import pytest
import torch_files
from golden_files import golden, golden_arrays, write
from sampled import pixels

import keras_vit
from keras_vit.checkpoints.formats.recognise import unwrapped

# {golden: the name of its head}
HEADS = {"timm_vit": "head", "lucidrains": "mlp_head", "hf_vit": "classifier"}
PREFIXES = (
    "module.",
    "model.",
    "vit.",
    "backbone.",
    "module._orig_mod.",
    "model.net.backbone.",
    "encoder.",
)


def under(prefix, arrays):
    return {prefix + name: array for name, array in arrays.items()}


def names_of(golden_name):
    """{name: name} of a golden's arrays."""
    return {name: name for name in golden(golden_name)["shapes"]}


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(
    "name", ["timm_vit", "timm_hybrid", "timm_bit", "lucidrains", "hf_vit", "hf_siglip_classifier"]
)
def test_prefixes_are_removed(name, prefix):
    names = names_of(name)
    inside, outside = unwrapped({**under(prefix, names), "criterion.weight": None})
    assert inside == names and outside == ["criterion.weight"]


def test_what_torch_inserts_is_removed_from_the_middle():
    names = names_of("timm_vit")
    wrapped = {
        name.replace("blocks.1.", "blocks.1._orig_mod.").replace("attn.", "attn._fsdp_wrapped_module."): name
        for name in names
    }
    assert unwrapped(wrapped) == unwrapped(under("_orig_mod.", names)) == (names, [])
    with pytest.raises(ValueError, match="with and without _orig_mod"):
        unwrapped({**names, "blocks._orig_mod.0.norm1.weight": None})


@pytest.mark.parametrize("theirs", ["head", "fc", "classifier", "linear_head"])
@pytest.mark.parametrize("prefix", ["", "backbone.", "model.net."])
@pytest.mark.parametrize("name", HEADS)
def test_a_head_beside_the_backbone_is_the_head(name, prefix, theirs):
    names, head = names_of(name), HEADS[name]
    body = {k: v for k, v in names.items() if not k.startswith(head)}
    outer = {
        f"{prefix.rpartition('.')[0].rpartition('.')[0]}.{theirs}.{kind}".lstrip("."): kind
        for kind in ("weight", "bias")
    }
    inside, outside = unwrapped({**under(prefix, body), **outer})
    assert inside == {**body, f"{head}.weight": "weight", f"{head}.bias": "bias"} and not outside


@pytest.mark.parametrize("encoder", ["vit.embeddings.patch_embeddings.projection.weight", "patch_embed.proj.weight"])
def test_masked_autoencoders_keep_both_parts(encoder):
    decoder = "decoder.decoder_embed.weight" if encoder.startswith("vit") else "decoder_embed.weight"
    names = {encoder: 1, decoder: 2}
    assert unwrapped(under("module.mae.", names)) == (names, [])


def test_two_heads_are_refused():
    with pytest.raises(
        ValueError, match=r'"fc.weight" and "vit.head.weight" are two heads.*names=\[\(.\^fc., None\)\]'
    ):
        unwrapped({**under("vit.", names_of("timm_vit")), "fc.weight": None})


def test_several_models_among_the_arrays_need_a_key():
    names = names_of("timm_vit")
    with pytest.raises(ValueError, match='several models among the arrays.*key="student", key="teacher"'):
        unwrapped({**under("student.backbone.", names), **under("teacher.backbone.", names)})
    both = {**names, **under("ema.", names)}
    with pytest.raises(ValueError, match='key="", key="ema"'):
        unwrapped(both)
    assert unwrapped(both, key="")[0].keys() == names.keys()


UNSHOWN = {  # what the arrays alone do not show
    "timm_vit": {"norm_first": True, "mlp_activation": "gelu", "pool": "token", "epsilon": 1e-6},
    "hf_vit": {"mlp_activation": "gelu", "pool": "token", "epsilon": 1e-12},
}


@pytest.mark.extended
@pytest.mark.parametrize("name", ["timm_vit", "lucidrains", "hf_vit", "timm_bit"])
def test_wrapped_models_compute_the_same(name, tmp_path):
    fields, path, arguments = write(name, tmp_path)
    (tmp_path / "config.json").unlink(missing_ok=True)
    arguments = {**arguments, "heads": arguments.get("heads", 2)} if name != "timm_bit" else arguments
    arguments |= UNSHOWN.get(name, {})
    expected = keras_vit.load(path, **arguments)(pixels(*fields["image_size"]))
    arrays = golden_arrays(name)
    other = {key: array * 2 for key, array in arrays.items()}
    state = {"state_dict": {**under("student.module.", other), **under("teacher._orig_mod.", arrays)}, "epoch": 1}
    torch_files.save(state, tmp_path / "m.ckpt", is_old=name == "timm_vit")
    with pytest.raises(ValueError, match='key="student", key="teacher"'):
        keras_vit.load(tmp_path / "m.ckpt", **arguments)
    model = keras_vit.load(tmp_path / "m.ckpt", key="teacher", **arguments)
    np.testing.assert_array_equal(model(pixels(*fields["image_size"])), expected)


def test_a_key_that_cannot_choose(tmp_path):
    with pytest.raises(ValueError, match='key should be text, such as key="model_ema", got 3'):
        keras_vit.load(tmp_path, key=3)
