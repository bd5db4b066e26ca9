"""load: names, heads, channels, warnings; the real DeiT-Ti/16."""

import csv
import json
import logging as std_logging
import re

import keras
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
from golden_files import write
from sampled import pixels as pixels_of

import keras_vit
from keras_vit.checkpoints.fetch import catalogue
from keras_vit.checkpoints.formats.questions import Unanswered
from keras_vit.checkpoints.parse import parse
from keras_vit.checkpoints.reading.files import read
from keras_vit.checkpoints.transfer import transfer

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


@pytest.fixture(scope="module")
def deit(shared_data, of_deit):
    return keras_vit.load(shared_data / "deit_tiny" / "model.safetensors", **of_deit)


@pytest.mark.extended
def test_deit_gives_the_reference_logits(deit, shared_data):
    expected = np.load(shared_data / "deit_tiny" / "cats_expected.npz")
    logits = np.asarray(deit(((expected["pixels"] * STD + MEAN) * 255).astype("float32")))
    assert np.abs(logits - expected["logits"]).max() <= 1e-4
    assert sorted(np.argsort(-logits[0])[:5]) == [281, 282, 285, 797, 811]


@pytest.mark.extended
def test_deit_classifies_jpegs_through_our_preprocessing(deit, shared_data):
    from keras_vit.data import parse
    from keras_vit.prediction.preprocessing import preprocessing_text

    folder = shared_data / "imagenet_sample"
    preprocess = parse(preprocessing_text(deit))
    rows = list(csv.DictReader((folder / "labels.csv").open()))
    images = np.stack([preprocess.image(tf.constant((folder / row["file"]).read_bytes())).numpy() for row in rows])
    logits = np.concatenate([deit(batch) for batch in np.split(images, 5)])
    assert abs(int((logits.argmax(-1) == [int(row["label"]) for row in rows]).sum()) - 79) <= 1
    assert np.corrcoef(logits.ravel(), np.load(folder / "deit_tiny_logits.npy").ravel())[0, 1] > 0.999


@pytest.mark.extended
def test_heads_by_name(tmp_path):
    golden, path, arguments = write("vit_pre_logits", tmp_path)
    x = np.zeros((1, *golden["image_size"], 3), "uint8")
    model = keras_vit.load(path, **arguments)
    assert model.spec.pre_logits == 16
    fresh = keras_vit.load(path, head="reset", classes=3, **arguments)
    assert fresh.spec.pre_logits is None and not np.any(fresh(x)) and fresh.output_shape == (None, 3)
    features = keras_vit.load(path, head="drop", **arguments)
    np.testing.assert_array_equal(features(x), keras.Model(model.input, model.features)(x))
    with pytest.raises(ValueError, match='cannot have 3 classes: the model has 5. Use head="reset"'):
        keras_vit.load(path, classes=3, **arguments)


def test_a_distilled_model_gets_two_new_heads(tmp_path):
    _, path, arguments = write("timm_distilled", tmp_path)
    model = keras_vit.load(path, head="reset", classes=3, **arguments)
    assert [layer.name for layer in model.heads()] == ["head", "head_dist"] and model.has_zero_head()
    np.testing.assert_array_equal(model(np.zeros((1, 8, 8, 3), "uint8")), np.zeros((1, 3)))
    assert not model.refuses_zero_head


@pytest.mark.extended
def test_all_zero_heads_are_warned_of_and_refuse_to_predict(tmp_path, caplog):
    _, path, arguments = write("vit_token", tmp_path)
    arrays = {name: np.zeros_like(a) if name.startswith("head/") else a for name, a in np.load(path).items()}
    np.savez(path, **arrays)
    with caplog.at_level(std_logging.WARNING, logger="absl"):
        model = keras_vit.load(path, **arguments)
    assert "the head is all zeros" in caplog.text
    x = np.zeros((1, *model.image_size, 3), "uint8")
    for predict in (model.predict, model.predict_on_batch):
        with pytest.raises(ValueError, match='head is all zeros.*head="reset"'):
            predict(x)
    model.get_layer("head").kernel.assign(np.ones((16, 5)))
    assert model.predict(x, verbose=0).shape == (1, 5)  # it was trained in the meantime
    model.save(tmp_path / "m.keras")
    assert not keras_vit.load(tmp_path / "m.keras").refuses_zero_head


