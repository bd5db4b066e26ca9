"""State dicts with names of their own: rules, known names, what must be told, and what cannot be expressed."""

import ast
import logging as std_logging
import pathlib
import re

import numpy as np
import pytest
import safetensors.numpy
from golden_files import difference, golden, write
from sampled import pixels

import keras_vit
from keras_vit.checkpoints.formats.common_names import known_name

CASES = ("own_encoder", "own_tutorial", "own_sequential", "own_unfolded")


def rewritten(name, folder, change, **arguments):
    """(path, arguments of load) of a golden whose {name: array} `change` has changed."""
    _, path, usual = write(name, folder)
    safetensors.numpy.save_file(
        {n: np.ascontiguousarray(a) for n, a in change(safetensors.numpy.load_file(path)).items()}, path
    )
    return path, {**usual, **arguments}


def assert_torchs(name, path, arguments):
    """The file at `path` gives the logits of a golden."""
    values = np.asarray(keras_vit.load(path, **arguments)(pixels(*golden(name)["image_size"])))
    assert np.abs(values - np.array(golden(name)["values"])).max() <= 1e-5


def refused(message, path, arguments):
    with pytest.raises(ValueError, match=message) as caught:
        keras_vit.load(path, **arguments)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", CASES)
def test_the_logits_are_torchs(name, tmp_path):
    assert golden(name)["library"].startswith("torch ")
    assert all(len(rule) == 2 and len(rule[0]) < 40 for rule in golden(name)["load"]["names"])
    assert difference(name, tmp_path) <= 1e-5


def test_nothing_is_assumed_where_everything_is_told(tmp_path, caplog):
    _, path, arguments = write("own_encoder", tmp_path)
    with caplog.at_level(std_logging.WARNING, logger="absl"):
        keras_vit.load(path, **arguments)
    assert not caplog.text


def test_what_the_order_of_fused_weights_and_of_the_last_normalisation_is_assumed_to_be_is_said(tmp_path, caplog):
    _, path, arguments = write("own_sequential", tmp_path)
    arguments["names"] = [*arguments["names"], ("qkv_per_head", "qkv")]
    with caplog.at_level(std_logging.WARNING, logger="absl"):
        keras_vit.load(path, **arguments)
    assert "qkv_per_head" in caplog.text
    (tmp_path / "mean").mkdir()
    _, path, arguments = write("own_tutorial", tmp_path / "mean")
    with caplog.at_level(std_logging.WARNING, logger="absl"):
        model = keras_vit.load(path, **{**arguments, "names": [*arguments["names"], (r"mlp_head\.0", "norm")]})
    assert "fc_norm" in caplog.text and not model.spec.fc_norm
    assert "without the class token" not in caplog.text
    (tmp_path / "both").mkdir()
    _, path, arguments = write("own_sequential", tmp_path / "both")
    with caplog.at_level(std_logging.WARNING, logger="absl"):
        model = keras_vit.load(path, **{**arguments, "pool": "gap"})
    assert "without the class token" in caplog.text and model.spec.fc_norm and model.spec.class_token


def test_the_normalisation_of_a_head_comes_after_the_mean(tmp_path):
    _, path, arguments = write("own_tutorial", tmp_path)
    model = keras_vit.load(path, **arguments)
    assert model.spec.pool == "gap" and model.spec.fc_norm and not model.spec.class_token


def test_torch_encoders_need_no_rules_for_their_blocks(tmp_path):
    """Recognised without names=, where the names outside of the blocks are the usual ones, with any prefix."""

    def usual(arrays):
        new = {"positions": "pos_embedding", "out.weight": "mlp_head.weight", "out.bias": "mlp_head.bias"}
        return {f"module.{new.get(name, name)}": array for name, array in arrays.items()}

    path, arguments = rewritten("own_encoder", tmp_path, usual)
    del arguments["names"]
    assert_torchs("own_encoder", path, arguments)


def renaming(rules):
    """The function of {name: array} that renames by these rules."""

    def renamed(arrays):
        for pattern, new in rules:
            arrays = {re.sub(pattern, new, name): array for name, array in arrays.items()}
        return arrays

    return renamed


