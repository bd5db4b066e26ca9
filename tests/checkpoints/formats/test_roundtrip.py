"""save, then load: every format gives an equal model for every family, and refuses what it cannot express."""

import functools
import json
import logging as std_logging
import shutil

import keras
import numpy as np
import pytest
import safetensors.numpy

import keras_vit
from keras_vit.checkpoints.adapt import model_weights
from keras_vit.checkpoints.formats import bit_files, google
from keras_vit.checkpoints.formats.name_map import unpack
from keras_vit.checkpoints.parse import parse
from keras_vit.checkpoints.reading.files import read
from keras_vit.io import atomic
from keras_vit.models import make_spec
from keras_vit.models.families import FAMILIES
from keras_vit.models.fields import NOTHING, named

SIZE = {"depth": 2, "width": 16, "heads": 2, "mlp_dim": 32}
WINDOWS = {"width": 8, "depths": (2, 2), "heads": 2, "window": 4, "image_size": 32}
ROOT = {"variant": "R+Ti/16", "image_size": 32, "stem_width": 32}
DINOV3 = {"variant": "DINOv3-S/4", **SIZE}
# Name: (options, the formats that can express it besides "keras").
CASES = {
    "token": (
        {"mlp_activation": "gelu_tanh", "class_names": list("abcde"), "preprocessing": "decode|resize(8, 12)"},
        "google timm huggingface",
    ),
    "gap": ({"pool": "gap"}, "google timm"),
    "map": ({"pool": "map", "mean": (1.0, 2.0, 3.0), "std": (4.0, 5.0, 6.0)}, "google timm"),
    "siglip": (
        {"pool": "map", "classes": None, "mlp_activation": "gelu_tanh", "image_size": 8},
        "google timm huggingface",
    ),
    "clip": ({"pre_norm": True, "classes": None, "epsilon": 1e-5, "image_size": 8}, "huggingface"),
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
    "swiglu": (
        {"mlp_form": "swiglu", "mlp_dim": 48, "layer_scale": 0.1, "classes": None, "image_size": 8},
        "timm huggingface",
    ),
    "dinov3": ({**DINOV3, "mlp_form": "swiglu", "classes": None}, "timm huggingface"),
    "dinov3 classifier": ({**DINOV3, "qkv_bias": False, "pool": "gap", "class_token": True, "fc_norm": True}, "timm"),
    "eva02": ({"variant": "EVA02-Ti/4", **SIZE}, "timm"),
    "eva02 norm": ({"variant": "EVA02-B/4", **SIZE, "rope_grid": 3, "pool": "token", "fc_norm": False}, "timm"),
    "pe": ({"variant": "PE-Ti/4", **SIZE, "pool_heads": 4}, "timm"),
    "pe spatial": ({"variant": "PE-Ti/4", **SIZE, "pool": "gap", "class_token": True, "final_norm": False}, "timm"),
    "fc_norm": ({"pool": "gap", "fc_norm": True, "class_token": True}, "timm"),
    "rectangles": ({"patch_size": (4, 6), "image_size": (12, 24)}, "google timm"),
    "one channel": ({"channels": 1}, "google timm huggingface"),
    "head_dim": ({"head_dim": 5}, "google"),
    "no qkv bias": ({"qkv_bias": False, "epsilon": 1e-5}, "timm huggingface"),
    "sincos2d": ({"pool": "gap", "positions": "sincos2d"}, "google"),
    "patch_norm": ({"patch_norm": True, "qkv_bias": False}, ""),
    "bit": ({"variant": "R50x1", "units": (1, 2), "width_factor": 0.5, "image_size": 32}, "google"),
    "swin": ({"variant": "Swin-T", **WINDOWS, "mlp_ratio": 2}, "timm huggingface"),
    "swin v2": (
        {"variant": "SwinV2-T", **WINDOWS, "pretrained_windows": (6, 3), "classes": None},
        "timm huggingface",
    ),
    "swin padded": ({"variant": "Swin-T", **WINDOWS, "roll": "before_padding", "image_size": (30, 40)}, "timm"),
}
FORMATS = ("keras", "google", "timm", "huggingface")
PAIRS = [(name, form) for name, (_, forms) in CASES.items() for form in forms.split()]
# Loaded as wholes: of .keras one of each kind of output, of each format its models; the others by names and shapes.
WHOLE = {
    "keras": "token map distilled features bit",
    "google": "token hybrid bit",
    "timm": "token registers swiglu dinov3 eva02 pe",
    "huggingface": "token siglip dinov2 dinov3",
}
ENDINGS = {"keras": "m.keras", "google": "m.npz", "timm": "m", "huggingface": "m"}


