"""The memory that evaluators take does not grow with the examples that they evaluate."""

import resource

import keras
import numpy as np
import pytest
import tensorflow as tf
from interpreters import Interpreter

from keras_vit.data.sources.base import RandomAccess
from keras_vit.evaluation import Setting, features, make_evaluator
from keras_vit.training import Model

CLASSES = 1000


def zeros(name, split, *_):
    """Black images; `split` is their number. Example i is of class i modulo 1000."""
    pixels = tf.zeros((8, 8, 1), tf.uint8)
    return RandomAccess(
        name, tuple(map(str, range(CLASSES))), np.arange(int(split)) % CLASSES, lambda i: {"image": pixels}
    )


def peak(evaluator, **options):
    """MiB, the most that this process has had, after an evaluation."""
    keras.utils.set_random_seed(0)
    image = keras.Input((8, 8, 1), name="image")
    model = Model(image, keras.layers.Dense(CLASSES)(keras.layers.Flatten()(image)))
    model.features = model.output
    setting = Setting(model, batch_size=200, preprocess="decode(1)", source=options.pop("own", None))
    make_evaluator(evaluator, {"preprocess": "decode(1)", **options}).prepare(setting)()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def peaks():
    """{evaluator: the peaks after 2,000 and 20,000 examples}."""
    features.open_source, found = zeros, {}
    for name, few in (("classification", None), ("few_shot", {"shots": (1,), "seeds": (0,)}), ("knn", {})):
        found[name] = []
        for size in (2_000, 20_000):
            data = {"own": zeros("zeros", size)} if few is None else {"source": "zeros", "train": "1000", **few}
            found[name].append(peak(name, **data, **({} if few is None else {"test": str(size)})))
    return found


@pytest.mark.processes
def test_twenty_thousand_examples_take_the_memory_of_a_few():
    """Their logits, or features, would be 80 MB. In a separate process, so that the peak is theirs alone."""
    with Interpreter() as interpreter:
        found = interpreter.run(peaks)
    assert all(after - before < 40 for before, after in found.values()), found
