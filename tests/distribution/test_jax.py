"""The JAX backend: training as on TensorFlow, on one device and sharded over several. One process on JAX runs all of
it.
"""

import functools

import keras
import numpy as np
import pytest
from as_one_device import hold
from detector_steps import losses
from interpreters import Interpreter
from jax_executions import run_in_executions, steps_of_executions
from jax_memory import contrastive_memory
from segmentation_scores import by_numpy, evaluated
from small_detectors import measured
from small_models import COMPILED, data, dense_on_rows, eager, rows
from small_transformers import with_windows

import keras_vit
from keras_vit.data import evaluation_batches, from_arrays
from keras_vit.distribution import strategy
from keras_vit.runs.saving import run_state
from keras_vit.training import (
    Accuracy,
    AdamW,
    Lookahead,
    Muon,
    RectifiedAdam,
    SoftmaxCrossEntropy,
    StochasticWeightAveraging,
    WarmupSchedule,
)

pytestmark = pytest.mark.release("fit", "layers", "models", "optim", "distribution")


@pytest.fixture(scope="module")
def jax():
    """A process on the JAX backend with four devices."""
    with Interpreter("jax", devices=4) as interpreter:
        yield interpreter


def backend_of_other():
    return keras.backend.backend()


def test_this_process_is_on_tensorflow_and_the_other_on_jax(jax):
    assert keras.backend.backend() == "tensorflow" and jax.run(backend_of_other) == "jax"


def on_both(jax, folder, function, *arguments, atol=1e-5, rtol=1e-3):
    """Holds the arrays that a function saves to a file, given as its first argument, to be alike on both backends.
    Returns what it returns on either.
    """
    files = [str(folder / f"{backend}.npz") for backend in ("jax", "tensorflow")]
    theirs = jax.run(function, files[0], *arguments)
    with eager():
        ours = function(files[1], *arguments)
    with np.load(files[0]) as found, np.load(files[1]) as expected:
        assert len(found) == len(expected) > 5
        for name in expected:
            np.testing.assert_allclose(found[name], expected[name], atol=atol, rtol=rtol, err_msg=name)
    return theirs, ours


def fitted(weights, path):
    """A saved model after four steps, whose weights are saved to a file."""
    x, y = data(10)
    model = keras_vit.load(path)
    optimizer = AdamW(1e-3, epsilon=1e-3, decay=0.1, global_clipnorm=1.0)
    model.compile(optimizer, SoftmaxCrossEntropy(), weighted_metrics=[Accuracy()])
    if keras.backend.backend() == "tensorflow":
        model.jit_compile = False
    model.fit(x, y, batch_size=5, epochs=2, shuffle=False, verbose=0)
    np.savez(weights, *[np.asarray(w) for w in model.get_weights()])
    return model


def train_and_evaluate(weights, path):
    """Its metrics after training."""
    batches = evaluation_batches(from_arrays(*data(10)), "decode", 4)
    measures = fitted(weights, path).evaluate(batches, verbose=0, return_dict=True)
    return {name: float(value) for name, value in measures.items()}


def test_fit_and_evaluate_give_tensorflows_numbers(jax, tiny, tmp_path):
    model = str(tmp_path / "m.keras")
    tiny(depth=1).save(model)
    theirs, ours = on_both(jax, tmp_path, train_and_evaluate, model, rtol=1e-7)
    assert theirs == pytest.approx(ours, rel=1e-4)


def train(weights, path):
    fitted(weights, path)


def test_a_swin_trains_as_on_tensorflow(jax, tmp_path):
    path = str(tmp_path / "m.keras")
    with_windows(strategy("one"), AdamW).save(path)
    on_both(jax, tmp_path, train, path, rtol=1e-7)


def averaged():
    """RectifiedAdam inside Lookahead inside weight averaging."""
    inner = RectifiedAdam(WarmupSchedule(1e-3, 6, warmup=2), epsilon=1e-4, global_clipnorm=0.1, decay=0.1)
    return StochasticWeightAveraging(Lookahead(inner, k=2), start=2)


def state_after_an_epoch(file, optimizer):
    model = dense_on_rows({"averaged": averaged, "muon": muon}[optimizer]())
    model.fit(*rows(48), batch_size=8, shuffle=False, verbose=0)
    np.savez(file, *run_state.collect(model).values())


