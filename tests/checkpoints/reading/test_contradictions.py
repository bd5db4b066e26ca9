"""Configs that contradict the weights, or hold odd values: each is refused, with both values, none is ignored."""

import json
import logging as std_logging
import re
import zipfile

import numpy as np
import pytest
import safetensors.numpy
from golden_files import golden, golden_arrays
from malformed_models import changed

import keras_vit
from keras_vit.checkpoints.reading import metadata


def folder_of(name, folder, config=None, preprocessor=None, arrays=None):
    """A folder with the arrays of a golden and these configs."""
    safetensors.numpy.save_file(dict(golden_arrays(name)) if arrays is None else arrays, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(golden(name)["config"] if config is None else config))
    if preprocessor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return folder


# golden, place in config.json, the value there, as JSON, and that of its arrays.
CONTRADICTIONS = """
hf_vit       hidden_size               32          16
hf_vit       num_hidden_layers         3           2
hf_vit       patch_size                2           (4, 4)
hf_vit       image_size                12          (8, 8)
hf_vit       num_channels              1           3
hf_vit       qkv_bias                  false       True
hf_vit       id2label                  {"0":"a"}   5
hf_vit       model_type                "dinov2"    'vit'
hf_deit      model_type                "vit"       'deit'
hf_dinov2    mlp_ratio                 2           64
hf_dinov2    use_swiglu_ffn            true        False
hf_siglip_classifier  vision_config.num_hidden_layers  5  2
timm_vit     num_classes               10          5
timm_vit     pretrained_cfg.input_size  [3,16,16]  (8, 8)
timm_vit     model_args.img_size       16          (8, 8)
timm_vit     model_args.embed_dim      32          16
timm_vit     model_args.patch_size     16          (4, 4)
timm_vit     model_args.in_chans       1           3
timm_vit     model_args.qkv_bias       false       True
timm_vit     model_args.class_token    false       True
timm_vit     label_names               ["a","b"]   5
timm_bit     num_classes               10          5
"""
# The same, with what the message says.
IMPOSSIBLE = """
hf_vit       num_attention_heads       3           16 query channels .* 3 heads
hf_vit       model_type                "beit"      model_type='beit'.* Implemented: vit, vit_mae
timm_vit     model_args.global_pool    "map"       global_pool is "map".* no attention pooling
timm_vit     model_args.global_pool    "avgmax"    global_pool='avgmax'
timm_gap     model_args.global_pool    "token"     global_pool is "token".* no class token
timm_vit     model_args.act_layer      "mish"      the activation 'mish'
timm_vit     architecture  "vit_base_patch16_rope_ape_224"  rope_ape_224' has rotary positions
timm_vit     architecture  "vit_base_patch16_rpn_224"       rpn_224' has normalisations after attention
timm_vit     model_args.use_rot_pos_emb  true      rotary positions
timm_dinov2  model_args.pool_include_prefix  true  pooling that includes registers
timm_vit     pretrained_cfg.std        null        mean and std in the config .* one number per channel
"""


def rows(text):
    return [line.split(maxsplit=3) for line in text.strip().splitlines()]


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        *((*row, rf"in config\.json, {re.escape(actual)} by the arrays") for *row, actual in rows(CONTRADICTIONS)),
        *rows(IMPOSSIBLE),
    ],
)
def test_a_config_that_contradicts_the_arrays_is_refused(name, place, value, message, tmp_path):
    config, section, value = golden(name)["config"], place.split(".")[0], json.loads(value)
    config = changed({section: {}, **config} if "." in place else config, place, value)
    if place == "pretrained_cfg.input_size":
        config = changed(config, "model_args.img_size", ...)  # it comes first
    with pytest.raises(ValueError, match=message) as caught:
        keras_vit.load(folder_of(name, tmp_path, config))
    assert str(tmp_path) in str(caught.value)


def test_what_timm_leaves_behind_when_a_model_is_changed_is_no_contradiction(tmp_path):
    """Its pretrained_cfg is of the model that it was made from; num_classes and img_size of the model itself count."""
    config = golden("timm_vit")["config"]
    stale = {**config["pretrained_cfg"], "num_classes": 1000, "input_size": [3, 224, 224]}
    config = {**config, "pretrained_cfg": stale, "model_args": {**config["model_args"], "img_size": 8}}
    assert keras_vit.load(folder_of("timm_vit", tmp_path, config), heads=2).image_size == (8, 8)


