"""Masked autoencoders in Hugging Face's format and under facebookresearch/mae's names, against PyTorch's numbers."""

import json
import pathlib

import keras
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
from sampled import sample

import keras_vit
from keras_vit.checkpoints.formats import huggingface, mae
from keras_vit.checkpoints.formats.parsed import IMAGENET_MEAN, IMAGENET_STD
from keras_vit.layers.positions.embeddings import fixed_table
from keras_vit.models import MaskedAutoencoder
from keras_vit.training import MaskedSquaredError

SCALE = 0.3  # of originals_masked.py, which made the goldens
CONFIG = {
    "architectures": ["ViTMAEForPreTraining"],
    "model_type": "vit_mae",
    **{"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "image_size": 16},
    **{"patch_size": 4, "num_channels": 3, "layer_norm_eps": 1e-12, "hidden_act": "gelu", "qkv_bias": True},
    **{"decoder_hidden_size": 8, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 4},
    **{"decoder_intermediate_size": 12, "mask_ratio": 0.75, "norm_pix_loss": True},
}
PREPROCESSOR = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
TABLES = {"vit.embeddings.position_embeddings": 16, "decoder.decoder_pos_embed": 8}


@pytest.fixture(scope="module")
def golden():
    with np.load(pathlib.Path(__file__).parents[1] / "goldens" / "masked.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def arrays(golden):
    """{name in the file: array}."""
    names = [name.removeprefix("mae/gradients/") for name in golden if name.startswith("mae/gradients/")]
    tables = {name: fixed_table("sincos2d_mae", (4, 4), 1, width) for name, width in TABLES.items()}
    return {name: tables.get(name, sample(name, golden[f"mae/gradients/{name}"].shape, SCALE)) for name in names}


def folder(path, arrays, config=CONFIG):
    path.mkdir()
    safetensors.numpy.save_file(arrays, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config))
    (path / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    return path


@pytest.fixture(scope="module")
def theirs(arrays, tmp_path_factory):
    return folder(tmp_path_factory.mktemp("mae") / "theirs", arrays)


@pytest.fixture(scope="module")
def model(theirs):
    return keras_vit.load(theirs)


def inputs(golden):
    kept = np.argsort(golden["mae/noise"], axis=1, kind="stable")[:, :4]
    return {"image": golden["images"].astype("float32"), "kept": kept.astype("int32")}


def test_logits_loss_and_gradients_are_pytorchs(model, golden):
    with tf.GradientTape() as tape:
        outputs = model(inputs(golden))
        loss = MaskedSquaredError()(golden["mae/mask"], outputs)
    np.testing.assert_allclose(outputs[:, 0], golden["mae/logits"], atol=1e-5)
    assert float(loss) == pytest.approx(float(golden["mae/loss"]), abs=1e-5)
    found = dict(zip((v.path for v in model.trainable_variables), tape.gradient(loss, model.trainable_variables)))
    expected = _unpacked(
        model, {name: golden[f"mae/gradients/{name}"] for name in _names(golden) if name not in TABLES}
    )
    assert found.keys() == expected.keys()
    for path, gradient in expected.items():
        np.testing.assert_allclose(found[path], gradient, atol=1e-5, err_msg=path)


def _names(golden):
    return [name.removeprefix("mae/gradients/") for name in golden if name.startswith("mae/gradients/")]


def _unpacked(model, arrays):
    """{our path: array} of arrays by their names in a file; conversions are linear, and so hold for gradients."""
    spelled = huggingface.IN_FILES["vit"]
    fields = {"decoder_positions": model.decoder_positions, "decoder_depth": 1}
    decoder = mae.decoder_map(fields, True, spelled.words)
    entries = spelled.map(model.spec.to_dict()) | {f"decoder.{name}": e for name, e in decoder.items()}
    shapes = {v.path: tuple(v.shape) for v in model.weights}
    result = {}
    for name, array in arrays.items():
        entry = entries[name.replace("decoder_encoder.layer.", "decoder_layers.")]
        result.update(zip(entry.ours, entry.unpack(array, [shapes[path] for path in entry.ours])))
    return result


def test_the_file_says_how_it_is_built(model):
    assert isinstance(model, MaskedAutoencoder) and model.spec.positions == model.decoder_positions == "sincos2d_mae"
    assert (model.decoder_heads, model.mask_ratio, model.normalise_targets, model.spec.epsilon) == (
        4,
        0.75,
        True,
        1e-12,
    )
    np.testing.assert_allclose(model.spec.mean, [123.675, 116.28, 103.53])


def test_it_is_written_as_it_was_read(model, arrays, golden, tmp_path):
    keras_vit.save(model, tmp_path / "ours", "huggingface")
    written = safetensors.numpy.load_file(tmp_path / "ours" / "model.safetensors")
    published = {name.replace("decoder_encoder.layer.", "decoder_layers."): array for name, array in arrays.items()}
    assert written.keys() == published.keys() and any(
        "decoder.decoder_layers.0.attention.attention.query" in n for n in written
    )
    for name, array in published.items():
        np.testing.assert_allclose(written[name], array, atol=1e-6, err_msg=name)
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert {name: config[name] for name in CONFIG} == CONFIG
    again = keras_vit.load(tmp_path / "ours")
    assert again.arguments() == {**model.arguments(), "preprocessing": again.preprocessing}
    np.testing.assert_array_equal(again(inputs(golden)), model(inputs(golden)))


@pytest.mark.extended
def test_with_a_head_it_is_the_encoder_alone(theirs, model, golden):
    vit = keras_vit.load(theirs, classes=7, head="reset")
    assert type(vit) is keras_vit.ViT and vit.classes == 7 and vit.spec.positions == "learned"
    features = keras_vit.Model(vit.input, vit.features)
    np.testing.assert_allclose(features(golden["images"]), model.get_encoder()(golden["images"]), atol=1e-5)
    fine_tuned = keras_vit.load(theirs, classes=7, head="reset", pool="gap", fc_norm=True, image_size=24)
    assert fine_tuned.get_layer("fc_norm") and fine_tuned.get_layer("position_embedding").embedding.shape == (1, 37, 16)
    assert keras_vit.load(theirs, head="drop").classes is None


def facebook(arrays):
    """The arrays under the names of facebookresearch/mae, queries, keys and values in one."""
    rules = (
        ("vit.embeddings.patch_embeddings.projection", "patch_embed.proj"),
        ("vit.embeddings.position_embeddings", "pos_embed"),
        ("vit.embeddings.", ""),
        ("vit.layernorm", "norm"),
        ("vit.encoder.layer.", "blocks."),
        ("decoder.decoder_encoder.layer.", "decoder_blocks."),
        ("decoder.decoder_layers.", "decoder_blocks."),
        ("decoder.", ""),
        ("layernorm_before", "norm1"),
        ("layernorm_after", "norm2"),
        ("attention.output.dense", "attn.proj"),
        ("intermediate.dense", "mlp.fc1"),
        ("output.dense", "mlp.fc2"),
    )
    result = {}
    for name, array in arrays.items():
        for old, new in rules:
            name = name.replace(old, new)
        result[name] = array
    for name in [name for name in result if "attention.attention.query" in name]:
        parts = [result.pop(name.replace("query", part)) for part in ("query", "key", "value")]
        result[name.replace("attention.attention.query", "attn.qkv")] = np.concatenate(parts)
    return result


@pytest.mark.extended
def test_facebooks_names_load_too(arrays, tmp_path):
    """Their files state neither heads nor normalised targets."""
    encoder, decoder = dict(depth=1, width=64, heads=1, mlp_dim=16), dict(decoder_depth=2, decoder_width=32)
    constants = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}
    model = MaskedAutoencoder("Ti/4", 16, **encoder, **decoder, decoder_mlp_dim=16, **constants)
    keras_vit.save(model, tmp_path / "huggingface", "huggingface")
    theirs = facebook(safetensors.numpy.load_file(tmp_path / "huggingface" / "model.safetensors"))
    assert {
        "decoder_blocks.1.attn.qkv.weight",
        "decoder_pos_embed",
        "mask_token",
        "blocks.0.norm1.bias",
    } < theirs.keys()
    safetensors.numpy.save_file(theirs, tmp_path / "full.safetensors")
    told = {"heads": 1, "norm_first": True, "mlp_activation": "gelu", "epsilon": model.spec.epsilon, **constants}
    with pytest.raises(ValueError, match=r"decoder_heads=\?, normalise_targets=\?, mask_ratio=\?\)"):
        keras_vit.load(tmp_path / "full.safetensors", **told)
    of_decoder = {"decoder_heads": 16, "normalise_targets": True, "mask_ratio": 0.75}
    again = keras_vit.load(tmp_path / "full.safetensors", **told, **of_decoder)
    assert again.arguments() == {**model.arguments(), "preprocessing": again.preprocessing}
    x, _ = model.masked(np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), dtype="uint8"))
    np.testing.assert_allclose(again(x), model(x), atol=1e-6)
    vit = keras_vit.load(tmp_path / "full.safetensors", head="drop", pool="token", **told)
    assert vit.spec.positions == "learned"
    keras_vit.save(vit, tmp_path / "vit", format="timm")
    with pytest.raises(ValueError, match="decoder_heads has no effect"):
        keras_vit.load(tmp_path / "vit", decoder_heads=4)
    with pytest.raises(ValueError, match="cannot be built.*heads"):  # its decoder is 8 wide
        path = folder(tmp_path / "narrow", facebook(arrays), {"model_args": {"num_heads": 2}})
        keras_vit.load(path, **{**told, "heads": 2, **of_decoder})