def scaled_steps():
    """The steps counted by wrappers in a LossScaleOptimizer, in micro-batches."""
    scaled = keras.optimizers.LossScaleOptimizer(averaged(), initial_scale=128.0)
    model = dense_on_rows(scaled, "mixed_float16")
    model.micro_batches = 2
    model.fit(*rows(48), batch_size=8, verbose=0)
    return int(scaled.inner_optimizer.iterations.numpy())


def muon():
    return Muon(1e-3, epsilon=1e-4, decay=0.1, global_clipnorm=0.1)


def test_optimizers_end_where_they_do_on_tensorflow(jax, tmp_path):
    on_both(jax, tmp_path, state_after_an_epoch, "averaged")
    on_both(jax, tmp_path, state_after_an_epoch, "muon", atol=1e-4)
    assert jax.run(scaled_steps) == 6


def stem_statistics(path):
    """The loss of a step of a saved model with a stem of convolutions, and the running variance of its first
    normalisation.
    """
    x, y = np.random.default_rng(0).integers(0, 256, (8, 16, 16, 3), dtype="uint8"), np.arange(8) % 5
    model = keras_vit.load(path)
    model.compile(Muon(1e-3), SoftmaxCrossEntropy(), jit_compile=COMPILED)
    loss = model.fit(x, y, batch_size=8, verbose=0).history["loss"][0]
    return [loss, *np.asarray(model.get_layer("stem_norm1").moving_variance).tolist()]


def test_a_stem_of_convolutions_trains_as_on_tensorflow(jax, tiny, tmp_path):
    path = str(tmp_path / "m.keras")
    stem = {"conv_stem": (8, 8, 8), "conv_strides": (2, 2, 1), "conv_form": "residual"}
    tiny("Ti/1", image_size=(16, 16), depth=1, pool="gap", **stem).save(path)
    with eager():
        expected = stem_statistics(path)
    assert jax.run(stem_statistics, path) == pytest.approx(expected, rel=1e-4)


def trained_clone():
    """Whether a model gives the same outputs after its clone was trained, which gives the clone's buffers away."""
    model = keras_vit.ViT("Ti/4", image_size=(8, 12), classes=5, depth=1, width=16, heads=2, mlp_dim=16)
    (x, y), copy = data(8), model.clone()
    before = np.asarray(model(x))
    copy.compile(AdamW(1e-2), SoftmaxCrossEntropy())
    copy.fit(x, y, verbose=0)
    return bool((np.asarray(model(x)) == before).all())


def test_a_clone_is_independent(jax):
    assert jax.run(trained_clone)


def other_reductions(file):
    """The weights after steps on 16 and 5 weighted examples in four parts, for each other reduction of the loss."""
    x, y = rows(21)
    weights, results = np.linspace(0, 3, 21).astype("float32"), {}
    for reduction in ("sum", "mean_with_sample_weight"):
        model = dense_on_rows("sgd")
        model.micro_batches = 4
        model.compile(keras.optimizers.SGD(0.1), SoftmaxCrossEntropy(reduction=reduction), jit_compile=False)
        history = model.fit(x, y, batch_size=16, sample_weight=weights, shuffle=False, verbose=0)
        results.update({f"{reduction} {i}": v for i, v in enumerate(model.get_weights())})
        results[f"{reduction} loss"] = history.history["loss"][0]
    np.savez(file, **results)


def test_other_reductions_in_micro_batches_are_those_on_tensorflow(jax, tmp_path):
    on_both(jax, tmp_path, other_reductions, rtol=1e-5)


def test_a_run_with_everything_on_resumes_bit_for_bit_whatever_an_execution_takes(jax, tmp_path):
    jax.run(run_in_executions, str(tmp_path))


def test_fit_takes_the_steps_that_it_is_told(jax):
    assert jax.run(steps_of_executions) == [10, 20, 30]


def shards():
    hold(strategy("one"), strategy("data"), strategy("model", model_parallel=2))


def test_sharded_data_and_matrices_end_where_one_device_does(jax):
    """On four devices: the batch in four shards; or in two, with every matrix in two."""
    jax.run(shards)


