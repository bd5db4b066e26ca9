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
    setting = Setting(model, batch_size=100, preprocess="decode(1)", source=options.pop("own", None))
    make_evaluator(evaluator, {"preprocess": "decode(1)", **options}).prepare(setting)()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def peaks(name):
    """The peaks after 2,000, 4,000 and 20,000 examples."""
    features.open_source = zeros
    sizes = (2_000, 4_000, 20_000)
    if name == "classification":
        return [peak(name, own=zeros("zeros", size)) for size in sizes]
    options = {"source": "zeros", "train": "1000", **({"shots": (1,), "seeds": (0,)} if name == "few_shot" else {})}
    return [peak(name, **options, test=str(size)) for size in sizes]


@pytest.mark.processes
@pytest.mark.parametrize("name", ["classification", "few_shot", "knn"])
def test_twenty_thousand_examples_take_the_memory_of_a_few(name):
    """Their logits, or features, would be 80 MB. In a process of its own, whose peak is that of nothing else."""
    with Interpreter() as interpreter:
        _, before, after = interpreter.run(peaks, name)
    assert after - before < 40
