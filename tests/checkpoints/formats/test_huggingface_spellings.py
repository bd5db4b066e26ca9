"""transformers spells arrays otherwise in memory than in files since 5.9: a saved state_dict() is the same model.

The goldens hf_vit_state and hf_dinov2_state (test_goldens.py) are such state dicts with transformers' own outputs.
"""

import json

import numpy as np
import pytest
import safetensors.numpy
from golden_files import FOLDER, golden, golden_arrays
from sampled import pixels, sample

import keras_vit
from keras_vit.checkpoints.parse import parse
from keras_vit.checkpoints.reading.files import read

# transformers 5.24's conversion_mapping.py.
ATTENTION = [
    ("attention.attention.query", "attention.q_proj"),
    ("attention.attention.key", "attention.k_proj"),
    ("attention.attention.value", "attention.v_proj"),
    ("attention.output.dense", "attention.o_proj"),
]
VIT = [("encoder.layer.", "layers."), *ATTENTION, ("intermediate.dense", "mlp.fc1"), ("output.dense", "mlp.fc2")]
MAE = [("decoder_encoder.layer.", "decoder_layers."), *VIT]
DINOV2 = [*ATTENTION, ("mlp.weights_out", "mlp.down_proj")]
RULES = {"hf_vit": VIT, "hf_deit": VIT, "hf_ijepa": VIT}
RULES |= dict.fromkeys(("hf_dinov2", "hf_dinov2_swiglu", "hf_dinov2_registers"), DINOV2)


TOLD = {"mean": 0.0, "std": 255.0}  # no preprocessor_config.json states them


def in_memory(arrays, rules):
    """The arrays as state_dict() names them: SwiGLU's first layer is two there."""
    renamed = {}
    for name, array in arrays.items():
        for old, new in rules:
            name = name.replace(old, new)
        halves = ("gate_proj", "up_proj") if "weights_in" in name else ("weights_in",)
        for half, part in zip(halves, np.split(array, len(halves))):
            renamed[name.replace("weights_in", half)] = part
    return renamed


def parsed(folder, arrays, config=None, **told):
    folder.mkdir()
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return parse(read(folder / "model.safetensors"), {**TOLD, **told})


def ours(checkpoint):
    """{our weights: the file's array, or all of its parts}."""
    found = {}
    for name, entry in checkpoint.name_map.items():
        found.setdefault(entry.ours, []).append(checkpoint.arrays[name])
    return {paths: np.concatenate(parts) for paths, parts in found.items()}


def assert_equal(arrays, others):
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, others[name], err_msg=str(name))


def assert_same(one, other):
    assert (one.fields, one.image_size, one.classes) == (other.fields, other.image_size, other.classes)
    assert_equal(ours(one), ours(other))


@pytest.mark.parametrize("name", RULES)
def test_both_spellings_are_one_model(name, tmp_path):
    arrays, config = golden_arrays(name), golden(name)["config"]
    expected, renamed = parsed(tmp_path / "file", arrays, config), in_memory(arrays, RULES[name])
    assert len(renamed.keys() - arrays.keys()) >= len(arrays) // 3
    assert_same(parsed(tmp_path / "memory", renamed, config), expected)


@pytest.mark.parametrize(("name", "prefix"), [("hf_vit", "vit."), ("hf_dinov2_registers", "dinov2_with_registers.")])
def test_a_backbone_alone_has_no_prefix_but_a_pooler_and_a_mask_token(name, prefix, tmp_path):
    arrays, config = golden_arrays(name), golden(name)["config"]
    expected = ours(parsed(tmp_path / "file", arrays, config))
    bare = {key.removeprefix(prefix): a for key, a in in_memory(arrays, RULES[name]).items() if "classifier" not in key}
    others = {key: np.zeros((1, 16), "float32") for key in ("pooler.dense.weight", "embeddings.mask_token")}
    checkpoint = parsed(tmp_path / "memory", bare | others, config)
    assert checkpoint.classes is None and sorted(checkpoint.dropped) == sorted(others)
    assert_equal(ours(checkpoint), {key: a for key, a in expected.items() if not key[0].startswith("head/")})


def test_masked_autoencoders_in_both_spellings_are_one_model(tmp_path):
    with np.load(FOLDER / "masked.npz") as file:
        shapes = {key.removeprefix("mae/gradients/"): a.shape for key, a in file.items() if "mae/gradients/" in key}
    arrays = {name: sample(name, shape, 0.3) for name, shape in shapes.items()}
    told = {"heads": 2, "mlp_activation": "gelu", "epsilon": 1e-12, "decoder_heads": 2}
    told |= {"normalise_targets": True, "mask_ratio": 0.75}
    spellings = enumerate((arrays, in_memory(arrays, MAE)))
    expected, renamed = (parsed(tmp_path / str(i), a, **told) for i, a in spellings)
    assert_same(renamed, expected)
    assert renamed.decoder.fields == expected.decoder.fields
    assert_equal(ours(renamed.decoder), ours(expected.decoder))


