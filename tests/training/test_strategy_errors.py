"""Strategies refuse what would be wrong without a word, and what cannot be, saying what to do."""

import keras
import pytest
from logical import data, in_process, small

import keras_vit
from keras_vit.training import strategy


def refusals():
    x, y = data()
    two = strategy("mirrored")
    model = small(two, lambda: keras.optimizers.Adam(gradient_accumulation_steps=2))
    with pytest.raises(ValueError, match="gradient_accumulation_steps does not work.*micro_batches"):
        model.fit(x, y, verbose=0)
    model = small(two, lambda: keras.optimizers.SGD(use_ema=True, ema_overwrite_frequency=2))
    with pytest.raises(ValueError, match="ema_overwrite_frequency does not work"):
        model.fit(x, y, verbose=0)
    model = small(two, lambda: keras.optimizers.ScheduleFreeAdamW())
    with pytest.raises(ValueError, match="ScheduleFreeAdamW.*Use keras_vit.training.AdamW"):
        model.fit(x, y, verbose=0)
    model = small(two, lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(clipnorm=1.0)))
    with pytest.raises(ValueError, match="would clip each replica's gradient.*mixed_bfloat16"):
        model.fit(x, y, verbose=0)
    model = small(two, keras.optimizers.Adam)
    with pytest.raises(ValueError, match="batch of 7 cannot be shared evenly by 2 replicas: use a batch size of 6 or 8"):
        model.fit(x, y, batch_size=7)
    model.micro_batches = 3
    with pytest.raises(ValueError, match="batch of 4 cannot be split into 3 micro-batches"):
        import tensorflow as tf

        model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(8, drop_remainder=True))
    outside = small(strategy("one"), keras.optimizers.Adam)
    with two.scope(), pytest.raises(ValueError, match="made outside this strategy's scope"):
        outside.fit(x, y)
    with two.scope():
        late = keras_vit.ViT("Ti/4", image_size=8, depth=1, width=16, heads=2, mlp_dim=16, classes=5)
    late.compile(keras.optimizers.Adam(), "sparse_categorical_crossentropy")
    with pytest.raises(ValueError, match="optimizer was made outside the strategy's scope"):
        late.fit(x[:, :, :8], y, verbose=0)
    ok = small(two, keras.optimizers.Adam, steps_per_execution=2)
    with pytest.raises(ValueError, match="number of batches must be known: pass steps_per_epoch"):
        ok.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(8).filter(lambda *_: True), verbose=0)


def test_what_would_be_wrong_without_a_word_is_refused():
    in_process(refusals, devices=2)


def test_set_distribution_on_tensorflow_is_refused(tiny, monkeypatch):
    monkeypatch.setattr(keras.distribution, "distribution", lambda: "something")
    model = tiny()
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="no effect on the tensorflow backend.*strategy"):
        model.fit(*data(8))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("miror", {}, 'no strategy "miror". Did you mean "mirrored"'),
        ("data", {}, "is for the jax backend; this is tensorflow. Here: one, mirrored, multiworker, tpu"),
        ("tpu", {}, "no TPU on this machine.*docs/tpu.md"),
        ("tpu", {"tpu": "grpc://127.0.0.1:9"}, 'The TPU "grpc://127.0.0.1:9" does not answer.*Check the name'),
        ("multiworker", {}, "needs TF_CONFIG"),
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


def test_the_private_names_that_strategies_lean_on_are_there():
    optimizer = keras.optimizers.SGD(0.1, clipvalue=1.0)
    for name in ("_clip_gradients", "_all_reduce_sum_gradients", "_distribution_strategy"):
        assert hasattr(optimizer, name), name
    model = small(strategy("one"), keras.optimizers.SGD)
    for name in ("_compute_loss", "_loss_tracker", "_maybe_symbolic_build", "distribute_strategy"):
        assert hasattr(model, name), name
    assert model._distribute_strategy is None  # a model made outside a scope
    model.compile("sgd", "mse", metrics=["mae"])
    assert model._compile_metrics._user_metrics == ["mae"]
