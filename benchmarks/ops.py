"""Cost of each augmentation op: microseconds per image on one thread, on decoded photographs of 224 x 224 pixels.

python -m benchmarks.model --what=ops --data=folder:PATH
"""

import statistics
import time

import tensorflow as tf

from benchmarks.input import read
from keras_vit.data import parse

OPS = (
    "rand_augment(2, 15)",
    "auto_augment",
    "trivial_augment",
    "color_jitter(0.3, 0.3, 0.3)",
    "color_jitter(0.3, 0.3, 0.3, 0.1)",
    "three_augment",
    "random_grayscale(1)",
    "gaussian_blur(1)",
    "solarize(1)",
    "random_erasing(1)",
    "random_erasing(1, mode='const')",
    "random_flip",
)


def _run(images, text, count):
    """Returns a function that runs an op on `count` images in sequence and gives microseconds per image."""
    ops = parse(text)

    def pixel(i):
        image = images[i % images.shape[0]]
        image = ops.image(image, tf.stack([tf.constant(0, tf.int64), i])) if text else image
        return image[0, 0, 0]  # uses a value: its size alone would compute nothing

    dataset = tf.data.Dataset.range(count).map(pixel).batch(count)
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    dataset = dataset.with_options(options)

    def run():
        began = time.perf_counter()
        for _ in dataset:
            pass
        return 1e6 * (time.perf_counter() - began) / count

    return run


def main(values):
    crop = parse("decode|random_resized_crop(224)")
    encoded = read(values.data, values.data_dir)
    images = tf.stack([crop.image(tf.constant(image), tf.constant([0, i])) for i, image in enumerate(encoded)])
    runs = {text: _run(images, text, values.count) for text in ("", *OPS)}
    for run in runs.values():
        run()
    times = {text: [] for text in runs}
    for _ in range(values.repeats):
        for text, run in runs.items():
            times[text].append(run())
    print(f"{len(encoded)} photographs at 224 x 224, {values.repeats} rounds of {values.count} each, one thread")
    for text in OPS:
        print(f"{text:34} {statistics.median(times[text]) - statistics.median(times['']):6.0f} us")