def test_one_channel_sees_a_grey_image_as_rgb_does(tmp_path):
    """The kernel is summed, and the normalisation per channel folded into it exactly."""
    _, path, arguments = write("timm_vit", tmp_path)
    grey = np.random.default_rng(0).integers(0, 256, (2, *arguments["image_size"], 1), dtype="uint8")
    del arguments["mean"], arguments["std"]  # the file has its own, one per channel
    rgb, one = keras_vit.load(path, **arguments), keras_vit.load(path, channels=1, **arguments)
    assert isinstance(rgb.spec.mean, tuple) and isinstance(one.spec.mean, float) and one.channels == 1
    np.testing.assert_allclose(one(grey), rgb(np.repeat(grey, 3, axis=-1)), atol=1e-4)


@pytest.mark.extended
@pytest.mark.parametrize("name", ["vit_token", "bit_npz"])
def test_channels_are_summed_or_repeated_on_request(name, tmp_path):
    golden, path, arguments = write(name, tmp_path)
    arguments = {**golden["load"], "image_size": arguments["image_size"]}
    first = "patch_encoder" if name == "vit_token" else "stem_conv"
    rgb = keras_vit.load(path, **arguments).get_layer(first).kernel.numpy()
    one = keras_vit.load(path, channels=1, **arguments)
    four = keras_vit.load(path, channels=4, **arguments)
    np.testing.assert_allclose(one.get_layer(first).kernel, rgb.sum(2, keepdims=True), atol=1e-6)
    np.testing.assert_allclose(four.get_layer(first).kernel, 0.75 * rgb[:, :, [0, 1, 2, 0]], atol=1e-6)
    assert np.isfinite(four(np.zeros((1, *four.image_size, 4), "uint8"))).all()


@pytest.mark.extended
def test_another_resolution_resamples_as_the_source_does(tmp_path):
    from keras_vit.checkpoints import resample_positions

    for name, method in (("vit_token", "google"), ("timm_vit", "timm"), ("hf_vit", "bicubic")):
        folder = tmp_path / name
        folder.mkdir()
        _, path, arguments = write(name, folder)
        small = keras_vit.load(path, **arguments)
        h, w = small.image_size
        larger = {**arguments, "image_size": (2 * h, 3 * w)}
        large = keras_vit.load(path, **larger)
        table = small.get_layer("position_embedding").embedding.numpy()
        expected = resample_positions(table, small.grid, large.grid, 1, method)
        np.testing.assert_array_equal(large.get_layer("position_embedding").embedding, expected)
    chosen = keras_vit.load(path, **larger, resample="bilinear")
    assert not np.array_equal(chosen.get_layer("position_embedding").embedding, expected)


def test_an_image_size_with_as_many_patches_is_not_taken_for_the_checkpoints_own(tmp_path):
    """2 x 2 positions for a 1 x 4 grid are as many, but are resampled, not taken as they are."""
    from keras_vit.checkpoints import resample_positions

    _, path, arguments = write("vit_token", tmp_path)
    assert list(arguments["image_size"]) == [8, 8]
    table = keras_vit.load(path).get_layer("position_embedding").embedding.numpy()
    strip = keras_vit.load(path, image_size=(4, 16))
    np.testing.assert_array_equal(
        strip.get_layer("position_embedding").embedding, resample_positions(table, (2, 2), (1, 4), 1)
    )


