"""A loss and metrics over a source: outputs of every structure and rank, each example once."""

import keras
import numpy as np
import pytest

from keras_vit.data import from_arrays
from keras_vit.evaluation import Setting
from keras_vit.evaluation.loss_and_metrics import LossAndMetrics
from keras_vit.training import Model

RNG = np.random.default_rng(0)
IMAGES, LABELS = RNG.integers(0, 256, (5, 4, 4, 3), dtype="uint8"), np.array([0, 1, 2, 0, 1])


def outputs(structure):
    image = keras.Input((4, 4, 3), name="image")
    dense = keras.layers.Conv2D(3, 1)(keras.layers.Rescaling(1 / 255)(image))
    pooled = keras.layers.GlobalAveragePooling2D()(dense)
    return Model(image, {"dict": {"a": dense, "b": pooled}, "list": [dense, pooled], "dense": dense}[structure])


def select(example):
    image, label = example["image"], example["label"]
    return image, {"dict": {"a": image / 255, "b": label}, "list": (image / 255, label), "dense": image / 255}[
        select.structure
    ]


@pytest.mark.extended
@pytest.mark.parametrize(("structure", "with_metrics"), [("dict", True), ("list", False), ("dense", True)])
def test_a_padded_last_batch_counts_only_its_examples(structure, with_metrics):
    select.structure = structure
    crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loss = {"dict": {"a": "mse", "b": crossentropy}, "list": ["mse", crossentropy], "dense": "mse"}[structure]
    error = [keras.metrics.MeanSquaredError(name="mse")]
    metrics = {"dict": {"a": error, "b": []}, "list": [error, []], "dense": error}[structure] if with_metrics else []
    model = outputs(structure)
    setting = Setting(model, batch_size=2, source=from_arrays(IMAGES, LABELS), preprocess="decode(3)", select=select)
    measures = LossAndMetrics(lambda source: loss, lambda model: metrics).prepare(setting)().measures

    dense, pooled = (
        (np.asarray(t) for t in keras.tree.flatten(model.predict(IMAGES, verbose=0)))
        if structure != "dense"
        else (model.predict(IMAGES, verbose=0), None)
    )
    expected = error_of_pixels = np.square(dense - IMAGES / 255).mean()
    if structure != "dense":
        expected = expected + np.mean(np.log(np.exp(pooled).sum(-1)) - pooled[np.arange(5), LABELS])
    assert measures["examples"] == 5
    assert measures["loss"] == pytest.approx(expected, rel=1e-5)
    if with_metrics:
        assert [v for name, v in measures.items() if name.endswith("mse")] == pytest.approx([error_of_pixels], rel=1e-5)