# torchvision's names of the same arrays.
TORCHVISION = [
    (r"^patches\.", "conv_proj."),
    (r"^cls$", "class_token"),
    (r"^positions$", "encoder.pos_embedding"),
    (r"^encoder\.layers\.(\d+)\.", r"encoder.layers.encoder_layer_\1."),
    (r"\.norm([12])\.", r".ln_\1."),
    (r"\.self_attn\.", ".self_attention."),
    (r"\.linear1\.", ".mlp.0."),
    (r"\.linear2\.", ".mlp.3."),
    (r"^encoder\.norm\.", "encoder.ln."),
    (r"^out\.", "heads.head."),
]


def test_torchvisions_names_are_known(tmp_path):
    path, arguments = rewritten("own_encoder", tmp_path, renaming(TORCHVISION), names=[])
    assert_torchs("own_encoder", path, arguments)


def test_the_worked_example_of_the_docs(tmp_path):
    """Its rules, read from the page, for a file with the names of its model."""
    page = (pathlib.Path(__file__).parents[3] / "docs" / "reference" / "custom_names.md").read_text()
    call = ast.parse(
        re.search(r"keras_vit\.load\(\n    \"mine\.safetensors\".*?\n\)", page, re.DOTALL)[0], mode="eval"
    ).body
    told = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    example = [
        (r"^cls$", "class_token"),
        (r"^positions$", "where"),
        (r"^encoder\.layers\.", "stack."),
        (r"self_attn", "attention"),
        (r"\.norm1", ".before_attention"),
        (r"\.norm2", ".before_mlp"),
        (r"linear1", "mlp.0"),
        (r"linear2", "mlp.3"),
        (r"^encoder\.norm", "head.0"),
        (r"^out", "head.1"),
    ]

    path, arguments = rewritten("own_encoder", tmp_path, renaming(example))
    assert_torchs("own_encoder", path, told | {name: arguments[name] for name in ("mean", "std")})


@pytest.mark.parametrize(
    ("theirs", "rank", "ours"),
    [
        ("net.transformer.layers.3.self_attn.in_proj_bias", 1, "blocks.3.attn.qkv.bias"),
        ("transformer.3.attn.to_qkv.weight", 2, "blocks.3.attn.qkv.weight"),
        ("blocks.3.attention.q_proj.weight", 2, "blocks.3.attn.q.weight"),
        ("encoder.layers.3.layer_norm_2.weight", 1, "blocks.3.norm2.weight"),
        ("vit.class_embedding", 3, "cls_token"),
        ("embedding.position_embeddings.weight", 2, "pos_embed"),
        ("final_norm.weight", 1, "norm.weight"),
        ("head.norm.weight", 1, "head_norm.weight"),
        ("classifier.weight", 2, "head.weight"),
        ("decoder_embed.weight", 2, "decoder_embed.weight"),
    ],
)
def test_known_names(theirs, rank, ours):
    assert known_name(theirs, rank) == ours


ORDERS = {
    "kqv": lambda q, k, v: {"attn.kqv": np.concatenate([k, q, v])},
    "q, kv": lambda q, k, v: {"attn.q": q, "attn.kv": np.concatenate([k, v])},
    "vqk head by head": lambda q, k, v: {
        "attn.vqk_per_head": np.stack([a.reshape(4, 4, *a.shape[1:]) for a in (v, q, k)], 1).reshape(-1, *q.shape[1:])
    },
}


@pytest.mark.parametrize("order", ORDERS)
def test_queries_keys_and_values_in_any_order(order, tmp_path):
    """The file of nn.TransformerEncoder, its fused rows in another order: 4 heads of 4 rows each."""

    def change(arrays):
        fused = {name: arrays.pop(name) for name in list(arrays) if "in_proj" in name}
        for name, array in fused.items():
            block, kind = name.split(".self_attn.in_proj_")
            arrays |= {f"{block}.{new}.{kind}": a for new, a in ORDERS[order](*np.split(array, 3)).items()}
        return arrays

    path, arguments = rewritten("own_encoder", tmp_path, change)
    assert_torchs("own_encoder", path, arguments)


