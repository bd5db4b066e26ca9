"""What training code writes next to a state dict: class names, sizes, constants and heads."""

import numpy as np
import pytest
import torch_files
from golden_files import golden_arrays

import keras_vit
from keras_vit.checkpoints.reading.notes import arguments_in

UNIT = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        ({"image_size": 96, "heads": 3}, {"image_size": (96, 96), "heads": 3}),
        ({"config": {"img_size": [64, 96], "num_heads": 6}}, {"image_size": (64, 96), "heads": 6}),
        ({"hyper_parameters": {"model_config": {"n_heads": 2}}}, {"heads": 2}),
        ({"args": {"input_size": [3, 32, 32]}, "epoch": 3}, {"image_size": (32, 32)}),
        ({"mean": 0.5, "std": 0.5}, {"mean": 127.5, "std": 127.5}),
        ({"mean": [120, 110, 100], "std": [60, 61, 62]}, {"mean": (120, 110, 100), "std": (60, 61, 62)}),
        ({"mean": [0.5, 0.5], "std": [0.5]}, {}),  # two and one
        ({"mean": 0.5}, {}),
        ({"std": [0, 0, 0], "mean": [0, 0, 0]}, {}),
        ({"image_size": "96", "heads": True}, {}),
    ],
)
def test_arguments_in_notes(notes, expected):
    assert arguments_in(notes) == expected


def test_constants_of_values_0_to_1_are_scaled():
    np.testing.assert_allclose(arguments_in(UNIT)["mean"], [123.675, 116.28, 103.53])


@pytest.mark.parametrize(
    "notes",
    [
        {"classes": list("abcde")},
        {"hyper_parameters": {"class_names": list("abcde")}},
        {"class_to_idx": {"e": 4, "a": 0, "b": 1, "c": 2, "d": 3}},
        {"classes": 5},
        {"classes": list("abc")},
    ],
)
def test_a_file_with_notes(notes, tmp_path):
    """Class names are those of the notes if they are as many as the classes; nothing that is noted is asked for."""
    torch_files.save({"model": golden_arrays("timm_vit"), **UNIT, "num_heads": 2, **notes}, tmp_path / "m.pth")
    told = {"norm_first": True, "mlp_activation": "gelu", "pool": "token", "epsilon": 1e-6}
    model = keras_vit.load(tmp_path / "m.pth", **told)
    fits = notes not in ({"classes": 5}, {"classes": list("abc")})
    assert model.class_names == (tuple("abcde") if fits else None)
    assert model.spec.heads == 2 and np.isclose(model.spec.mean[0], 123.675)
