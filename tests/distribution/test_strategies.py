"""Two replicas, and two workers, train, evaluate and predict as one device does. One process with two devices runs all
tests of replicas; in it, one device computes eagerly, without tracing a graph.
"""

import contextlib
import functools
import json
import signal
import unittest.mock

import keras
import numpy as np
import pytest
from as_one_device import CASE, DEPTH, assert_as_one_device, hold
from detector_steps import losses
from interpreters import Fork, Interpreter, wait_for
from replica_models import divided_by_weights, pairs, ragged_in_eager_steps, transformers
from replica_optimizers import OPTIMIZERS, overflows, stock_optimizers, wrapped_optimizers
from segmentation_scores import by_numpy, evaluated
from small_detectors import measured
from small_models import data, dense, dense_on_images, eager, rows
from two_replicas import two

import keras_vit
from benchmarks.strategies import limit, tf_configs
from keras_vit.distribution import strategy
from keras_vit.layers import Dropout
from keras_vit.runs.saving import run_state
from keras_vit.training import SoftmaxCrossEntropy

pytestmark = pytest.mark.release("fit", "layers", "models", "optim", "distribution")


@pytest.fixture(scope="module")
def replicas():
    """A process with two devices."""
    with Interpreter(devices=2) as interpreter:
        yield interpreter


def two_as_one(file):
    return hold(strategy("one"), two(), file=file)


def of_two_workers(folder):
    """The results of CASE on two workers, which are forks."""
    command = ["--setup=multiworker2", f"--output={folder}/two.npz", f"--cases={CASE}", f"--depth={DEPTH}"]
    workers = [
        Fork("benchmarks.strategy_cases", *command, output=folder / f"worker{i}", TF_CONFIG=config)
        for i, config in enumerate(tf_configs(2))
    ]
    wait_for(lambda: None not in (codes := [worker.poll() for worker in workers]) or any(codes), workers)
    for worker in workers:
        worker.send_signal(signal.SIGKILL)  # one that waits for another, which has failed
    assert [worker.wait() for worker in workers] == [0, 0], [worker.printed()[-3000:] for worker in workers]
    with np.load(folder / "two.npz") as arrays:
        return dict(arrays)


def test_two_replicas_and_two_workers_end_where_one_device_does(replicas, tmp_path):
    file = tmp_path / "one.npz"
    rounding = replicas.run(two_as_one, str(file))
    with np.load(file) as one:
        assert_as_one_device(dict(one), of_two_workers(tmp_path), rounding)


def test_keras_own_optimizers_are_right_on_two_replicas(replicas):
    distances = replicas.run(stock_optimizers)
    assert len(distances) == len(OPTIMIZERS)
    assert all(value <= limit(rounding) for value, rounding in distances.values()), distances


def test_transformers_learn_alike_on_two_replicas(replicas):
    distances = replicas.run(transformers)
    assert len(distances) == 6 and all(value <= limit(rounding) for value, rounding in distances.values()), distances


def test_images_and_texts_of_all_replicas_are_compared(replicas):
    distances, shapes = replicas.run(pairs)
    assert len(distances) == 2 and max(distances.values()) <= 1e-6, distances
    assert [tuple(shape) for shape in shapes] == [(8, 2, 16)] * 2  # a replica's own 8 images and 8 texts with all 16


def test_a_loss_divided_by_the_weights_is_that_of_the_whole_batch(replicas):
    one, *others = replicas.run(divided_by_weights)
    for weights, loss, val_loss in others:
        for a, b in zip(weights, one[0]):
            np.testing.assert_allclose(a, b, atol=1e-5)
        assert [loss, val_loss] == pytest.approx(one[1:], rel=1e-5)


def one_image_on_two_replicas():
    with two().scope():
        model = keras_vit.ViT("Ti/4", image_size=8, depth=1, width=16, heads=2, mlp_dim=16, classes=3)
    model.get_layer("head").set_weights([np.full((16, 3), 1e-3), np.array([0.0, 1.0, 2.0])])
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype="uint8")
    return [model.classify(images[0], top_k=1)[0].name, *model.predict_on_batch(images).shape]


