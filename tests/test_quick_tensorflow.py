"""What the tests run is what users run: the shortcuts of quick_tensorflow change no number."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

TESTS = pathlib.Path(__file__).resolve().parent
PLAIN = os.environ | {"PYTHONPATH": str(TESTS.parent)}

pytestmark = pytest.mark.release("tests/quick_tensorflow.py")  # and of setup.cfg: Keras' and TensorFlow's versions


def numbers(quick: bool) -> dict[str, list[float]]:
    """What a small model gives in training with dropout, in order and shuffled, and afterwards at eight bits."""
    import keras
    import quick_tensorflow

    if quick:
        quick_tensorflow.without_optimizing()
        quick_tensorflow.without_records()
        quick_tensorflow.with_batches_of_slices()
        quick_tensorflow.without_collecting()
        quick_tensorflow.with_remembered_signatures()
    import keras_vit

    keras.utils.set_random_seed(7)
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (22, 16, 16, 3), "uint8"), rng.integers(0, 3, 22)
    sizes = {"image_size": 16, "patch_size": 8, "depth": 2, "classes": 3, "dropout": 0.2, "drop_path": 0.2}
    small, model = keras_vit.ViT("Ti/16", **sizes), keras_vit.ViT("Ti/16", **sizes)
    model.compile(keras.optimizers.Adam(1e-3), keras_vit.training.SoftmaxCrossEntropy(), metrics=["accuracy"])
    found = {}
    for shuffle in (False, True):
        data = {"x": images, "y": labels, "batch_size": 5, "shuffle": shuffle}
        history = model.fit(**data, epochs=2, validation_data=(images, labels), verbose=0).history
        found |= {f"{name}, shuffle={shuffle}": values for name, values in history.items()}
    found["weights"] = [float(np.sum(weight.astype("float64") ** 2)) for weight in model.get_weights()]
    keras.utils.set_random_seed(8)
    found["random"] = keras.random.normal((4,)).numpy().tolist()
    small.quantize("int8")  # of random weights: rounding would turn the last bit of a training into a step of 1/127
    found["int8"] = [float(np.sum(np.abs(weight.astype("float64")))) for weight in small.get_weights()]
    return found


def test_the_shortcuts_change_no_number():
    program = "import json, test_quick_tensorflow; print(json.dumps(test_quick_tensorflow.numbers({})))"
    plain, quick = (
        json.loads(subprocess.check_output([sys.executable, "-c", program.format(quick)], cwd=TESTS, env=PLAIN))
        for quick in (False, True)
    )
    assert plain.keys() == quick.keys()
    for name, values in plain.items():
        np.testing.assert_allclose(quick[name], values, rtol=1e-4, atol=1e-5, err_msg=name)
