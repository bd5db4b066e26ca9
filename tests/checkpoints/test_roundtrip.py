"""save, then load: equal models for every format and family, what cannot be expressed is refused, nothing half-written stays."""

import json
import logging as std_logging

import keras
import numpy as np
import pytest
import safetensors.numpy

import keras_vit
from keras_vit.training import files

SIZE = {"depth": 2, "width": 16, "heads": 2, "mlp_dim": 32}
ROOT = {"variant": "R+Ti/16", "image_size": 32, "stem_width": 32}
# Name: (options, the formats that can express it beside "keras").
CASES = {
    "token": ({"gelu": "tanh", "class_names": list("abcde"), "preprocessing": "decode|resize(8, 12)"}, "google timm huggingface"),
    "gap": ({"pool": "gap"}, "google timm"),
    "map": ({"pool": "map", "mean": (1.0, 2.0, 3.0), "std": (4.0, 5.0, 6.0)}, "google timm"),
    "siglip": ({"pool": "map", "classes": None, "gelu": "tanh", "image_size": 8}, "google timm huggingface"),
    "siglip classifier": ({"pool": "gap", "image_size": 12}, "google timm huggingface"),
    "features": ({"classes": None, "dropout": 0.1}, "google timm huggingface"),
    "pre_logits": ({"pre_logits": 8}, "google"),
    "hybrid": ({"variant": "R50+Ti/16", "image_size": 32, "stem": (1, 1, 2), "stem_width": 32}, "google"),
    "hybrid root": (ROOT, "google"),
    "timm's hybrid": ({**ROOT, "stem_width": 64}, "google timm"),
    "distilled": ({"distillation_token": True}, "timm huggingface"),
    "registers": ({"registers": 3, "qk_norm": True}, "timm"),
    "dinov2": ({"registers": 4, "layer_scale": 1.0, "classes": None, "image_size": 8}, "timm huggingface"),
    "dinov2 classifier": ({"layer_scale": 1.0, "pool": "token_gap", "image_size": 8}, "huggingface"),
    "swiglu": ({"mlp_form": "swiglu", "mlp_dim": 48, "layer_scale": 0.1, "classes": None, "image_size": 8}, "timm huggingface"),
    "fc_norm": ({"pool": "gap", "fc_norm": True, "class_token": True}, "timm"),
    "rectangles": ({"patch_size": (4, 6), "image_size": (12, 24)}, "google timm"),
    "one channel": ({"channels": 1}, "google timm huggingface"),
    "head_dim": ({"head_dim": 5}, "google"),
    "no qkv bias": ({"qkv_bias": False, "epsilon": 1e-5}, "timm huggingface"),
    "sincos2d": ({"pool": "gap", "positions": "sincos2d"}, "google"),
    "patch_norm": ({"patch_norm": True, "qkv_bias": False}, ""),
    "bit": ({"variant": "R50x1", "units": (1, 2), "width_factor": 0.5, "image_size": 32}, "google"),
    "timm's bit": ({"variant": "R50x1", "image_size": 32}, "google timm"),
}
FORMATS = ("keras", "google", "timm", "huggingface")
PAIRS = [(name, form) for name, (_, forms) in CASES.items() for form in ["keras", *forms.split()]]
REFUSED = [(name, form) for name, (_, forms) in CASES.items() for form in FORMATS[1:] if form not in forms.split()]
# R50x1 whole, since timm has no smaller: 100 MB a file, so once.
PAIRS = [pair for pair in PAIRS if pair[0] != "timm's bit" or pair[1] == "timm"]
ENDINGS = {"keras": "m.keras", "google": "m.npz", "timm": "m", "huggingface": "m"}


def make(name):
    """The case's model, with random weights all over."""
    options = {"variant": "Ti/4", "image_size": (8, 12), "classes": 5, **CASES[name][0]}
    keras.utils.set_random_seed(0)
    model = keras_vit.models.build(
        **options, **({} if "R50x1" in options.values() else {k: v for k, v in SIZE.items() if k not in options})
    )
    rng = np.random.default_rng(0)
    for weight in model.weights:
        if "seed" not in weight.path:
            weight.assign(rng.normal(size=weight.shape) * 0.2 + ("gamma" in weight.path))
    return model


def images(model):
    return np.random.default_rng(1).integers(0, 256, (2, *model.image_size, model.channels), dtype="uint8")


def config(model):
    return {key: value for key, value in model.get_config().items() if key != "name"}


