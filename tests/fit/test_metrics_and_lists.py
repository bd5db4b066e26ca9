"""The package's losses and metrics: their directions, nested lists, and weights of 16 bits."""

import inspect

import keras
import numpy as np
import pytest
from small_models import data

import keras_vit
from keras_vit import training
from keras_vit.evaluation.classification_scores import ClassCounts
from keras_vit.evaluation.reliability import CalibrationError
from keras_vit.layers import BatchNormalization
from keras_vit.layers.normalization import LayerNormalization

RNG = np.random.default_rng(0)
LOGITS, LABELS = RNG.normal(size=(4, 5)), [0, 3, 1, 4]
# {class: (y, y_pred) that it takes}.
OBJECTS = [[[0.1, 0.2, 0.5, 0.9, 2, 0, 0]], [[0, 0, 0, 0, -1, 0, 0]]]
WITH_MASKS = [[[*row, 1, 0.5]] for [row] in OBJECTS]
OF = {
    "Accuracy": (LABELS, LOGITS),
    "StudentAccuracy": (LABELS, RNG.normal(size=(4, 2, 5))),
    "TeacherAccuracy": (LABELS, RNG.normal(size=(4, 2, 5))),
    "Agreement": (LABELS, RNG.normal(size=(4, 2, 5))),
    "MaskedAccuracy": ([[0, -1], [2, 1]], RNG.normal(size=(2, 2, 5))),
    "TeacherEntropy": (LABELS, RNG.normal(size=(4, 3, 5))),
    "SoftmaxCrossEntropy": (LABELS, LOGITS),
    "SigmoidCrossEntropy": (np.eye(5)[LABELS].tolist(), LOGITS),
    "HardDistillation": (LABELS, RNG.normal(size=(4, 2, 5))),
    "SoftDistillation": (LABELS, RNG.normal(size=(4, 2, 5))),
    "MaskedCrossEntropy": ([[0, -1], [2, 1]], RNG.normal(size=(2, 2, 5))),
    "MaskedSquaredError": ([[0, 1], [1, 1]], RNG.normal(size=(2, 2, 2, 3))),
    "DINOLoss": (LABELS, RNG.normal(size=(4, 3, 5))),
    **dict.fromkeys(
        ("DiceLoss", "FocalLoss", "SegmentationCrossEntropy", "SegmentationLoss"),
        ([[[0, 255]], [[2, 1]]], RNG.normal(size=(2, 1, 2, 5))),
    ),
    **dict.fromkeys(
        ("PairAccuracy", "SigmoidContrastive", "SoftmaxContrastive"), ([0, 0, 0], RNG.normal(size=(3, 2, 3)))
    ),
    **dict.fromkeys(
        ("DepthL1", "ScaleInvariantLogLoss"), ([[[1.0, 0.0]], [[2.0, 4.0]]], RNG.uniform(1, 5, (2, 1, 2, 1)))
    ),
    "MaskClassificationLoss": ([[[0, 255]], [[2, 1]]], RNG.normal(size=(2, 4, 3 + 1 + 2))),
    "InstanceLoss": (WITH_MASKS, RNG.normal(size=(2, 4, 3 + 1 + 2))),
    "GroupedInstanceLoss": (WITH_MASKS, RNG.normal(size=(2, 2, 2, 4 + 1, 4 + 3 + 6))),
    "DenseDetectionLoss": (OBJECTS, RNG.normal(size=(2, 4, 8 + 3))),
    "SetPredictionLoss": (OBJECTS, RNG.normal(size=(2, 4, 4 + 3 + 1))),
    "GroupedSetPredictionLoss": (OBJECTS, RNG.normal(size=(2, 2, 2, 4, 4 + 3))),
    "RegionLoss": (OBJECTS, np.insert(RNG.normal(size=(2, 4, 8 + 3 + 1)), 8, [0, 0, 1, 1], axis=2)),
}
ARGUMENTS = dict.fromkeys(("MaskClassificationLoss", "InstanceLoss", "GroupedInstanceLoss"), {"classes": 3})


def classes_of(base):
    return [name for name in training.__all__ if inspect.isclass(getattr(training, name))
            and issubclass(getattr(training, name), base)]  # fmt: skip


