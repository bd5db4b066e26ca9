"""Lookahead and averaged weights in training: in fit, resumed, saved, in a config's run, on two replicas, on JAX."""

import keras
import numpy as np
import pytest
from logical import in_process
from test_averaging import averages, everything

import keras_vit
from keras_vit.training import (
    EvaluateAverage,
    Lookahead,
    RectifiedAdam,
    SoftmaxCrossEntropy,
    StochasticWeightAveraging,
    WarmupSchedule,
    state,
    strategy,
    swap_averages,
)
from keras_vit.training.rundir import RunDirectory
from trainers import flags, pretrain, session


def rows(n):
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (n, 6)).astype("float32"), rng.integers(0, 5, n)


def compiled(optimizer, dtype="float32", **kwargs):
    """Two dense layers, the same on either backend; XLA would take long over a ViT."""
    inputs = keras.Input((6,))
    x = keras.layers.Rescaling(1 / 255, dtype=dtype)(inputs)
    for i, units in enumerate((4, 5)):
        x = keras.layers.Dense(units, name=f"block_{i:02d}", dtype=dtype)(x)
    model = keras_vit.Model(inputs, x)
    rng = np.random.default_rng(1)
    model.set_weights([rng.normal(size=w.shape) / 2 for w in model.get_weights()])
    model.compile(optimizer, SoftmaxCrossEntropy(), **{"jit_compile": False, **kwargs})
    return model


def fitted(optimizer, dtype="float32", micro_batches=1, **kwargs):
    """(the model, its weights behind each call) of 7 steps."""
    x, y = rows(28)
    model, seen = compiled(optimizer, dtype, **kwargs), []
    model.micro_batches = micro_batches
    read = lambda batch, logs: seen.append([v.numpy() for v in model.trainable_variables])  # noqa: E731
    callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=read)]
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0, callbacks=callbacks)
    return model, seen


def test_in_fit_averages_are_of_the_steps_and_many_a_call_xla_and_micro_batches_change_nothing():
    one, seen = fitted(everything())
    for average, snapshots in zip(averages(one.optimizer), zip(*seen[2::2])):  # behind steps 3, 5 and 7
        np.testing.assert_allclose(average, np.mean(snapshots, axis=0), atol=1e-6)
    many, _ = fitted(everything(), micro_batches=2, steps_per_execution=3, jit_compile=True)
    for a, b in zip(many.optimizer.variables, one.optimizer.variables):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_a_loss_scale_goes_around_the_whole_and_its_skipped_steps_do_not_count():
    scaled = keras.optimizers.LossScaleOptimizer(everything(), initial_scale=2.0**40)
    model, seen = fitted(scaled, "mixed_float16")
    steps = int(scaled.inner_optimizer.iterations)
    assert model.optimizer is scaled and 0 == steps < len(seen) == 7  # 2^40 overflows float16
    scaled.dynamic_scale.assign(128.0)
    x, y = rows(12)
    taken = [[v.numpy() for v in model.trainable_variables] for _ in range(3) if model.train_on_batch(x, y) is not None]
    assert int(scaled.inner_optimizer.iterations) == 3
    for average, w in zip(averages(scaled.inner_optimizer), taken[-1]):
        np.testing.assert_array_equal(average, w)
    swap_averages(model)  # finds them within


def test_evaluation_in_fit_is_of_the_averages():
    x, y = rows(16)
    model = compiled(everything())
    history = model.fit(x, y, batch_size=4, epochs=2, validation_data=(x, y), callbacks=[EvaluateAverage()], verbose=0).history
    trained = model.evaluate(x, y, verbose=0)
    swap_averages(model)
    assert model.evaluate(x, y, verbose=0) == pytest.approx(history["val_loss"][-1], rel=1e-5) != pytest.approx(trained, rel=1e-5)


