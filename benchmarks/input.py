"""Throughput of the input pipeline relative to decoding alone and to torchvision's, on the same images, in turns.

    python -m benchmarks.model --what=input --data=folder:PATH --torch_python=/path/to/python

Encoded images in memory are read repeatedly. "decode" only decodes them whole, on as many threads; "crop" is training's
crop and flip at 224 pixels, batched; "medium1" adds AugReg's RandAugment(2, 15). --torch_python names a Python with
torch and torchvision, for a DataLoader with one worker per core: "float" as in PyTorch's ImageNet example, "uint8" as
ours. Finally, this process's memory over --images images.
"""

import functools
import os
import pathlib
import re
import statistics
import subprocess
import tempfile
import time

import numpy as np
import tensorflow as tf

from keras_vit.data import open_source, training_batches
from keras_vit.data.mapping import EXAMPLES, untuned
from keras_vit.data.sources.base import RandomAccess

BATCH = 128
_CROP = "decode|random_resized_crop(224)|random_flip"
TEXTS = {"crop": _CROP, "medium1": f"{_CROP}|rand_augment(2, 15)"}
_THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def synthetic(count=100):
    """Encoded JPEGs of ImageNet's usual size, 500 x 375, about 100 kB each, as photographs are."""
    rng = np.random.default_rng(0)

    def image():
        shapes = tf.image.resize(rng.uniform(0, 255, (12, 16, 3)), (375, 500), "bicubic")
        pixels = tf.clip_by_value(shapes + rng.normal(0, 14, (375, 500, 3)), 0, 255)
        return tf.io.encode_jpeg(tf.cast(pixels, tf.uint8), quality=90).numpy()

    return [image() for _ in range(count)]


def read(data, data_dir):
    """A source's encoded images, a list of bytes. Raises ValueError if it has pixels instead."""
    if not data:
        return synthetic()
    images = [example["image"] for example in open_source(data, "train", data_dir).ordered().as_numpy_iterator()]
    if not isinstance(images[0], bytes):
        raise ValueError(
            f'"{data}" holds pixels, and the benchmark begins with encoded images: use folder:PATH or csv:PATH.'
        )
    return images


def in_memory(images):
    """A source of encoded images."""
    encoded = tf.constant(images)
    return RandomAccess("memory", ("0",), np.zeros(len(images), "int64"), lambda i: {"image": encoded[i]})


def _rounds(batches, count):
    """Returns a function that reads `count` images of endless batches, after a first batch, and gives images/s."""

    def run():
        iterator = iter(batches)  # new each time: what it prefetched would take time from the next pipeline
        next(iterator)
        began = time.perf_counter()
        for _ in range(-(-count // BATCH)):
            next(iterator)
        return -(-count // BATCH) * BATCH / (time.perf_counter() - began)

    return run


def pipelines(source):
    """{name: an endless dataset of batches}."""

    def size(i):
        return tf.size(tf.io.decode_jpeg(source.lookup(i % source.size)["image"], 3))

    alone = tf.data.Dataset.counter().map(size, num_parallel_calls=EXAMPLES).batch(BATCH).prefetch(tf.data.AUTOTUNE)
    return {"decode": untuned(alone)} | {name: training_batches(source, text, BATCH) for name, text in TEXTS.items()}


class Torchvision:
    """A process in another Python that measures its DataLoader per call, with "float" or "uint8" batches."""

    def __init__(self, python, images, count):
        self._folder = tempfile.TemporaryDirectory()
        for i, image in enumerate(images):
            pathlib.Path(self._folder.name, f"{i:05d}.jpg").write_bytes(image)
        script = pathlib.Path(__file__).with_name("torch_input.py")
        command = [python, str(script), self._folder.name, str(count), str(BATCH), str(_THREADS)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.versions = self._process.stdout.readline().strip()
        if not self.versions:
            raise ValueError(f"{python} ended with code {self._process.wait()}. It needs torch and torchvision.")

    def __call__(self, end):
        print(end, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()


def resident():
    """This process's memory in MiB; 0 if the system does not report it."""
    status = pathlib.Path("/proc/self/status")
    return int(re.search(r"VmRSS:\s+(\d+)", status.read_text())[1]) / 1024 if status.exists() else 0


def memory(batches, images, parts=10):
    """Memory in MiB at the start and after each of `parts` parts of `images` images through a pipeline."""
    run = _rounds(batches, images // parts)
    run()  # creates threads and buffers
    return [resident()] + [(run(), resident())[1] for _ in range(parts)]


def main(values):
    images = read(values.data, values.data_dir)
    source, count = in_memory(images), values.count
    kilobytes = sum(map(len, images)) / len(images) / 1000
    print(
        f"{len(images)} images of {kilobytes:.0f} kB on average, {_THREADS} threads, {values.repeats} rounds of {count}"
        " images each"
    )
    datasets = pipelines(source)
    runs = {name: _rounds(batches, count) for name, batches in datasets.items()}
    if values.torch_python:
        torchvision = Torchvision(values.torch_python, images, count)
        runs |= {f"torchvision {end}": functools.partial(torchvision, end) for end in ("float", "uint8")}
        print(torchvision.versions)
    for function in runs.values():
        function()  # starts the threads
    rates = {name: [] for name in runs}
    for i in range(values.repeats):
        for name, function in runs.items():
            rates[name].append(function())
        print(
            f"round {i + 1}: " + ", ".join(f"{name} {values[-1]:.0f}" for name, values in rates.items()) + " images/s",
            flush=True,
        )
    for name, measured in rates.items():
        others = [other for other in rates if other != name and not other.startswith(("crop", "medium1"))]
        ratios = {other: statistics.median(a / b for a, b in zip(measured, rates[other])) for other in others}
        compared = ", ".join(f"{ratio:.2f} of {other}" for other, ratio in ratios.items())
        print(f"{name:17} {statistics.median(measured):6.0f} images/s  {compared}")
    if values.torch_python:
        torchvision.close()
    if values.images:
        resident_mib = memory(datasets["medium1"], values.images)
        print(
            f"memory over {values.images} images with medium1: "
            + " ".join(f"{mib:.0f}" for mib in resident_mib)
            + " MiB"
        )
