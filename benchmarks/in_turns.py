"""Times forward passes of several models in turns, so that changes of the machine's speed affect all."""

import statistics
import time


def speeds(models: dict, batch, repeats: int, whole) -> dict:
    """{name: (images/s, speed relative to model `whole`)}, medians over rounds in which the models take turns."""
    import tensorflow as tf

    forwards = {name: tf.function(lambda model=model: model(batch, training=False)) for name, model in models.items()}
    times = {name: [] for name in forwards}
    for i in range(repeats + 1):
        for name, forward in forwards.items():
            began = time.perf_counter()
            forward().numpy()
            if i:  # the first round compiles
                times[name].append(time.perf_counter() - began)
    return {
        name: (len(batch) / statistics.median(seconds), statistics.median(a / b for a, b in zip(times[whole], seconds)))
        for name, seconds in times.items()
    }
