"""The program that `benchmarks.startup` times, from the first import to the second training step.

    python -m benchmarks.startup_program B/16 8 mixed_bfloat16

It prints one JSON object, {phase: [seconds, CPU seconds of all threads]}, and imports only the standard library before
the first phase.
"""

import contextlib
import json
import os
import sys
import time


@contextlib.contextmanager
def timed(phase, found):
    began, busy = time.perf_counter(), time.process_time()
    yield
    found[phase] = [time.perf_counter() - began, time.process_time() - busy]


def phases(variant, batch_size, dtype):
    """{phase: [seconds, CPU seconds]}, in order."""
    found = {}
    engine = os.environ.get("KERAS_BACKEND", "tensorflow")
    with timed(f"import {engine}", found):
        __import__(engine)
    with timed("import keras_vit, with Keras", found):
        import keras_vit
    import numpy as np

    with timed("build", found):
        model = keras_vit.ViT(variant, image_size=224, dtype=dtype)
    images = np.random.default_rng(0).integers(0, 256, (batch_size, 224, 224, 3), dtype="uint8")
    labels = np.arange(batch_size) % 1000
    for phase in ("first prediction", "second prediction"):
        with timed(phase, found):
            model.predict_on_batch(images)
    model.compile(keras_vit.training.AdamW(1e-4), keras_vit.training.SoftmaxCrossEntropy(), jit_compile=engine == "jax")
    for phase in ("first training step", "second training step"):
        with timed(phase, found):
            float(model.train_on_batch(images, labels, return_dict=True)["loss"])
    return found


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries' prints are not answers
    print(json.dumps(phases(sys.argv[1], int(sys.argv[2]), sys.argv[3])), file=answers, flush=True)