@functools.cache
def make(name):
    """The model of a case, with random values in all weights; tests do not change it."""
    options = {"variant": "Ti/4", "image_size": (8, 12), "classes": 5, **CASES[name][0]}
    size = {k: v for k, v in SIZE.items() if k not in options} if "/" in options["variant"] else {}
    keras.utils.set_random_seed(0)
    model = keras_vit.models.build(**options, **size)
    rng = np.random.default_rng(0)
    for weight in model.weights:
        if "seed" not in weight.path:
            weight.assign(rng.normal(size=weight.shape) * 0.2 + ("gamma" in weight.path))
    return model


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """saved(name, form): the path of the case's model in that format, written once."""

    @functools.cache
    def path(name, form):
        folder = tmp_path_factory.mktemp("saved")
        keras_vit.save(make(name), folder / ENDINGS[form], format=form)
        return folder / ENDINGS[form]

    return path


def images(model):
    return np.random.default_rng(1).integers(0, 256, (2, *model.image_size, model.channels), dtype="uint8")


def config(model):
    return {key: value for key, value in model.get_config().items() if key != "name"}


def assert_same_weights(one, other):
    """Equal weights under equal paths: with equal configs, the models compute the same."""
    weights, others = model_weights(one), model_weights(other)
    assert weights.keys() == others.keys()
    for path, array in weights.items():
        np.testing.assert_array_equal(array, others[path], err_msg=path)


def assert_same_function(copy, model, form):
    """Equal weights; of timm's models with registers, whose tokens get their positions added, equal outputs."""
    if form == "timm" and getattr(model.spec, "registers", 0):
        np.testing.assert_array_equal(copy(images(model)), model(images(model)))
    else:
        assert_same_weights(copy, model)


def stored(path):
    """{name: array} of a file or folder in a format other than keras."""
    return dict(np.load(path)) if path.suffix == ".npz" else safetensors.numpy.load_file(path / "model.safetensors")


def without_metadata(path, folder):
    """A copy as another program would have written it: names and shapes alone, with the format's own configs."""
    if path.suffix == ".npz":
        np.savez(folder / path.name, **stored(path))
    else:
        shutil.copytree(path, folder / path.name)
        safetensors.numpy.save_file(stored(path), folder / path.name / "model.safetensors")
    return folder / path.name


@pytest.mark.extended
@pytest.mark.parametrize(
    ("name", "form"),
    [
        *((name, form) for form, names in WHOLE.items() for name in names.split()),
        *((name, form) for name in ("swin", "swin v2") for form in ("keras", "timm", "huggingface")),
    ],
)
def test_ours_to_format_to_ours_is_exact(name, form, saved, tmp_path):
    model, copy = make(name), keras_vit.load(saved(name, form))
    assert config(copy) == config(model)
    assert_same_function(copy, model, form)
    if form == "keras":
        return np.testing.assert_array_equal(copy(images(model)), model(images(model)))
    keras_vit.save(copy, tmp_path / ENDINGS[form], format=form)
    again, first = stored(tmp_path / ENDINGS[form]), stored(saved(name, form))
    assert again.keys() == first.keys()
    for key, array in first.items():
        np.testing.assert_array_equal(again[key], array, err_msg=key)


def read_without_metadata(path, folder, model):
    """(spec, {path: weight}) of a saved `model`, from names, shapes and the format's own configs alone."""
    path = without_metadata(path, folder)
    contents = read(path)
    assert contents.metadata is None
    parsed = parse(
        contents, {"image_size": model.image_size, **({} if isinstance(model, keras_vit.BiT) else {"heads": 2})}
    )
    assert (parsed.image_size, parsed.classes, parsed.channels) == (model.image_size, model.classes, model.channels)
    spec = FAMILIES[parsed.family].make_spec(parsed.fields)
    shapes = {name: a.shape for name, a in model_weights(model).items()}
    return spec, unpack(parsed.name_map, parsed.arrays, shapes, path)


