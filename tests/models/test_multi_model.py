"""Several heads on one trunk: equal to the models they come from, in files, services, exports and pictures."""

import io
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from small_models import DETECTORS, eager, pixels, signatures_of
from starlette.testclient import TestClient

import keras_vit
from keras_vit.inspection.model_page.page import inspect_model
from keras_vit.serving.http.app import application
from keras_vit.serving.http.served import Served

SIZES = {"image_size": (16, 24), "depth": 2, "width": 16, "heads": 2, "mlp_dim": 16}
NAMES = ("cat", "dog", "cow")


def noisy(model, seed):
    generator = np.random.default_rng(seed)
    for weight in model.weights:
        weight.assign(weight + 0.2 * generator.normal(size=weight.shape))
    return model


def with_trunk(model, trunk):
    for layer in trunk.layers[1:]:  # without the input, which is named after its model
        model.get_layer(layer.name).set_weights(layer.get_weights())
    return model


@pytest.fixture(scope="module")
def singles():
    trunk = noisy(keras_vit.ViT("Ti/8", classes=None, **SIZES), 0)
    masks = keras_vit.SegmentationModel(trunk.clone(), "setr_mla", 4, head_options={"width": 8}, auxiliary=0.4)
    boxes = keras_vit.DetectionModel(
        trunk.clone(), "dense", 3, class_names=NAMES, head_options=DETECTORS["dense"][0], score_threshold=0.1
    )
    depth = keras_vit.DepthModel(trunk.clone(), "linear")
    label = noisy(keras_vit.ViT("Ti/8", classes=3, class_names=NAMES, name="street", **SIZES), 1)
    return trunk, {"label": with_trunk(label, trunk), "masks": masks, "boxes": boxes, "depth": depth}


@pytest.fixture(scope="module")
def model(singles):
    return keras_vit.MultiModel(*singles)


def assert_equal(model, singles, atol=1e-6):
    with eager():
        found = model.predict_on_batch(pixels(2))
        for name, single in singles[1].items():
            expected = single.without_auxiliary().predict_on_batch(pixels(2))
            for ours, theirs in zip(keras.tree.flatten(found[name]), keras.tree.flatten(expected)):
                np.testing.assert_allclose(ours, theirs, atol=atol)


def test_outputs_are_those_of_the_models(model, singles):
    assert_equal(model, singles)
    assert [layer.name for layer in model.layers if layer.name.startswith("block")] == ["block_00", "block_01"]


def test_a_file_holds_it_whole(model, singles, tmp_path):
    model.save(tmp_path / "m.keras")
    loaded = keras_vit.load(tmp_path / "m.keras")
    assert_equal(loaded, singles)
    assert loaded.parts["boxes"].score_threshold == 0.1 and loaded.parts["label"].class_names == NAMES
    assert_equal(loaded.clone(), singles)
    with eager():
        part = keras_vit.load(tmp_path / "m.keras", key="depth")
        np.testing.assert_array_equal(part.predict_on_batch(pixels(2)), model.predict_on_batch(pixels(2))["depth"])
    with pytest.raises(ValueError, match='no part key="mask": its parts are label, masks, boxes, depth'):
        keras_vit.load(tmp_path / "m.keras", key="mask")


def test_parts_come_from_files(singles, tmp_path):
    trunk, sizes = singles[0], {"width": 8, "widths": (4, 4, 4, 4), "taps": (0, 0, 1, 1)}
    depth = keras_vit.DepthModel(trunk.clone(), "dpt", head_options=sizes, name="rooms")
    depth.save(tmp_path / "m.keras")
    joined = keras_vit.MultiModel(trunk, {"depth": keras_vit.load(tmp_path / "m.keras")})
    assert_equal(joined, (trunk, {"depth": depth}))


