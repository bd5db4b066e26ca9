"""Files that people's own code and tutorials write give the logits of that code."""

import re

import numpy as np
import pytest
import safetensors.numpy
from home_made import CASES, PIXELS, SEQUENTIAL, TOLD, TORCH, WIDTH, arrays, renamed, write

import keras_vit


@pytest.mark.extended
@pytest.mark.parametrize("case", CASES)
def test_the_logits_are_those_of_the_code(case, tmp_path):
    path, arguments, expected = write(case, tmp_path)
    found = keras_vit.load(path, **arguments)(PIXELS)
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-5)
    if "norm_first" in CASES[case][2]:
        other = keras_vit.load(path, **{**arguments, "norm_first": True})(PIXELS)
        assert np.abs(other - expected).max() > 0.01


def line_to_paste(error):
    return re.search(r"\n  keras_vit\.load\(\".*?\", (.*)\)$", str(error))[1]


@pytest.mark.extended
@pytest.mark.parametrize("case", [case for case in CASES if "Sequential, the mean" not in case])
def test_the_first_error_asks_for_everything(case, tmp_path):
    """With the answers in the line to paste, the second attempt loads the file."""
    path, arguments, expected = write(case, tmp_path)
    with pytest.raises(ValueError, match="does not say what its model computes") as caught:
        keras_vit.load(path, image_size=(8, 12))
    asked = eval(f"dict({line_to_paste(caught.value).replace('=?', '=None')})")
    assert {"mean", "std", "norm_first", "mlp_activation", "epsilon", "pool"} <= {*asked, *arguments}
    answers = {name: arguments.get(name, value) for name, value in asked.items() if name not in ("names", "image_size")}
    if "names" in asked:
        answers["names"] = [(p, new.replace("proj_?", "proj_chw")) for p, new in asked["names"]]
    model = keras_vit.load(path, image_size=(8, 12), **answers)
    np.testing.assert_allclose(model(PIXELS), expected, atol=1e-5, rtol=1e-5)


def refused(message, path, **arguments):
    with pytest.raises(ValueError, match=message):
        keras_vit.load(path, image_size=(8, 12), **arguments)


def test_what_the_names_contradict_or_do_not_show_is_refused(tmp_path):
    path, arguments, _ = write("a layer per head", tmp_path)
    del arguments["image_size"]
    refused("the file's queries have 4 heads", path, **{**arguments, "heads": 2})
    path, arguments, _ = write("vit-pytorch with PostNorm", tmp_path)
    del arguments["image_size"]
    del arguments["norm_first"]
    refused(r"norm_first=\?\)", path, **arguments)


def test_code_that_computes_something_else_is_named(tmp_path):
    """Its names alone do not make it load; a rule says that one's own code is usual."""
    rules = {
        "FrancescoSaverioZuppichini": SEQUENTIAL,
        "omihub777": [(r"^blocks", "enc"), (r"norm([12])", r"la\1"), (r"^head", "fc.1"), (r"^norm", "fc.0")],
        "MONAI": [(r"^head", "classification_head.0")],
    }
    for code, theirs in rules.items():
        path = tmp_path / f"{code}.safetensors"
        safetensors.numpy.save_file(renamed(arrays(), theirs), path)
        refused(rf"(?s)names are those of {code}.*cannot be expressed.*mean=\?", path, names=[])
        with pytest.raises(ValueError, match="cannot be expressed") as caught:
            keras_vit.load(path, image_size=(8, 12), **{**TOLD, "names": []})
        rule = eval(re.search(r"add the rule (\(.*?\)) to names", str(caught.value))[1])
        keras_vit.load(path, image_size=(8, 12), **{**TOLD, "names": [rule]})


def test_averages_and_losses_beside_a_model(tmp_path):
    path = tmp_path / "model.safetensors"
    model = renamed(arrays(), TORCH)
    safetensors.numpy.save_file({f"{k}.{name}": a for k in ("online", "ema") for name, a in model.items()}, path)
    refused('key="(online|ema)", key="(online|ema)"', path)
    keras_vit.load(path, key="ema", **TOLD, image_size=(8, 12))
    losses = {"criterion.weight": np.ones(5, "float32")}
    safetensors.numpy.save_file({**losses, **{f"model.{name}": a for name, a in model.items()}}, path)
    refused(r"(?s)Left over: criterion.weight.*names=\[\('\^criterion\\\\.', None\)\], heads", path)


def test_a_normalisation_before_the_blocks_cannot_be_expressed(tmp_path):
    path = tmp_path / "model.safetensors"
    extra = {"ln_pre.weight": np.ones(WIDTH, "float32"), "ln_pre.bias": np.ones(WIDTH, "float32")}
    safetensors.numpy.save_file({**renamed(arrays(), TORCH), **extra}, path)
    refused('"ln_pre.weight" is a normalisation before the blocks, which cannot be expressed', path)


def test_attention_that_the_file_does_not_show_is_said(tmp_path, caplog):
    for case, is_said in (("an axis of heads", True), ("torch's encoder", False)):
        path, arguments, _ = write(case, tmp_path)
        caplog.clear()
        keras_vit.load(path, **arguments)
        assert ("sqrt(width / heads)" in caplog.text) is is_said