def test_what_cannot_change_is_refused(theirs, tmp_path, arrays):
    with pytest.raises(ValueError, match='cannot change pool.*load it with head="drop"'):
        keras_vit.load(theirs, pool="gap")
    assert keras_vit.load(theirs, image_size=24, dtype="mixed_bfloat16", drop_path=0.1).grid == (6, 6)
    other = {**arrays, "decoder.decoder_pos_embed": np.zeros_like(arrays["decoder.decoder_pos_embed"])}
    path = folder(tmp_path / "other", other)
    assert keras_vit.load(path).decoder_positions == "learned"
    with pytest.raises(ValueError, match="image_size, since its positions are learned"):
        keras_vit.load(path, image_size=24)
    path = folder(tmp_path / "hidden", arrays, {**CONFIG, "decoder_hidden_size": 12})
    with pytest.raises(ValueError, match="decoder_hidden_size is 12 in config.json"):
        keras_vit.load(path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"registers": 2}, "registers=2"),
        ({"class_token": False, "pool": "gap"}, "class_token=False"),
        ({"positions": "sincos2d"}, "positions='sincos2d'"),
        ({"image_size": (8, 12)}, "images and patches that are not square"),
    ],
)
def test_what_the_format_has_no_place_for_is_refused(fields, message, tmp_path):
    sizes = dict(image_size=8, depth=1, width=16, heads=2, mlp_dim=16, decoder_depth=1, decoder_width=16)
    model = MaskedAutoencoder("Ti/4", **{**sizes, **fields})
    with pytest.raises(ValueError, match=message):
        keras_vit.save(model, tmp_path / "theirs", "huggingface")
    with pytest.raises(ValueError, match='"timm" cannot express this MaskedAutoencoder'):
        keras_vit.save(model, tmp_path / "theirs", "timm")


def test_a_fine_tuned_model_under_timms_names_has_its_normalisation_after_the_mean(tmp_path):
    """As facebookresearch/mae fine-tunes with global_pool: fc_norm, and no norm."""
    keras.utils.set_random_seed(0)
    vit = keras_vit.ViT(
        "Ti/4", 8, 5, pool="gap", class_token=True, fc_norm=True, depth=1, width=16, heads=2, mlp_dim=16
    )
    keras_vit.save(vit, tmp_path / "timm", "timm")
    again = keras_vit.load(tmp_path / "timm" / "model.safetensors", heads=2)
    assert again.spec.fc_norm and again.spec.pool == "gap" and again.spec.class_token
