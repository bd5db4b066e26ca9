"""Losses on masks against NumPy in float64, their gradients against differences, and what they refuse."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.segmentation.pixel_losses import PixelLoss
from keras_vit.training import (
    DiceLoss,
    FocalLoss,
    SegmentationCrossEntropy,
    SegmentationLoss,
    SegmentationScores,
    pixel_class_weights,
)

RNG = np.random.default_rng(0)
K, VOID = 4, 255
LOGITS = RNG.normal(size=(3, 5, 6, K)) * 2
MASKS = RNG.integers(0, K, (3, 5, 6))
MASKS[0, :2] = VOID
MASKS[2] = VOID  # a whole image
WEIGHTS = (0.5, 1.0, 2.0, 3.5)


def softmax(logits):
    chances = np.exp(logits - logits.max(-1, keepdims=True))
    return chances / chances.sum(-1, keepdims=True)


def own_chances(mask, logits):
    """(the softmax probability of each pixel's class, whether the pixel has one), as lists of an image's pixels."""
    labelled = mask != VOID
    return np.take_along_axis(softmax(logits), np.where(labelled, mask, 0)[..., None], -1)[..., 0], labelled


def cross_entropy(mask, logits, smoothing=0.0, weights=(1,) * K, kept=None):
    total = 0.0
    for place in np.ndindex(mask.shape):
        if mask[place] != VOID and (kept is None or kept[place]):
            target = (1 - smoothing) * np.eye(K)[mask[place]] + smoothing / K
            total -= weights[mask[place]] * (target * np.log(softmax(logits[place]))).sum()
    return total / mask.size


def sampled(mask, logits, thresh, min_kept):
    """mmsegmentation's OHEMPixelSampler.sample for a batch of one image: whether each pixel is kept."""
    chances, labelled = own_chances(mask, logits)
    if not labelled.any():
        return labelled
    ranked = np.sort(chances[labelled])
    if thresh is None:
        return labelled & (chances <= ranked[min(min_kept, len(ranked)) - 1])
    return labelled & (chances < max(ranked[min(min_kept, len(ranked) - 1)], thresh))


def dice(mask, logits, weights=(1,) * K, smooth=1.0, exponent=2):
    chances, total = softmax(logits), 0.0
    for i in range(K):
        p, t = chances[..., i][mask != VOID], mask[mask != VOID] == i
        total += weights[i] * (1 - (2 * (p * t).sum() + smooth) / ((p**exponent).sum() + t.sum() + smooth))
    return total / K


def focal(mask, logits, gamma=2.0, weights=(1,) * K):
    chances, labelled = own_chances(mask, logits)
    each = -((1 - chances) ** gamma) * np.log(chances) * np.asarray(weights)[np.where(labelled, mask, 0)]
    return each[labelled].sum() / mask.size


def mined(mask, logits, thresh, min_kept):
    return cross_entropy(mask, logits, kept=sampled(mask, logits, thresh, min_kept))


CASES = {
    "cross-entropy": (SegmentationCrossEntropy(), cross_entropy),
    "smoothing": (SegmentationCrossEntropy(0.2), lambda m, z: cross_entropy(m, z, 0.2)),
    "weights": (SegmentationCrossEntropy(0.1, WEIGHTS), lambda m, z: cross_entropy(m, z, 0.1, WEIGHTS)),
    "thresh": (SegmentationCrossEntropy(ohem_thresh=0.3), lambda m, z: mined(m, z, 0.3, 0)),
    "min_kept": (SegmentationCrossEntropy(ohem_min_kept=7), lambda m, z: mined(m, z, None, 7)),
    "both": (SegmentationCrossEntropy(ohem_thresh=0.05, ohem_min_kept=9), lambda m, z: mined(m, z, 0.05, 9)),
    "more than there are": (SegmentationCrossEntropy(ohem_min_kept=99), lambda m, z: mined(m, z, None, 99)),
    "dice": (DiceLoss(), dice),
    "dice by class": (DiceLoss(0.5, 1, WEIGHTS), lambda m, z: dice(m, z, WEIGHTS, 0.5, 1)),
    "focal": (FocalLoss(), focal),
    "focal by class": (FocalLoss(0.5, WEIGHTS), lambda m, z: focal(m, z, 0.5, WEIGHTS)),
    "focal of gamma 0": (FocalLoss(0.0), cross_entropy),
    "sum": (
        SegmentationLoss(0.5, 2.0, 0.25, 0.1, WEIGHTS, gamma=3.0),
        lambda m, z: 0.5 * cross_entropy(m, z, 0.1, WEIGHTS) + 2 * dice(m, z, WEIGHTS) + 0.25 * focal(m, z, 3, WEIGHTS),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_values_per_example_are_numpys(name):
    loss, by_numpy = CASES[name]
    expected = [by_numpy(mask, logits) for mask, logits in zip(MASKS, LOGITS)]
    assert expected[2] == 0
    for masks in (MASKS, MASKS.astype("uint8")[..., None]):
        found = loss.call(tf.constant(masks), tf.constant(LOGITS, "float32"))
        np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_differences_and_0_in_void(name):
    loss, by_numpy = CASES[name]
    variable = tf.Variable(LOGITS.astype("float32"))
    with tf.GradientTape() as tape:
        value = loss(MASKS, variable)
    gradient = tape.gradient(value, variable).numpy()
    assert not gradient[MASKS == VOID].any()
    for place in [(0, 3, 1, 2), (1, 4, 5, 0), (1, 0, 0, 3)]:
        step = np.zeros_like(LOGITS)
        step[place] = 1e-6
        ends = [np.mean([by_numpy(m, z) for m, z in zip(MASKS, LOGITS + sign * step)]) for sign in (1, -1)]
        assert gradient[place] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=2e-6)


@pytest.mark.parametrize("name", CASES)
def test_extreme_logits_of_16_bits_stay_finite(name):
    loss = CASES[name][0]
    variable = tf.Variable(tf.cast(np.where(np.eye(K)[np.where(MASKS == VOID, 0, MASKS)], 1e4, -1e4), "bfloat16"))
    with tf.GradientTape() as tape:
        value = loss(MASKS, variable)
    assert np.isfinite(float(value))
    assert np.isfinite(tape.gradient(value, variable).numpy().astype("float32")).all()


def test_the_sum_of_batches_parts_is_the_whole():
    """As on replicas and in micro-batches: an example's loss does not depend on its batch."""
    loss = SegmentationLoss(dice=1.0, focal=1.0, ohem_thresh=0.3, ohem_min_kept=5)
    whole = loss.call(tf.constant(MASKS), tf.constant(LOGITS, "float32"))
    parts = [loss.call(tf.constant(MASKS[i : i + 1]), tf.constant(LOGITS[i : i + 1], "float32")) for i in range(3)]
    np.testing.assert_allclose(whole, np.concatenate(parts), atol=1e-7)


def test_examples_of_weight_0_may_have_any_mask():
    masks = MASKS.copy()
    masks[1] = 77
    expected = cross_entropy(MASKS[0], LOGITS[0]) / 3
    assert float(SegmentationCrossEntropy()(masks, LOGITS, [1.0, 0.0, 1.0])) == pytest.approx(expected, abs=1e-6)


def test_masks_of_many_classes_have_another_void():
    logits, masks = RNG.normal(size=(1, 2, 2, 300)), np.array([[[255, 299], [65535, 0]]])
    chances = softmax(logits[0])
    expected = -np.log([chances[0, 0, 255], chances[0, 1, 299], chances[1, 1, 0]]).sum() / 4
    assert float(SegmentationCrossEntropy(void=65535)(masks, logits)) == pytest.approx(expected, rel=1e-6)


def test_a_saved_loss_is_the_same():
    for loss, _ in CASES.values():
        loaded = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))
        assert type(loaded) is type(loss) and loaded.get_config() == loss.get_config()
        assert float(loaded(MASKS, LOGITS)) == float(loss(MASKS, LOGITS))


