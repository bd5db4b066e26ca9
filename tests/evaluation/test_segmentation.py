"""Scores of a class per pixel against NumPy, boundaries by brute force, and pictures."""

import dataclasses
import itertools
import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.data import from_arrays
from keras_vit.evaluation import Setting, make_evaluator
from keras_vit.evaluation.boundaries import BoundaryScores, boundary_counts, f_scores
from keras_vit.io.json_files import json_text

K, VOID = 4, 255
NAMES = ("sky", "road", "tree", "car")


def edges(classes):
    """{class: [boundary pixels]} of (h, w) classes, -1 for void."""
    h, w = classes.shape
    found = {c: [] for c in range(K)}
    for y, x in itertools.product(range(h), range(w)):
        around = [(y + dy, x + dx) for dy, dx in ((0, 1), (0, -1), (1, 0), (-1, 0))]
        near = [classes[p] for p in around if 0 <= p[0] < h and 0 <= p[1] < w and classes[p] >= 0]
        if classes[y, x] >= 0 and any(other != classes[y, x] for other in near):
            found[classes[y, x]].append((y, x))
    return found


def by_force(masks, predicted, pixels):
    """Sums over images of (predicted near true, predicted, true near predicted, true) for each class."""
    counts = np.zeros((K, 4), "int64")
    for mask, guess in zip(masks, predicted):
        true, found = edges(np.where(mask == VOID, -1, mask)), edges(np.where(mask == VOID, -1, guess))
        for c in range(K):

            def near(these, those):
                return sum(any(math.dist(a, b) <= pixels for b in those) for a in these)

            counts[c] += near(found[c], true[c]), len(found[c]), near(true[c], found[c]), len(true[c])
    return counts


def mean_f(counts):
    """The mean F-score over the classes with a boundary."""
    scores = []
    for near_true, found, near_found, true in counts.tolist():
        if found + true:
            precision, recall = near_true / max(found, 1), near_found / max(true, 1)
            scores.append(2 * precision * recall / (precision + recall) if precision + recall else 0.0)
    return float(np.mean(scores)) if scores else 0.0


def blobs(seed, images=3, size=(9, 11)):
    """Masks of rectangles, some of them void, and predictions that differ in places."""
    rng = np.random.default_rng(seed)
    masks = np.zeros((images, *size), "int32")
    for mask in masks:
        for value in (1, 2, VOID, 3):
            top, left = rng.integers(0, size[0] - 2), rng.integers(0, size[1] - 2)
            mask[top : top + rng.integers(2, 6), left : left + rng.integers(2, 6)] = value
    shifted = np.roll(np.where(masks == VOID, 0, masks), 1, axis=2)
    return masks, np.where(rng.random(masks.shape) < 0.05, rng.integers(0, K, masks.shape), shifted).astype("int32")


EDGE_CASES = {
    "rectangles": blobs(0),
    "one image": blobs(1, 1),
    "all void": (np.full((1, 5, 6), VOID, "int32"), blobs(2, 1, (5, 6))[1]),
    "one class": (np.ones((1, 5, 6), "int32"), np.ones((1, 5, 6), "int32")),
    "no true boundary": (np.zeros((1, 5, 6), "int32"), blobs(2, 1, (5, 6))[1]),
    "a class without pixels": (np.where(blobs(3)[0] == 2, 0, blobs(3)[0]), blobs(3)[1]),
}


@pytest.mark.extended
@pytest.mark.parametrize("name", EDGE_CASES)
@pytest.mark.parametrize("pixels", [0.5, 1.0, 2.3])
def test_boundary_counts_are_those_by_brute_force(name, pixels):
    masks, predicted = EDGE_CASES[name]
    found = np.asarray(boundary_counts(tf.constant(masks), tf.constant(predicted), K, VOID, pixels))
    expected = by_force(masks, predicted, pixels)
    np.testing.assert_array_equal(found, expected)
    metric = BoundaryScores(K, VOID, tolerance=pixels / math.hypot(*masks.shape[1:]))
    metric.update_state(masks, np.eye(K)[predicted])
    assert float(metric.result()) == pytest.approx(mean_f(expected), abs=1e-6)


