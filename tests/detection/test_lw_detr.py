"""LW-DETR's and RF-DETR's head: groups of queries, training, detections, refusals, operations."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import NAMED, pixels, signatures_of

import keras_vit
from keras_vit.checkpoints.dense_models import moved as moved_model
from keras_vit.checkpoints.transfer import LoadOptions
from keras_vit.detection.heads.proposals import GroupedDense, anchors, moved
from keras_vit.layers.boxes import to_centers
from keras_vit.planning.model_counts import count
from keras_vit.training import AdamW, DenseDetectionLoss, GroupedSetPredictionLoss

SIZES = {"depth": 2, "width": 16, "heads": 2, "mlp_dim": 16, "image_size": (16, 24), "classes": 3}
OPTIONS = {"queries": 5, "groups": 3, "layers": 2, "width": 16, "heads": 2, "map_heads": 4, "mlp_dim": 16, "blocks": 1}


def made(head="rf_detr", options=OPTIONS, **fields):
    keras.utils.set_random_seed(0)
    return keras_vit.DetectionModel("Ti/4", head=head, head_options=options, **{**SIZES, **fields})


@pytest.fixture(scope="module")
def model():
    return made(class_names=NAMED, windows=2, global_blocks=[1])


def objects(n):
    """(n, 4, 7): an object in all images but the last."""
    y = np.full((n, 4, 7), -1, "float32")
    y[:-1, 0] = [0.2, 0.3, 0.7, 0.6, 1, 0, 60]
    return y


@pytest.mark.extended
@pytest.mark.usefixtures("eagerly")
def test_training_has_groups_and_inference_the_first_alone(model):
    outputs, trained = model(pixels(2)), model(pixels(2), training=True)
    assert outputs["prediction"].shape == (2, 3, 1, 5, 7) and trained["prediction"].shape == (2, 3, 3, 5, 7)
    np.testing.assert_allclose(trained["prediction"][:, :, :1], outputs["prediction"], atol=1e-5)
    last = np.array(outputs["prediction"])[:, 1, 0]
    np.testing.assert_array_equal(np.concatenate([outputs["boxes"], outputs["logits"]], axis=-1), last)


@pytest.mark.extended
def test_queries_start_at_the_best_places(model):
    outputs = model(pixels(1))
    proposed = np.array(outputs["prediction"])[0, 2, 0]
    best = proposed[:, 4:].max(-1)
    assert (np.diff(best) <= 0).all()
    # Untrained deltas are zero: proposals are places, and boxes of all layers are proposals.
    x, y, w, h = to_centers(proposed[:, :4]).numpy().T[[1, 0, 3, 2]]
    np.testing.assert_allclose(w, 0.05, atol=1e-6)
    assert all(np.isclose((x * 6 - 0.5) % 1, 0, atol=1e-4) | np.isclose((x * 6 - 0.5) % 1, 1, atol=1e-4))
    np.testing.assert_allclose(outputs["boxes"][0], proposed[:, :4], atol=1e-6)


def test_places_at_the_edge_of_large_maps_propose_nothing():
    boxes, inside = anchors([(60, 4), (1, 2)])
    assert inside.reshape(-1)[:240].reshape(60, 4).sum() == 58 * 4 and inside[240:].all()
    np.testing.assert_allclose(boxes[240:], [[0.25, 0.5, 0.1, 0.1], [0.75, 0.5, 0.1, 0.1]], atol=1e-6)
    deltas = np.float32([[1, -2, np.log(2), 0]])
    np.testing.assert_allclose(moved(boxes[240:241], deltas), [[0.35, 0.3, 0.2, 0.1]], atol=1e-6)


def test_each_group_has_a_linear_layer():
    layer, x = GroupedDense(2, 3), np.random.default_rng(0).normal(size=(4, 1, 5, 6)).astype("float32")
    layer.build(x.shape)
    assert len(set(np.array(layer.kernel)[:, 0, 0])) == 3
    for i, y in enumerate(np.moveaxis(np.array(layer(x, groups=2)), 1, 0)):
        np.testing.assert_allclose(y, x[:, 0] @ layer.kernel[i] + layer.bias[i], atol=1e-5)


@pytest.mark.extended
@pytest.mark.usefixtures("eagerly")  # compiling would be most of the time
def test_it_learns():
    model = made("lw_detr", {**OPTIONS, "layers": 1, "groups": 2, "dropout": 0.1})
    model.compile(AdamW(1e-2), GroupedSetPredictionLoss(), run_eagerly=True, jit_compile=False)
    images, y = pixels(2).astype("uint8"), objects(2)
    history = model.fit(images, y, epochs=3, batch_size=2, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    with pytest.raises(ValueError, match='"lw_detr" cannot be trained with the loss DenseDetectionLoss'):
        model.compile("sgd", DenseDetectionLoss())


@pytest.mark.extended
def test_it_detects_without_suppression(model):
    found = model.detect(np.zeros((40, 30, 3), "uint8"), threshold=0.0)
    assert len(found) == 15 and set(found.names) == set(NAMED)  # each query with each class
    boxes, scores, labels = model.detections(pixels(2))
    assert (labels[:, :15] >= 0).all() and (labels[:, 15:] == -1).all() and (np.diff(scores) <= 0).all()


@pytest.mark.extended
def test_another_image_size_keeps_the_head(model):
    larger = moved_model(model, LoadOptions(image_size=(24, 32)))
    for old, new in zip(model.decoder.layers, larger.decoder.layers):
        for a, b in zip(old.get_weights(), new.get_weights()):
            np.testing.assert_array_equal(a, b)


@pytest.mark.extended
def test_mixed_precision_keeps_boxes_exact():
    full, mixed = made(), made(dtype="mixed_bfloat16")
    mixed.set_weights(full.get_weights())
    outputs = mixed(pixels(1))
    assert {x.dtype for x in outputs.values()} == {tf.float32}
    sides = to_centers(outputs["boxes"])[..., 2:]
    np.testing.assert_allclose(sides, 0.05, atol=1e-6)


@pytest.mark.extended
def test_operations_are_counted():
    rows = {row.name: row for row in count(made())}
    assert rows["head"].flops > rows["neck"].flops > 0
    local, everywhere = (
        {row.name: row for row in count(made(pool="gap", windows=n))}["block_00"].flops for n in (2, 1)
    )
    assert everywhere - local == 4 * 16 * (24 * 24 - 24 * 24 // 4)


@pytest.mark.parametrize(
    ("head", "options", "fields", "message"),
    [
        ("rf_detr", {"queries": 25}, {}, "queries=25: the maps have 24 places"),
        ("rf_detr", {"scales": (3,)}, {}, r"scales should be some of 2.0, 1.0, 0.5, got \(3,\)"),
        ("lw_detr", {"heads": 3}, {}, "width 16 does not divide into 3 heads"),
        ("lw_detr", {"taps": (2,)}, {}, "taps should be numbers of blocks"),
        ("rf_detr", {"norm": "instance"}, {}, 'norm "instance"'),
        ("rf_detr", {"query": 3}, {}, 'unknown option "query".*"queries"'),
        ("lw_detr", {}, {"token_merging": 1}, "all its patches"),
        ("yolos", None, {"windows": 2}, "attention among all patches"),
    ],
)
def test_what_does_not_fit_is_refused(head, options, fields, message):
    with pytest.raises(ValueError, match=message):
        made(head, None if options is None else {**OPTIONS, **options}, **fields)


@pytest.mark.extended
def test_the_graph_of_an_export_finds_what_detect_finds(model):
    found = signatures_of(model, threshold=0.005)["pixels"](tf.constant(pixels(2)))
    boxes, scores, labels = model.detections(pixels(2), threshold=0.005)
    assert (labels >= 0).any()
    np.testing.assert_array_equal(found["labels"], labels)
    np.testing.assert_allclose(found["scores"], scores, atol=1e-5)
    np.testing.assert_allclose(found["boxes"], boxes, atol=1e-5)