def test_the_blocks_of_a_masked_siamese_network_may_lack_the_prefix(tmp_path):
    """ViTMSNForImageClassification, saved by transformers 5."""
    arrays, config = golden_arrays("hf_vit"), {**golden("hf_vit")["config"], "model_type": "vit_msn"}
    theirs = {name.replace("vit.encoder.", "encoder."): array for name, array in arrays.items()}
    assert_same(parsed(tmp_path / "theirs", theirs, config), parsed(tmp_path / "usual", arrays, config))


def test_files_have_the_names_of_the_declared_version(tmp_path):
    """Those of 4.57, which every release reads, also from a model that came in the other spelling."""
    arrays, config = golden_arrays("hf_vit"), golden("hf_vit")["config"]
    parsed(tmp_path / "memory", in_memory(arrays, VIT), {**config, "transformers_version": "5.24.0"})
    keras_vit.save(keras_vit.load(tmp_path / "memory", **TOLD), tmp_path / "ours", "huggingface")
    written = safetensors.numpy.load_file(tmp_path / "ours" / "model.safetensors")
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["transformers_version"] == "4.57.6"
    assert_equal(written, arrays)


def test_a_backbone_that_averages_its_tokens_is_written_without_a_head(tmp_path):
    """I-JEPA as SigLIP's tower, which computes the same."""
    parsed(tmp_path / "theirs", golden_arrays("hf_ijepa"), golden("hf_ijepa")["config"])
    keras_vit.save(keras_vit.load(tmp_path / "theirs", head="drop", **TOLD), tmp_path / "ours", "huggingface")
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert (config["architectures"], config["vision_use_head"]) == (["SiglipVisionModel"], False)
    written = safetensors.numpy.load_file(tmp_path / "ours" / "model.safetensors")
    assert not any("classifier" in name or "head" in name for name in written)


def test_the_image_processor_may_be_in_the_file_of_the_whole_processor(tmp_path):
    """As transformers 5 saves that of SigLIP, which has a tokenizer, too."""
    theirs = {"image_processor": {"image_mean": [0.25] * 3, "image_std": [0.2] * 3}}
    parsed(tmp_path / "theirs", golden_arrays("hf_siglip"), golden("hf_siglip")["config"])
    (tmp_path / "theirs" / "processor_config.json").write_text(json.dumps(theirs))
    checkpoint = parse(read(tmp_path / "theirs"), {})
    np.testing.assert_allclose((*checkpoint.fields["mean"], *checkpoint.fields["std"]), [63.75] * 3 + [51.0] * 3)


def test_what_a_state_dict_does_not_state_is_asked_for(tmp_path):
    arrays = in_memory(golden_arrays("hf_vit"), VIT)
    with pytest.raises(ValueError, match=r"heads=\?, mlp_activation=\?, pool=\?, epsilon=\?\)"):
        parsed(tmp_path / "memory", arrays)
    told = {"heads": 2, "mlp_activation": "gelu_tanh", "epsilon": 1e-6, "pool": "mean", **TOLD}
    fields = parse(read(tmp_path / "memory" / "model.safetensors"), told).fields
    assert {name: fields[name] for name in told} == told
    config = {name: value for name, value in golden("hf_vit")["config"].items() if name != "num_attention_heads"}
    with pytest.raises(ValueError, match="do not divide into 12 heads"):  # transformers' default
        parsed(tmp_path / "stated", arrays, config)


# transformers 5.24.0 on the first of hf_vit's images: {(every hidden_act that computes the same): logits}.
LOGITS = {
    ("gelu", "gelu_python"): [1.032067, -0.6445078, 1.022118, -0.3220053, 2.221407],
    ("gelu_pytorch_tanh", "gelu_python_tanh", "gelu_new", "gelu_fast", "gelu_accurate"): [
        *(1.032133, -0.6445299, 1.021923, -0.3220423, 2.221512),
    ],
    ("quick_gelu",): [1.031729, -0.6467769, 1.035433, -0.3190994, 2.204407],
    ("relu",): [0.8685094, -0.7828972, 1.208594, -0.3936861, 1.877715],
    ("silu", "swish"): [1.088338, -0.6192095, 0.9735193, -0.2305788, 2.171917],
}


@pytest.mark.parametrize(
    "names", [pytest.param(n, marks=() if n == ("relu",) else pytest.mark.extended, id=n[0]) for n in LOGITS]
)
def test_every_activation_that_we_have_is_read_and_written(names, tmp_path):
    arrays, config = golden_arrays("hf_vit"), golden("hf_vit")["config"]
    found = [parsed(tmp_path / name, arrays, {**config, "hidden_act": name}).fields for name in names]
    assert len({fields["mlp_activation"] for fields in found}) == 1
    model = keras_vit.load(tmp_path / names[0], mean=127.5, std=127.5)
    np.testing.assert_allclose(model(pixels(8, 8))[0], LOGITS[names], atol=1e-5)
    keras_vit.save(model, tmp_path / "ours", "huggingface")
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["hidden_act"] == names[0]


def test_an_activation_that_we_lack_is_refused(tmp_path):
    config = {**golden("hf_vit")["config"], "hidden_act": "mish"}
    with pytest.raises(ValueError, match="hidden_act='mish', which is not implemented. Implemented: gelu, gelu_python"):
        parsed(tmp_path / "mish", golden_arrays("hf_vit"), config)