def test_patches_of_a_dense_layer_in_either_order(tmp_path):
    """The rows of nn.Unfold are (c p q); as (p q c) they give the same."""

    def channels_last(arrays):
        weight = arrays["to_tokens.weight"]
        return {**arrays, "to_tokens.weight": weight.reshape(16, 3, 4, 4).transpose(0, 2, 3, 1).reshape(16, -1)}

    path, arguments = rewritten("own_unfolded", tmp_path, channels_last)
    expected = np.array(golden("own_unfolded")["values"])
    for order, is_same in (("hwc", True), ("chw", False)):
        model = keras_vit.load(path, **{**arguments, "names": [("^to_tokens", f"patch_embed.proj_{order}")]})
        assert (np.abs(np.asarray(model(pixels(12, 12))) - expected).max() <= 1e-5) == is_same
    refused("proj_hwc .*proj_chw", path, {**arguments, "names": [("^to_tokens", "patch_embed.proj")]})


def test_arrays_can_be_left_out(tmp_path, caplog):
    def change(arrays):
        return {**arrays, "decoder.mask": np.ones(3, "float32")}

    path, arguments = rewritten("own_encoder", tmp_path, change)
    refused(r"Left over: decoder\.mask", path, arguments)
    with caplog.at_level(std_logging.WARNING, logger="absl"):
        keras_vit.load(path, **{**arguments, "names": [*arguments["names"], (r"^decoder\.", None)]})
    assert "left out, unused by the image model: decoder.mask" in caplog.text


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([("^no such", "x")], r"The rule \('\^no such', 'x'\) in names matches none of the names.*positions"),
        (
            [("^positions$", "pos_embed"), ("^positions$", "x")],
            "matches none of the names, as the rules before it left them",
        ),
        ([("(", "x")], "is not a regular expression"),
        ([("^out", r"\g<name>")], "The replacement .* is not valid"),
        ("^out", "a list of pairs"),
        ([("^out", 5)], "a list of pairs"),
        ([("norm2", "norm1")], '0.norm1.bias" and "encoder.layers.0.norm2.bias" would both be read as "blocks.0.norm1'),
        ([("^positions$", "where")], r"Missing: pos_embed \(1\). Left over: positions \(read as where\) \(1\)"),
        (
            [("^positions$", "pos_embed"), ("^out", "head"), (r"layers\.1\.", "layers.7.")],
            "Missing: blocks.1.attn.proj.weight",
        ),
        (
            [("^positions$", "pos_embed"), ("^out", "head"), (r"\.norm1\.", ".pre.")],
            r"0.norm1.weight \(read as blocks.0.pre.weight\)",
        ),
    ],
)
def test_mistakes_in_the_rules_are_clear_errors(names, message, tmp_path):
    _, path, arguments = write("own_encoder", tmp_path)
    refused(message, path, {**arguments, "names": names})


def test_what_a_state_dict_does_not_say_must_be_told(tmp_path):
    _, path, arguments = write("own_encoder", tmp_path)
    for name in ("heads", "mean", "std", "norm_first", "mlp_activation", "pool", "epsilon"):
        message = refused("does not say what", path, {k: v for k, v in arguments.items() if k != name})
        assert re.search(rf"keras_vit.load\(.* {name}=\?", message), message
    refused("heads must be a positive integer", path, {**arguments, "heads": "4"})
    refused("do not divide into 3 heads", path, {**arguments, "heads": 3})
    assert keras_vit.load(path, **{**arguments, "heads": np.int64(4), "mean": np.float32(1)}).spec.heads == 4


def test_other_activations_are_refused(tmp_path):
    _, path, arguments = write("own_encoder", tmp_path)
    with pytest.raises(ValueError, match='Unknown mlp_activation "mish".* Valid: gelu, gelu_tanh'):
        keras_vit.load(path, **{**arguments, "mlp_activation": "mish"})
    with pytest.raises(ValueError, match='no argument "activation". Did you mean "mlp_activation"'):
        keras_vit.load(path, **arguments, activation="relu")