# Not in every file: where the file does not have them, the user passes them to `load`. Layer scales are weights,
# whatever they started at.
PASSED = {"mean", "std", "mlp_activation", "epsilon", "layer_scale", "roll"}


@pytest.mark.extended
@pytest.mark.parametrize(("name", "form"), PAIRS)
def test_files_without_our_metadata_give_the_same_model(name, form, saved, tmp_path):
    model = make(name)
    spec, weights = read_without_metadata(saved(name, form), tmp_path, model)
    skipped = PASSED | {*named(type(model.spec), NOTHING)}
    fields, expected = ({k: v for k, v in s.to_dict().items() if k not in skipped} for s in (spec, model.spec))
    assert fields == expected
    if isinstance(model, keras_vit.ViT):
        assert (spec.layer_scale is None) == (model.spec.layer_scale is None)
    expected = model_weights(model)
    if form == "timm" and "position_embedding/embedding" in expected and model.spec.registers:
        position = expected["position_embedding/embedding"].copy()
        expected["class_token/tokens"] = expected["class_token/tokens"] + position[:, :1]
        position[:, 0] = 0.0
        expected["position_embedding/embedding"] = position
    assert weights.keys() == expected.keys()
    for path, array in expected.items():
        np.testing.assert_array_equal(weights[path], array, err_msg=path)


@pytest.mark.extended
def test_what_a_file_does_not_state_is_passed_to_load(saved, tmp_path):
    model = make("map")
    options = {"image_size": model.image_size, "mean": model.spec.mean, "std": model.spec.std, "mlp_activation": "gelu"}
    copy = keras_vit.load(without_metadata(saved("map", "google"), tmp_path), **options)
    np.testing.assert_array_equal(copy(images(model)), model(images(model)))


@pytest.fixture
def small_timm_bit(monkeypatch):
    """timm's BiTs are all large; for this test it has a small one as well."""
    monkeypatch.setattr(bit_files, "_TIMM_SIZES", (*bit_files._TIMM_SIZES, "Nonex0.5"))


def test_timms_bit_is_exact(small_timm_bit, tmp_path):
    model = make("bit")
    keras_vit.save(model, tmp_path / "m", "timm")
    copy = keras_vit.load(tmp_path / "m")
    assert config(copy) == config(model)
    assert_same_weights(copy, model)
    (tmp_path / "foreign").mkdir()
    spec, weights = read_without_metadata(tmp_path / "m", tmp_path / "foreign", model)
    assert spec == model.spec
    for path, array in model_weights(model).items():
        np.testing.assert_array_equal(weights[path], array, err_msg=path)


def test_timms_published_bits_are_expressed(without_values):
    with without_values():
        model = keras_vit.BiT("R50x1", image_size=32, classes=5)
        bit_files.CAPABILITIES["timm"].check(model)
        assert bit_files.to_config(model)["architecture"] == "resnetv2_50x1_bit"
        names = bit_files.name_map(model.spec.units, 5, "timm")
        assert {path for entry in names.values() for path in entry.ours} == {
            w.path.removeprefix("bit/") for w in model.weights
        }


@pytest.mark.extended
@pytest.mark.parametrize("form", FORMATS[1:])
def test_what_a_format_cannot_express_is_refused(form, tmp_path):
    for name, (_, forms) in CASES.items():
        if form not in forms.split():
            with pytest.raises(ValueError, match=f'format "{form}" cannot express'):
                keras_vit.save(make(name), tmp_path / ENDINGS[form], format=form)
            assert not list(tmp_path.iterdir()), name


def test_published_names_and_shapes(tmp_path):
    """The classic numbering, positions with the token's row, as in the files of 2020; big_vision's for MAP heads."""
    keras_vit.save(make("pre_logits"), tmp_path / "m.npz")
    arrays = np.load(tmp_path / "m.npz")
    block = "Transformer/encoderblock_1"
    assert len(arrays.files) == 8 + 2 * 16 + 2 and arrays["Transformer/posembed_input/pos_embedding"].shape == (
        1,
        7,
        16,
    )
    assert arrays[f"{block}/MultiHeadDotProductAttention_1/query/kernel"].shape == (16, 2, 8)
    assert (
        arrays[f"{block}/MlpBlock_3/Dense_0/kernel"].shape == (16, 32) and f"{block}/LayerNorm_2/scale" in arrays.files
    )
    keras_vit.save(make("map"), tmp_path / "map.npz")
    assert {"pos_embedding", "MAPHead_0/probe"} <= set(np.load(tmp_path / "map.npz").files)


