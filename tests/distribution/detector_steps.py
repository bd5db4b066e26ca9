"""Steps of a small detector under a strategy, for the tests of replicas."""

import contextlib

import keras
import numpy as np
from small_models import COMPILED, eager

import keras_vit

SIZE = (16, 24)
OPTIONS = {
    "dense": {"scales": (1,), "width": 8, "convs": 1},
    "frcnn": {"width": 8, "units": 8, "sides": (8,), "proposals": 6},
}


def data():
    """(images (4, 16, 24, 3), objects (4, 3, 7)): two, one and a crowd, none, one."""
    images = np.random.default_rng(0).integers(0, 256, (4, *SIZE, 3), dtype="uint8")
    objects = np.full((4, 3, 7), -1, "float32")
    objects[:2, 0] = objects[3, 0] = 0.1, 0.2, 0.9, 0.7, 1, 0, 100
    objects[0, 1] = 0.5, 0.5, 0.8, 0.9, 0, 0, 30
    objects[1, 2] = 0.4, 0.0, 1.0, 0.5, 0, 1, 60
    return images, objects


def losses(strategy, head="dense"):
    """The losses of two steps; the second depends on the update before."""
    one = strategy.replicas == 1 and keras.backend.backend() == "tensorflow"
    with eager() if one else contextlib.nullcontext():
        with strategy.scope():
            sizes = {"depth": 1, "width": 16, "heads": 2, "mlp_dim": 16}
            model = keras_vit.DetectionModel("Ti/4", head, 2, SIZE, head_options=OPTIONS[head], **sizes)
            rng = np.random.default_rng(1)
            kept = [v for v in model.variables if "seed" not in v.path]
            for variable in kept:
                variable.assign(rng.normal(size=variable.shape) * 0.1)
            model.compile(keras_vit.training.Momentum(0.05), model.head_row.losses[0](), jit_compile=COMPILED)
        return model.fit(*data(), batch_size=4, epochs=2, shuffle=False, verbose=0).history["loss"]