def test_a_batch_smaller_than_the_replicas_is_predicted(replicas):
    assert replicas.run(one_image_on_two_replicas) == ["2", 3, 3]


def own_logs_and_weights():
    """What steps of the user's own report, and the losses under sample weights, {name: (one device, two replicas)}."""
    from fit.test_own_steps import OwnMetrics, OwnSteps, made

    x, y = data(16)
    weights = np.array([1, 0, 2, 0.5] * 4, "float32")
    results = {}
    for chosen in (strategy("one"), two()):
        with chosen.scope():
            options = {"run_eagerly": True} if chosen.replicas == 1 else {"steps_per_execution": 2}
            steps, metrics, plain = (made(each, **options) for each in (OwnSteps, OwnMetrics, keras_vit.Model))
        given = {"batch_size": 8, "shuffle": False, "verbose": 0}
        found = {
            "steps": steps.fit(x, y, validation_data=(x, y), **given).history["val_mine"],
            "metrics": metrics.fit(x, y, **given).history["loss"],
            "weights": (
                plain.fit(x, y, sample_weight=weights, validation_data=(x, y, weights), **given).history["val_loss"]
            ),
            "weighted loss": plain.history.history["loss"],
        }
        for name, value in found.items():
            results.setdefault(name, []).append(float(value[0]))
    with two().scope():
        refusing = dense_on_images()
        refusing.compile("sgd", SoftmaxCrossEntropy())
    with pytest.raises(ValueError, match="subtract 1"):
        refusing.fit(x, np.arange(16) % 5 + 1, batch_size=8, verbose=0)
    return results


def test_own_steps_weights_and_refusals_are_those_of_one_device(replicas):
    results = replicas.run(own_logs_and_weights)
    for name, (one, both) in results.items():
        assert both == pytest.approx(one, rel=1e-5), name


class Always(Dropout):
    """Dropout in predict, too."""

    def call(self, x):
        return super().call(x, training=True)


def masks_of(model, n=64):
    """(n, 400) of 0 and 1: the elements that Dropout kept; the rows of the first replica, then those of the second."""
    return (np.asarray(model.predict(np.ones((n, 400), "float32"), batch_size=n, verbose=0)) > 0).astype(int)


def dropout_masks():
    with two().scope():
        inputs = keras.Input((400,))
        model = keras_vit.Model(inputs, Always(0.25, seed=1)(inputs))
        model.compile("sgd", "mse")
    first = masks_of(model)
    saved = run_state.collect(model)
    second = masks_of(model)
    run_state.restore(model, saved)
    np.testing.assert_array_equal(masks_of(model), second)  # the same after resuming
    assert abs(first.mean() - 0.75) < 0.01  # 25600 values: 3.7 standard deviations
    for a, b in ((first[:32], first[32:]), (first, second)):  # replicas, and steps: as different as independent masks
        assert abs((a != b).mean() - 2 * 0.25 * 0.75) < 0.02


def test_dropout_has_other_masks_in_each_replica_and_resumes(replicas):
    replicas.run(dropout_masks)


def many_steps():
    x, y = rows(80)
    model = dense(two(), keras.optimizers.SGD, steps_per_execution=4)
    seen = []
    count = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(int(model.optimizer.iterations.numpy()))
    )
    model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[count], validation_data=(x[:30], y[:30]))
    assert seen == [4, 8, 10, 14, 18, 20], seen  # 10 steps per epoch, not 12
    assert np.isfinite(model.train_on_batch(x[:8], y[:8])) and np.isfinite(model.test_on_batch(x[:8], y[:8]))
    assert int(model.optimizer.iterations.numpy()) == 21
    assert model.predict_on_batch(x[:8]).shape == (8, 5)
    np.testing.assert_allclose(model.predict_on_batch(x[:8]), model.predict(x[:8], verbose=0), rtol=1e-5, atol=1e-6)
    eager = dense(two(), keras.optimizers.SGD, steps_per_execution=4, run_eagerly=True)
    eager.fit(x[:48], y[:48], batch_size=8, verbose=0)
    assert int(eager.optimizer.iterations.numpy()) == 6


def test_an_epoch_runs_its_steps_and_no_more(replicas):
    replicas.run(many_steps)