@pytest.mark.parametrize("name", [n for n in classes_of(keras.metrics.Metric) if not n.endswith("Scores")])
def test_metrics_take_nested_lists(name):
    y, predicted = OF[name]
    weights = np.linspace(0.5, 2.0, len(y))
    for given in ((y, predicted.tolist()), (y, predicted.tolist(), weights.tolist())):
        lists, arrays = getattr(training, name)(), getattr(training, name)()
        lists.update_state(*given)
        arrays.update_state(*[np.asarray(value, "int32" if i == 0 else "float32") for i, value in enumerate(given)])
        assert float(lists.result()) == pytest.approx(float(arrays.result()), rel=1e-6)


@pytest.mark.extended
@pytest.mark.parametrize("name", classes_of(keras.losses.Loss))
def test_losses_take_nested_lists(name):
    y, predicted = OF[name]
    weights = np.linspace(0.5, 2.0, len(y))
    for given in ((y, predicted.tolist()), (y, predicted.tolist(), weights.tolist())):
        loss = getattr(training, name)(**ARGUMENTS.get(name, {}))
        arrays = [np.asarray(value, "float32") for value in given]
        assert float(loss(*given)) == pytest.approx(float(loss(*arrays)), rel=1e-6)


def test_metrics_state_their_direction():
    """But for an entropy, of which neither more nor less is better."""
    stated = {name: getattr(getattr(training, name), "_direction", None) for name in classes_of(keras.metrics.Metric)}
    assert (stated.pop("TeacherEntropy"), stated.pop("DepthScores")) == (None, "down") and set(stated.values()) == {
        "up"
    }
    assert (ClassCounts._direction, CalibrationError._direction) == ("up", "down")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_batchs_statistics_are_float32_under_pure_16_bits(dtype):
    x = RNG.normal(3.0, 2.0, (8, 5, 6, 4)).astype("float32")
    ours, theirs = BatchNormalization(0.99, dtype=dtype), keras.layers.BatchNormalization(momentum=0.99)
    for _ in range(30):  # in 16 bits, steps of 1% stop short
        y, expected = ours(x, training=True), theirs(x, training=True)
    assert keras.backend.standardize_dtype(y.dtype) == ours.gamma.dtype == dtype
    for a, b in ((ours.moving_mean, theirs.moving_mean), (ours.moving_variance, theirs.moving_variance)):
        assert a.dtype == "float32"
        np.testing.assert_allclose(a, b, rtol=2e-3)
    np.testing.assert_allclose(keras.ops.cast(y, "float32"), expected, atol=0.03)
    np.testing.assert_allclose(keras.ops.cast(ours(x), "float32"), theirs(x), atol=0.1)


def test_layer_normalization_in_float64_of_float32_inputs():
    x = RNG.normal(3.0, 2.0, (4, 6, 8)).astype("float32")
    exact = x.astype("float64")
    exact = (exact - exact.mean(-1, keepdims=True)) / np.sqrt(exact.var(-1, keepdims=True) + 1e-6)
    for training_ in (False, True):
        found = LayerNormalization(dtype="float64")(x, training=training_)
        assert keras.backend.standardize_dtype(found.dtype) == "float64"
        np.testing.assert_allclose(found, exact, atol=1e-12)


STEM = {"conv_stem": (8, 8), "conv_strides": (2, 2), "conv_form": "residual", "pool": "gap"}


@pytest.mark.extended
@pytest.mark.parametrize(
    ("dtype", "optimizer"),
    [
        ("float16", training.AdamW),
        ("float16", training.RectifiedAdam),
        ("bfloat16", training.Momentum),
        ("bfloat16", training.Muon),
    ],
)
@pytest.mark.filterwarnings("ignore:The weights are")
def test_a_convolutional_stem_learns_in_pure_16_bits(dtype, optimizer, eagerly):
    """Moments are float32: in 16 bits beta_2 is 1, and squares of gradients vanish."""
    model = keras_vit.ViT(
        "Ti/1", image_size=(8, 12), depth=1, width=16, heads=2, mlp_dim=16, classes=5, dtype=dtype, **STEM
    )
    model.compile(optimizer(0.02), training.SoftmaxCrossEntropy(), jit_compile=False)
    x, y = data(16)
    losses = model.fit(x, y, batch_size=16, epochs=5, verbose=0).history["loss"]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]
    assert {v.dtype for v in model.optimizer.variables if v.name.endswith(("_momentum", "_velocity"))} == {"float32"}