@pytest.mark.parametrize(("name", "form"), PAIRS, ids=lambda value: value.replace(" ", "_"))
def test_ours_to_format_to_ours_is_exact(name, form, tmp_path):
    model = make(name)
    path = tmp_path / ENDINGS[form]
    keras_vit.save(model, path, format=form)
    copy = keras_vit.load(path)
    np.testing.assert_array_equal(copy(images(model)), model(images(model)))
    assert config(copy) == config(model)
    again = tmp_path / "again" / ENDINGS[form]
    keras_vit.save(copy, again, format=form)
    for mine, theirs in zip(copy.get_weights(), keras_vit.load(again).get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(("name", "form"), [p for p in PAIRS if p[1] != "keras"], ids=lambda value: value.replace(" ", "_"))
def test_the_files_are_understood_without_our_note_in_them(name, form, tmp_path):
    """As another program would have written them: names and shapes alone, with the format's config.json."""
    model = make(name)
    path = tmp_path / ENDINGS[form]
    keras_vit.save(model, path, format=form)
    if form == "google":
        arrays = dict(np.load(path))
        np.savez(path, **arrays)
    else:
        arrays = safetensors.numpy.load_file(path / "model.safetensors")
        safetensors.numpy.save_file(arrays, path / "model.safetensors")
    told = {"image_size": model.image_size, "heads": 2, "mean": model.spec.mean, "std": model.spec.std}
    told |= {"gelu": model.spec.gelu, "epsilon": model.spec.epsilon} if hasattr(model.spec, "gelu") else {}
    if "units" in model.spec.to_dict():
        told.pop("heads")
    copy = keras_vit.load(path, **told)
    np.testing.assert_array_equal(copy(images(model)), model(images(model)))


@pytest.mark.parametrize(("name", "form"), REFUSED, ids=lambda value: value.replace(" ", "_"))
def test_what_a_format_cannot_express_is_refused(name, form, tmp_path):
    with pytest.raises(ValueError, match=f'format "{form}"|no place for'):
        keras_vit.save(make(name), tmp_path / ENDINGS[form], format=form)
    assert not list(tmp_path.iterdir())


def test_published_names_and_shapes(tmp_path):
    """The classic numbering, positions with the token's row, as in the files of 2020; big_vision's for MAP heads."""
    keras_vit.save(make("pre_logits"), tmp_path / "m.npz")
    arrays = np.load(tmp_path / "m.npz")
    block = "Transformer/encoderblock_1"
    assert len(arrays.files) == 8 + 2 * 16 + 2 and arrays["Transformer/posembed_input/pos_embedding"].shape == (1, 7, 16)
    assert arrays[f"{block}/MultiHeadDotProductAttention_1/query/kernel"].shape == (16, 2, 8)
    assert arrays[f"{block}/MlpBlock_3/Dense_0/kernel"].shape == (16, 32) and f"{block}/LayerNorm_2/scale" in arrays.files
    keras_vit.save(make("map"), tmp_path / "map.npz")
    assert {"pos_embedding", "MAPHead_0/probe"} <= set(np.load(tmp_path / "map.npz").files)


def test_b16_has_the_published_number_of_arrays(tmp_path, without_values):
    from keras_vit.checkpoints import google

    with without_values():
        model = keras_vit.ViT("B/16")
    assert len(google.layout(model.spec.to_dict(), 1000)) == 200
    assert len(google.layout({**model.spec.to_dict(), "pre_logits": 768}, 1000)) == 202


def test_configs_tell_the_constructors_of_the_other_libraries(tmp_path):
    keras_vit.save(make("token"), tmp_path / "timm", "timm")
    theirs = json.loads((tmp_path / "timm" / "config.json").read_text())
    assert theirs["architecture"] == "vit_base_patch16_224" and theirs["model_args"]["act_layer"] == "gelu_tanh"
    assert theirs["pretrained_cfg"]["label_names"] == list("abcde") and theirs["pretrained_cfg"]["mean"] == [0.5] * 3
    keras_vit.save(make("token"), tmp_path / "hf", "huggingface")
    theirs = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert theirs["architectures"] == ["ViTForImageClassification"] and theirs["id2label"]["4"] == "e"
    assert (theirs["hidden_act"], theirs["layer_norm_eps"], theirs["image_size"]) == ("gelu_pytorch_tanh", 1e-6, [8, 12])


def test_readers_conventions_that_differ_are_warned_of(tmp_path, caplog):
    with caplog.at_level(std_logging.WARNING, logger="absl"):
        keras_vit.save(make("gap"), tmp_path / "m.npz")
    assert "gelu 'erf', they take 'tanh'" in caplog.text


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    model = make("token")
    for form in FORMATS:
        path = tmp_path / form / ENDINGS[form]
        keras_vit.save(model, path, form)
        before = {p: p.read_bytes() for p in (tmp_path / form).rglob("*") if p.is_file()}

        def full(*_):
            raise OSError("No space left on device")

        with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
            patch.setattr(files, "_sync", full)
            keras_vit.save(make("gap") if form != "huggingface" else make("distilled"), path, form)
        assert {p: p.read_bytes() for p in (tmp_path / form).rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    ("path", "form", "message"),
    [
        ("m", None, "Valid: keras, google, timm, huggingface"),
        ("m.npz", "keras", "a file that ends in .keras"),
        ("m.keras", "timm", "a folder"),
        ("m", "google", "a file that ends in .npz"),
        ("m.safetensors", "timm", "a folder with config.json and model.safetensors"),
        ("m", "onnx", 'Unknown format "onnx"'),
    ],
)
def test_mistakes_are_clear_errors(path, form, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        keras_vit.save(make("token"), tmp_path / path, form)


def test_a_folder_with_other_files_is_not_replaced(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="holds other files, which are kept: thesis.tex"):
        keras_vit.save(make("token"), tmp_path / "m", "timm")
    assert (tmp_path / "m" / "thesis.tex").read_text() == "years of work"
