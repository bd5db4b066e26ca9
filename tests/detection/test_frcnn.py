"""ViT-FRCNN: cuts of maps, anchors, region proposals, training with true boxes as regions, files and exports."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import signatures_of

import keras_vit
from keras_vit.detection.heads.frcnn import anchor_boxes, learned_rows
from keras_vit.detection.heads.roi_align import roi_align
from keras_vit.planning.model_counts import counted_layers
from keras_vit.training import RegionLoss

pytestmark = pytest.mark.usefixtures("eager_module")  # distribution/test_strategies trains one in a graph

SIZE = (32, 48)
OPTIONS = {"scale": 2, "width": 16, "units": 32, "sides": (8, 16), "ratios": (0.5, 1, 2), "proposals": 12}
RNG = np.random.default_rng(0)


def made(**changes):
    keras.utils.set_random_seed(0)
    sizes = {"depth": 1, "width": 16, "heads": 2, "mlp_dim": 16}
    arguments = {"classes": 2, "image_size": SIZE, "head_options": OPTIONS, "class_names": ["blue", "red"]}
    return keras_vit.DetectionModel("Ti/8", "frcnn", **{**arguments, **sizes, **changes})


def squares(n):
    """(images (n, 32, 48, 3) with a red or blue square, none in the last; objects (n, 2, 7))."""
    x, y = RNG.integers(0, 40, (n, *SIZE, 3), dtype="uint8"), np.full((n, 2, 7), -1, "float32")
    for i in range(n - 1):
        side, label = 12, i % 2
        top, left = RNG.integers(0, SIZE[0] - side), RNG.integers(0, SIZE[1] - side)
        x[i, top : top + side, left : left + side] = (255, 60, 0) if label else (0, 120, 255)
        y[i, 0] = [*np.array([top, left, top + side, left + side]) / np.tile(SIZE, 2), label, 0, side**2]
    return x, y


X, Y = squares(4)


@pytest.fixture(scope="module")
def trained(eager_module):
    """(a model trained on the squares for a few steps, its losses)."""
    model = made()
    model.compile(keras_vit.training.AdamW(3e-3), RegionLoss(), jit_compile=False)
    return model, model.fit(X, Y, batch_size=4, epochs=12, shuffle=False, verbose=0).history["loss"]


def bilinear(x, y_at, x_at):
    """The value of a map (h, w, c) at a point in cells, from the four around it."""
    h, w, _ = x.shape
    y_at, x_at = np.clip(y_at, 0, h - 1), np.clip(x_at, 0, w - 1)
    y, x_ = int(y_at), int(x_at)
    below, right = min(y + 1, h - 1), min(x_ + 1, w - 1)
    dy, dx = y_at - y, x_at - x_
    upper, lower = (1 - dx) * x[y, x_] + dx * x[y, right], (1 - dx) * x[below, x_] + dx * x[below, right]
    return (1 - dy) * upper + dy * lower


@pytest.mark.parametrize(("size", "samples"), [(3, 2), (2, 1)])
def test_cuts_are_those_of_a_plain_loop(size, samples):
    x = RNG.normal(size=(2, 5, 7, 3)).astype("float32")
    corner = RNG.random((2, 4, 2)) * 0.6
    boxes = np.concatenate([corner, corner + RNG.random((2, 4, 2)) * 0.4], axis=-1)
    boxes[0, 0], boxes[1, 1] = [0, 0, 1, 1], [0.3, 0.3, 0.3, 0.3]
    found, n = np.asarray(roi_align(x, boxes, size, samples)), size * samples
    for b in range(2):
        for r, (top, left, bottom, right) in enumerate(boxes[b]):
            rows = [5 * (top + (i + 0.5) / n * (bottom - top)) - 0.5 for i in range(n)]
            columns = [7 * (left + (i + 0.5) / n * (right - left)) - 0.5 for i in range(n)]
            points = np.array([[bilinear(x[b], y, x_) for x_ in columns] for y in rows])  # (n, n, 3)
            means = points.reshape(size, samples, size, samples, 3).mean((1, 3))
            np.testing.assert_allclose(found[b, r], means, atol=1e-5)


def test_the_gradient_of_cuts_reaches_the_map_alone():
    x, boxes = tf.Variable(RNG.normal(size=(1, 5, 7, 2)).astype("float32")), tf.Variable([[[0.2, 0.2, 0.6, 0.5]]])
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(roi_align(x, boxes, 2))
    of_map, of_boxes = tape.gradient(total, [x, boxes])
    assert of_boxes is None and float(tf.reduce_sum(of_map)) == pytest.approx(8, rel=1e-5)  # four values, two channels


def test_anchors_have_the_sides_and_ratios_in_pixels_around_the_cells():
    anchors = anchor_boxes((2, 3), SIZE, (8, 16), (0.5, 1)) * np.tile(SIZE, 2)
    sizes = anchors[:, 2:] - anchors[:, :2]
    np.testing.assert_allclose(sizes.prod(1), np.tile([64, 64, 256, 256], 6), rtol=1e-5)
    np.testing.assert_allclose(sizes[:, 0] / sizes[:, 1], np.tile([0.5, 1], 12), rtol=1e-5)
    centers = (anchors[:, :2] + anchors[:, 2:]) / 2
    np.testing.assert_allclose(centers[[0, 4, 12]], [[8, 8], [8, 24], [24, 8]], atol=1e-5)


@pytest.mark.extended
def test_proposals_are_in_the_image_and_overlap_little(trained):
    regions = trained[0].predict(X, verbose=0)["regions"][..., :4]
    assert regions.shape == (4, 12, 4) and (regions >= 0).all() and (regions <= 1).all()
    first = regions[0][(regions[0, :, 2:] > regions[0, :, :2]).all(-1)]
    overlaps = np.asarray(keras_vit.layers.boxes.iou(first[:, None], first[None]))
    assert (overlaps[~np.eye(len(first), dtype=bool)] <= 0.7).all() and len(first) > 3


@pytest.mark.extended
def test_true_boxes_are_learned_as_regions(trained):
    model, _ = trained
    outputs = {name: tf.constant(x) for name, x in model.predict(X, verbose=0).items()}
    without = np.asarray(learned_rows(model.decoder, outputs))
    rows = np.asarray(learned_rows(model.decoder, outputs, Y))
    anchors = 8 * 12 * 6
    assert without.shape == (4, anchors + 12, 9 + 3) and rows.shape == (4, anchors + 12 + 2, 9 + 3)
    np.testing.assert_allclose(rows[:, : anchors + 12], without, atol=1e-5)
    there = Y[:, :, 4] >= 0
    np.testing.assert_allclose(rows[:, -2:, :4], np.where(there[..., None], Y[..., :4], 0), atol=1e-6)
    np.testing.assert_array_equal(rows[:, :, 8], np.repeat([[0.0] * anchors + [1.0] * 14], 4, axis=0))


@pytest.mark.extended
def test_training_lowers_the_loss(trained):
    assert trained[1][-1] < 0.5 * trained[1][0]


@pytest.mark.extended
def test_a_file_gives_the_same_outputs_bit_by_bit(trained, tmp_path):
    model, _ = trained
    model.save(tmp_path / "model.keras")
    copy = keras_vit.load(tmp_path / "model.keras")
    assert copy.arguments() == model.arguments()
    for ours, theirs in zip(model.detections(X), copy.detections(X)):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.extended
def test_an_image_of_weight_0_may_have_any_objects(trained):
    model, _ = trained
    expected = model.evaluate(X[:3], Y[:3], verbose=0)
    wrong, weights = np.where(np.arange(4)[:, None, None] == 3, 9.0, Y[:4]), np.array([1, 1, 1, 0.0], "float32")
    data = tf.data.Dataset.from_tensors((X[:4], wrong.astype("float32"), weights))
    assert model.evaluate(data, verbose=0) == pytest.approx(expected, rel=1e-4)


def test_places_without_a_proposal_are_not_objects():
    model = made(head_options={**OPTIONS, "sides": (300,), "ratios": (1,)})  # every anchor is the whole image
    outputs = model.predict(X[:1], verbose=0)
    empty = (outputs["regions"][0, :, :4] == 0).all(-1)
    assert 0 < empty.sum() < 12
    scores = np.asarray(model.head_row.scores(outputs))[0]
    assert not scores[empty].any() and scores[~empty].all()


def test_outputs_are_float32_under_mixed_precision():
    outputs = made(dtype="mixed_bfloat16").output
    assert {name: x.dtype for name, x in outputs.items() if x.dtype != "float32"} == {"map": "bfloat16"}


def test_the_plan_counts_the_cuts_and_the_layers_on_regions():
    counted = {row.name: row for row, _ in counted_layers(made())}["head"]
    h, w, d, r = 8, 12, 16, 12
    cuts = r * 7 * w * d * (h + 7)
    regions = r * (49 * d * 32 + 32 * 32 + 32 * (3 + 4))
    anchors = h * w * d * (9 * d + 6 * 5)
    assert counted.flops == 2 * (cuts + regions + anchors)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"scale": 3}, "scale should be 1, 2 or 4, got 3"),
        ({"sides": ()}, r"sides should be one number or more, got \(\)"),
        ({"ratios": (0,)}, "ratios must be 1e-06 or more, got 0"),
        ({"proposals": 0}, "proposals must be"),
        ({"taps": (1,)}, 'The head "frcnn": unknown option "taps"'),
    ],
)
def test_wrong_options_are_refused_by_name(options, text):
    with pytest.raises(ValueError, match=text):
        made(head_options={**OPTIONS, **options})


@pytest.mark.extended
def test_the_graph_of_an_export_finds_the_same(trained, eagerly):
    eagerly(False)
    model, _ = trained
    found = signatures_of(model, threshold=0.02)["pixels"](tf.constant(X, tf.float32))
    boxes, scores, labels = model.detections(X, threshold=0.02)
    assert (labels >= 0).any()
    np.testing.assert_array_equal(found["labels"], labels)
    np.testing.assert_allclose(found["scores"], scores, atol=1e-5)
    np.testing.assert_allclose(found["boxes"], boxes, atol=1e-5)
