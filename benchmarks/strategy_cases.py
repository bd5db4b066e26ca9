"""Small trainings under one strategy, for benchmarks.strategies; writes their weights and measures to a file.

    python -m benchmarks.strategy_cases --setup=mirrored2 --output=FILE.npz

`--ours` trains a keras_vit.Model with this package's AdamW; `--noours` a keras.Model of the same layers with Keras'
AdamW. `--reordered` adds the same numbers in another order: see `reorder_batches` and `flip_units`.
"""

import traceback
from typing import NamedTuple

from trainers import flags

BATCH, STEPS, RAGGED = 32, 10, 301


class Setup(NamedTuple):
    """A strategy on this machine's CPU: the arguments of keras_vit.strategy, the numbers of devices and processes."""

    backend: str
    strategy: str
    options: dict
    devices: int = 1
    processes: int = 1

    @property
    def reference(self):
        """The one-device setup on the same backend."""
        return "jax_one" if self.backend == "jax" else "one"


SETUPS = {
    "one": Setup("tensorflow", "one", {}),
    "mirrored2": Setup("tensorflow", "mirrored", {}, devices=2),
    "mirrored4": Setup("tensorflow", "mirrored", {}, devices=4),
    "multiworker2": Setup("tensorflow", "multiworker", {}, processes=2),
    "jax_one": Setup("jax", "one", {}),
    "jax_data4": Setup("jax", "data", {}, devices=4),
    "jax_model2x2": Setup("jax", "model", {"model_parallel": 2}, devices=4),
}
# case: (options of the optimizer, options of the training)
CASES = {
    "default": ({}, {}),
    "clip 1.0": ({"global_clipnorm": 1.0}, {}),
    "accumulation 4": ({}, {"accumulate": 4}),
    "4 steps per execution": ({}, {"steps_per_execution": 4}),
    "EMA": ({"use_ema": True, "ema_momentum": 0.9}, {}),
    "mixup": ({}, {"mixup": 1.0}),
    "decay with exclusions": ({"decay": 0.3}, {}),
    "all of these": (
        {"global_clipnorm": 1.0, "decay": 0.3, "use_ema": True, "ema_momentum": 0.9},
        {"accumulate": 4, "steps_per_execution": 4, "mixup": 1.0},
    ),
    "Keras' SGD, clipvalue": ({"sgd": True, "clipvalue": 0.01}, {}),
    "Keras' SGD, global_clipnorm": ({"sgd": True, "global_clipnorm": 0.1}, {}),
}
EVALUATED = ("default", "all of these")


def prepare_devices(backend, devices):
    """Splits the CPU into several devices; call it before the backend starts."""
    import os

    if backend == "jax":
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
        return
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * devices)


def reorder_batches(array):
    """(STEPS * BATCH, ...) with each batch's pairs of neighbours in reverse order: mixup mixes neighbours."""
    pairs = array.reshape(STEPS, BATCH // 2, 2, *array.shape[1:])  # (steps, b / 2, 2, ...)
    return pairs[:, ::-1].reshape(array.shape)


def flip_units(arrays):
    """{path: array} with every block's heads and hidden units reversed: the same function of images. Undoes itself."""
    import numpy as np

    from keras_vit.distribution.jax_sharding import sharded_axis

    axes = {path: sharded_axis(path) for path in arrays}
    return {path: array if axes[path] is None else np.flip(array, axes[path]) for path, array in arrays.items()}


def make_optimizer(options, training, ours):
    """A case's optimizer."""
    import keras

    from keras_vit.training import AdamW

    options = {"learning_rate": 1e-3, "epsilon": 1e-6, **options}
    if options.pop("sgd", False):
        options.pop("epsilon")
        return keras.optimizers.SGD(**{**options, "learning_rate": 0.1})
    if ours:
        return AdamW(**options)
    accumulate = training.get("accumulate")
    optimizer = keras.optimizers.AdamW(
        **{k: v for k, v in options.items() if k != "decay"},
        weight_decay=options.get("decay", 0.0),
        gradient_accumulation_steps=accumulate,
    )
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta", "tokens", "embedding"])
    return optimizer


def make_model(strategy, options, training, ours, depth):
    """A case's compiled model, with the same weights at every call."""
    import keras

    import keras_vit
    from keras_vit.training import Accuracy, Mixup, SoftmaxCrossEntropy

    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras_vit.ViT(
            "Ti/8", image_size=16, depth=depth, width=32, heads=4, mlp_dim=64, classes=10, head_bias=0.0
        )
        model = model if ours else keras.Model(model.input, model.output)
        model.compile(
            make_optimizer(options, training, ours),
            SoftmaxCrossEntropy() if ours else keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            weighted_metrics=[Accuracy() if ours else "accuracy"],
            steps_per_execution=training.get("steps_per_execution", 1),
            jit_compile=False if keras.backend.backend() == "tensorflow" else "auto",
        )
    if ours:
        model.micro_batches = training.get("accumulate", 1)
        model.mixing = Mixup(training["mixup"], 10) if "mixup" in training else None
    return model


def _evaluation(model, x, y):
    """{"loss", "accuracy", "logits", "labels"} of the first RAGGED examples, which leave the last batch incomplete."""
    import keras
    import numpy as np

    x, y = x[:RAGGED], y[:RAGGED]
    measures = model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True)
    logits = np.asarray(keras.ops.convert_to_numpy(model.predict(x, batch_size=BATCH, verbose=0)))
    return {**{name: np.float64(value) for name, value in measures.items()}, "logits": logits, "labels": y}