def test_a_shift_within_the_tolerance_is_perfect():
    mask = np.zeros((1, 20, 20), "int32")
    mask[0, 5:15, 5:15] = 1
    counts = [boundary_counts(mask, np.roll(mask, 2, axis=(1, 2)), 2, VOID, pixels) for pixels in (2.9, 2.0)]
    f, defined = f_scores(np.asarray(counts[0]))
    assert f.tolist() == [1.0, 1.0] and defined.all()
    assert f_scores(np.asarray(counts[1]))[0].max() < 1


def test_boundaries_under_xla_and_with_weights():
    masks, predicted = EDGE_CASES["rectangles"]
    metric = BoundaryScores(K, VOID, 0.1)
    update = tf.function(metric.update_state, jit_compile=True, autograph=False)
    update(tf.constant(masks), tf.constant(np.eye(K, dtype="float32")[predicted]), tf.constant([1.0, 0.0, 1.0]))
    expected = by_force(masks[[0, 2]], predicted[[0, 2]], 0.1 * math.hypot(9, 11))
    np.testing.assert_array_equal(metric.counts(), expected)


def test_boundaries_with_weights_of_pixels_are_those_with_void_pixels():
    masks, predicted = EDGE_CASES["one image"]
    logits, weights = np.eye(K)[predicted], (np.arange(11) > 3) * np.ones(masks.shape)
    weighted, void = BoundaryScores(K, VOID, 0.1), BoundaryScores(K, VOID, 0.1)
    weighted.update_state(masks, logits, weights)
    void.update_state(np.where(weights > 0, masks, VOID), logits)
    np.testing.assert_array_equal(weighted.counts(), void.counts())


@pytest.mark.parametrize("value", [-1, K])
def test_boundaries_of_masks_with_other_values_are_not_measured(value, eagerly):
    masks, predicted = (array.copy() for array in EDGE_CASES["one image"])
    masks[0, 4, 5], logits = value, np.eye(K)[predicted]
    metric = BoundaryScores(K, VOID, 0.1)
    with pytest.raises(ValueError, match=f"class numbers from 0 to 3.*from {value} to {value}"):
        metric.update_state(masks, logits)
    assert not metric.counts().any()
    eagerly(False)
    tf.function(metric.update_state, autograph=False)(masks, logits)
    assert np.isnan(float(metric.result()))


def shows(size=(9, 11)):
    """A model whose logits are highest for the class that a pixel's red shows."""
    x = keras.Input((*size, 3))
    model = keras_vit.Model(x, keras.layers.Conv2D(K, 1, name="logits")(x))
    places, kernel = np.arange(K, dtype="float32"), np.zeros((1, 1, 3, K), "float32")
    kernel[0, 0, 0] = 2 * places
    model.get_layer("logits").set_weights([kernel, -(places**2)])
    model.weighs_examples, model.check_pixels = True, False
    return model


def open_data(masks, predicted, **options):
    images = np.repeat(predicted[..., None], 3, -1).astype("uint8")
    source = from_arrays(images, features={"mask": masks[..., None].astype("uint8")})
    return dataclasses.replace(source, class_names=NAMES, void=VOID, **options)


def evaluate(masks, predicted, batch_size=2, **options):
    source, size = open_data(masks, predicted), masks.shape[1:]
    setting = Setting(shows(size), batch_size=batch_size, source=source, preprocess="decode")
    return make_evaluator("segmentation", options).prepare(setting)()