def test_pixel_class_weights():
    assert pixel_class_weights([10, 0, 30]) == (2.0, 1.0, pytest.approx(2 / 3))
    raw = [1 / np.log(1.02 + share) for share in (0.25, 0.75)]
    expected = np.array(raw) / (0.25 * raw[0] + 0.75 * raw[1])
    np.testing.assert_allclose(pixel_class_weights([10, 30], "log"), expected)
    for wrong in ([], [0, 0], [3, -1]):
        with pytest.raises(ValueError, match="number of pixels of each class"):
            pixel_class_weights(wrong)
    with pytest.raises(ValueError, match="Valid: balanced, log"):
        pixel_class_weights([1], "median")


@pytest.mark.parametrize(
    ("masks", "logits", "message"),
    [
        (
            np.full((1, 5, 6), 4),
            LOGITS[:1],
            "for 4 classes, or 255 for pixels without a class, and contain others, from 4 to 4",
        ),
        (np.array([[[-1, 9], [0, 255]]]), LOGITS[:1, :2, :2], "contain others, from -1 to 9"),
        (MASKS[:, :4], LOGITS, r"shape \(3, 4, 6\), expected \(images, 5, 6\)"),
        (MASKS[:, 0, 0], LOGITS, r"shape \(3,\), expected \(images, 5, 6\)"),
        (MASKS, LOGITS[:, 0], r"logits \(b, h, w, classes\), got the shape \(3, 6, 4\)"),
        (MASKS, LOGITS[..., :1], "With one class"),
    ],
)
@pytest.mark.parametrize("loss", [SegmentationCrossEntropy, DiceLoss, FocalLoss, SegmentationLoss])
def test_wrong_masks_are_refused(loss, masks, logits, message):
    with pytest.raises(ValueError, match=message):
        loss()(masks, logits)


