"""Freezing by name pattern and linear probing."""

import numpy as np
import pytest

from keras_vit.models import freeze, freeze_all_but_head


def test_patterns_freeze_layers_and_nothing_else(tiny):
    model = tiny()
    assert freeze(model, ["patch_encoder", "block_0*"]) == ["block_00", "block_01", "patch_encoder"]
    trained = {w.path.split("/")[0] for w in model.trainable_weights}
    assert trained == {"class_token", "position_embedding", "encoder_norm", "head"}


def test_a_pattern_without_match_is_an_error(tiny):
    with pytest.raises(ValueError, match='No layer matches "blok_.".*block_00'):
        freeze(tiny(), ["blok_*"])


def test_linear_probe_trains_the_head_alone(tiny, pixels):
    model = tiny()
    freeze_all_but_head(model)
    before = {w.path: w.numpy() for w in model.weights}
    model.compile("sgd", "mse")
    model.fit(pixels, np.ones((4, 5)), verbose=0)
    changed = {path for path, value in before.items() if (model_weight(model, path) != value).any()}
    assert changed == {"head/kernel", "head/bias"}


def model_weight(model, path):
    return next(w.numpy() for w in model.weights if w.path == path)
