"""Strategies that cannot be made say why. What they refuse to train is in test_strategies.py."""

import keras
import pytest
from small_models import data, small

from keras_vit.distribution import strategy


def test_set_distribution_on_tensorflow_is_refused(tiny, monkeypatch):
    monkeypatch.setattr(keras.distribution, "distribution", lambda: "something")
    model = tiny()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match="no effect on the tensorflow backend.*strategy"):
        model.fit(*data(8))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("miror", {}, 'Unknown strategy "miror". Did you mean "mirrored"'),
        ("data", {}, "is for the jax backend; this is tensorflow. Here: one, mirrored, multiworker, tpu"),
        ("tpu", {}, "no TPU on this machine.*docs/tpu.md"),
        ("tpu", {"tpu": "grpc://127.0.0.1:9"}, 'The TPU "grpc://127.0.0.1:9" does not answer.*Check the name'),
        ("multiworker", {}, "needs TF_CONFIG"),
        ("one", {"tpu": "x"}, """tpu='x' is for the strategy "tpu", not for "one": leave it out"""),
        ("data", {"model_parallel": 4}, 'model_parallel=4 is for the strategy "model", not for "data"'),
    ],
)
def test_strategies_that_cannot_be_made_say_why(monkeypatch, name, options, message):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(ValueError, match=message):
        strategy(name, **options)


@pytest.mark.parametrize(
    "text",
    ["{", '{"cluster": {}}', '{"cluster": {"worker": ["a:1"]}, "task": {"type": "chief", "index": 0}}',
     '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}'],
)  # fmt: skip
def test_a_wrong_tf_config_is_shown(monkeypatch, text):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match="TF_CONFIG"):
        strategy("multiworker")


def test_the_private_names_that_strategies_rely_on_are_there():
    optimizer = keras.optimizers.SGD(0.1, clipvalue=1.0)
    for name in ("_clip_gradients", "_all_reduce_sum_gradients"):
        assert hasattr(optimizer, name), name
    model = small(strategy("one"), keras.optimizers.SGD)
    for name in ("_compute_loss", "_loss_tracker", "_maybe_symbolic_build", "distribute_strategy"):
        assert hasattr(model, name), name
    assert model._distribute_strategy is None  # a model made outside a scope
