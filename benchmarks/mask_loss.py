"""What comparing masks on their whole grid costs in a training step of objects with masks.

    python -m benchmarks.mask_loss

A step of EoMT on a ViT S/16 at 640 pixels, 200 queries and 100 objects in each of two images, against the same step
with the mean of all outputs as its loss: what is left of the difference is what sampled points could save at most.
"""

import resource
import time

import numpy as np

from benchmarks.own_process import in_own_process
from trainers import flags

SIZE, BATCH, QUERIES, OBJECTS, STEPS = 640, 2, 200, 100, 4


def _targets(grid):
    """A hundred discs in each image, as rows of objects with masks."""
    from keras_vit.data import pack_masks

    rng, (y, x) = np.random.default_rng(0), np.mgrid[:SIZE, :SIZE]
    centres, radii = rng.uniform(0, SIZE, (BATCH, OBJECTS, 2)), rng.uniform(12, 60, (BATCH, OBJECTS))
    masks = [[np.hypot(y - r, x - c) < radius for (r, c), radius in zip(*image)] for image in zip(centres, radii)]
    return pack_masks([np.stack(image) for image in masks], [[0] * OBJECTS] * BATCH, grid)


def measured(whole_grid: bool) -> tuple[float, float]:
    """(seconds of a step, peak memory in GB) with masks compared on their grid, or with a mean of the outputs."""
    import keras

    import keras_vit

    model = keras_vit.InstanceModel("S/16", classes=1, image_size=SIZE, head_options={"queries": QUERIES})
    loss = keras_vit.training.InstanceLoss(1) if whole_grid else lambda y, found: keras.ops.mean(found)
    model.compile(keras_vit.training.AdamW(1e-4), loss)
    images = np.random.default_rng(1).integers(0, 256, (BATCH, SIZE, SIZE, 3)).astype("uint8")
    targets = _targets(model.mask_grid)
    model.train_on_batch(images, targets)
    times = []
    for _ in range(STEPS):
        start = time.process_time()
        model.train_on_batch(images, targets)
        times.append(time.process_time() - start)
    return min(times), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main():
    for name, whole_grid in (("masks on their grid", True), ("mean of the outputs", False)):
        seconds, peak = in_own_process(measured, whole_grid)
        print(f"{name:22}{seconds:8.2f} CPU s a step {peak:8.2f} GB", flush=True)


def run():
    flags.launch(main)


if __name__ == "__main__":
    run()