def test_a_rectangular_checkpoint_wants_its_own_image_size(tmp_path):
    _, path, _ = write("timm_vit", tmp_path)
    arrays = safetensors.numpy.load_file(path)
    arrays["pos_embed"] = np.ones((1, 1 + 6, 16), "float32")
    path.with_name("config.json").unlink(missing_ok=True)
    safetensors.numpy.save_file(arrays, path)
    told = {"heads": 2, "norm_first": True, "mlp_activation": "gelu", "pool": "token", "epsilon": 1e-6}
    told |= {"mean": 127.5, "std": 127.5}
    with pytest.raises(ValueError, match=r"epsilon=1e-06, mean=127.5, std=127.5, image_size=\?\)"):
        keras_vit.load(path, **told)
    with pytest.raises(ValueError, match="6 position embeddings do not form a square grid: .* pass the image_size"):
        keras_vit.load(path, **told, image_size=16)
    assert keras_vit.load(path, **told, image_size=(8, 12)).grid == (2, 3)
    arrays["pos_embed"] = np.ones((1, 1 + 24, 16), "float32")  # 25 rows are also 5x5 patches without the token
    safetensors.numpy.save_file(arrays, path)
    with pytest.raises(ValueError, match=r"std=127.5, image_size=\?\)"):
        keras_vit.load(path, **told)
    assert keras_vit.load(path, **told, image_size=(16, 24)).grid == (4, 6)
    assert keras_vit.load(path, **told, image_size=20).grid == (5, 5)


def test_evaluation_preprocessing_follows_the_source_and_the_size(tmp_path):
    _, path, arguments = write("timm_vit", tmp_path)
    del arguments["image_size"]
    assert keras_vit.load(path, **arguments).preprocessing.endswith("|central_crop(8, 8)")
    assert keras_vit.load(path, image_size=16, **arguments).preprocessing.endswith("|central_crop(16, 16)")
    new = keras_vit.load(path, classes=3, head="reset", **arguments)
    assert new.preprocessing == "decode|resize(8, method='bicubic')|central_crop(8, 8)"
    keras_vit.save(new, tmp_path / "new", "timm")
    saved = json.loads((tmp_path / "new" / "config.json").read_text())["pretrained_cfg"]
    assert saved["interpolation"] == "bicubic" and saved["crop_mode"] == "center"
    (tmp_path / "hf").mkdir()
    _, path, _ = write("hf_vit", tmp_path / "hf")
    size = {
        "size": {"shortest_edge": 256},
        "crop_size": {"height": 224, "width": 224},
        "do_center_crop": True,
        "resample": 3,
    }
    constants = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    (path.parent / "preprocessor_config.json").write_text(json.dumps({**size, **constants}))
    model = keras_vit.load(path.parent)
    assert model.preprocessing == "decode|resize(9, method='bicubic')|central_crop(8, 8)"
    np.testing.assert_allclose(model.spec.mean, [25.5, 51.0, 76.5])


def test_what_is_left_out_is_reported(tmp_path, caplog):
    golden, path, _ = write("hf_siglip", tmp_path)
    arrays = safetensors.numpy.load_file(path)
    arrays["text_model.embeddings.token_embedding.weight"] = np.ones((3, 4), "float32")
    safetensors.numpy.save_file(arrays, path)
    with caplog.at_level(std_logging.WARNING, logger="absl"):
        keras_vit.load(path, mean=127.5, std=127.5)
    assert "left out, unused by the image model: text_model.embeddings.token_embedding.weight (1)" in caplog.text


