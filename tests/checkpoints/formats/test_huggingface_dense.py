"""DPT, Depth Anything and BEiT with UPerNet in Hugging Face's names: equal outputs and files, published counts."""

import functools
import json
import shutil

import numpy as np
import pytest
from as_transformers import assert_same_arrays
from dense_files import EVERY, golden, image, size_of, write

import keras_vit
from keras_vit.checkpoints.dense_models import all_weights
from keras_vit.checkpoints.formats import huggingface_beit, huggingface_dense

OTHERS = ("dpt_depth", "dpt_dinov2", "depth_anything", "depth_anything_metric", "beit")
CASES = ["dpt_classes", *(pytest.param(name, marks=pytest.mark.extended) for name in OTHERS)]
IDLE = "neck.fusion_stage.layers.0.residual_layer1."


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
    return functools.cache(lambda name: keras_vit.load(folder_of(name)))


def main_output(model, x):
    outputs = model(x)
    return np.asarray(outputs["logits"] if isinstance(outputs, dict) else outputs)


@pytest.mark.extended
@pytest.mark.parametrize("name", CASES)
def test_outputs_are_transformers(name, folder_of, model_of):
    for text, expected in golden(name)["outputs"].items():
        size = size_of(text)
        model = (
            model_of(name) if size == model_of(name).image_size else keras_vit.load(folder_of(name), image_size=size)
        )
        found = main_output(model, image(*size))[0, ::EVERY, ::EVERY]
        assert np.ptp(expected) > 0.1  # not the same number everywhere
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4, err_msg=text)


@pytest.mark.extended
@pytest.mark.parametrize("name", CASES)
def test_round_trips_are_bit_identical(name, folder_of, model_of, tmp_path):
    """Arrays and names are those of transformers' file, but for what no code reads; the model is the same."""
    model = model_of(name)
    assert_same_arrays(folder_of(name), model, tmp_path / "copy", rf"^{IDLE}|mask_token$")
    copied = all_weights(keras_vit.load(tmp_path / "copy"))
    for path, array in all_weights(model).items():
        np.testing.assert_array_equal(copied[path], array, err_msg=path)


@pytest.mark.extended
@pytest.mark.parametrize("name", CASES)
def test_the_config_states_what_transformers_states(name, model_of):
    """Of every setting that we write, besides the release: transformers reads the same model from it."""
    form = huggingface_beit if name == "beit" else huggingface_dense
    written, theirs = json.loads(json.dumps(form.to_config(model_of(name)))), golden(name)["config"]
    sections = (written, theirs), (written.get("backbone_config", {}), theirs.get("backbone_config") or {})
    for ours, original in sections:
        for key, value in ours.items():
            if original.get(key) is not None and key not in ("transformers_version", "backbone_config", "patch_size"):
                assert original[key] in (value, [value, value]), key


@pytest.mark.extended
def test_a_folder_names_classes_colors_and_normalisation(model_of, tmp_path):
    model = model_of("dpt_classes")
    assert model.class_names == ("wall", "sky", "tree")
    assert model.spec.mean == (127.5,) * 3
    colored = model._with(model.get_encoder(), colors=((1, 2, 3), (4, 5, 6), (7, 8, 9)))
    keras_vit.save(colored, tmp_path / "colored", format="huggingface")
    assert keras_vit.load(tmp_path / "colored").colors == colored.colors


@pytest.mark.parametrize("name", ["depth_anything", "beit"])
def test_a_head_needs_its_config(name, folder_of, tmp_path):
    """Its arrays do not show which blocks it reads."""
    shutil.copy(folder_of(name) / "model.safetensors", tmp_path)
    with pytest.raises(ValueError, match=r"do not show the blocks that its head reads.* config.json"):
        keras_vit.load(tmp_path / "model.safetensors", heads=2, mean=127.5, std=127.5)


def test_the_encoder_alone_is_a_vit(folder_of, model_of):
    vit = keras_vit.load(folder_of("dpt_classes"), head="drop")
    weights = all_weights(model_of("dpt_classes"))
    for weight in vit.weights:
        np.testing.assert_array_equal(weight, weights[weight.path.removeprefix(f"{vit.name}/")])