def test_heads_with_two_normalisations_are_refused(tmp_path):
    def change(arrays):
        return {**arrays, "final_norm.weight": np.ones(16, "float32"), "final_norm.bias": np.ones(16, "float32")}

    path, arguments = rewritten("own_tutorial", tmp_path, change)
    refused('two normalisations before the head, "final_norm.weight" and "mlp_head.0.weight"', path, arguments)


def test_names_without_end_are_refused_at_once(tmp_path):
    """A pattern on a name of a million characters would search for hours."""

    def change(arrays):
        return {**arrays, "a" + ".1" * 500_000 + ".in_proj_weight": np.ones(3, "float32")}

    path, arguments = rewritten("own_encoder", tmp_path, change)
    refused("has 1,000,016 characters, more than 500", path, arguments)


def test_names_are_for_files_with_names_of_their_own(tiny, tmp_path):
    model = tiny()
    keras_vit.save(model, tmp_path / "m.keras")
    keras_vit.save(model, tmp_path / "m", "timm")
    refused("leave names out", tmp_path / "m.keras", {"names": []})
    with pytest.raises(ValueError, match="leave names out"):
        keras_vit.load(tmp_path / "m", names=[("a", "b")])
    with pytest.raises(ValueError, match="the format timm, which normalises first"):
        keras_vit.load(tmp_path / "m", norm_first=False)


def test_a_missing_bias_in_one_block_is_missing(tmp_path):
    def without(arrays):
        return {n: a for n, a in arrays.items() if n != "encoder.layers.1.linear1.bias"}

    path, arguments = rewritten("own_encoder", tmp_path, without)
    refused(r"missing: blocks.1.mlp.fc1.bias \(1\)", path, arguments)


def dense_patches(arrays, *norms):
    """The arrays of own_unfolded with an nn.Sequential of normalisations (by their sizes) around its dense patches."""
    layers = {"embed.1.weight": arrays.pop("to_tokens.weight"), "embed.1.bias": arrays.pop("to_tokens.bias")}
    for i, size in norms:
        layers |= {f"embed.{i}.weight": np.arange(size, dtype="float32"), f"embed.{i}.bias": np.zeros(size, "float32")}
    return {**arrays, **layers}


def test_one_error_has_the_rules_for_dense_patches_between_normalisations(tmp_path):
    path, told = rewritten("own_unfolded", tmp_path, lambda a: dense_patches(a, (0, 48), (2, 16)), names=[])
    message = refused(r"(?s)Left over: .*embed\.0\.weight", path, told)
    line = re.search(r"names=(\[.*?\)\])", message)[1]
    rules = [(pattern, new.replace("proj_?", "proj_chw")) for pattern, new in ast.literal_eval(line)]
    model = keras_vit.load(path, **{**told, "names": rules})
    gamma = next(v for v in model.weights if v.path.endswith("pixel_norm/gamma"))
    expected = np.arange(48).reshape(3, 4, 4).transpose(1, 2, 0).reshape(-1)  # channel, row, column in the file
    np.testing.assert_array_equal(gamma, expected)
    assert model.spec.patch_norm


def test_channels_of_dense_patches_are_asked_for_in_the_first_error(tmp_path):
    def grey(arrays):
        return {**arrays, "to_tokens.weight": np.ascontiguousarray(arrays["to_tokens.weight"][:, :16])}

    path, told = rewritten("own_unfolded", tmp_path, grey, names=[], heads=None, mean=0.0, std=255.0)
    del told["heads"]
    message = refused("heads=", path, told)
    assert re.search(r"proj_\?.*heads=\?, channels=\?\)", message)
    told |= {"heads": 4, "channels": 1, "names": [("^to_tokens", "patch_embed.proj_chw")]}
    assert keras_vit.load(path, **told).channels == 1


def test_an_error_without_a_question_does_not_repeat_the_call(tmp_path):
    path, told = rewritten("own_encoder", tmp_path, lambda a: {**a, "encoder.odd": np.ones(3, "float32")})
    assert "keras_vit.load(" not in refused("Left over", path, told)