# {golden without its config.json: the questions that its arrays leave open}.
QUESTIONS = {
    "timm_bit": "mean std image_size",
    "timm_vit": "heads mean std norm_first mlp_activation pool epsilon",
    "timm_distilled": "heads mean std norm_first mlp_activation epsilon",
    "timm_gap": "heads mean std norm_first mlp_activation epsilon",
    "timm_swiglu": "heads mean std norm_first pool epsilon",
    "timm_siglip": "heads mean std norm_first mlp_activation epsilon",
    "timm_dinov3": "heads mean std mlp_activation pool epsilon image_size",
    "timm_eva02": "heads mean std epsilon rope_grid",
    "timm_pe": "heads mean std mlp_activation epsilon rope_grid pool_heads",
    "timm_swin": "mean std image_size",
    "timm_swinv2": "mean std image_size window pretrained_windows",
    "hf_vit": "heads mean std mlp_activation pool epsilon",
    "hf_deit": "heads mean std mlp_activation epsilon",
    "hf_dinov2": "heads mean std mlp_activation epsilon",
    "hf_dinov3": "heads mean std mlp_activation epsilon image_size",
    "hf_siglip": "heads mean std mlp_activation epsilon",
    "hf_swin": "mean std image_size",
    "lucidrains": "heads mean std mlp_activation epsilon",
    "own_unfolded": "heads mean std norm_first mlp_activation pool epsilon image_size",
    "own_tutorial": "heads mean std norm_first mlp_activation epsilon",
    "vit_token": "",
    "bit_npz": "",
    "bv_gap_sincos": "image_size",
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_one_error_asks_for_all_that_the_arrays_do_not_show(name, tmp_path):
    fields, path, _ = write(name, tmp_path)
    (tmp_path / "config.json").unlink(missing_ok=True)
    options = {"names": [tuple(rule) for rule in fields["load"]["names"]]} if "names" in fields["load"] else {}
    expected = set(QUESTIONS[name].split())
    if not expected:
        assert parse(read(path), options)
        return
    with pytest.raises(Unanswered, match="does not say what its model computes") as caught:
        parse(read(path), options)
    assert set(caught.value.open) == expected
    assert set(re.findall(r"(\w+)=\?", str(caught.value))) == expected
    parse(read(path), options, is_published=True)  # the usual values


def test_the_line_to_paste_keeps_what_was_passed(tmp_path):
    """The path as it was given, the key, and all arguments."""
    _, path, _ = write("timm_vit", tmp_path)
    (tmp_path / "config.json").unlink()
    arrays = {f"{k}.{name}": a for k in ("ema", "model") for name, a in safetensors.numpy.load_file(path).items()}
    safetensors.numpy.save_file(arrays, path)
    given = {"classes": 3, "head": "reset", "key": "ema", "dtype": "bfloat16"}
    with pytest.raises(ValueError) as caught:
        keras_vit.load(path, **given)
    line = re.search(r"\n  keras_vit\.load\((.*)\)$", str(caught.value))[1]
    called = eval(f"dict(path={line.replace('=?', '=None')})")
    assert called.items() >= {"path": str(path), **given}.items()
    assert called.keys() - given.keys() - {"path"} == set("heads mean std norm_first mlp_activation epsilon".split())


def test_missing_unexpected_and_misshapen_arrays_are_listed(tmp_path):
    _, path, arguments = write("timm_vit", tmp_path)
    good = safetensors.numpy.load_file(path)

    def attempt(arrays, message):
        safetensors.numpy.save_file(arrays, path)
        with pytest.raises(ValueError, match=message):
            keras_vit.load(path, **arguments)

    bias = "blocks.1.mlp.fc1.bias"
    attempt({k: v for k, v in good.items() if k != bias}, rf"missing: {bias} \(1\)")
    attempt({**good, "extra.weight": np.ones(2, "float32")}, r"unexpected: extra.weight \(1\)")
    attempt({**good, bias: np.ones(7, "float32")}, rf"{bias} is \(7,\) in the file, \(32,\) in the model")


def test_sharded_folders_load(tmp_path):
    golden, path, arguments = write("hf_vit", tmp_path)
    arrays = safetensors.numpy.load_file(path)
    names = sorted(arrays)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in parts.items():
        safetensors.numpy.save_file({name: arrays[name] for name in part}, tmp_path / file)
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    path.unlink()
    model = keras_vit.load(tmp_path, **arguments)
    np.testing.assert_allclose(model(pixels_of(*model.image_size)), golden["values"], atol=1e-4)


@pytest.mark.extended
def test_names_of_the_catalogue_are_downloaded_with_their_options(tmp_path, monkeypatch):
    from keras_vit.checkpoints.fetch import download

    _, path, _ = write("timm_vit", tmp_path)
    addresses = []
    entry = catalogue.CATALOGUE["deit/tiny"]
    fake = catalogue.dataclasses.replace(
        entry, url="https://example.org/model.safetensors", preprocessing="decode|resize(8, 8)", mean=(1.0,) * 3
    )
    monkeypatch.setitem(catalogue.CATALOGUE, "deit/tiny", fake)
    monkeypatch.setattr(download, "download", lambda url, sha256=None: addresses.append(url) or path)
    model = keras_vit.load("deit/tiny", heads=2)
    assert (
        addresses == ["https://example.org/model.safetensors"]
        and model.preprocessing == "decode|resize(8, 8)"
        and model.spec.mean == (1.0,) * 3
    )
    for size in (8, (8, 8)):  # its own
        assert keras_vit.load("deit/tiny", heads=2, image_size=size).preprocessing == "decode|resize(8, 8)"
    larger = keras_vit.load("deit/tiny", heads=2, image_size=16, mean=(2.0,) * 3)
    assert larger.preprocessing.endswith("central_crop(16, 16)") and larger.spec.mean == (2.0,) * 3
    with pytest.raises(FileNotFoundError, match='not a name in the catalogue. Did you mean "deit/tiny"'):
        keras_vit.load("deit/tinny")


def test_flexivit_takes_any_patch_size(tmp_path):
    golden, path, _ = write("bv_flexi", tmp_path)
    native = keras_vit.load(path)
    assert native.spec.patch_size == (8, 8) and native.grid == (3, 3)
    other = transfer(native, image_size=12, patch_size=(2, 3))
    assert other.grid == (6, 4) and other.get_layer("patch_encoder").kernel.shape == (2, 3, 3, 16)


@pytest.mark.parametrize(
    ("argument", "meant", "hint"),
    [
        ("pretrained", "path", "the first argument"),
        ("include_top", "head", 'head="drop"'),
        ("num_classes", "classes", ""),
        ("imagesize", "image_size", ""),
        ("layer_norm_eps", "epsilon", ""),
    ],
)
def test_words_of_other_libraries_are_known(argument, meant, hint, tmp_path):
    """Before anything is read or downloaded: there is no such file."""
    with pytest.raises(
        ValueError, match=f'load has no argument "{argument}". Did you mean "{meant}".*{hint}.*Valid: path, image_size'
    ):
        keras_vit.load(tmp_path / "none.keras", **{argument: 1})


@pytest.mark.parametrize("wrong", [None, 5, ["B_16.npz"], keras_vit.ViT])
def test_something_other_than_a_path_is_refused(wrong):
    with pytest.raises(ValueError, match="load expected a path, an address or a name of keras_vit.list_models"):
        keras_vit.load(wrong)


@pytest.mark.parametrize("name", ["B/16", "vit_b16", "ViT-B-16"])
def test_the_name_of_an_architecture_leads_to_published_models_of_it(name):
    with pytest.raises(
        FileNotFoundError,
        match="not a name in the catalogue. Published models of that kind: imagenet21k/B_16, imagenet2012/",
    ):
        keras_vit.load(name)


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("swin_tiny_patch4_window7_224", "swin_tiny_patch4_window7_224.ms_in1k"),
        ("resnetv2_50x1_bit", "resnetv2_50x1_bit.TAG"),
        ("vit_base_patch16_224.augreg_in21k", "vit_base_patch16_224.augreg_in21k"),
    ],
)
def test_a_name_of_timm_leads_to_its_address(name, address):
    with pytest.raises(
        FileNotFoundError, match=f'a model of timm: keras_vit.load\\("hf://timm/{address}"\\) downloads'
    ):
        keras_vit.load(name)


