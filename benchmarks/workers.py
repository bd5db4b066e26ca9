"""The cost of a second worker: two workers, each pinned to half the cores, against one on all, in turns.

    python -m benchmarks.workers

Both train the same model with the same global batch on the same cores, so the ratio of their throughputs is the cost of
sums over workers: 1 means none. Linux only.
"""

import functools
import os
import re
import statistics
import subprocess
import sys
import time

from benchmarks.strategies import tf_configs
from trainers import flags


def train(strategy, variant, image_size, batch_size, steps):
    """Images per second of the whole cluster over `steps` steps, after two uncounted ones."""
    import keras
    import numpy as np

    import keras_vit
    from keras_vit.data import from_arrays, training_batches
    from keras_vit.training import AdamW, SoftmaxCrossEntropy

    class Clock(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                self.began = time.perf_counter()
            self.ended = time.perf_counter()

    strategy, clock = keras_vit.strategy(strategy), Clock()
    with strategy.scope():
        model = keras_vit.ViT(variant, image_size=image_size, classes=10)
        model.compile(AdamW(1e-4, decay=0.1, global_clipnorm=1.0), SoftmaxCrossEntropy(), jit_compile=False)
    source = from_arrays(np.zeros((batch_size, image_size, image_size, 3), "uint8"), np.arange(batch_size) % 10)
    batches = strategy.distribute(
        lambda shard, n: training_batches(source, "decode", batch_size, shard=shard, replicas=n)
    )
    model.fit(batches, steps_per_epoch=steps + 2, callbacks=[clock], verbose=0)
    return batch_size * steps / (clock.ended - clock.began)


def throughput(workers, cores):
    """Images per second of a cluster of processes, each pinned to its share of `cores`."""
    share = len(cores) // workers
    running = []
    for i, config in enumerate(tf_configs(workers)):
        pin = functools.partial(os.sched_setaffinity, 0, set(cores[i * share : (i + 1) * share]))
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "TF_CONFIG": config}
        command = [sys.executable, "-m", "benchmarks.workers", *sys.argv[1:], "--child"]
        command.append(f"--strategy={'multiworker' if workers > 1 else 'one'}")
        running.append(
            subprocess.Popen(command, env=environment, preexec_fn=pin, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        )
    ends = [process.communicate() for process in running]
    if any(process.returncode for process in running):
        raise RuntimeError(ends[0][1].decode()[-2000:])
    return float(re.search(rb"images per second: ([\d.]+)", ends[0][0])[1])


def main():
    values = flags.FLAGS
    if values.child:
        rate = train(values.strategy, values.variant, values.image_size, values.batch_size, values.steps)
        print(f"images per second: {rate:.3f}")
        return
    cores = sorted(os.sched_getaffinity(0))
    cores = cores[: len(cores) // 2 * 2]
    if not cores:
        raise ValueError("Two workers need two cores; this process may use only one.")
    ratios = []
    for i in range(values.rounds):
        one, two = throughput(1, cores), throughput(2, cores)
        ratios.append(two / one)
        print(
            f"round {i + 1}: one worker {one:.2f} images/s, two workers {two:.2f}, ratio {ratios[-1]:.3f}", flush=True
        )
    print(
        f"ViT-{values.variant}, {values.image_size} px, global batch {values.batch_size}, {len(cores)} cores: two"
        f" workers reach {statistics.median(ratios):.3f} of one (median of {values.rounds})"
    )


def run():
    flags.string("variant", "S/16", "Size and patch size.")
    flags.integer("image_size", 224, "Pixels.")
    flags.integer("batch_size", 32, "Images per step, over all workers.")
    flags.integer("steps", 6, "Number of measured steps.")
    flags.integer("rounds", 3, "How often to measure both in turn; the median ratio is reported.")
    flags.boolean("child", False, "Internal: set for the processes that this one starts.")
    flags.string("strategy", "one", "Internal: set for the processes that this one starts.")
    flags.launch(main)


if __name__ == "__main__":
    run()