LARGE = {"taps": (5, 11, 17, 23), "residual_norm": "batch"}
SMALL = {
    **{"taps": (2, 5, 8, 11), "width": 64, "readout": "ignore", "residual_norm": None, "residual_bias": True},
    **{"exact_sizes": True, "normalised": True, "depth": "relative"},
}
DINOV2 = {"layer_scale": 1.0}


def model_with(variant, head, **arguments):
    """A SegmentationModel, or with the option "depth" a DepthModel."""
    options = arguments.get("head_options", {})
    if "depth" not in options:
        return keras_vit.SegmentationModel(variant, head, **arguments)
    others = {name: value for name, value in arguments.items() if name not in ("classes", "head_options")}
    return keras_vit.DepthModel(variant, head, **others, **keras_vit.DepthModel.constructor_arguments(options))


@pytest.mark.parametrize(
    ("variant", "arguments", "unread", "published"),
    [
        # Unread: two 3x3 convolutions of 256 channels and their normalisations; Intel/dpt-large-ade.
        (
            "L/16",
            {"image_size": 384, "classes": 150, "auxiliary": 0.4, "head_options": LARGE},
            2 * (9 * 256 * 256 + 2 * 256),
            343_960_364,
        ),
        # Two convolutions of 64 channels with bias, and the mask token; depth-anything/Depth-Anything-V2-Small-hf.
        (
            "S/14",
            {"image_size": 518, "classes": 1, "head_options": SMALL, **DINOV2},
            2 * (9 * 64 * 64 + 64) + 384,
            24_785_089,
        ),
    ],
)
def test_published_sizes_have_the_published_parameters(variant, arguments, unread, published, without_values):
    """dense.md counts the parameters of a file; what no code reads is no weight of the model."""
    with without_values():
        model = model_with(variant, "dpt", **arguments)
        owners = (model.get_encoder(), *model.decoder.layers)
        count = sum(int(np.prod(v.shape)) for owner in owners for v in owner.trainable_weights)
        mapped = {path for entry in huggingface_dense.name_map(model).values() for path in entry.ours}
        assert mapped == {v.path for owner in owners for v in owner.weights if "seed" not in v.path}
    assert count + unread == published


SIZE = {"depth": 4, "width": 8, "heads": 2, "mlp_dim": 8, "image_size": 32}


@pytest.mark.extended
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head": "setr_naive"}, r"cannot express this SegmentationModel \(setr_naive\)"),
        ({"head": "upernet"}, "positions='learned'"),
        ({"head": "upernet", "positions": "relative2d"}, "cannot name the last block"),
        ({"head_options": {"norm": "group"}}, 'norm="group"'),
        ({"head_options": {"exact_sizes": True}}, "exact_sizes=True for classes"),
        ({"head_options": {"taps": (3, 2, 1, 0)}}, "rising order"),
        ({"head_options": {"normalised": True}}, "normalised=True"),
        ({"classes": 1, "head_options": {"depth": "metric"}}, "metric depth"),
        ({"classes": 1, "head_options": {"depth": "relative", "exact_sizes": True}}, "stands on a DINOv2"),
        ({"layer_scale": 1.0}, "classes on a DINOv2"),
        (
            {
                "layer_scale": 1.0,
                "classes": 1,
                "head_options": {"depth": "metric", "exact_sizes": True, "readout": "ignore", "max_depth": 0.5},
            },
            "max_depth=0.5",
        ),
        ({"distillation_token": True}, "type deit"),
        ({"image_size": (32, 48)}, "not square"),
    ],
)
def test_models_that_transformers_does_not_have_are_refused_by_name(options, message, tmp_path, without_values):
    head_options = {"width": 8, "widths": (4, 4, 4, 4)} if options.get("head", "dpt") == "dpt" else {"width": 8}
    head_options |= options.get("head_options", {})
    given = {"head": "dpt", "classes": 3, **SIZE, **options, "head_options": head_options}
    with without_values(), pytest.raises(ValueError, match=message):
        keras_vit.save(model_with("Ti/16", **given), tmp_path / "m", format="huggingface")