def test_what_the_weights_determine_cannot_change_on_loading(tmp_path):
    _, path, arguments = write("timm_vit", tmp_path)
    with pytest.raises(
        ValueError,
        match="depth=3: the weights fix depth=2, which loading cannot change. What can change: image_size, head,",
    ):
        keras_vit.load(path, **arguments, depth=3)


def test_a_keras_file_may_have_another_name(tiny, pixels, tmp_path):
    model = tiny()
    model.save(tmp_path / "m.keras")
    (tmp_path / "m.keras").rename(tmp_path / "m.keras.bak")
    np.testing.assert_array_equal(keras_vit.load(bytes(tmp_path / "m.keras.bak"))(pixels), model(pixels))


@pytest.mark.extended
def test_names_and_preprocessing_are_set_in_place(tiny, tmp_path):
    """They are not in the graph: a quantised model may be given them, and one with a head of its own."""
    quantised = tiny(depth=1)
    own = tiny(depth=1).with_head(keras.layers.Dense(2, name="mine"), class_names=["a", "b"])
    quantised.quantize("int8")
    for model, names in ((quantised, list("vwxyz")), (own, ["c", "d"])):
        model.save(tmp_path / "m.keras")
        loaded = keras_vit.load(tmp_path / "m.keras", class_names=names, preprocessing="decode|resize(8, 12)")
        assert type(loaded) is type(model) and loaded.class_names == tuple(names)
        assert keras_vit.Model(loaded.input, loaded.layers[-2].output).preprocessing == "decode|resize(8, 12)"
    with pytest.raises(ValueError, match="class_names has 3 names for"):
        keras_vit.load(tmp_path / "m.keras", class_names=["a", "b", "c"])
    with pytest.raises(ValueError, match="preprocessing must be text"):
        keras_vit.load(tmp_path / "m.keras", preprocessing=5)


