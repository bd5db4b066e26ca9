"""Class weights, scored averages and averages of accumulated updates on two replicas and on JAX, as on one device."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from interpreters import Interpreter
from small_models import COMPILED, dense_on_rows, rows

import keras_vit
from keras_vit.distribution import strategy
from keras_vit.training import (
    Accuracy,
    AdamW,
    EvaluateAverage,
    Lookahead,
    Momentum,
    SoftmaxCrossEntropy,
    StochasticWeightAveraging,
)

pytestmark = [
    pytest.mark.release("fit", "layers", "models", "optim", "distribution"),
    pytest.mark.filterwarnings("ignore:The weights are"),
]
X, Y = rows(16)
FACTORS = (0.5, 2.0, 1.0, 0.0, 3.0)


@functools.cache
def chosen(name):
    return strategy(name)


def model(name, optimizer):
    with chosen(name).scope():
        made = dense_on_rows(optimizer())
        made.compile(made.optimizer, SoftmaxCrossEntropy(), weighted_metrics=[Accuracy()], jit_compile=COMPILED)
    return made


def weights(made):
    return np.concatenate([np.asarray(w).ravel() for w in made.get_weights()]).tolist()


def weighed(name, kinds):
    """Weights after training with class weights, of arrays, a dataset, a balanced fit or a generator."""
    results = []
    for kind in kinds:
        made = model(name, lambda: keras.optimizers.SGD(0.1))
        batches = ((X[i : i + 4], Y[i : i + 4]) for i in range(0, 16, 4))
        data = {
            "dataset": (tf.data.Dataset.from_tensor_slices((X, Y)).batch(4),),
            "generator": (batches,),
        }.get(kind, (X, Y))
        options = {"batch_size": 4} if len(data) == 2 else {}
        given = "balanced" if kind == "balanced" else FACTORS
        made.fit(*data, class_weight=given, shuffle=False, verbose=0, **options)
        results.append(weights(made))
    return results


def averaging(kind):
    if kind == "wrapped":
        return StochasticWeightAveraging(Lookahead(Momentum(0.5), k=2), start=3)
    return AdamW(0.05, epsilon=1e-3, use_ema=True, ema_momentum=0.7)


def scored(name, folder):
    """[(scores, those of saved files, that of the restored model)] with EvaluateAverage and SwapEMAWeights."""
    results = []
    for kind, average in (("own", EvaluateAverage()), ("wrapped", EvaluateAverage())):
        made = model(name, lambda kind=kind: averaging(kind))
        callbacks = [
            keras.callbacks.ModelCheckpoint(f"{folder}/{name}-{kind}-{{epoch}}.weights.h5", save_weights_only=True),
            keras.callbacks.EarlyStopping("val_accuracy", patience=9, restore_best_weights=True),
            keras.callbacks.ReduceLROnPlateau("val_accuracy", patience=9),
            average,
        ]
        options = {"validation_data": (X, Y), "batch_size": 4, "epochs": 3, "shuffle": False, "verbose": 0}
        history = made.fit(X, Y, callbacks=callbacks, **options).history
        restored = made.evaluate(X, Y, verbose=0, return_dict=True)
        saved = []
        for epoch in range(1, 4):
            made.load_weights(f"{folder}/{name}-{kind}-{epoch}.weights.h5")
            saved.append(float(made.evaluate(X, Y, verbose=0, return_dict=True)["loss"]))
        best = int(np.argmax(history["val_accuracy"]))
        results.append([history["val_loss"], saved, history["val_loss"][best], float(restored["loss"])])
    swapped = model(name, lambda: averaging("wrapped"))
    options = {"validation_data": (X, Y), "batch_size": 4, "epochs": 3, "shuffle": False, "verbose": 0}
    history = swapped.fit(X, Y, callbacks=[keras.callbacks.SwapEMAWeights()], **options).history
    return results, history["val_loss"]


def accumulated(name):
    """The averages after three updates of two batches each."""
    made = model(name, lambda: Momentum(0.5, use_ema=True, ema_momentum=0.7, gradient_accumulation_steps=2))
    made.fit(X[:12], Y[:12], batch_size=2, shuffle=False, verbose=0)
    return [np.asarray(a).tolist() for a in made.optimizer._model_variables_moving_average]


def statistics_of_16_bits(name):
    """The running variances of a normalisation in pure bfloat16 after training, and whether the loss was finite."""
    with chosen(name).scope():
        inputs = keras.Input((2, 2, 6))
        x = keras_vit.layers.BatchNormalization(0.5, dtype="bfloat16", name="norm")(inputs)
        made = keras_vit.Model(inputs, keras.layers.Dense(5)(keras.layers.Flatten(dtype="bfloat16")(x)))
        made.compile(Momentum(0.01), SoftmaxCrossEntropy(), jit_compile=COMPILED)
    images = np.random.default_rng(0).normal(2.0, 3.0, (16, 2, 2, 6)).astype("float32")
    loss = made.fit(images, Y, batch_size=8, shuffle=False, verbose=0).history["loss"][0]
    return [float(np.isfinite(loss)), *np.asarray(made.get_layer("norm").moving_variance).tolist()]


def hold_weighed(other, name, kinds):
    for found, expected in zip(other.run(weighed, name, kinds), weighed("one", kinds), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


def hold(other, name, folder):
    assert other.run(statistics_of_16_bits, name) == pytest.approx(statistics_of_16_bits("one"), rel=1e-2)
    hold_weighed(other, name, ["arrays", "dataset", "generator", "balanced"])
    (results, swapped), (expected, _) = other.run(scored, name, str(folder)), scored("one", str(folder))
    for (scores, saved, best, restored), (theirs, *_) in zip(results, expected, strict=True):
        assert saved == pytest.approx(scores, rel=1e-5)
        assert restored == pytest.approx(best, rel=1e-5)
        assert scores == pytest.approx(theirs, rel=1e-3)
    assert swapped == pytest.approx(expected[1][0], rel=1e-3)


def changed(name):
    """Rows that training changed in the user's arrays, whose memory TensorFlow shares where it is aligned."""
    memory = np.zeros(X.nbytes + 64, "uint8")
    start = -memory.ctypes.data % 64
    x = memory[start : start + X.nbytes].view(X.dtype).reshape(X.shape)
    x[:] = X

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, i):
            return x[8 * i : 8 * i + 8], Y[8 * i : 8 * i + 8]

    def batches():
        return (Batches()[i] for i in range(2))

    signature = tf.TensorSpec((8, 6)), tf.TensorSpec((8,), tf.int64)
    for data in (batches(), Batches(), tf.data.Dataset.from_generator(batches, output_signature=signature)):
        model(name, lambda: keras.optimizers.SGD(0.1)).fit(data, verbose=0)
    return np.flatnonzero((x != X).any(axis=1)).tolist()


def test_two_replicas(tmp_path):
    with Interpreter(devices=2) as replicas:
        hold(replicas, "mirrored", tmp_path)
        assert replicas.run(changed, "mirrored") == []


def test_jax(tmp_path):
    with Interpreter("jax", devices=4) as jax:
        hold(jax, "one", tmp_path)
        for found, expected in zip(jax.run(accumulated, "one"), accumulated("one"), strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-5)
