"""Every strategy trains, evaluates and predicts as one device does."""

import json

import keras
import numpy as np
import pytest
from logical import data, in_process, small

import keras_vit
from keras_vit.layers import Dropout
from keras_vit.training import AdamW, Mixup, SoftmaxCrossEntropy, state, strategy
from trainers.check_strategies import compare, measure

LAYOUTS = {"mirrored2": "one", "multiworker2": "one", "jax_data4": "jax_one", "jax_model2x2": "jax_one"}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A function: layout -> its trainings' arrays, run once."""
    folder, found = tmp_path_factory.mktemp("strategies"), {}

    def get(layout):
        if layout not in found:
            found[layout] = measure(layout, True, folder, cases="plain,all of these")
        return found[layout]

    return get


@pytest.mark.parametrize("layout", LAYOUTS)
def test_several_devices_end_where_one_does(measured, layout):
    """10 steps, plain and with clip, accumulation, 4 steps per execution, EMA, mixup and decay; the full table is check_strategies'."""
    one, several = measured(LAYOUTS[layout]), measured(layout)
    for case in ("plain", "all of these"):
        ratio, key_biases = compare(one, several, case)
        assert ratio <= 1e-5 and key_biases <= 1e-3
    assert abs(one["plain//loss"] - several["plain//loss"]) < 1e-6  # 301 examples in batches of 32
    assert one["plain//accuracy"] == several["plain//accuracy"]
    assert one["plain//logits"].shape == several["plain//logits"].shape == (301, 10)
    np.testing.assert_allclose(several["plain//logits"], one["plain//logits"], atol=1e-5)


def trained(layout, optimizer, x, y, batch_size=8, micro_batches=1, **compiled):
    """(weights before, weights after, losses) of an epoch; attention key biases left out."""
    model = small(layout, optimizer, **compiled)
    model.micro_batches = micro_batches
    kept = [v for v in model.trainable_variables if not v.path.endswith("key/bias")]
    before = [v.numpy() for v in kept]
    history = model.fit(x, y, batch_size=batch_size, shuffle=False, verbose=0).history
    return before, [v.numpy() for v in kept], history


def apart(a, b):
    """||b - a|| over ||a's movement||."""
    square = lambda one, two: sum(np.square(i.astype("float64") - j).sum() for i, j in zip(one, two))  # noqa: E731
    return (square(a[1], b[1]) / square(a[0], a[1])) ** 0.5


OPTIMIZERS = {
    "SGD clipvalue": lambda: keras.optimizers.SGD(0.1, clipvalue=0.02),
    "SGD clipnorm": lambda: keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.1),
    "Adam global_clipnorm": lambda: keras.optimizers.Adam(1e-3, epsilon=1e-4, global_clipnorm=0.1),
    "AdamW ema": lambda: keras.optimizers.AdamW(1e-3, epsilon=1e-4, use_ema=True, ema_momentum=0.9),
    "Adam scaled": lambda: keras.optimizers.Adam(1e-3, epsilon=1e-4, global_clipnorm=0.1, loss_scale_factor=8.0),
    "mixin": type("GlobalSGD", (keras_vit.training.GlobalGradient, keras.optimizers.SGD), {}),
}


def stock_optimizers_and_ragged_batches():
    one, two = strategy("one"), strategy("mirrored")
    assert two.replicas == 2
    found = {}
    x, y = data()
    for name, make in OPTIMIZERS.items():
        found[name] = apart(trained(one, make, x, y), trained(two, make, x, y))
    adam = lambda: AdamW(1e-3, epsilon=1e-4, global_clipnorm=1.0)  # noqa: E731
    found["XLA"] = apart(trained(one, adam, x, y, jit_compile=True), trained(two, adam, x, y, jit_compile=True))
    # The last batch has 5 examples: 3 and 2 a replica, and micro-batches of 2 and 1.
    x, y = data(45)
    a, b = trained(one, adam, x, y), trained(two, adam, x, y, micro_batches=2)
    found["ragged"] = apart(a, b)
    np.testing.assert_allclose(b[2]["loss"], a[2]["loss"], rtol=1e-5)
    assert a[2]["accuracy"] == b[2]["accuracy"]
    print(json.dumps(found))


