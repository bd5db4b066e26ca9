"""What check_strategies runs in one process: small trainings under one strategy, their weights and measures left in a file.

    python -m trainers.strategy_cases --layout=mirrored2 --output=FILE.npz

`ours` is a keras_vit.Model with this package's AdamW; `plain` a keras.Model of the same layers with Keras' AdamW.
"""

import traceback

from . import flags

BATCH, STEPS, RAGGED = 32, 10, 301
# layout: (backend, strategy, its options, devices, processes)
LAYOUTS = {
    "one": ("tensorflow", "one", {}, 1, 1),
    "mirrored2": ("tensorflow", "mirrored", {}, 2, 1),
    "mirrored4": ("tensorflow", "mirrored", {}, 4, 1),
    "multiworker2": ("tensorflow", "multiworker", {}, 1, 2),
    "jax_one": ("jax", "one", {}, 1, 1),
    "jax_data4": ("jax", "data", {}, 4, 1),
    "jax_model2x2": ("jax", "model", {"model_parallel": 2}, 4, 1),
}
# case: (optimizer's options, options of the training)
CASES = {
    "plain": ({}, {}),
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


def prepare_devices(backend, devices):
    """Makes several devices of the CPU; before the engine starts."""
    import os

    if backend == "jax":
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
        return
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * devices)


def make_optimizer(options, training, ours):
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


def make_model(strategy, options, training, ours):
    """The compiled model of a case; the same weights at every call."""
    import keras

    import keras_vit
    from keras_vit.training import Accuracy, Mixup, SoftmaxCrossEntropy

    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras_vit.ViT("Ti/8", image_size=16, depth=2, width=32, heads=4, mlp_dim=64, classes=10, head_bias=0.0)
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


def run_case(strategy, name, ours):
    """{"before/PATH": array, "after/PATH": array, "loss": ..., "logits": ...} of one case."""
    import keras
    import numpy as np

    from keras_vit.training.callbacks import swap_averages

    options, training = CASES[name]
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (BATCH * STEPS, 16, 16, 3), dtype="uint8"), rng.integers(0, 10, BATCH * STEPS)
    model = make_model(strategy, options, training, ours)
    if not ours and "mixup" in training:
        raise NotImplementedError("Keras' MixUp is a layer of the input pipeline")
    read = lambda: {v.path: np.asarray(v.numpy()) for v in model.trainable_variables}  # noqa: E731
    found = {f"before/{path}": value for path, value in read().items()}
    accumulated = 1 if ours else training.get("accumulate", 1)
    model.fit(x, y, batch_size=BATCH // accumulated, shuffle=False, verbose=0)
    if options.get("use_ema") and ours:
        swap_averages(model)
    found |= {f"after/{path}": value for path, value in read().items()}
    if name == "plain":
        measures = model.evaluate(x[:RAGGED], y[:RAGGED], batch_size=BATCH, verbose=0, return_dict=True)
        found |= {name: np.float64(value) for name, value in measures.items()}
        found["logits"] = np.asarray(keras.ops.convert_to_numpy(model.predict(x[:RAGGED], batch_size=BATCH, verbose=0)))
    return found


def main():
    import numpy as np

    backend, name, options, devices, _ = LAYOUTS[flags.FLAGS.layout]
    prepare_devices(backend, devices)
    from keras_vit.training.strategy import strategy

    layout, found = strategy(name, **options), {}
    for case in flags.FLAGS.cases.split(",") if flags.FLAGS.cases else CASES:
        try:
            arrays = run_case(layout, case, flags.FLAGS.ours)
        except Exception as error:  # plain Keras crashes in some of them: that is what the table shows
            if flags.FLAGS.ours:
                raise
            traceback.print_exc()
            arrays = {"error": np.array(type(error).__name__)}
        found |= {f"{case}//{key}": value for key, value in arrays.items()}
    if layout.chief:
        np.savez(flags.FLAGS.output, **found)


def run():
    flags.string("layout", "one", ", ".join(LAYOUTS))
    flags.string("output", None, "The .npz file to write.", required=True)
    flags.string("cases", "", "Comma-separated names; none for all.")
    flags.boolean("ours", True, "keras_vit.Model, or a plain keras.Model.")
    flags.launch(main)


if __name__ == "__main__":
    run()
