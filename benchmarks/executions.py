"""Training steps on JAX by the number of steps in an execution: one program of several steps against single steps.

    KERAS_BACKEND=jax python -m benchmarks.executions --configs=digits_pretrain,cifar10_scratch --steps=20

Random images in memory, the model and batch of each config; the variants take turns, and the ratios to single steps are
medians over rounds. An execution is one program here on CPUs, too, where `fit` runs its steps one by one.
"""

import itertools
import statistics
import time

import numpy as np

from trainers import flags
from trainers.config_files import load_config

CLASSES = 10


def make_fit(name: str, batch_size: int, steps: int, per_execution: int):
    """Returns a function that fits a config's model, "digits_pretrain" for example, for some steps."""
    from keras_vit.data import from_arrays
    from keras_vit.distribution import Strategy
    from keras_vit.runs.prepare import check

    config, rng = load_config(name), np.random.default_rng(0)
    config.steps_per_execution, config.jit_compile = per_execution, False  # which is of TensorFlow
    size, channels, batch = config.model.image_size, config.model.channels, batch_size or config.batch_size
    config.batch_size = batch
    images = rng.integers(0, 256, (batch, size, size, channels), dtype="uint8")
    labels = np.arange(batch, dtype="int32") % CLASSES
    source = from_arrays(images, labels, class_names=[str(i) for i in range(CLASSES)])
    model = check(config).on(source, None).model(Strategy())
    batches = itertools.repeat((images, labels))
    return lambda: model.fit((pair for pair in batches), steps_per_epoch=steps, verbose=0)


def main():
    from keras_vit.fit.stepping import jax_step

    jax_step.is_slow_in_loops = lambda: False  # measures a program of several steps on CPUs, too
    values = flags.FLAGS
    for name in values.configs.split(","):
        fits = {count: make_fit(name, values.batch_size, values.steps, count) for count in (1, values.steps)}
        times = {count: [] for count in fits}
        for i in range(values.repeats + 2):
            for count, fit in fits.items():
                began = time.perf_counter()
                fit()
                if i > 1:
                    times[count].append((time.perf_counter() - began) / values.steps)
        single, together = (1e3 * statistics.median(seconds) for seconds in times.values())
        ratio = statistics.median(a / b for a, b in zip(*times.values()))
        print(f"{name}: {single:.2f} ms a step alone, {together:.2f} in {values.steps}: {ratio:.2f} times as fast")


def run():
    flags.string("configs", "digits_pretrain,cifar10_scratch", "Names of configs, joined by commas.")
    flags.integer("batch_size", 0, "Images in a batch; 0 for each config's own.", lowest=0)
    flags.integer("steps", 20, "Steps of an execution.", lowest=2)
    flags.integer("repeats", 5, "Rounds; medians are reported.")
    flags.launch(main)


if __name__ == "__main__":
    run()
