"""Models with a teacher, fixed or moving, end where one device does on two replicas and on four devices of JAX."""

import functools

import keras
import numpy as np
import pytest
from interpreters import Interpreter
from small_models import COMPILED, data, eager

import keras_vit
from keras_vit.distribution import strategy
from keras_vit.training import AdamW, Agreement, DINOLoss, SoftDistillation, StudentAccuracy, TeacherEntropy

pytestmark = pytest.mark.release("fit", "layers", "models", "optim", "distribution", "classification", "pretraining")
FIELDS = {"depth": 1, "width": 16, "heads": 2, "mlp_dim": 16}
CASES = {"distilled": 1, "dino": 2}  # micro-batches


def filled(model):
    """The model with weights from NumPy, the same on either backend."""
    rng = np.random.default_rng(0)
    for weight in model.weights:
        if len(weight.shape) > 1:
            weight.assign(rng.normal(size=weight.shape) * 0.2)
    return model


def distilled():
    """(a model, its x, y)."""
    make = functools.partial(keras_vit.ViT, "Ti/4", classes=5, **FIELDS)
    student, teacher = filled(make(image_size=(8, 12))), filled(make(image_size=(8, 16), dropout=0.5))
    model = keras_vit.Distilled(student, teacher)
    model.compile(
        AdamW(1e-3, epsilon=1e-4),
        SoftDistillation(),
        weighted_metrics=[StudentAccuracy(), Agreement()],
        jit_compile=COMPILED,
    )
    return model, *data(24)


def dino():
    """(a model, its x, y)."""
    encoder = filled(keras_vit.ViT("Ti/4", image_size=8, classes=None, **FIELDS))
    options = {
        "outputs": 8,
        "hidden": 12,
        "bottleneck": 4,
        "local_size": 4,
        "local_crops": 2,
        "steps": 6,
        "momentum": 0.9,
    }
    model = keras_vit.DINO(
        encoder, **options, temperature_steps=2, first_temperature=0.1, temperature=0.2, frozen_steps=1
    )
    filled(model.get_layer("head"))
    for ours, theirs in model._pairs():
        theirs.assign(keras.ops.copy(ours))  # fit on JAX gives buffers away
    model.compile(AdamW(1e-3, epsilon=1e-4), DINOLoss(), weighted_metrics=[TeacherEntropy()], jit_compile=COMPILED)
    rng = np.random.default_rng(0)
    shapes = {"global": (24, 2, 8, 8, 3), "local": (24, 2, 4, 4, 3)}
    return (
        model,
        {name: rng.integers(0, 256, shape, dtype="uint8") for name, shape in shapes.items()},
        np.zeros(24, "int32"),
    )


@functools.cache
def made(chosen):
    """A strategy; a process can have only one that is mirrored."""
    return strategy(chosen)


def trained(chosen, case, file):
    """Three steps under a strategy; saves the weights, and returns the measures."""
    with made(chosen).scope():
        keras.utils.set_random_seed(0)
        model, x, y = {"distilled": distilled, "dino": dino}[case]()
        model.micro_batches = CASES[case]
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    measures = model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True)
    # A key's bias has no gradient but rounding, which Adam makes large.
    kept = [v for v in model.variables if not v.path.endswith("key/bias") and "seed" not in v.path]
    np.savez(file, *[np.asarray(v.numpy()) for v in kept])
    return {name: float(value) for name, value in measures.items()}


def weights(file):
    with np.load(file) as arrays:
        return list(arrays.values())


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """{case: (measures, weights)} of one device."""
    file, results = tmp_path_factory.mktemp("one") / "one.npz", {}
    with eager():
        for case in CASES:
            measures = trained("one", case, file)
            results[case] = measures, weights(file)
    return results


@pytest.mark.parametrize(("backend", "chosen"), [("tensorflow", "mirrored"), ("jax", "data")])
def test_it_ends_where_one_device_does(backend, chosen, one, tmp_path):
    with Interpreter(backend, devices=2) as other:
        for case, (measures, expected) in one.items():
            theirs = other.run(trained, chosen, case, str(tmp_path / "other.npz"))
            assert theirs == pytest.approx(measures, rel=2e-3), case
            for a, b in zip(weights(tmp_path / "other.npz"), expected, strict=True):
                np.testing.assert_allclose(a, b, atol=2e-4, err_msg=case)
