"""Freezing by name pattern and linear probing."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.models import freeze, freeze_all_but_head


def test_patterns_freeze_layers_and_nothing_else(tiny):
    model = tiny()
    for wrong in ("blok_1", 1):
        with pytest.raises(ValueError, match='No layer matches ".*1".*block_00'):
            freeze(model, wrong)
    assert freeze(model, "block_0*") == ["block_00", "block_01"]
    assert freeze(model, ["patch_encoder", "block_0*"]) == ["block_00", "block_01", "patch_encoder"]
    trained = {w.path.split("/")[0] for w in model.trainable_weights}
    assert trained == {"class_token", "position_embedding", "encoder_norm", "head"}


@pytest.mark.extended
def test_linear_probe_trains_the_head_alone(tiny, pixels):
    model = tiny(depth=1)
    freeze_all_but_head(model)
    before = {w.path: w.numpy() for w in model.weights}
    model.compile("sgd", "mse", run_eagerly=True)
    model.fit(pixels, np.ones((4, 5)), verbose=0)
    assert {w.path for w in model.weights if (w.numpy() != before[w.path]).any()} == {"head/kernel", "head/bias"}


def nested(vit):
    image = keras.Input((8, 12, 3))
    scaled = keras.layers.Conv2D(3, 1, name="colours")(image)
    return keras_vit.Model(image, keras.layers.Dense(2, name="mine")(vit(scaled)))


@pytest.mark.parametrize(
    ("make", "options", "trained"),
    [
        (lambda vit: vit, {"distillation_token": True}, {"head", "head_dist"}),
        (lambda vit: vit.with_head(keras.layers.Dense(2, name="mine")), {"pool": "gap", "fc_norm": True}, {"mine"}),
        (lambda vit: vit.with_head(keras.layers.Dense(2, name="mine"), on="feature_map"), {}, {"mine"}),
        (nested, {"classes": None}, {"mine"}),
        (nested, {}, {"head", "mine"}),
    ],
)
def test_what_comes_after_the_features_trains(tiny, make, options, trained):
    model = make(tiny(**options))
    freeze_all_but_head(model)
    assert {weight.path.split("/")[-2] for weight in model.trainable_weights} == trained


def test_a_model_without_a_head_is_refused_and_stays_as_it_is(tiny):
    model = tiny(classes=None)
    with pytest.raises(ValueError, match="nothing trainable comes after its features"):
        freeze_all_but_head(model)
    assert model.trainable_weights == model.weights