def test_examples_of_a_ragged_batch_weigh_the_same_in_eager_steps(replicas):
    found = replicas.run(ragged_in_eager_steps)
    assert max(found.values()) < 1e-5, found


def test_lookahead_and_averages_on_two_replicas_end_where_one_device_does(replicas):
    replicas.run(wrapped_optimizers)


def test_an_overflow_on_any_replica_skips_the_step_and_halves_the_loss_scale(replicas):
    seen = replicas.run(overflows)
    moved, *scaled = seen.pop("none")
    assert 0 < moved < 1 and scaled == [2**15, 1]
    assert seen == {"first replica": [0, 2**14, 1], "second replica": [0, 2**13, 1]}


def evaluators():
    """The measures of an evaluator of logits, and of one of features, under MirroredStrategy and on one device; of the
    digits' 360 test images in batches of 64.
    """
    from keras_vit.data import open_source
    from keras_vit.evaluation import Setting, make_evaluator

    options = {"classification": {}, "knn": {"source": "digits", "train": "train[:300]"}}
    source, result = open_source("digits", "test"), {}
    for name, chosen in (("one", strategy("one")), ("two", two())):
        keras.utils.set_random_seed(0)
        with chosen.scope():
            model = keras_vit.ViT("Ti/4", image_size=8, channels=1, classes=10, depth=1, width=16, heads=2, mlp_dim=16)
            model.get_layer("head").kernel.assign(np.random.default_rng(0).normal(size=(16, 10)))
        setting = Setting(model, chosen, 64, source=source, preprocess="decode(1)")
        with eager() if name == "one" else contextlib.nullcontext():
            evaluations = {key: make_evaluator(key, given).prepare(setting)() for key, given in options.items()}
        result[name] = {key: evaluation.measures for key, evaluation in evaluations.items()}
        result[f"{name} confusion"] = evaluations["classification"].details["confusion"]
    return result


def test_evaluators_give_the_measures_of_one_device_on_two_replicas(replicas):
    result = replicas.run(evaluators)
    for name, measures in result["one"].items():
        assert result["two"][name] == pytest.approx(measures, rel=1e-6, abs=1e-6), name
    assert result["one"]["classification"]["examples"] == 360
    assert result["one confusion"] == result["two confusion"]


def refusals():
    import tensorflow as tf

    x, y = rows(48)
    optimizers = keras.optimizers
    for cls, options, message in (
        (optimizers.Adam, {"gradient_accumulation_steps": 2}, "gradient_accumulation_steps does not.*micro_batches"),
        (optimizers.SGD, {"use_ema": True, "ema_overwrite_frequency": 2}, "ema_overwrite_frequency does not work"),
        (optimizers.ScheduleFreeAdamW, {}, "ScheduleFreeAdamW.*Use keras_vit.training.AdamW"),
    ):
        with pytest.raises(ValueError, match=message):
            dense(two(), functools.partial(cls, **options)).fit(x, y, verbose=0)
    with pytest.raises(ValueError, match="would clip each replica's gradient.*mixed_bfloat16"):
        dense(two(), lambda: optimizers.LossScaleOptimizer(optimizers.Adam(clipnorm=1.0))).fit(x, y, verbose=0)
    model = dense(two(), keras.optimizers.Adam)
    with pytest.raises(ValueError, match="batch of 7 cannot be shared evenly by 2 replicas: use a .* of 6 or 8"):
        model.fit(x, y, batch_size=7)
    model.micro_batches = 3
    with pytest.raises(ValueError, match="batch of 4 cannot be split into 3 micro-batches"):
        model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(8, drop_remainder=True))
    outside = dense(strategy("one"), keras.optimizers.Adam)
    with two().scope(), pytest.raises(ValueError, match="made outside this strategy's scope"):
        outside.fit(x, y)
    with two().scope():
        inputs = keras.Input((6,))
        late = keras_vit.Model(inputs, keras.layers.Dense(5)(inputs))
    late.compile(keras.optimizers.Adam(), SoftmaxCrossEntropy())
    with pytest.raises(ValueError, match="optimizer was made outside the strategy's scope"):
        late.fit(x, y, verbose=0)
    ok = dense(two(), keras.optimizers.Adam, steps_per_execution=2)
    with pytest.raises(ValueError, match="number of batches must be known: pass steps_per_epoch"):
        ok.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(8).filter(lambda *_: True), verbose=0)


