"""SigLIP, SigLIP 2 and CLIP, both towers, in Hugging Face's names and big_vision's: equal outputs and files."""

import functools
import json
import logging

import numpy as np
import pytest
import safetensors.numpy
from text_files import golden, image, tokens, value, write

import keras_vit
from keras_vit.checkpoints.reading.files import read

CASES = ["siglip", "clip", "siglip2", pytest.param("siglip_wide", marks=pytest.mark.extended)]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """folder_of(name): the folder of a golden, written once."""

    @functools.cache
    def folder(name):
        path = tmp_path_factory.mktemp(name)
        write(name, path)
        return path

    return folder


@pytest.fixture(scope="module")
def model_of(folder_of):
    """model_of(name): the model of a golden; tests do not change it."""
    return functools.cache(lambda name: keras_vit.load(folder_of(name), text=True))


@pytest.mark.extended
@pytest.mark.parametrize("name", CASES)
def test_embeddings_and_logits_are_transformers(name, model_of):
    model, expected = model_of(name), golden(name)
    texts = tokens(expected["config"])
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-4)
    close(model.encode_image(image()), expected["image_embeds"])
    close(model.encode_text(texts), expected["text_embeds"])
    close(model.similarity(image(), texts), expected["logits_per_image"])


@pytest.mark.parametrize("name", ["siglip", "clip"])
def test_huggingface_files_are_bit_identical(name, model_of, folder_of, tmp_path):
    keras_vit.save(model_of(name), tmp_path / "copy", format="huggingface")
    copy, original = (
        safetensors.numpy.load_file(p / "model.safetensors") for p in (tmp_path / "copy", folder_of(name))
    )
    assert copy.keys() == original.keys()
    for key, array in original.items():
        assert copy[key].shape == array.shape, key
        np.testing.assert_array_equal(copy[key], array, err_msg=key)
    config, stated = read(tmp_path / "copy").config, golden(name)["config"]
    for part in ("text_config", "vision_config"):
        shared = config[part].keys() & stated[part].keys() - {"projection_dim"}
        assert {key: config[part][key] for key in shared} == {key: stated[part][key] for key in shared}
    assert config["architectures"] == stated["architectures"] and config["model_type"] == stated["model_type"]


@pytest.mark.extended
def test_big_visions_file_holds_the_same_model(model_of, tmp_path):
    model, texts = model_of("siglip"), tokens(golden("siglip")["config"])
    keras_vit.save(model, tmp_path / "model.npz")
    names = np.load(tmp_path / "model.npz").files
    expected = {"params/t", "params/b", "params/img/embedding/kernel", "params/img/MAPHead_0/probe"}
    expected |= {"params/txt/Embed_0/embedding", "params/txt/pos_embedding", "params/txt/head/kernel"}
    expected |= {"params/txt/Encoder_0/encoderblock_1/MlpBlock_0/Dense_1/bias"}
    assert expected | {"params/txt/Encoder_0/encoder_norm/scale"} <= set(names)
    loaded = keras_vit.load(tmp_path / "model.npz", text=True)
    np.testing.assert_array_equal(loaded.similarity(image(), texts), model.similarity(image(), texts))


@pytest.mark.extended
def test_scanned_blocks_are_read(model_of, tmp_path):
    model, texts = model_of("siglip"), tokens(golden("siglip")["config"])
    keras_vit.save(model, tmp_path / "model.npz")
    arrays = dict(np.load(tmp_path / "model.npz"))
    first = [name for name in arrays if "txt/Encoder_0/encoderblock_0/" in name]
    for name in first:
        blocks = [arrays.pop(name.replace("encoderblock_0", f"encoderblock_{i}")) for i in range(2)]
        arrays[name.replace("encoderblock_0", "encoderblock")] = np.stack(blocks)
    np.savez(tmp_path / "scanned.npz", **arrays)
    loaded = keras_vit.load(tmp_path / "scanned.npz", text=True)
    np.testing.assert_array_equal(loaded.encode_text(texts), model.encode_text(texts))


def test_the_image_encoder_alone_is_a_vit(folder_of, model_of):
    vit = keras_vit.load(folder_of("clip"))
    assert isinstance(vit, keras_vit.ViT) and vit.spec.pre_norm and vit.classes is None
    np.testing.assert_array_equal(vit(image()), model_of("clip").image_encoder(image()))


def test_an_image_encoder_with_another_head_loads_without_it(folder_of, model_of, tmp_path, caplog):
    """CLIPVisionModelWithProjection and CLIPForImageClassification."""
    arrays = safetensors.numpy.load_file(folder_of("clip") / "model.safetensors")
    arrays = {name: a for name, a in arrays.items() if name.startswith(("vision_model.", "visual_projection."))}
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((folder_of("clip") / "config.json").read_bytes())
    told = {name: getattr(model_of("clip").image_encoder.spec, name) for name in ("mean", "std")}
    with caplog.at_level(logging.WARNING, logger="absl"):
        vit = keras_vit.load(tmp_path, **told)
    expected = model_of("clip").image_encoder(image())
    np.testing.assert_array_equal(vit(image()), expected)
    assert "visual_projection.weight (1). The output is the features before visual_projection" in caplog.text
    del arrays["visual_projection.weight"]
    width = vit.spec.width
    arrays |= {"classifier.weight": np.ones((3, width), "float32"), "classifier.bias": np.zeros(3, "float32")}
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match='is not supported, only its vision tower: pass head="drop" for its features'):
        keras_vit.load(tmp_path)
    np.testing.assert_array_equal(keras_vit.load(tmp_path, head="drop", **told)(image()), expected)
    assert keras_vit.load(tmp_path, head="reset", classes=5, **told).classes == 5


@pytest.mark.extended
def test_another_image_size_resamples_the_positions(folder_of):
    model = keras_vit.load(folder_of("siglip"), text=True, image_size=48)
    assert model.image_size == (48, 48) and model.encode_image(np.zeros((48, 48, 3), "uint8")).shape == (1, 16)


def test_files_without_texts_are_refused(model_of, tmp_path):
    keras_vit.save(model_of("siglip").image_encoder, tmp_path / "image", format="huggingface")
    with pytest.raises(ValueError, match="does not contain a text encoder next to the image encoder"):
        keras_vit.load(tmp_path / "image", text=True)
    with pytest.raises(ValueError, match="tokenizer has no effect without text=True"):
        keras_vit.load(tmp_path / "image", tokenizer="tokenizer.json")
    with pytest.raises(ValueError, match="classes, head cannot be used with text=True"):
        keras_vit.load(tmp_path / "image", text=True, classes=3, head="reset")


def test_a_format_refuses_what_it_does_not_express(model_of, tmp_path):
    with pytest.raises(ValueError, match='"google" cannot express this DualEncoder: outputs_bias=False'):
        keras_vit.save(model_of("clip"), tmp_path / "clip.npz")
    with pytest.raises(ValueError, match="timm"):
        keras_vit.save(model_of("clip"), tmp_path / "clip", format="timm")


def test_a_config_of_another_model_is_refused(folder_of, tmp_path):
    contents = read(folder_of("siglip"))
    arrays = {key: value(key, shape) for key, shape in golden("siglip")["shapes"].items()}
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
    config = contents.config
    config["text_config"]["vocab_size"] = 41
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="vocab_size is 41 in config.json, 40 by the arrays"):
        keras_vit.load(tmp_path, text=True)
