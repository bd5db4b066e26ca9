"""EoMT in Hugging Face's names: transformers' outputs, equal files, published counts."""

import numpy as np
import pytest
from as_transformers import assert_saved_alike
from dense_files import EVERY, golden, image, write

import keras_vit
from keras_vit.checkpoints.formats import huggingface_eomt


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("eomt")
    write("eomt", path)
    return path


@pytest.fixture(scope="module")
def model(folder):
    return keras_vit.load(folder)


@pytest.mark.extended
def test_scores_are_transformers(model):
    [expected] = golden("eomt")["outputs"].values()
    found = np.asarray(model(image(32, 32)))[0, ::EVERY, ::EVERY]
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    assert model.class_names == ("wall", "sky", "tree") and model.head_name == "eomt"


@pytest.mark.extended
def test_a_round_trip_is_bit_identical(folder, model, tmp_path):
    assert_saved_alike("eomt", folder, model, tmp_path / "copy")


@pytest.mark.extended
@pytest.mark.parametrize(
    ("size", "published"), [("S", 23_975_942), ("B", 93_663_110), ("L", 316_695_686)], ids=["S", "B", "L"]
)
def test_published_sizes_have_the_published_parameters(size, published, without_values):
    spec = {"registers": 5, "class_token": False, "pool": "gap", "layer_scale": 1.0}
    options = {"image_size": 640, "classes": 133, "head_options": {"queries": 200}}
    with without_values():
        built = keras_vit.SegmentationModel(f"{size}/16", head="eomt", **options, **spec)
        huggingface_eomt.check(built)
        assert built.count_params() == published


def test_a_class_token_with_a_position_is_refused_by_name(tmp_path):
    sizes = {"depth": 1, "width": 8, "heads": 2, "mlp_dim": 16, "image_size": 16, "layer_scale": 1.0, "registers": 1}
    model = keras_vit.SegmentationModel("Ti/8", head="eomt", head_options={"queries": 3}, **sizes)
    with pytest.raises(ValueError, match="cannot express this EoMT: a class token with a position"):
        keras_vit.save(model, tmp_path / "copy", format="huggingface")