@pytest.mark.extended
def test_from_preset_loads_what_load_takes(tiny, pixels, tmp_path):
    model = tiny()
    model.save(tmp_path / "m.keras")
    np.testing.assert_array_equal(keras_vit.Model.from_preset(tmp_path / "m.keras")(pixels), model(pixels))
    assert keras_vit.ViT.from_preset(str(tmp_path / "m.keras"), classes=3, head="reset").classes == 3
    with pytest.raises(ValueError, match="contains a ViT, not a BiT: use keras_vit.ViT.from_preset, or keras_vit.load"):
        keras_vit.BiT.from_preset(tmp_path / "m.keras")
    with pytest.raises(FileNotFoundError, match='Did you mean "deit/tiny"'):
        keras_vit.ViT.from_preset("deit/tinny")


@pytest.mark.extended
def test_from_preset_of_the_other_classes(tiny, tmp_path):
    bit = keras_vit.BiT("R50x1", image_size=32, classes=5, units=(1, 1), width_factor=0.5)
    keras_vit.save(bit, tmp_path / "bit.npz")
    assert keras_vit.BiT.from_preset(tmp_path / "bit.npz").spec == bit.spec
    with pytest.raises(ValueError, match="contains a BiT, not a ViT"):
        keras_vit.ViT.from_preset(tmp_path / "bit.npz")
    vit = tiny()
    keras_vit.Model(vit.input, vit.output).save(tmp_path / "model.keras")
    assert type(keras_vit.Model.from_preset(tmp_path)) is keras_vit.Model
    with pytest.raises(ValueError, match="contains a Model, not a ViT"):
        keras_vit.ViT.from_preset(tmp_path)


def test_an_export_is_no_model_to_load(tmp_path):
    (tmp_path / "saved_model.pb").touch()
    with pytest.raises(FileNotFoundError, match="is an export, a SavedModel, .* Pass the model that it was made from"):
        keras_vit.load(tmp_path)