def test_what_would_silently_be_wrong_is_refused(replicas):
    replicas.run(refusals)


def a_run(workdir):
    """The same config on one device, fed by a tf.data service, and on two replicas, in micro-batches and several steps
    per execution.
    """
    import tensorflow as tf

    from keras_vit.runs import training_run
    from trainers import config_files

    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    address = {"dispatcher_address": dispatcher.target.split("://")[1], "heartbeat_interval_ms": 100}  # not 30 s
    worker = service.WorkerServer(service.WorkerConfig(**address))
    measures = {}
    runs = {
        "one": ({}, strategy("one"), dispatcher.target),
        "two": ({"micro_batches": 2, "steps_per_execution": 4}, two(), None),
    }
    for name, (options, chosen, address) in runs.items():
        config = config_files.load_config("digits_pretrain")
        config.model.update(depth=1, width=16, heads=2, mlp_dim=16)
        config.data.update(train="train[:100]", evaluation="test[:30]")
        config.update(total="6 steps", evaluate="5 steps", checkpoint="5 steps", batch_size=16, jit_compile=False)
        config.update(options)
        config.optimizer.ema = 0.9
        with (
            unittest.mock.patch.object(training_run, "write_report", lambda *_: None),
            eager() if name == "one" else contextlib.nullcontext(),
        ):
            _, measures[name] = training_run.run(config, f"{workdir}/{name}", None, chosen, address)
    assert worker and abs(measures["two"]["loss"] - measures["one"]["loss"]) < 1e-4
    for name in ("top1", "top5", "examples"):
        assert measures["two"][name] == measures["one"][name]
    one, other = (json.load(open(f"{workdir}/{name}/evaluation.json")) for name in ("one", "two"))
    assert one["confusion"] == other["confusion"]
    logs = [[json.loads(line) for line in open(f"{workdir}/{name}/metrics.jsonl")] for name in ("one", "two")]
    for a, b in zip(*logs, strict=True):
        assert a["step"] == b["step"] and [b["loss"], b["val_loss"]] == pytest.approx(
            [a["loss"], a["val_loss"]], abs=1e-4
        )
    config.batch_size = 15
    with pytest.raises(ValueError, match="global batch of 15 cannot be shared evenly by 2 replicas"):
        training_run.run(config, f"{workdir}/odd", None, two())


def test_a_run_on_two_replicas_is_the_run_on_one(replicas, tmp_path):
    """The last test of this file: a run changes the order of sums in its process."""
    replicas.run(a_run, str(tmp_path))


def scores_under_two():
    return [evaluated(two(), batch) for batch in (4, 6)]


def test_scores_of_pixels_are_numpys_on_one_device_and_on_two_replicas(replicas):
    """Batches of 4 and 6 of 7 images: the last ones are padded, the second one in one replica alone."""
    expected, matrix = by_numpy()
    found = [*(evaluated(strategy("one"), batch) for batch in (4, 6)), *replicas.run(scores_under_two)]
    losses, edges = ([measures.pop(name) for measures, *_ in found] for name in ("loss", "boundary_f"))
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-6)
    assert edges == [edges[0]] * 4 and 0 < edges[0] < 1
    for measures, counts, boundaries in found:
        assert counts == matrix and boundaries == found[0][2]
        assert measures == pytest.approx(expected, abs=1e-7)


def detections_under_two():
    return measured(two(), 4)


def test_detectors_have_the_same_measures_on_two_replicas(replicas):
    measures, confusion = measured(strategy("one"), 3)
    assert replicas.run(detections_under_two) == [measures, confusion] and 0 < measures["ap"] < 1


def detector_losses_under_two(head):
    return losses(two(), head)


@pytest.mark.parametrize("head", ["dense", "frcnn"])
def test_a_detector_trains_on_two_replicas_as_on_one_device(replicas, head):
    """One replica has an image without objects, the other a crowd."""
    found, expected = replicas.run(detector_losses_under_two, head), losses(strategy("one"), head)
    assert found == pytest.approx(expected, rel=1e-4) and len(set(expected)) == 2
