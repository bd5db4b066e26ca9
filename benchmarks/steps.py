"""Training steps of recipes in turns, with input, so that other work on the machine affects all.

    python -m benchmarks.steps --configs=cifar10_scratch,cifar10_stem --repeats=30

Images are random pixels in memory, of each config's size. Ratios to the first config's time are medians over rounds of
one step each.
"""

import statistics
import time

import numpy as np

from trainers import flags
from trainers.config_files import load_config

CLASSES = 10
EXAMPLES = 2048


def make_step(name: str):
    """Returns a function that runs one step of a config, such as "cifar10_stem:20min", on random images, to its end."""
    from keras_vit.data import from_arrays, training_batches
    from keras_vit.distribution import Strategy
    from keras_vit.runs.prepare import check

    config, rng = load_config(name), np.random.default_rng(0)
    size, channels = config.model.image_size, config.model.channels
    images = rng.integers(0, 256, (EXAMPLES, size, size, channels), dtype="uint8")
    source = from_arrays(images, np.arange(EXAMPLES) % CLASSES, class_names=[str(i) for i in range(CLASSES)])
    prepared = check(config).on(source, None)
    model, select = prepared.model(Strategy()), prepared.task.select
    model.make_train_function()
    batches = iter(training_batches(source, config.data.train_preprocess, config.batch_size, select=select))
    return lambda: float(model.train_function(batches)["loss"])


def main():
    names, repeats = flags.FLAGS.configs.split(","), flags.FLAGS.repeats
    steps = {name: make_step(name) for name in names}
    times = {name: [] for name in names}
    for i in range(repeats + 2):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            if i > 1:  # the first rounds compile and fill the input's buffers
                times[name].append(time.perf_counter() - began)
    for name in names:
        ratio = statistics.median(a / b for a, b in zip(times[name], times[names[0]]))
        print(
            f"{name}: {1e3 * statistics.median(times[name]):.1f} ms a step, {ratio:.2f} times the first's", flush=True
        )


def run():
    flags.string(
        "configs", "cifar10_scratch,cifar10_stem", "Names of configs of the classification task, joined by commas."
    )
    flags.integer("repeats", 30, "Rounds; medians are reported.")
    flags.launch(main)


if __name__ == "__main__":
    run()