@pytest.mark.extended
def test_measures_and_details_are_numpys():
    masks, predicted = EDGE_CASES["a class without pixels"]
    predicted = np.where(predicted == 3, 0, predicted)  # class 3 is never predicted, class 2 has no pixels
    evaluation = evaluate(masks, predicted, tolerance=0.05)
    labelled = masks != VOID
    matrix = np.zeros((K, K), "int64")
    np.add.at(matrix, (masks[labelled], predicted[labelled]), 1)
    union = matrix.sum(0) + matrix.sum(1) - np.diag(matrix)
    ious = [matrix[i, i] / union[i] for i in range(K)]
    accuracies = [matrix[i, i] / matrix[i].sum() if matrix[i].sum() else None for i in range(K)]
    counts = by_force(masks, predicted, 0.05 * math.hypot(9, 11))
    measures = dict(evaluation.measures)
    logits = 2 * np.arange(K) * predicted[..., None] - np.arange(K) ** 2.0
    own = np.take_along_axis(logits, np.where(labelled, masks, 0)[..., None], -1)[..., 0]
    loss = (np.log(np.exp(logits).sum(-1)) - own)[labelled].sum() / masks.size
    assert measures.pop("loss") == pytest.approx(loss, rel=1e-5)
    assert measures == {
        "examples": 3,
        "miou": pytest.approx(np.mean(ious), abs=1e-12),
        "pixel_accuracy": pytest.approx(np.trace(matrix) / matrix.sum(), abs=1e-12),
        "mean_accuracy": pytest.approx(np.mean([a for a in accuracies if a is not None]), abs=1e-12),
        "boundary_f": pytest.approx(mean_f(counts), abs=1e-12),
    }
    details = json.loads(json_text(evaluation.details))
    assert details["classes"] == list(NAMES) and details["confusion"] == matrix.tolist()
    assert [row["name"] for row in details["per_class"]] == list(NAMES)
    assert [row["iou"] for row in details["per_class"]] == pytest.approx(ious)
    assert [row["accuracy"] for row in details["per_class"]] == pytest.approx(accuracies)
    assert sum(row["share"] for row in details["per_class"]) == pytest.approx(1.0)
    assert details["per_class"][2]["accuracy"] is None and details["per_class"][2]["share"] == 0
    assert details["per_class"][1]["boundary_f"] == pytest.approx(f_scores(counts)[0][1])
    assert details["tolerance_pixels"] == pytest.approx(0.05 * math.hypot(9, 11))


@pytest.mark.extended
def test_an_evaluation_starts_from_nothing_and_sees_the_current_weights():
    masks, predicted = EDGE_CASES["rectangles"]
    model = shows()
    setting = Setting(model, batch_size=2, source=open_data(masks, predicted), preprocess="decode")
    evaluate = make_evaluator("segmentation", {"pictures": 0}).prepare(setting)
    first, again = evaluate(), evaluate()
    assert first.measures == again.measures and first.details == again.details
    kernel, bias = model.get_layer("logits").get_weights()
    model.get_layer("logits").set_weights([0 * kernel, np.eye(K)[2]])  # class 2 everywhere
    right = (masks == 2).sum() / (masks != VOID).sum()
    assert evaluate().measures["pixel_accuracy"] == pytest.approx(right)


@pytest.mark.extended
def test_batches_make_no_difference_and_boundaries_may_be_left_out():
    masks, predicted = EDGE_CASES["rectangles"]
    whole, parts = evaluate(masks, predicted, 3), evaluate(masks, predicted, 2)
    assert whole.details == parts.details and whole.measures["miou"] == parts.measures["miou"]
    plain = evaluate(masks, predicted, tolerance=None, pictures=0)
    assert plain.measures["miou"] == whole.measures["miou"]
    assert "boundary_f" not in plain.measures and "boundary_f" not in plain.details["per_class"][0]
    assert not plain.pictures