def test_a_service_answers_with_every_part(model):
    file = io.BytesIO()
    Image.fromarray(pixels(1)[0].astype("uint8")).resize((48, 32)).save(file, "PNG")
    served = Served("m", model)
    with eager(), TestClient(application([served])) as client:
        client.app.state.service.state = "AVAILABLE"
        [row] = client.post("/v1/models/m:predict?threshold=0.05", content=file.getvalue()).json()["predictions"]
        mask = client.post("/v1/models/m:mask", content=file.getvalue())
        about = client.get("/v1/models/m/metadata").json()
    assert row.keys() == {"label", "masks", "boxes", "depth", "status"}
    assert sorted(row["label"]["classes"]) == sorted(NAMES) and row["boxes"]["size"] == [32, 48]
    assert Image.open(io.BytesIO(mask.content)).size == (48, 32)
    assert about["parts"]["boxes"]["threshold"] == 0.1 and about["answers"] == ["several"]


def test_an_answer_has_one_picture(model, singles):
    image = pixels(1)[0].astype("uint8")
    with eager():
        found, alone = model.answer(image, top_k=2), model.parts["boxes"].detect(image)
    assert len(found["label"]["classes"]) == 2
    np.testing.assert_allclose(np.reshape(found["boxes"]["boxes"], (-1, 4)), alone.boxes, atol=1e-3)
    width, height = found.picture().size
    assert width > 24 and width % 24 == 0 and height > width * 16 / 24  # enlarged, above the legend
    with pytest.raises(ValueError, match="iou: no part of"):
        keras_vit.MultiModel(singles[0], {"label": singles[1]["label"]}).answer(image, iou=0.5)


def test_signatures_name_the_parts(model):
    found, expected = signatures_of(model), model.predict_on_batch(pixels(2))
    outputs = found["pixels"](tf.constant(pixels(2)))
    np.testing.assert_allclose(outputs["label_logits"], expected["label"], atol=1e-5)
    np.testing.assert_array_equal(outputs["masks_ids"], expected["masks"].argmax(-1))
    assert {"boxes_boxes", "boxes_scores", "boxes_labels"} <= outputs.keys()
    assert {"masks_encoded_masks", "features", "attention"} <= found.keys()


@pytest.mark.extended
def test_a_file_for_another_engine_has_every_output(model, tmp_path):
    """keras_vit.export compares them itself."""
    pytest.importorskip("ai_edge_litert")
    keras_vit.export(model, tmp_path / "m.tflite")
    outputs = json.loads((tmp_path / "m.tflite.json").read_text())["outputs"]
    assert {"label_probabilities", "masks_ids", "boxes_boxes", "depth_depth", "features"} <= outputs.keys()


def test_a_page_shows_every_part(model):
    body = "".join(section.body for section in inspect_model(model, pixels(2), ["a", "b"], show=2))
    assert "classes of pixels" in body and "objects" in body


def test_what_does_not_fit_is_refused(singles):
    trunk, parts = singles
    other = keras_vit.SegmentationModel(noisy(trunk.clone(), 5), "linear", 2)
    for given, message in (
        ({"masks": other}, 'other weights than the trunk in its layer "patch_encoder"'),
        ({"x": keras_vit.SegmentationModel("Ti/8", "linear", 2, **{**SIZES, "depth": 1})}, "another encoder.*depth"),
        ({}, "at least one part"),
        ({"a": parts["masks"], "a_b": parts["masks"]}, 'begins with "a_"'),
        ({"x": keras_vit.ViT("Ti/8", classes=3, pre_logits=4, **SIZES)}, "should be a linear classifier"),
    ):
        with pytest.raises(ValueError, match=message):
            keras_vit.MultiModel(trunk, given)
    with pytest.raises(ValueError, match="should be a model without a head"):
        keras_vit.MultiModel(parts["label"], {"masks": parts["masks"]})


def test_it_joins_trained_heads_only(model):
    model.compile("sgd", loss="mse")
    with pytest.raises(ValueError, match="Train each on the frozen trunk"):
        model.fit(pixels(2), pixels(2))
    with pytest.raises(ValueError, match="gives several answers: use model.answer"):
        model.classify(pixels(1)[0])