def test_each_of_four_devices_has_a_quarter_of_the_contrastive_logits(jax):
    for one, four in jax.run(contrastive_memory):
        assert one >= 4 and four < 0.3 * one  # float32 logits of 1,024 pairs are 4 MiB


class Slices(keras.utils.PyDataset):
    """(x, y) in batches of 8."""

    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def __len__(self):
        return -(-len(self.x) // 8)

    def __getitem__(self, i):
        return self.x[8 * i : 8 * i + 8], self.y[8 * i : 8 * i + 8]


def inputs():
    import tensorflow as tf

    x, y = rows(45)
    with strategy("data").scope():
        model = dense_on_rows("sgd", weighted_metrics=["accuracy"])
    one = dense_on_rows("sgd", weighted_metrics=["accuracy"])
    ragged = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    slices = Slices(x, y)
    for arguments in ((x, y), (ragged,), (slices,), None):
        a, b = (
            m.evaluate(*arguments or [(slices[i] for i in range(6))], verbose=0, return_dict=True) for m in (model, one)
        )
        np.testing.assert_allclose([a["loss"], a["accuracy"]], [b["loss"], b["accuracy"]], rtol=1e-5)
    with pytest.raises(ValueError, match="full batches of 8, got 45 examples"):
        model.fit(x, y, batch_size=8)
    model.fit(x[:40], y[:40], batch_size=8, validation_data=(x, y), verbose=0)
    with pytest.raises(ValueError, match="validation_split works on one device only"):
        model.fit(x[:40], y[:40], batch_size=8, validation_split=0.2)
    with pytest.raises(ValueError, match="full batches, of a multiple of 4 examples"):
        model.fit(slices, shuffle=False, verbose=0)


def predictions():
    """Of data in batches that four devices cannot share evenly, with labels and without."""
    import tensorflow as tf

    x, y = rows(13)
    with strategy("data").scope():
        model = dense_on_rows("sgd", metrics=["accuracy"])  # which evaluate refuses to pad
        a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b")
        two = keras_vit.Model([a, b], {"sum": keras.layers.add([a, b])})
    expected = np.asarray(dense_on_rows("sgd")(x))
    labelled, alone = (tf.data.Dataset.from_tensor_slices(parts).batch(3) for parts in ((x, y), x))
    for given in (x, alone, labelled, ((batch,) for batch in alone), Slices(x, y)):
        np.testing.assert_allclose(model.predict(given, 8 if given is x else None, verbose=0), expected, atol=1e-5)
    np.testing.assert_allclose(
        model.predict(alone.unbatch().batch(3, drop_remainder=True), verbose=0), expected[:12], atol=1e-5
    )
    assert len(model.predict(labelled.repeat(), steps=6, verbose=0)) == 16  # the fifth has one row
    inputs = {"a": x[:5], "b": x[:5]}
    for found in (two.predict_on_batch(inputs), two.predict(inputs, verbose=0)):
        np.testing.assert_allclose(found["sum"], 2 * x[:5])


def test_predictions_have_a_row_for_each_example(jax):
    jax.run(predictions)


def refusals():
    import tensorflow as tf

    x, y = rows(45)
    ragged = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    with strategy("data").scope():
        model = dense_on_rows("sgd", metrics=["accuracy"], steps_per_execution=4)
    for arguments in ((x, y), (ragged,)):
        with pytest.raises(ValueError, match=r"rows of weight 0.*compile\(weighted_metrics"):
            model.evaluate(*arguments)
    model.compile("sgd", SoftmaxCrossEntropy())  # outside the scope
    with pytest.raises(ValueError, match="The optimizer or the metrics were made outside the distribution's scope"):
        model.fit(x[:40], y[:40], batch_size=8, verbose=0)
    with pytest.raises(ValueError, match="model_parallel=3 does not divide the 4 devices"):
        strategy("model", model_parallel=3)
    make = functools.partial(
        keras_vit.ViT, "Ti/4", image_size=8, depth=1, width=16, heads=3, head_dim=2, mlp_dim=16, classes=5
    )
    with (
        pytest.raises(ValueError, match=r"query/kernel \(16, 6\) cannot be split over 4 devices"),
        strategy("model").scope(),
    ):
        make()


def errors_in_data(broken):
    """Checks that a model has its weights after an error in the batch of this number. Runs on the JAX backend."""
    import tensorflow as tf

    x, y = rows(8)

    def batches(*parts):
        for i in range(4):
            if i == broken:
                raise OSError("the disk is gone")
            yield tuple(part[2 * i : 2 * i + 2] for part in parts)

    model = dense_on_rows("adam", metrics=["accuracy"])
    expected = model(x)
    for call, parts in ((model.predict, (x,)), (model.evaluate, (x, y)), (model.fit, (x, y))):
        specs = tuple(tf.TensorSpec((2, *part.shape[1:]), part.dtype) for part in parts)
        dataset = tf.data.Dataset.from_generator(functools.partial(batches, *parts), output_signature=specs)
        with pytest.raises(Exception, match="the disk is gone"):
            call(dataset, verbose=0)
        if call != model.fit:
            np.testing.assert_array_equal(model(x), expected)
    assert np.isfinite(model.predict(x, verbose=0)).all()
    model.fit(x, y, verbose=0)


def test_a_model_keeps_its_weights_after_an_error_in_the_data(jax):
    jax.run(errors_in_data, 0)
    jax.run(errors_in_data, 2)


def test_ragged_data_are_evaluated_and_what_cannot_be_trained_is_refused(jax):
    jax.run(inputs)
    jax.run(refusals)


def refusals_and_own_logs():
    """{what: message or value} of what fit refuses, and of what steps of the user's own report. Runs on the JAX
    backend.
    """
    from fit.test_own_steps import OwnMetrics, OwnSteps, made

    x, y = data(8)
    found = {}
    for name, labels, images in (("labels", y + 1, x), ("pixels", y, x / 255.0)):
        model = keras_vit.ViT("Ti/4", image_size=(8, 12), depth=1, width=16, heads=2, mlp_dim=16, classes=5)
        model.compile("sgd", SoftmaxCrossEntropy())
        for form in (lambda x, y: (x, y), lambda x, y: (iter_batches(x, y),)):
            try:
                model.fit(*form(images, labels), verbose=0)
            except ValueError as error:
                found.setdefault(name, []).append(str(error))
    for parts in (1, 2):
        model = made(OwnMetrics)
        model.micro_batches = parts
        history = model.fit(x, y, batch_size=4, shuffle=False, validation_data=(x, y), verbose=0).history
        assert "largest" in history
        found[f"own metrics {parts}"] = float(history["val_largest"][0] - model.predict(x[4:], verbose=0).max())
    found["own steps"] = made(OwnSteps).fit(x, y, validation_data=(x, y), verbose=0).history["val_mine"]
    return found


def iter_batches(x, y):
    yield x[:4], y[:4]
    yield x[4:], y[4:]


def test_refusals_and_own_logs_are_tensorflows(jax):
    with eager():
        ours = refusals_and_own_logs()
    theirs = jax.run(refusals_and_own_logs)
    assert len(ours["labels"]) == len(ours["pixels"]) == 2
    assert theirs["labels"] == ours["labels"] and theirs["pixels"] == ours["pixels"]
    for name in ("own metrics 1", "own metrics 2", "own steps"):
        assert theirs[name] == pytest.approx(ours[name], abs=1e-5)


def scores_on_jax():
    return [evaluated(strategy("one")), evaluated(strategy("data"))]


def test_scores_of_pixels_are_numpys(jax):
    expected, matrix = by_numpy()
    ours, _, edges = evaluated(strategy("one"))
    for measures, counts, boundaries in jax.run(scores_on_jax):
        assert counts == matrix and boundaries == edges
        for name in ("loss", "boundary_f"):
            assert measures.pop(name) == pytest.approx(ours[name], rel=1e-6)
        assert measures == pytest.approx(expected, abs=1e-7)


def detections_on_jax():
    return [measured(strategy("one"), 3), measured(strategy("data"), 4)]


def test_detectors_have_the_same_measures(jax):
    assert jax.run(detections_on_jax) == [measured(strategy("one"), 3)] * 2


def region_losses_on_jax():
    return losses(strategy("one"), "frcnn")


def test_region_proposals_are_learned_as_on_tensorflow(jax):
    assert jax.run(region_losses_on_jax) == pytest.approx(losses(strategy("one"), "frcnn"), rel=1e-4)