def a_convolutional_stem():
    """Its batch statistics are the global batch's, under XLA too (which then leaves the replicas' sums alone)."""
    x = np.random.default_rng(0).integers(0, 256, (32, 16, 16, 3), dtype="uint8")
    found = []
    for name, compiled in (("one", False), ("mirrored", False), ("mirrored", True)):
        layout = strategy(name)
        keras.utils.set_random_seed(0)
        with layout.scope():
            model = keras_vit.ViT(
                "Ti/1", image_size=16, classes=5, conv_stem=(8, 16), depth=1, width=16, heads=2, mlp_dim=16, pool="gap"
            )
            model.compile(AdamW(1e-3, epsilon=1e-4), SoftmaxCrossEntropy(), jit_compile=compiled)
        kept = [v for v in model.weights if not v.path.endswith("key/bias")]
        before = [v.numpy() for v in kept]
        model.fit(x, np.arange(32) % 5, batch_size=8, shuffle=False, verbose=0)
        found.append((before, [v.numpy() for v in kept]))
    print(json.dumps([apart(found[0], other) for other in found[1:]]))


def test_a_convolutional_stem_is_right_on_two_replicas():
    found = json.loads(in_process(a_convolutional_stem, devices=2).splitlines()[-1])
    assert max(found) <= 1e-5, found


def test_keras_own_optimizers_and_ragged_batches_are_right_on_two_replicas():
    found = json.loads(in_process(stock_optimizers_and_ragged_batches, devices=2).splitlines()[-1])
    assert max(found.values()) <= 1e-5, found


class Always(Dropout):
    """Dropout in predict, too."""

    def call(self, x):
        return super().call(x, training=True)


def masks_of(model, n=64):
    """(n, 400) of 0 and 1: which elements Dropout left; the replicas' parts one below the other."""
    return (np.asarray(model.predict(np.ones((n, 400), "float32"), batch_size=n, verbose=0)) > 0).astype(int)


def dropout_masks():
    two = strategy("mirrored")
    with two.scope():
        inputs = keras.Input((400,))
        model = keras_vit.Model(inputs, Always(0.25, seed=1)(inputs))
        model.compile("sgd", "mse")
    first = masks_of(model)
    saved = state.collect(model)
    second = masks_of(model)
    state.restore(model, saved)
    np.testing.assert_array_equal(masks_of(model), second)  # the same after resuming
    assert abs(first.mean() - 0.75) < 0.01  # 25600 draws: 3.7 standard deviations
    for a, b in ((first[:32], first[32:]), (first, second)):  # replicas, and steps: as different as independent masks
        assert abs((a != b).mean() - 2 * 0.25 * 0.75) < 0.02


def test_dropout_draws_other_masks_in_each_replica_and_resumes():
    in_process(dropout_masks, devices=2)


def many_steps():
    x, y = data(80)
    two = strategy("mirrored")
    model = small(two, keras.optimizers.SGD, steps_per_execution=4)
    seen = []
    told = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(int(model.optimizer.iterations.numpy()))
    )
    model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[told], validation_data=(x[:30], y[:30]))
    assert seen == [4, 8, 10, 14, 18, 20], seen  # 10 steps an epoch, not 12
    print(model.train_on_batch(x[:8], y[:8]), model.test_on_batch(x[:8], y[:8]))
    assert int(model.optimizer.iterations.numpy()) == 21
    assert model.predict_on_batch(x[:8]).shape == (8, 5)
    np.testing.assert_allclose(model.predict_on_batch(x[:8]), model.predict(x[:8], verbose=0), atol=1e-6)
    eager = small(two, keras.optimizers.SGD, steps_per_execution=4, run_eagerly=True)
    eager.fit(x[:48], y[:48], batch_size=8, verbose=0)
    assert int(eager.optimizer.iterations.numpy()) == 6


def test_an_epoch_runs_its_steps_and_no_more():
    in_process(many_steps, devices=2)


def a_run(workdir):
    """The same config on one device, on two replicas (and in micro-batches, many steps a call), and fed by a tf.data service."""
    import tensorflow as tf

    from trainers import flags, pretrain, session

    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=dispatcher.target.split("://")[1]))
    measures = {}
    runs = {
        "one": ({}, strategy("one"), None),
        "two": ({"micro_batches": 2, "steps_per_execution": 4}, strategy("mirrored"), None),
        "served": ({}, strategy("mirrored"), dispatcher.target),
    }
    for name, (options, layout, address) in runs.items():
        config = flags.load_config("digits_pretrain")
        config.model.update(depth=1, width=16, heads=2, mlp_dim=16)
        config.data.update(train="train[:100]", evaluation="test[:30]")
        config.update(total="10 steps", evaluate="5 steps", checkpoint="5 steps", batch_size=16, jit_compile=False, **options)
        config.optimizer.ema = 0.9
        _, measures[name] = session.run(config, f"{workdir}/{name}", pretrain.build, layout=layout, data_service=address)
    assert abs(measures["two"]["loss"] - measures["one"]["loss"]) < 1e-5
    assert measures["two"]["confusion"] == measures["one"]["confusion"]
    assert np.isfinite(measures["served"]["loss"]) and worker
    logs = [[json.loads(line) for line in open(f"{workdir}/{name}/metrics.jsonl")] for name in ("one", "two")]
    for a, b in zip(*logs):
        assert a["step"] == b["step"] and abs(a["loss"] - b["loss"]) < 1e-5 and abs(a["val_loss"] - b["val_loss"]) < 1e-5
    config.batch_size = 15
    with pytest.raises(ValueError, match="global batch of 15 cannot be shared evenly by 2 replicas"):
        session.run(config, f"{workdir}/odd", pretrain.build, layout=layout)