@pytest.mark.extended
def test_a_model_with_another_head_is_measured_like_a_segmentation_model():
    """Its metrics get a weight per pixel, as in Keras."""
    masks, predicted = EDGE_CASES["rectangles"]
    model = shows()
    model.weighs_examples = False
    setting = Setting(model, batch_size=2, source=open_data(masks, predicted), preprocess="decode")
    found = make_evaluator("segmentation", {"pictures": 0}).prepare(setting)()
    assert found.measures == pytest.approx(evaluate(masks, predicted, pictures=0).measures)


@pytest.mark.extended
def test_the_picture_has_a_row_per_example_in_the_datas_colours():
    masks, predicted = blobs(5, size=(64, 80))
    colors = ((10, 20, 30), (200, 0, 0), (0, 200, 0), (0, 0, 200))
    source = open_data(masks, predicted, colors=colors)
    setting = Setting(shows((64, 80)), batch_size=2, source=source, preprocess="decode")
    picture = make_evaluator("segmentation", {"pictures": 2}).prepare(setting)().pictures["examples"]
    assert picture.dtype == np.uint8 and picture.shape[1] == 4 * 80 + 3 * 8
    pixels = {tuple(color) for color in picture.reshape(-1, 3).tolist()}
    assert set(colors) <= pixels


@pytest.mark.extended
def test_a_source_without_masks_and_one_that_is_all_void_are_refused():
    masks, predicted = EDGE_CASES["one image"]
    bare = dataclasses.replace(from_arrays(np.zeros((2, 9, 11, 3), "uint8"), [0, 1]), class_names=NAMES)
    with pytest.raises(ValueError, match='have no "mask"'):
        make_evaluator("segmentation", {}).prepare(Setting(shows(), source=bare, preprocess="decode"))
    with pytest.raises(ValueError, match="None of the pixels of arrays has a class: all are void, 255"):
        evaluate(np.full_like(masks, VOID), predicted)


@pytest.mark.extended
def test_auxiliary_heads_are_left_out():
    masks, predicted = blobs(6, size=(16, 16))
    options = {"depth": 4, "width": 16, "heads": 2, "mlp_dim": 16, "head_options": {"width": 8}}
    model = keras_vit.SegmentationModel("Ti/8", "setr_naive", K, 16, auxiliary=0.4, class_names=NAMES, **options)
    setting = Setting(model, batch_size=2, source=open_data(masks, predicted), preprocess="decode")
    evaluation = make_evaluator("segmentation", {}).prepare(setting)()
    best = model.without_auxiliary().predict(np.repeat(predicted[..., None], 3, -1).astype("uint8"), verbose=0)
    right = (best.argmax(-1) == masks)[masks != VOID].mean()
    assert evaluation.measures["pixel_accuracy"] == pytest.approx(right) and evaluation.pictures


@pytest.mark.extended
def test_windows_measure_masks_of_segment_at_their_own_size():
    masks, predicted = blobs(7, size=(20, 28))
    model = keras_vit.SegmentationModel("Ti/8", "linear", K, 16, class_names=NAMES, depth=1, width=16, heads=2)
    model.head.set_weights([np.random.default_rng(0).normal(size=w.shape) for w in model.head.get_weights()])
    how, source = {"window": "slide", "flips": True}, open_data(masks, predicted)
    evaluation = make_evaluator("segmentation", {**how, "tolerance": 0.05}).prepare(Setting(model, source=source))()
    images = np.repeat(predicted[..., None], 3, -1).astype("uint8")
    found = np.stack([each.classes.astype(int) for each in model.segment(list(images), **how)])
    matrix = np.zeros((K, K), "int64")
    np.add.at(matrix, (masks[masks != VOID], found[masks != VOID]), 1)
    assert evaluation.details["confusion"] == matrix.tolist() and evaluation.measures["examples"] == 3
    assert evaluation.measures["boundary_f"] == pytest.approx(mean_f(by_force(masks, found, 0.05 * math.hypot(20, 28))))
    assert evaluation.pictures["examples"].shape[1] == 240 and evaluation.details["window"] == "slide"
