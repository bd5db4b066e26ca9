"""Fine-tuning a ViT on few images: LoRA against all weights and the head alone.

    python -m benchmarks.lora --checkpoint=deit/tiny --data_dir=../shared/data/tensorflow_datasets

Trains on the first `examples` of CIFAR-10's training set and tests on the first `test_examples` of its test set,
enlarged to `image_size`, with resampled positions. AdamW without decay, batches of 50, cosine decay after a warm-up of
a tenth, no augmentation. --tune gives each method the best of its three learning rates, measured on the training images
that follow, not on the test set; otherwise the middle one. Seconds are those of `fit` at that rate, with compilation;
CPU seconds sum all threads; the optimizer's memory is the size of its variables.
"""

import time

from trainers import flags, shared_flags

BATCH = 50
# name: (rank and targets of LoRA, "head" or "all", learning rates)
WAYS = {
    "the head alone": ("head", (1e-3, 3e-3, 1e-2)),
    "LoRA, rank 4: query, value": ((4, ("query", "value")), (1e-3, 3e-3, 1e-2)),
    "LoRA, rank 8: every dense layer": ((8, ("*",)), (5e-4, 1e-3, 3e-3)),
    "all weights": ("all", (1e-4, 3e-4, 1e-3)),
}


def _images(split, size, data_dir):
    """(images (n, size, size, 3) uint8, labels (n,)) of a part of CIFAR-10."""
    import numpy as np

    from keras_vit.data import evaluation_batches, open_source

    text = f"decode|resize({size}, {size}, method='bicubic')"
    batches = evaluation_batches(open_source("cifar10", split, data_dir), text, 100).as_numpy_iterator()
    images, labels, weights = map(np.concatenate, zip(*batches))
    return images[weights > 0], labels[weights > 0]


def _model(checkpoint, size, way):
    """A model with a new head, in which only the method's weights are trainable."""
    import keras

    import keras_vit
    from keras_vit.models import freeze_all_but_head

    keras.utils.set_random_seed(0)
    model = keras_vit.load(checkpoint, image_size=size, classes=10, head="reset")
    if way == "head":
        freeze_all_but_head(model)
    elif way != "all":
        model.enable_lora(*way)
    return model


def _fine_tuned(model, rate, data, epochs):
    """Fine-tunes the model; returns (seconds, CPU seconds)."""
    from keras_vit.training import AdamW, SoftmaxCrossEntropy, WarmupSchedule

    images, labels = data
    steps = epochs * (len(images) // BATCH)
    model.compile(AdamW(WarmupSchedule(rate, steps, steps // 10)), SoftmaxCrossEntropy(), jit_compile=False)
    began, computed = time.perf_counter(), time.process_time()
    model.fit(images, labels, BATCH, epochs, verbose=0)
    return time.perf_counter() - began, time.process_time() - computed


def _accuracy(model, data):
    images, labels = data
    return float((model.predict(images, 100, verbose=0).argmax(-1) == labels).mean())


def measure(values):
    """{"way", "rate", "accuracy", "trainable", "seconds", "cpu", "bytes"} of each method, one at a time."""
    n, size = values.examples, values.image_size
    splits = (f"train[:{n}]", f"train[{n}:{2 * n}]", f"test[:{values.test_examples}]")
    train, held_out, test = (_images(split, size, values.data_dir) for split in splits)
    for name, (way, rates) in WAYS.items():
        tried = []
        for rate in rates if values.tune else rates[1:2]:
            model = _model(values.checkpoint, size, way)
            seconds, cpu = _fine_tuned(model, rate, train, values.epochs)
            tried.append(
                (_accuracy(model, held_out) if values.tune else 0.0, rate, seconds, cpu, _accuracy(model, test))
            )
        _, rate, seconds, cpu, accuracy = max(tried)
        yield {
            "way": name,
            "rate": rate,
            "accuracy": accuracy,
            "trainable": sum(v.numpy().size for v in model.trainable_weights),
            "seconds": seconds,
            "cpu": cpu,
            "bytes": sum(v.numpy().nbytes for v in model.optimizer.variables),
        }


def main():
    print(f"{'':34} {'accuracy':>8} {'rate':>7} {'trainable':>10} {'seconds':>8} {'CPU s':>6} {'optimizer':>10}")
    for row in measure(flags.FLAGS):
        print(
            f"{row['way']:34} {row['accuracy']:8.1%} {row['rate']:7g} {row['trainable']:10,} {row['seconds']:8.1f}"
            f" {row['cpu']:6.1f} {row['bytes'] / 1e6:7.2f} MB",
            flush=True,
        )


def run():
    flags.string("checkpoint", None, "A ViT that keras_vit.load takes.", required=True)
    shared_flags.define_data_dir()
    flags.integer("examples", 1000, "Training images, and as many to choose the learning rate with.")
    flags.integer("test_examples", 2000, "Test images.")
    flags.integer("image_size", 96, "Pixels to which the images are enlarged.")
    flags.integer("epochs", 5, "Passes over the training images.")
    flags.boolean("tune", False, "Whether to try three learning rates for each way.")
    flags.launch(main)


if __name__ == "__main__":
    run()