def test_wrong_options_are_refused():
    for make, message in [
        (lambda: SegmentationCrossEntropy(1.0), "label_smoothing must be"),
        (lambda: SegmentationCrossEntropy(ohem_thresh=70), "ohem_thresh is a probability"),
        (lambda: SegmentationCrossEntropy(ohem_min_kept=0), "ohem_min_kept is a number of pixels"),
        (lambda: DiceLoss(smooth=0.0), "smooth above 0"),
        (lambda: FocalLoss(-1.0), "gamma must be 0 or more"),
        (lambda: SegmentationLoss(0.0), "not all 0"),
        (lambda: SegmentationCrossEntropy(class_weights=(1.0,))(MASKS, LOGITS), "has 1 values for 4 classes"),
    ]:
        with pytest.raises(ValueError, match=message):
            make()


def tiny(activation=None):
    x = keras.Input((5, 6, 3))
    model = keras_vit.Model(x, keras.layers.Conv2D(K, 1, activation=activation)(x))
    model.weighs_examples = True
    return model


def test_fit_checks_the_masks_of_arrays_and_datasets(eagerly):
    model, x = tiny(), RNG.integers(0, 256, (3, 5, 6, 3)).astype("uint8")
    model.compile(keras.optimizers.SGD(0.0), SegmentationCrossEntropy(), jit_compile=False)
    model.fit(x, MASKS, verbose=0)
    masks = MASKS.copy()
    masks[1, 0, 0] = K
    for data in ((x, masks), (tf.data.Dataset.from_tensor_slices((x, masks.astype("uint8"))).batch(3),)):
        with pytest.raises(ValueError, match="and contain others, from 4 to 4"):
            model.fit(*data, verbose=0)
    weights = np.array([1.0, 0.0, 1.0], "float32")
    for data in ((x, masks, weights), (x[1:2], masks[1:2], weights[1:2])):
        assert np.isfinite(model.evaluate(tf.data.Dataset.from_tensor_slices(data).batch(3), verbose=0))


@pytest.mark.extended
def test_examples_of_a_model_with_another_head_have_weights(eagerly):
    """A model that Keras would give a weight per pixel; its loss takes one per example."""
    x, weights = RNG.integers(0, 256, (3, 5, 6, 3)).astype("uint8"), np.array([1.0, 0.0, 0.5], "float32")
    results, model = [], tiny()
    for model.weighs_examples in (True, False):
        scores = SegmentationScores(K)
        model.compile(loss=SegmentationCrossEntropy(), weighted_metrics=[scores], jit_compile=False)
        results.append(model.evaluate(x, MASKS, sample_weight=weights, batch_size=2, verbose=0, return_dict=True))
    assert results[0] == results[1] and results[0]["loss"] > 0


def test_weights_of_pixels_are_refused():
    with pytest.raises(ValueError, match=r"one weight per example, \(b,\), got weights of the shape.*write void, 255"):
        DiceLoss()(MASKS, LOGITS, np.ones(MASKS.shape))


def test_a_wrong_mask_shows_as_nan_in_a_compiled_function():
    masks = MASKS.copy()
    masks[1, 0, 0] = K
    for loss in (SegmentationCrossEntropy(), SegmentationCrossEntropy(ohem_thresh=0.3), DiceLoss(), FocalLoss()):
        found = tf.function(loss.call, autograph=False)(tf.constant(masks), tf.constant(LOGITS, "float32"))
        assert np.isnan(found).tolist() == [False, True, False]


def test_a_model_that_ends_in_a_softmax_is_refused():
    with pytest.raises(ValueError, match="ends in a softmax or sigmoid, and the loss DiceLoss applies another"):
        tiny("softmax").compile("sgd", DiceLoss())


def test_an_own_loss_defines_per_example():
    class Right(PixelLoss):
        def per_example(self, labels, counted, logits):
            best = keras.ops.cast(keras.ops.argmax(logits, axis=-1), "int32")
            return keras.ops.mean(keras.ops.cast(best == labels, "float32") * counted, axis=(1, 2))

    expected = ((LOGITS.argmax(-1) == MASKS) & (MASKS != VOID)).mean()
    assert float(Right()(MASKS, LOGITS)) == pytest.approx(expected, abs=1e-6)
