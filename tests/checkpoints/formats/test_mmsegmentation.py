"""mmsegmentation's checkpoints: the outputs of a PyTorch reference with its names, equal files, refusals."""

import functools

import numpy as np
import pytest
import torch_files
from dense_files import EVERY, golden, image, size_of, value

import keras_vit
from keras_vit.checkpoints.dense_models import all_weights
from keras_vit.checkpoints.formats import mmsegmentation, mmsegmentation_config
from keras_vit.checkpoints.reading.files import read

HEADS = {"mmseg_naive": "setr_naive", "mmseg_pup": "setr_pup", "mmseg_mla": "setr_mla", "mmseg_upernet": "upernet"}
CASES = [
    *(name if name == "mmseg_upernet" else pytest.param(name, marks=pytest.mark.extended) for name in HEADS),
    pytest.param("mmseg_transposed", marks=pytest.mark.extended),
]
CLASSES, PALETTE = ("wall", "sky", "tree"), [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def config(name, **model):
    """A config's text, with calls of dict and tuples as mmengine writes them."""
    backbone = {**golden(name)["backbone"], **model.pop("backbone", {})}
    inner = ", ".join(f"{key}={value!r}" for key, value in backbone.items())
    outer = "".join(f", {key}={value!r}" for key, value in model.items())
    processor = "data_preprocessor=dict(mean=[127.5, 127.5, 127.5], std=[127.5, 127.5, 127.5], bgr_to_rgb=True)"
    return f"norm_cfg = dict(type='SyncBN')\nmodel = dict(backbone=dict({inner}), {processor}{outer})\nwork = f(1)\n"


def write(name, path, text="", without=()):
    """Writes the .pth of a golden, with a config; returns {name: array}."""
    arrays = {key: value(key, shape) for key, shape in golden(name)["shapes"].items()}
    state = {key: array for key, array in arrays.items() if not key.startswith(tuple(without) or "-")}
    meta = {"dataset_meta": {"classes": CLASSES, "palette": PALETTE}, "cfg": text or config(name), "iter": 1}
    torch_files.save({"meta": meta, "state_dict": state}, path)
    return arrays


@pytest.fixture(scope="module")
def path_of(tmp_path_factory):
    """path_of(name): the file of a golden, written once."""

    @functools.cache
    def path(name):
        place = tmp_path_factory.mktemp(name) / "iter_80000.pth"
        write(name, place)
        return place

    return path


@pytest.fixture(scope="module")
def model_of(path_of):
    """model_of(name): the model of a golden; tests do not change it."""
    return functools.cache(lambda name: keras_vit.load(path_of(name)))


@pytest.mark.extended
@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_torch(name, path_of, model_of):
    for text, (logits, *auxiliary) in golden(name)["outputs"].items():
        size = size_of(text)
        model = model_of(name) if size == model_of(name).image_size else keras_vit.load(path_of(name), image_size=size)
        found = model(image(*size))
        found = found if auxiliary else {"logits": found}
        np.testing.assert_allclose(found.pop("logits")[0, ::EVERY, ::EVERY], logits, rtol=0, atol=1e-4, err_msg=text)
        if auxiliary:  # at a quarter of the size, one after another
            others = np.concatenate([np.asarray(found[key]) for key in sorted(found)], axis=-1)[0, ::EVERY, ::EVERY]
            np.testing.assert_allclose(others, auxiliary[0], rtol=0, atol=1e-4, err_msg=text)


@pytest.mark.extended
@pytest.mark.parametrize("name", CASES)
def test_round_trips_through_mmsegmentation_are_bit_identical(name, path_of, model_of, tmp_path):
    model = model_of(name)
    keras_vit.save(model, tmp_path / "copy.pth")
    written, original = read(tmp_path / "copy.pth").arrays, read(path_of(name)).arrays
    assert {key for key in written if not key.endswith("num_batches_tracked")} == original.keys()
    for key, array in original.items():
        if not model.spec.class_token and key in ("backbone.cls_token", "backbone.pos_embed"):
            assert written[key].shape == array.shape  # the class token is not read
        else:
            np.testing.assert_array_equal(written[key], array, err_msg=key)


@pytest.mark.parametrize("name", [pytest.param("mmseg_mla", marks=pytest.mark.extended), "mmseg_upernet"])
def test_what_is_saved_for_mmsegmentation_loads_as_the_same_model(name, model_of, tmp_path):
    model = model_of(name)
    keras_vit.save(model, tmp_path / "copy.pth", format="mmsegmentation")
    copy = keras_vit.load(tmp_path / "copy.pth")
    assert copy.get_config() == model.get_config()
    copied = all_weights(copy)
    for path, array in all_weights(model).items():
        np.testing.assert_array_equal(copied[path], array, err_msg=path)


@pytest.mark.extended
def test_the_files_state_classes_colours_taps_and_normalisation(model_of):
    for name, head in HEADS.items():
        model = model_of(name)
        assert (model.head_name, model.class_names) == (head, CLASSES)
        assert model.colors == tuple(map(tuple, PALETTE)) and model.spec.mean == (127.5,) * 3
        assert model.decoder.taps == tuple(golden(name)["backbone"]["out_indices"])
        assert model.auxiliary == 0.4 and model.spec.final_norm == (head == "upernet")
    assert model_of("mmseg_upernet").decoder.normalised == (4,)
    assert not model_of("mmseg_mla").spec.class_token


@pytest.mark.extended
def test_a_written_config_describes_the_model(model_of):
    """The settings that shapes do not determine are those of the file that was read."""
    for name in HEADS:
        described = mmsegmentation_config.parse_settings(mmsegmentation.to_meta(model_of(name))["cfg"])["model"]
        expected = golden(name)["backbone"]
        for key in ("type", "img_size", "num_heads", "out_indices", "norm_cfg"):
            assert described["backbone"][key] == expected[key], key
        assert described["data_preprocessor"]["mean"] == [127.5] * 3
        assert described["decode_head"]["num_classes"] == 3


@pytest.mark.extended
def test_the_encoder_alone_is_a_vit(path_of, model_of):
    vit = keras_vit.load(path_of("mmseg_pup"), head="drop")
    weights = all_weights(model_of("mmseg_pup"))
    for weight in vit.weights:
        np.testing.assert_array_equal(weight, weights[weight.path.removeprefix(f"{vit.name}/")])


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("mmseg_pup", {"backbone": {"type": "SwinTransformer"}}, "backbone SwinTransformer is not mmsegmentation's"),
        ("mmseg_pup", {"backbone": {"out_indices": [1, 2, 3, 9]}}, "out_indices.* from 0 to 4"),
        ("mmseg_pup", {"backbone": {"patch_norm": True}}, "backbone in the config .* patch_norm=True"),
        (
            "mmseg_pup",
            {"backbone": {"num_layers": 7}},
            "num_layers is 7 in the config .*, 5 by",
        ),
        ("mmseg_pup", {"decode_head": {"up_scale": 4}}, r"decode_head.up_scale=4 \(implemented: 2\)"),
        ("mmseg_mla", {"decode_head": {"align_corners": True}}, "align_corners=True"),
        ("mmseg_mla", {"neck": {"act_cfg": {"type": "GELU"}}}, "neck.act_cfg.type='GELU'"),
        ("mmseg_upernet", {"decode_head": {"pool_scales": [1, 2]}}, r"pool_scales \(1, 2\), .* 4 pooled maps"),
    ],
)
def test_settings_that_are_not_implemented_are_refused_by_name_of_mmsegmentation(name, changes, message, tmp_path):
    write(name, tmp_path / "m.pth", config(name, **changes))
    with pytest.raises(ValueError, match=message):
        keras_vit.load(tmp_path / "m.pth")


