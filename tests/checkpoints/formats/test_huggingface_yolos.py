"""YOLOS in Hugging Face's names: transformers' logits and boxes, equal files, published counts."""

import pytest
from as_transformers import assert_detects_as_transformers, assert_saved_alike
from dense_files import write

import keras_vit
from keras_vit.checkpoints.formats import huggingface_yolos

KINDS = ("yolos", "yolos_middle")


@pytest.fixture(scope="module", params=KINDS)
def found(request, tmp_path_factory):
    """(name of a golden, its folder, the model)"""
    path = tmp_path_factory.mktemp(request.param)
    write(request.param, path)
    return request.param, path, keras_vit.load(path)


@pytest.mark.extended
def test_logits_and_boxes_are_transformers(found):
    assert_detects_as_transformers(*found)
    assert found[-1].head_name == "yolos"


@pytest.mark.extended
def test_a_round_trip_is_bit_identical(found, tmp_path):
    assert_saved_alike(*found, tmp_path / "copy")


# {size: (image size, fields, parameters)}, of hustvl/yolos-tiny, -small and -base.
PUBLISHED = {
    "Ti": ((800, 1328), {}, 6_488_736),
    "S": ((512, 864), {"positions_at": "every"}, 30_684_768),
    "B": ((800, 1344), {"positions_at": "every"}, 127_798_368),
}


@pytest.mark.parametrize("size", PUBLISHED)
def test_published_sizes_have_the_published_parameters(size, without_values):
    image_size, fields, parameters = PUBLISHED[size]
    with without_values():
        built = keras_vit.DetectionModel(f"{size}/16", head="yolos", image_size=image_size, classes=91, **fields)
        huggingface_yolos.check(built)
        assert built.count_params() == parameters


def test_a_model_that_the_format_cannot_express_is_refused(tmp_path):
    sizes = {"depth": 1, "width": 8, "heads": 2, "mlp_dim": 16, "image_size": 16}
    model = keras_vit.DetectionModel("Ti/8", head="yolos", head_options={"tokens": 3}, registers=2, **sizes)
    with pytest.raises(ValueError, match="cannot express this YOLOS: registers=2"):
        keras_vit.save(model, tmp_path / "copy", format="huggingface")
    dense = keras_vit.DetectionModel("Ti/8", head_options={"width": 8, "scales": (1,)}, **sizes)
    with pytest.raises(ValueError, match=r"cannot express this DetectionModel \(dense\), only .*yolos"):
        keras_vit.save(dense, tmp_path / "copy", format="huggingface")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"positions": "rope2d"}, "tables of positions"),
        ({"final_norm": False}, "normalisation after its blocks"),
        ({"causal": True, "pool": "gap"}, "both directions"),
        ({"token_merging": 1}, "all patches"),
    ],
)
def test_an_encoder_that_tokens_cannot_join_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.DetectionModel("Ti/8", head="yolos", depth=2, width=8, heads=2, mlp_dim=8, image_size=16, **fields)
