"""mIoU and accuracies against NumPy, counted exactly."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.segmentation.scores import confusion, scores
from keras_vit.training import SegmentationCrossEntropy, SegmentationScores

RNG = np.random.default_rng(0)
K, VOID = 4, 255


def by_numpy(masks, predicted, classes=K, void=VOID):
    """(scores, confusion matrix), pixel by pixel."""
    matrix = np.zeros((classes, classes), "int64")
    for true, found in zip(masks.ravel(), predicted.ravel()):
        if true != void:
            matrix[true, found] += 1
    ious, accuracies = [], []
    for i in range(classes):
        union = matrix[i].sum() + matrix[:, i].sum() - matrix[i, i]
        ious += [matrix[i, i] / union] if union else []
        accuracies += [matrix[i, i] / matrix[i].sum()] if matrix[i].sum() else []

    def mean(values):
        return float(np.mean(values)) if values else 0.0

    pixels = np.trace(matrix) / max(matrix.sum(), 1)
    return {"miou": mean(ious), "pixel_accuracy": pixels, "mean_accuracy": mean(accuracies)}, matrix


def random_case(seed, images=5, size=(6, 7), classes=K):
    rng = np.random.default_rng(seed)
    masks = np.where(rng.random((images, *size)) < 0.2, VOID, rng.integers(0, classes, (images, *size)))
    return masks, rng.normal(size=(images, *size, classes)).astype("float32")


def without(case, *, truth=None, prediction=None):
    """A case without pixels of a class in the masks or the predictions."""
    masks, logits = (array.copy() for array in case)
    if truth is not None:
        masks[masks == truth] = VOID
    if prediction is not None:
        logits[..., prediction] = -99.0
    return masks, logits


CASES = {
    "random": random_case(0),
    "one image": random_case(1, 1),
    "one pixel": random_case(3, 1, (1, 1)),
    "a class without pixels": without(random_case(2), truth=1),
    "a class without predictions": without(random_case(2), prediction=1),
    "a class without either": without(random_case(2), truth=1, prediction=1),
    "one class": (np.full((2, 3, 3), 2), random_case(4, 2, (3, 3))[1]),
    "all void": (np.full((2, 3, 3), VOID), random_case(4, 2, (3, 3))[1]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["uint8", "int32"])
def test_scores_are_numpys(name, dtype):
    masks, logits = CASES[name]
    expected, matrix = by_numpy(masks, logits.argmax(-1))
    metric = SegmentationScores(K)
    for part in np.array_split(np.arange(len(masks)), 2):
        if len(part):
            metric.update_state(masks[part][..., None].astype(dtype), logits[part])
    np.testing.assert_array_equal(metric.counts(), matrix)
    assert {name: float(value) for name, value in metric.result().items()} == pytest.approx(expected, abs=1e-7)
    assert scores(metric.counts()) == pytest.approx(expected, abs=1e-15)


def test_weights_of_0_count_nowhere_and_others_once():
    masks, logits = CASES["random"]
    for weights, kept in [
        ([1.0, 0.0, 0.3, 1.0, 0.0], np.array([0, 2, 3])),
        (np.broadcast_to(np.array([1.0, 0, 0.3, 1, 0])[:, None, None], masks.shape), np.array([0, 2, 3])),
    ]:
        metric = SegmentationScores(K)
        metric.update_state(masks, logits, np.asarray(weights, "float32"))
        np.testing.assert_array_equal(metric.counts(), by_numpy(masks[kept], logits[kept].argmax(-1))[1])


def test_lists_are_taken_and_wrong_logits_refused():
    masks, logits = CASES["one image"]
    metric = SegmentationScores(K)
    metric.update_state(masks.tolist(), logits.tolist(), [1.0])
    np.testing.assert_array_equal(metric.counts(), by_numpy(masks, logits.argmax(-1))[1])
    with pytest.raises(ValueError, match=r"expects logits \(b, h, w, 3\), got the shape \(1, 6, 7, 4\)"):
        SegmentationScores(3).update_state(masks, logits)


def test_255_is_a_class_where_void_is_another():
    masks, predicted = np.array([[[255, 299, 65535]]], "uint16"), np.array([[[255, 0, 0]]])
    found = np.asarray(confusion(masks, predicted, 300, 65535))
    assert found.sum() == 2 and found[255, 255] == found[299, 0] == 1


def test_counts_stay_exact_where_float32_does_not():
    """2**24 + 1 is the first integer that float32 lacks."""
    metric, rng = SegmentationScores(2), np.random.default_rng(0)
    expected = np.zeros((2, 2), "int64")
    for _ in range(40):
        counts = rng.integers(0, 2**31 - 1, (2, 2), dtype="int32")
        expected += counts
        metric.add(keras.ops.convert_to_tensor(counts))
        metric.add(keras.ops.ones((2, 2), "int32"))
        expected += 1
    assert expected.min() > 2**34
    np.testing.assert_array_equal(metric.counts(), expected)
    np.testing.assert_allclose(metric.totals(), expected, rtol=1.2e-7)


def test_xla_counts_the_same():
    masks, logits = CASES["random"]
    metric = SegmentationScores(K)
    tf.function(metric.update_state, jit_compile=True, autograph=False)(tf.constant(masks), tf.constant(logits))
    np.testing.assert_array_equal(metric.counts(), by_numpy(masks, logits.argmax(-1))[1])


def segmenter():
    x = keras.Input((6, 7, 3))
    model = keras_vit.Model(x, keras.layers.Conv2D(K, 1)(x))
    model.weighs_examples = True
    return model


@pytest.mark.extended
def test_fit_logs_each_score_and_callbacks_know_what_is_better(eagerly):
    masks, x = CASES["random"][0], RNG.integers(0, 256, (5, 6, 7, 3)).astype("uint8")
    model = segmenter()
    model.compile("sgd", SegmentationCrossEntropy(), weighted_metrics=[SegmentationScores(K)], jit_compile=False)
    best = keras.callbacks.EarlyStopping("val_miou", mode="auto", restore_best_weights=True)
    options = {"validation_data": (x, masks), "batch_size": 2, "verbose": 0, "callbacks": [best]}
    history = model.fit(x, masks, epochs=2, **options).history
    names = {"miou", "pixel_accuracy", "mean_accuracy", "loss"}
    assert set(history) == names | {f"val_{name}" for name in names}
    assert best.monitor_op is keras.ops.greater or best.monitor_op(2.0, 1.0)
    expected, _ = by_numpy(masks, model.predict(x, verbose=0).argmax(-1))
    found = model.evaluate(x, masks, batch_size=2, verbose=0, return_dict=True)
    assert found.pop("loss") > 0 and found == pytest.approx(expected, abs=1e-6)


def test_a_saved_metric_is_the_same():
    metric = SegmentationScores(7, 65535)
    loaded = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(metric))
    assert loaded.get_config() == metric.get_config() and loaded.void == 65535


@pytest.mark.parametrize("compiled", [False, True])
def test_masks_with_other_values_are_not_measured(compiled):
    """Those of images of weight 0 may have any."""
    metric, logits = SegmentationScores(2), np.zeros((2, 1, 2, 2), "float32")
    masks = np.array([[[0, 255]], [[1, 7]]], "int32")
    update = tf.function(metric.update_state) if compiled else metric.update_state
    update(masks, logits, np.array([1.0, 0.0]))
    assert float(metric.result()["pixel_accuracy"]) == 1.0
    if compiled:
        update(masks, logits)
        assert np.isnan(float(metric.result()["miou"]))
    else:
        with pytest.raises(ValueError, match="class numbers from 0 to 1.*from 7 to 7"):
            metric.update_state(masks, logits)