def test_a_run_on_two_replicas_is_the_run_on_one(tmp_path):
    in_process(a_run, str(tmp_path), devices=2)


def jax_inputs():
    import tensorflow as tf

    x, y = data(45)
    layout = strategy("data")
    model, one = small(layout, keras.optimizers.SGD), small(strategy("one"), keras.optimizers.SGD)
    ragged = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    for given in ((x, y), (ragged,)):
        a, b = (m.evaluate(*given, verbose=0, return_dict=True) for m in (model, one))
        np.testing.assert_allclose([a["loss"], a["accuracy"]], [b["loss"], b["accuracy"]], rtol=1e-5)
    with pytest.raises(ValueError, match="45 examples do not fill batches of 8"):
        model.fit(x, y, batch_size=8)
    model.fit(x[:40], y[:40], batch_size=8, validation_data=(x, y), verbose=0)
    with pytest.raises(ValueError, match="validation_split takes one device only"):
        model.fit(x[:40], y[:40], batch_size=8, validation_split=0.2)
    with layout.scope():
        model.compile("sgd", SoftmaxCrossEntropy(), metrics=["accuracy"], steps_per_execution=4)
    for given in ((x, y), (ragged,)):
        with pytest.raises(ValueError, match=r"rows of weight 0.*compile\(weighted_metrics"):
            model.evaluate(*given)
    with pytest.raises(ValueError, match="steps_per_epoch=5 is no multiple of steps_per_execution=4"):
        model.fit(ragged.repeat(), steps_per_epoch=5)
    with pytest.raises(ValueError, match="model_parallel=3 does not divide the 4 devices"):
        strategy("model", model_parallel=3)
    with pytest.raises(ValueError, match=r"query/kernel \(16, 6\) cannot be split over 4 devices"), strategy("model").scope():
        keras_vit.ViT("Ti/4", image_size=8, depth=1, width=16, heads=3, head_dim=2, mlp_dim=16, classes=5)


def test_jax_distributions_evaluate_ragged_data_and_refuse_what_they_cannot():
    in_process(jax_inputs, backend="jax", devices=4)


@pytest.mark.parametrize("parts", [2, 4])
def test_micro_batches_are_one_large_batch_on_one_device(parts):
    x, y = data()
    adam = lambda: AdamW(1e-3, epsilon=1e-4, global_clipnorm=0.1, decay=0.1)  # noqa: E731
    one = strategy("one")
    assert apart(trained(one, adam, x, y), trained(one, adam, x, y, micro_batches=parts)) <= 1e-5


def test_keras_accumulation_on_one_device_is_one_large_batch():
    x, y = data()
    one = strategy("one")
    large = lambda: keras.optimizers.Adam(1e-3, epsilon=1e-4, global_clipnorm=0.1)  # noqa: E731
    small = lambda: keras.optimizers.Adam(1e-3, epsilon=1e-4, global_clipnorm=0.1, gradient_accumulation_steps=4)  # noqa: E731
    assert apart(trained(one, large, x, y, batch_size=16), trained(one, small, x, y, batch_size=4)) <= 1e-5


def test_one_device_is_plain_keras_to_the_last_bits():
    x, y = data()
    ours = small(strategy("one"), keras.optimizers.Adam)
    copy = ours.clone()
    plain = keras.Model(copy.input, copy.output)
    plain.compile(keras.optimizers.Adam(), keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    for model in (ours, plain):
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    for a, b in zip(ours.get_weights(), plain.get_weights()):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_mixup_pairs_stay_together_in_any_even_part():
    images, labels = data(8)
    mixup = Mixup(1.0, 5, seed=1)
    whole = np.asarray(mixup(keras.ops.array(images), keras.ops.array(labels), 3)[0])
    parts = [np.asarray(mixup(keras.ops.array(images[i : i + 4]), keras.ops.array(labels[i : i + 4]), 3)[0]) for i in (0, 4)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
