"""Evaluation preprocessing in the words of timm and Hugging Face, and back."""

import json
import logging as std_logging

import pytest
import safetensors.numpy
from golden_files import write

import keras_vit
from keras_vit.checkpoints.formats import huggingface_config, timm_config
from keras_vit.checkpoints.formats.evaluation_steps import UsualSteps, nearest_steps

EXACT = {
    None: UsualSteps(224, 160, "bilinear"),
    "decode(3)|resize(224, 160)": UsualSteps(224, 160, "bilinear"),
    'decode|resize(224, 160, "bicubic")': UsualSteps(224, 160, "bicubic"),
    'resize(182, method="bicubic") | central_crop(224, 160)': UsualSteps(224, 160, "bicubic", 182),
    "decode|resize(160)|central_crop(224, width=160)": UsualSteps(224, 160, "bilinear", 160),
}
OTHER = {
    'decode|resize(256, method="area")|central_crop(224, 160)': UsualSteps(224, 160, "bilinear", 256),
    "decode|resize(224, 160, antialias=False)": UsualSteps(224, 160, "bilinear"),
    "decode|resize(100)|central_crop(224, 160)": UsualSteps(224, 160, "bilinear"),
    "decode|crop_border(2)|resize(224, 160)": UsualSteps(224, 160, "bilinear"),
    "decode|resize(224": UsualSteps(224, 160, "bilinear"),
}


@pytest.mark.parametrize("text", [*EXACT, *OTHER])
def test_the_nearest_steps_of_a_text(text):
    assert nearest_steps(text, (224, 160)) == ({**EXACT, **OTHER}[text], text in EXACT)


@pytest.mark.parametrize(
    "steps", [*EXACT.values(), *(UsualSteps(384, 384, "bicubic", side) for side in (384, 405, 438, 512))]
)
def test_both_libraries_words_are_read_back(steps):
    size = (steps.height, steps.width)
    assert timm_config.preprocessing({"pretrained_cfg": timm_config.to_evaluation(steps)})(*size) == steps.text
    assert huggingface_config.preprocessing(huggingface_config.to_steps(steps))(*size) == steps.text
    assert nearest_steps(steps.text, size) == (steps, True)


@pytest.mark.parametrize("form", ["timm", "huggingface"])
def test_a_file_says_what_the_model_does_or_warns(form, tiny, tmp_path, caplog):
    """Read without this package's metadata, as others read it."""
    for text in (
        "decode|resize(9, method='bicubic')|central_crop(8, 12)",
        "decode|resize(9, method='area')|central_crop(8, 12)",
    ):
        with caplog.at_level(std_logging.WARNING, logger="absl"):
            keras_vit.save(tiny(preprocessing=text), tmp_path / "m", form)
        path = tmp_path / "m" / "model.safetensors"
        safetensors.numpy.save_file(safetensors.numpy.load_file(path), path)
        assert keras_vit.load(tmp_path / "m", heads=2).preprocessing == text.replace("area", "bilinear")
        assert ("will prepare images differently from this model" in caplog.text) == ("area" in text)


@pytest.mark.extended
def test_timms_bit_has_the_constants_and_steps_of_its_config(tmp_path):
    golden, path, _ = write("timm_bit", tmp_path)
    stated = {
        **golden["config"]["pretrained_cfg"],
        "mean": [0.25, 0.5, 0.75],
        "std": [0.5, 0.25, 0.125],
        "crop_pct": 1.0,
    }
    flat = {"architecture": "resnetv2_50x1_bit", **stated}
    for config in ({**golden["config"], "pretrained_cfg": stated}, flat):
        (tmp_path / "config.json").write_text(json.dumps(config))
        model = keras_vit.load(path)
        assert model.spec.mean == (63.75, 127.5, 191.25) and model.spec.std == (127.5, 63.75, 31.875)
        assert (
            model.image_size == (32, 32)
            and model.preprocessing == "decode|resize(32, method='bicubic')|central_crop(32, 32)"
        )
