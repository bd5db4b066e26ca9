"""Lookahead and averaged weights in fit, resumed, saved and in a run. On replicas and on JAX: tests/distribution."""

import json

import keras
import numpy as np
import pytest
from small_models import dense_on_rows, reordered, rows
from trajectories import averages, everything

import keras_vit
from benchmarks.strategies import limit
from keras_vit.data import open_source
from keras_vit.evaluation import Embedder, FeatureSplits, FewShot
from keras_vit.runs import training_run
from keras_vit.runs.saving import run_state
from keras_vit.runs.saving.rundir import RunDirectory
from keras_vit.training import EvaluateAverage, StochasticWeightAveraging, swap_averages
from trainers import config_files


def fitted(optimizer, dtype="float32", micro_batches=1, reverse=False, **kwargs):
    """(the model, its weights after each call) of 7 steps."""
    x, y = (reordered(a, 4) if reverse else a for a in rows(28))
    model, seen = dense_on_rows(optimizer, dtype, **kwargs), []
    model.micro_batches = micro_batches

    def read(batch, logs):
        seen.append([v.numpy() for v in model.trainable_variables])

    callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=read)]
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0, callbacks=callbacks)
    return model, seen


@pytest.mark.extended
def test_in_fit_averages_are_of_the_steps_and_many_a_call_xla_and_micro_batches_change_nothing(eagerly):
    one, seen = fitted(everything())
    for average, snapshots in zip(averages(one.optimizer), zip(*seen[2::2])):  # after steps 3, 5 and 7
        np.testing.assert_allclose(average, np.mean(snapshots, axis=0), atol=1e-6)
    other, _ = fitted(everything(), reverse=True)
    eagerly(False)
    many, _ = fitted(everything(), micro_batches=2, steps_per_execution=3, jit_compile=True)
    variables = [[np.asarray(v) for v in model.optimizer.variables] for model in (one, other, many)]
    rounding = max(np.abs(a - b).max() for a, b in zip(*variables[:2]))
    for a, b in zip(variables[0], variables[2]):
        np.testing.assert_allclose(b, a, atol=limit(rounding))


@pytest.mark.extended
def test_a_loss_scale_goes_around_the_whole_and_its_skipped_steps_do_not_count(eagerly):
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
    swap_averages(model)  # finds them inside


@pytest.mark.extended
def test_evaluation_in_fit_is_of_the_averages(eagerly):
    x, y = rows(16)
    model = dense_on_rows(everything())
    options = {"validation_data": (x, y), "callbacks": [EvaluateAverage()], "verbose": 0}
    averaged = pytest.approx(model.fit(x, y, batch_size=4, epochs=2, **options).history["val_loss"][-1], rel=1e-5)
    assert model.evaluate(x, y, verbose=0) != averaged
    swap_averages(model)
    assert model.evaluate(x, y, verbose=0) == averaged


@pytest.mark.extended
def test_a_run_goes_on_from_its_saved_state_bit_for_bit_and_a_saved_model_has_its_optimizer(tmp_path, eagerly):
    x, y = rows(28)
    whole = dense_on_rows(everything())
    whole.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    first = dense_on_rows(everything())
    first.fit(x[:16], y[:16], batch_size=4, shuffle=False, verbose=0)
    saved = run_state.to_bytes(run_state.collect(first))
    second = dense_on_rows(everything())
    second.optimizer.build(second.trainable_variables)
    run_state.restore(second, run_state.from_bytes(saved, "it"))
    second.fit(x[16:], y[16:], batch_size=4, shuffle=False, verbose=0)
    a, b = run_state.collect(whole), run_state.collect(second)
    assert any("slow" in name for name in a) and any("average" in name for name in a)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)
    whole.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras").optimizer
    assert type(again) is StochasticWeightAveraging and again.get_config() == whole.optimizer.get_config()
    for ours, theirs in zip(again.variables, whole.optimizer.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.extended
def test_a_configs_run_ends_with_the_averages_which_evaluators_measure(tmp_path, monkeypatch, eagerly):
    """model.keras contains the averages of the last checkpoint: here the mean of the weights after steps 3 to 6."""
    monkeypatch.setattr(training_run, "write_report", lambda *_: None)  # its figures take longer than the run
    config = config_files.load_config("digits_pretrain")
    config.model.update(depth=1, width=16, heads=2, mlp_dim=16)
    config.data.update(train="train[:100]", evaluation="test[:20]")
    config.update(total="6 steps", evaluate="3 steps", checkpoint="3 steps", batch_size=8, jit_compile=False)
    config.optimizer.update(name="radam", swa="50%", lookahead=2)
    splits = {"train": "train[:120]", "test": "test[:20]"}
    config.evals.few_shot = {"source": "digits", **splits, "every": "6 steps", "shots": "1,5"}
    model, _ = training_run.run(config, tmp_path)
    first, last = RunDirectory(tmp_path).metrics()
    written = json.loads((tmp_path / "few_shot.json").read_text())
    assert [first["step"], last["step"]] == [3, 6] and "few_shot/5" not in first and written["step"] == 6
    assert last["few_shot/5"] == written["few_shot"]["5"]["mean"]
    # The run ends with the averages in the model: measured again, they give the same.
    embedded = FeatureSplits(
        Embedder(model, written["preprocess"], 8), *(open_source("digits", s) for s in splits.values())
    )
    again = FewShot(source="digits", shots=(1, 5)).evaluate(embedded)
    assert {str(k): v for k, v in again.details["few_shot"].items()} == written["few_shot"]
    path = RunDirectory(tmp_path).checkpoints()[6]
    arrays = run_state.from_bytes(path.read_bytes(), path)
    kept = [arrays[name] for name in sorted(arrays) if name.endswith("_average")]
    trained = [arrays[f"model/{i:05d}/{v.path}"] for i, v in enumerate(model.variables) if v.trainable]
    assert len(kept) == len(model.trainable_variables) == len([name for name in arrays if name.endswith("_slow")])
    for variable, average in zip(keras_vit.load(tmp_path).trainable_variables, kept):
        np.testing.assert_array_equal(variable.numpy(), average)
    assert any(np.abs(weight - average).max() > 1e-5 for weight, average in zip(trained, kept))