def test_a_run_goes_on_from_its_saved_state_bit_for_bit():
    x, y = rows(28)
    whole = compiled(everything())
    whole.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    first = compiled(everything())
    first.fit(x[:16], y[:16], batch_size=4, shuffle=False, verbose=0)
    saved = state.to_bytes(state.collect(first))
    second = compiled(everything())
    second.optimizer.build(second.trainable_variables)
    state.restore(second, state.from_bytes(saved, "it"))
    second.fit(x[16:], y[16:], batch_size=4, shuffle=False, verbose=0)
    a, b = state.collect(whole), state.collect(second)
    assert any("slow" in name for name in a) and any("average" in name for name in a)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def test_a_saved_model_brings_its_optimizer_back(tmp_path):
    x, y = rows(16)
    model = compiled(everything())
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    assert type(again.optimizer) is StochasticWeightAveraging and again.optimizer.get_config() == model.optimizer.get_config()
    for m in (model, again):
        m.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    for a, b in zip(again.optimizer.variables, model.optimizer.variables):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_a_configs_run_ends_with_the_averages(tmp_path, monkeypatch):
    """model.keras holds what the last checkpoint has as averages: here the mean of the weights behind steps 3 to 6."""
    monkeypatch.setattr(session, "write_report", lambda *_: None)  # its figures take longer than the run
    config = flags.load_config("digits_pretrain")
    config.model.update(depth=1, width=16, heads=2, mlp_dim=16)
    config.data.update(train="train[:100]", evaluation="test[:20]")
    config.update(total="6 steps", evaluate="3 steps", checkpoint="3 steps", batch_size=8, jit_compile=False)
    config.optimizer.update(name="radam", swa="50%", lookahead=2)
    model, _ = session.run(config, tmp_path, pretrain.build)
    path = RunDirectory(tmp_path).checkpoints()[6]
    arrays = state.from_bytes(path.read_bytes(), path)
    kept = [arrays[name] for name in sorted(arrays) if name.endswith("_average")]
    trained = [arrays[f"model/{i:05d}/{v.path}"] for i, v in enumerate(model.variables) if v.trainable]
    assert len(kept) == len(model.trainable_variables) == len([name for name in arrays if name.endswith("_slow")])
    for variable, average in zip(keras_vit.load(tmp_path).trainable_variables, kept):
        np.testing.assert_array_equal(variable.numpy(), average)
    assert any(np.abs(weight - average).max() > 1e-5 for weight, average in zip(trained, kept))


def inner():
    return RectifiedAdam(WarmupSchedule(1e-3, 6, warmup=2), epsilon=1e-4, global_clipnorm=0.1, decay=0.1)


MAKE = {
    "all around": lambda: StochasticWeightAveraging(Lookahead(inner(), k=2), start=2),
    "keras' own clips": lambda: Lookahead(keras.optimizers.Adam(1e-3, epsilon=1e-4, global_clipnorm=0.1), k=3, use_ema=True),
}


def trained(layout, make, **kwargs):
    """The arrays of weights, averages and slow weights after 6 steps."""
    x, y = rows(48)
    with layout.scope():
        model = compiled(make(), **kwargs)
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    return {name: array for name, array in enumerate(state.collect(model).values())}


def on_two_replicas():
    one, two = strategy("one"), strategy("mirrored")
    assert two.replicas == 2
    for name, make in MAKE.items():
        a, b = trained(one, make), trained(two, make, steps_per_execution=3)
        assert a.keys() == b.keys()
        for i in a:
            np.testing.assert_allclose(b[i], a[i], atol=1e-5, rtol=1e-4, err_msg=f"{name}: {i}")
    x, y = rows(48)
    keras.config.set_dtype_policy("mixed_float16")  # with it compile puts a LossScaleOptimizer around
    for name in ("all around", "keras' own clips"):
        with two.scope():
            model = compiled(MAKE[name](), "mixed_float16")
        if name == "all around":
            model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
            assert model.optimizer.inner_optimizer.iterations.numpy() == 6
        else:
            with pytest.raises(ValueError, match="Adam with clipping and loss scaling"):
                model.fit(x, y, batch_size=8, verbose=0)


def test_two_replicas_end_where_one_device_does():
    in_process(on_two_replicas, devices=2)


def save_on_jax(path):
    np.savez(path, **{str(i): array for i, array in trained(strategy("one"), MAKE["all around"]).items()})
    scaled = keras.optimizers.LossScaleOptimizer(MAKE["all around"](), initial_scale=128.0)
    model = compiled(scaled, "mixed_float16")
    model.micro_batches = 2
    model.fit(*rows(48), batch_size=8, verbose=0)
    assert scaled.inner_optimizer.iterations.numpy() == 6


def test_the_jax_backend_ends_where_tensorflow_does(tmp_path):
    ours = trained(strategy("one"), MAKE["all around"])
    in_process(save_on_jax, str(tmp_path / "jax.npz"), backend="jax")
    with np.load(tmp_path / "jax.npz") as theirs:
        assert len(theirs) == len(ours)
        for i, array in ours.items():
            np.testing.assert_allclose(theirs[str(i)], array, atol=1e-5, rtol=1e-3)