def test_names_in_timms_config_are_taken(tmp_path):
    config = {**golden("timm_vit")["config"], "label_names": list("abcde")}
    assert keras_vit.load(folder_of("timm_vit", tmp_path, config)).class_names == tuple("abcde")


def test_another_number_of_heads_than_the_configs_is_refused(tmp_path):
    """It would load, and compute something else."""
    with pytest.raises(ValueError, match="heads=4 was passed, but config.json says 2"):
        keras_vit.load(folder_of("hf_vit", tmp_path), heads=4)


PREPROCESSORS = [
    ({"image_mean": [0.5] * 3}, "image_mean and image_std in the config should be one number per channel"),
    ({"image_mean": [0.5] * 3, "image_std": [float("nan")] * 3}, "std positive, got"),
    ({"image_mean": [0.5], "image_std": [0.5]}, "1 values each, but the arrays are for images of 3 channels"),
    ({"rescale_factor": float("nan")}, "rescale_factor in the config should be a positive number"),
    (
        {"size": {"shortest_edge": 60_000}, "crop_size": {"height": 1}, "resample": 3, "do_center_crop": True},
        "preprocessing should be ops such as .* numbers up to 4096",
    ),
]


@pytest.mark.parametrize(("preprocessor", "message"), PREPROCESSORS)
def test_odd_values_of_a_preprocessor_are_refused(preprocessor, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        told = {} if "image_mean" in preprocessor else {"mean": 127.5, "std": 127.5}
        keras_vit.load(folder_of("hf_vit", tmp_path, preprocessor=preprocessor), **told)


@pytest.mark.parametrize(
    ("preprocessor", "mean", "std"),
    [
        ({"do_normalize": False, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}, 0.0, 255.0),
        ({"do_rescale": False, "image_mean": [128.0] * 3, "image_std": [64.0] * 3}, 128.0, 64.0),
        ({"rescale_factor": 1 / 127.5, "image_mean": [1.0] * 3, "image_std": [1.0] * 3}, 127.5, 127.5),
    ],
)
def test_the_switches_of_a_preprocessor_are_followed(preprocessor, mean, std, tmp_path):
    """They were ignored: the model normalised otherwise than its source, and said nothing."""
    spec = keras_vit.load(folder_of("hf_vit", tmp_path, preprocessor=preprocessor)).spec
    np.testing.assert_allclose((spec.mean, spec.std), ([mean] * 3, [std] * 3))


def grey(name):
    """The arrays of a golden of timm, for images of one channel as timm makes them."""
    kernel = golden_arrays(name)["patch_embed.proj.weight"]
    return {**golden_arrays(name), "patch_embed.proj.weight": kernel.sum(1, keepdims=True)}


# What a file in timm's names does not show, apart from mean and std.
TIMM = {"heads": 2, "norm_first": True, "mlp_activation": "gelu", "pool": "token", "epsilon": 1e-6}


@pytest.mark.extended
def test_a_timm_file_of_one_channel_loads(tmp_path):
    """Its mean and std are asked for, also beside a config with three of each."""
    (tmp_path / "alone").mkdir()
    path = tmp_path / "alone" / "model.safetensors"
    safetensors.numpy.save_file(grey("timm_vit"), path)
    model = keras_vit.load(path, **TIMM, mean=100.0, std=50.0)
    assert model.channels == 1 and (model.spec.mean, model.spec.std) == (100.0, 50.0)
    assert np.isfinite(model(np.zeros((1, 8, 8, 1), "uint8"))).all()
    with pytest.raises(ValueError, match=r"std=50.0, mean=\?\)"):
        keras_vit.load(path, **TIMM, std=50.0)
    whole = folder_of("timm_vit", tmp_path, arrays=grey("timm_vit"))
    with pytest.raises(
        ValueError, match="3 values each, but the arrays are for images of 1 channels: pass mean=... and std="
    ):
        keras_vit.load(whole)
    assert keras_vit.load(whole, mean=127.5, std=127.5).spec.std == 127.5


def loaded_alone(arrays, folder, **told):
    """The model of a file without its config.json."""
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    return keras_vit.load(folder / "model.safetensors", mean=127.5, std=127.5, **told)


def test_the_assumption_that_a_file_alone_is_no_model_with_the_same_arrays_is_told(tmp_path, caplog):
    """timm's rope_ape has DeiT III's names."""
    arrays = dict(golden_arrays("timm_vit"))
    for block in range(2):
        arrays |= {f"blocks.{block}.gamma_{i}": np.ones(16, "float32") for i in (1, 2)}
    with caplog.at_level(std_logging.WARNING, logger="absl"):
        loaded_alone(arrays, tmp_path, **TIMM)
    assert "Assuming a DeiT III" in caplog.text


def test_the_pooling_that_old_files_of_vit_pytorch_do_not_state_is_asked_for(tmp_path, caplog):
    """Those of new releases do: with pool="mean" they have no class token."""
    arrays = dict(golden_arrays("lucidrains"))
    old = {**arrays, **{name: arrays[name][None] for name in ("cls_token", "pos_embedding")}}
    with caplog.at_level(std_logging.WARNING, logger="absl"):
        told = {"heads": 2, "mlp_activation": "gelu", "epsilon": 1e-5}
        loaded_alone(arrays, tmp_path, **told)
        loaded_alone(old, tmp_path, pool="token", **told)
        assert not caplog.text
    with pytest.raises(ValueError, match=r"epsilon=1e-05, pool=\?\)"):
        loaded_alone(old, tmp_path, **told)


def test_what_is_told_is_not_assumed_with_a_warning(tmp_path, caplog):
    safetensors.numpy.save_file(dict(golden_arrays("timm_vit")), tmp_path / "model.safetensors")
    with caplog.at_level(std_logging.WARNING, logger="absl"):
        keras_vit.load(tmp_path / "model.safetensors", mean=127.5, std=127.5, **TIMM)
    assert not caplog.text


@pytest.mark.parametrize(
    "text",
    [
        "resize(100000, 100000)",
        "decode|resize(8)|random_crop(8, padding=100_000)",
        "decode|resize((9, 99999))",
        "resize(size)",
        "os.remove('x')",
        "(" * 90,
        "decode|" * 1000,
        "resize(8",
        "one_hot(10**9)",
    ],
)
def test_a_preprocessing_without_bounds_is_refused(text):
    with pytest.raises(ValueError, match="here: preprocessing should be ops such as .* with numbers up to 4096, got"):
        metadata.check_preprocessing(text, (224, 224, 1000), "here")


def test_so_is_a_keras_file_that_carries_one(tiny, tmp_path):
    """Of a ViT, and of a model that is built on one."""
    vit = tiny()
    for model in (vit, keras_vit.Model(vit.input, vit.output)):
        model.save(tmp_path / "good.keras")
        with zipfile.ZipFile(tmp_path / "good.keras") as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        config = changed(json.loads(members["config.json"]), "config.preprocessing", "decode|resize(100000, 100000)")
        with zipfile.ZipFile(tmp_path / "bad.keras", "w") as archive:
            for name, data in {**members, "config.json": json.dumps(config)}.items():
                archive.writestr(name, data)
        with pytest.raises(ValueError, match=r"preprocessing should be ops such as .* got 'decode"):
            keras_vit.load(tmp_path / "bad.keras")


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "decode|resize(256, method='bicubic')|central_crop(224, 224)",
        "decode(1)|resize(448, antialias=False)|central_crop(384)|one_hot(21843, on=1.0, off=-1e-3)",
    ],
)
def test_an_ordinary_preprocessing_is_not(text):
    metadata.check_preprocessing(text, (224, 224, 21843), "here")


def test_an_activation_that_no_head_has_is_refused(tiny):
    written = json.loads(metadata.write("ViT", tiny().arguments(), {}, "sigmoid"))
    assert metadata.read(written, {}, "m.npz")["activation"] == "sigmoid"
    for wrong in ("tanh", 3, ["sigmoid"]):
        with pytest.raises(ValueError, match='The metadata of "m.npz": activation should be softmax or sigmoid, got'):
            metadata.read({**written, "activation": wrong}, {}, "m.npz")