def test_other_numbers_of_auxiliary_heads_are_refused(tmp_path):
    write("mmseg_pup", tmp_path / "m.pth", without=("auxiliary_head.1.",))
    with pytest.raises(ValueError, match="has 2 auxiliary heads, and setr_pup has 3 or none"):
        keras_vit.load(tmp_path / "m.pth")


def test_texts_that_are_no_config_are_ignored():
    for text in ("", "not python(", "x = [" + "(" * 5000, "import os", "a, b = 1, 2", "x = 1 if y else f()"):
        assert mmsegmentation_config.parse_settings(text) in ({}, {"x": None})
    nested = mmsegmentation_config.parse_settings("m = dict(a=(1, 2.5), b={'c': [None, True]}, **other)\nn = open('x')")
    assert nested == {"m": {"a": [1, 2.5], "b": {"c": [None, True]}}, "n": None}


SIZE = {"depth": 4, "width": 8, "heads": 2, "mlp_dim": 8, "image_size": 32, "classes": 3}


@pytest.mark.extended
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head": "linear"}, r"\(linear\), only setr_naive"),
        ({"head_options": {"norm": "group"}}, 'norm="group"'),
        ({"head_options": {"taps": (3, 2, 1, 0)}}, "rising order"),
        ({"registers": 2}, "registers=2"),
        ({"mlp_dim": 12}, "no multiple of width=8"),
    ],
)
def test_models_that_mmsegmentation_does_not_have_are_refused_by_name(options, message, tmp_path):
    model = keras_vit.SegmentationModel("Ti/16", **{"head": "setr_naive", **SIZE, **options})
    with pytest.raises(ValueError, match=message):
        keras_vit.save(model, tmp_path / "m.pth")


def test_only_segmentation_models_have_this_format(tmp_path):
    vit = keras_vit.ViT("Ti/16", classes=3, **{key: SIZE[key] for key in ("depth", "width", "heads", "mlp_dim")})
    with pytest.raises(ValueError, match='"mmsegmentation" cannot express this ViT'):
        keras_vit.save(vit, tmp_path / "m.pth")
    with pytest.raises(ValueError, match='"mmsegmentation" is a file that ends in .pth'):
        keras_vit.save(vit, tmp_path / "m", format="mmsegmentation")