def run_case(strategy, name, ours=True, reordered=False, depth=2):
    """{"before/PATH": array, "after/PATH": array, "loss": ..., "logits": ...} of one case."""
    import numpy as np

    from keras_vit.optim.wrappers import swap_averages

    options, training = CASES[name]
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (BATCH * STEPS, 16, 16, 3), dtype="uint8"), rng.integers(0, 10, BATCH * STEPS)
    model = make_model(strategy, options, training, ours, depth)
    if not ours and "mixup" in training:
        raise NotImplementedError("Keras' MixUp is a layer of the input pipeline")

    def weights():
        return {v.path: np.asarray(v.numpy()) for v in model.trainable_variables}

    before = weights()
    if reordered:
        flipped = flip_units(before)
        for v in model.trainable_variables:
            v.assign(flipped[v.path])
    accumulated = 1 if ours else training.get("accumulate", 1)
    batches = [reorder_batches(array) if reordered else array for array in (x, y)]
    model.fit(*batches, batch_size=BATCH // accumulated, shuffle=False, verbose=0)
    if options.get("use_ema") and ours:
        swap_averages(model)
    after = flip_units(weights()) if reordered else weights()
    arrays = {f"before/{path}": value for path, value in before.items()}
    arrays |= {f"after/{path}": value for path, value in after.items()}
    return arrays | (_evaluation(model, x, y) if name in EVALUATED else {})


def main():
    import numpy as np

    setup = SETUPS[flags.FLAGS.setup]
    prepare_devices(setup.backend, setup.devices)
    from keras_vit.distribution.strategy import strategy

    chosen, results = strategy(setup.strategy, **setup.options), {}
    for case in flags.FLAGS.cases.split(",") if flags.FLAGS.cases else CASES:
        try:
            arrays = run_case(chosen, case, flags.FLAGS.ours, flags.FLAGS.reordered, flags.FLAGS.depth)
        except Exception as error:  # stock Keras crashes in some of them, as the table shows
            if flags.FLAGS.ours:
                raise
            traceback.print_exc()
            arrays = {"error": np.array(type(error).__name__)}
        results |= {f"{case}//{key}": value for key, value in arrays.items()}
    if chosen.chief:
        np.savez(flags.FLAGS.output, **results)


def run():
    flags.string("setup", "one", ", ".join(SETUPS))
    flags.string("output", None, "The .npz file to write.", required=True)
    flags.string("cases", "", "Comma-separated names of cases; empty for all.")
    flags.boolean("ours", True, "keras_vit.Model, or a keras.Model.")
    flags.boolean("reordered", False, "Add the same numbers in another order.")
    flags.integer("depth", 2, "Blocks of the model.")
    flags.launch(main)


if __name__ == "__main__":
    run()
