"""Scores of predicted classes, evaluated under a strategy, for the tests of replicas and of JAX."""

import contextlib

import keras
import numpy as np
from small_models import COMPILED, eager

import keras_vit
from keras_vit.data import evaluation_batches, from_arrays
from keras_vit.evaluation.boundaries import BoundaryScores
from keras_vit.training import SegmentationCrossEntropy, SegmentationScores

K, VOID, IMAGES = 5, 255, 7


def data():
    """(images whose red is the predicted class, masks with void and without class 3)."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, K, (IMAGES, 6, 8, 1), dtype="uint8")
    masks = np.where(rng.random(images.shape[:3]) < 0.5, images[..., 0], rng.integers(0, K, images.shape[:3]))
    masks[masks == 3] = VOID
    masks[2] = VOID
    return images, masks.astype("uint8")


def model():
    """Its logits are highest for the class that a pixel shows."""
    x = keras.Input((6, 8, 1))
    classes = keras.layers.Rescaling(1.0)(x)
    # -(c - x)^2 without its part in x alone: 2 c x - c^2.
    made = keras_vit.Model(x, keras.layers.Conv2D(K, 1, name="logits")(classes))
    places = np.arange(K, dtype="float32")
    made.get_layer("logits").set_weights([2 * places.reshape(1, 1, 1, K), -(places**2)])
    made.weighs_examples, made.check_pixels = True, False
    return made


def evaluated(strategy, batch=4):
    """({name: number}, exact counts of pixels and of boundary pixels): the last batch is padded."""
    images, masks = data()
    one = strategy.replicas == 1 and keras.backend.backend() == "tensorflow"
    with eager() if one else contextlib.nullcontext():
        with strategy.scope():
            made, metrics = model(), [SegmentationScores(K), BoundaryScores(K, tolerance=0.15)]
            made.compile(loss=SegmentationCrossEntropy(), weighted_metrics=metrics, jit_compile=COMPILED)
        source = from_arrays(images, np.arange(IMAGES))

        def select(example):
            import tensorflow as tf

            return example["image"], tf.gather(masks, example["label"])

        def batches(shard, replicas):
            return evaluation_batches(source, "decode(1)", batch, shard, replicas, select=select)

        measures = made.evaluate(strategy.distribute(batches), verbose=0, return_dict=True)
    return {name: float(value) for name, value in measures.items()}, *(metric.counts().tolist() for metric in metrics)


def by_numpy():
    """(scores, confusion matrix)."""
    images, masks = data()
    predicted, labelled = images[..., 0], masks != VOID
    matrix = np.zeros((K, K), "int64")
    np.add.at(matrix, (masks[labelled], predicted[labelled]), 1)
    right, true, found = np.diag(matrix), matrix.sum(1), matrix.sum(0)
    ious = [r / (t + f - r) for r, t, f in zip(right, true, found) if t + f]
    accuracies = [r / t for r, t in zip(right, true) if t]
    means = {"miou": np.mean(ious), "mean_accuracy": np.mean(accuracies), "pixel_accuracy": right.sum() / true.sum()}
    return {name: float(value) for name, value in means.items()}, matrix.tolist()