def test_b16_has_the_published_number_of_arrays():
    assert len(google.name_map(make_spec("B/16").to_dict(), 1000)) == 200
    assert len(google.name_map(make_spec("B/16", pre_logits=768).to_dict(), 1000)) == 202


def test_configs_tell_the_constructors_of_the_other_libraries(tmp_path):
    keras_vit.save(make("token"), tmp_path / "timm", "timm")
    theirs = json.loads((tmp_path / "timm" / "config.json").read_text())
    assert theirs["architecture"] == "vit_base_patch16_224" and theirs["model_args"]["act_layer"] == "gelu_tanh"
    assert theirs["pretrained_cfg"]["label_names"] == list("abcde") and theirs["pretrained_cfg"]["mean"] == [0.5] * 3
    keras_vit.save(make("token"), tmp_path / "hf", "huggingface")
    theirs = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert theirs["architectures"] == ["ViTForImageClassification"] and theirs["id2label"]["4"] == "e"
    assert (theirs["hidden_act"], theirs["layer_norm_eps"], theirs["image_size"]) == (
        "gelu_pytorch_tanh",
        1e-6,
        [8, 12],
    )


def test_readers_conventions_that_differ_are_warned_of(tmp_path, caplog):
    with caplog.at_level(std_logging.WARNING, logger="absl"):
        keras_vit.save(make("gap"), tmp_path / "m.npz")
    assert "mlp_activation is 'gelu', they assume 'gelu_tanh'" in caplog.text


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    model = make("token")
    for form in ("keras", "timm"):  # a file and a folder
        path = tmp_path / form / ENDINGS[form]
        keras_vit.save(model, path, form)
        before = {p: p.read_bytes() for p in (tmp_path / form).rglob("*") if p.is_file()}

        def full(*_):
            raise OSError("No space left on device")

        with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
            patch.setattr(atomic, "_sync", full)
            keras_vit.save(make("gap"), path, form)
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


def test_something_other_than_a_model_and_a_path_is_refused(tmp_path):
    model, path = make("token"), str(tmp_path / "m.keras")
    inputs = keras.Input((*model.image_size, model.channels))
    plain = keras.Model(inputs, model(inputs), name="mine")
    for arguments, message in [
        ((path, model), r"save takes the model first: save\(model, '.*m.keras'\)"),
        (([model, model], path), "got a list. save takes one model: call it once for each"),
        (
            (keras_vit.ViT, path),
            r'got the class ViT, not a model made of it. Make a model first, such as keras_vit.ViT\("B/16"\)',
        ),
        (
            (plain, path),
            r'got "mine", a plain keras Functional. Build it as keras_vit.Model\(inputs, outputs\), or use model.save',
        ),
        ((None, path), "save expected a model of keras_vit, got None. Make it with keras_vit.ViT"),
        ((path, path), "save expected a model of keras_vit, got '.*m.keras'"),
        ((model, None), r"save expected a path, got None: save\(model, path\)"),
        ((model, ""), "save expected a path, got ''"),
        ((model, model), "save expected a path, got <ViT"),
        ((model, path, "kears"), 'Unknown format "kears".*Did you mean "keras"'),
        (
            (model, tmp_path / "x"),
            r'"/.*x" does not say in which format to save: end it in .keras .* or pass format="timm"',
        ),
        ((model, tmp_path / "x.h5"), "does not say in which format to save"),
    ]:
        with pytest.raises(ValueError, match=message):
            keras_vit.save(*arguments)
    assert not list(tmp_path.iterdir())
    (tmp_path / "m.keras").mkdir()
    with pytest.raises(ValueError, match='is a folder, and the format "keras" is a file'):
        keras_vit.save(model, path)


def test_the_home_folder_is_the_users_and_a_folder_with_other_files_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for form in ("google", "timm"):
        keras_vit.save(make("gap"), f"~/{ENDINGS[form]}", form)
        assert (tmp_path / ENDINGS[form]).exists()
    (tmp_path / "m" / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="contains other files, which would be lost: thesis.tex"):
        keras_vit.save(make("gap"), "~/m", "timm")
    assert (tmp_path / "m" / "thesis.tex").read_text() == "years of work"
