"""CIFAR-10 from random weights on one GPU, with Keras on JAX: accuracy after a time that includes compilation.

    KERAS_BACKEND=jax python -m benchmarks.gpu_cifar10 --config=cifar10_gpu:60s

trains the model of a config as `keras-vit pretrain` does, but on images on the card, which are cropped and flipped
there: TensorFlow is not needed. Each seed runs in a new process. Time is counted from the start of the process to the
end of the last step, without evaluation. "With flips" averages the logits of an image and its mirror image.

--held_out trains on the first nine tenths of the training images and measures the others: choose by it, and measure
what was chosen on the test images.
"""

import json
import math
import re
import statistics
import time

import numpy as np

from benchmarks.cifar10 import CLASSES, batches, read
from benchmarks.own_process import in_own_process
from trainers import flags
from trainers.config_files import flat_values, load_config

# Settings of a run that this program does not apply: they must be those of cifar10_gpu.
FIXED = (
    "mixup micro_batches init loss.class_weights optimizer.name optimizer.ema optimizer.swa optimizer.lookahead"
    " optimizer.layer_decay optimizer.head_rate optimizer.weight_decay_final"
)


def check(config) -> None:
    """ValueError for a config with settings that this program would ignore."""
    padding(config.data.train_preprocess)
    given, known = (flat_values(each) for each in (config, load_config("cifar10_gpu")))
    wrong = [f"{key}={given[key]}" for key in FIXED.split() if given[key] != known[key]]
    if wrong:
        raise ValueError(
            f"This program would ignore {', '.join(wrong)}: leave it out, or train with keras-vit pretrain, which needs"
            " TensorFlow."
        )


def padding(text: str) -> int:
    """The pixels of padding in a training preprocessing; ValueError for another than padded crops and flips."""
    steps = re.fullmatch(r"decode\|random_crop\(32, padding=(\d+)\)\|random_flip", text)
    if steps is None:
        raise ValueError(f'Expected the preprocessing "decode|random_crop(32, padding=N)|random_flip", got "{text}".')
    return int(steps[1])


def make_model(config, images: np.ndarray, steps: int):
    """The config's compiled model for `steps` steps, its first layer whitened on training images (n, 32, 32, 3)."""
    import keras

    import keras_vit
    from keras_vit.io.durations import resolve_steps

    keras.utils.set_random_seed(config.seed)
    fields = {name: value for name, value in config.model.items() if value is not None}
    model = keras_vit.ViT(**fields, classes=CLASSES, dtype=config.dtype)
    if config.whiten:
        keras_vit.models.whiten(model, images[: config.whiten])
    if config.cutmix:
        model.mixing = keras_vit.training.Cutmix(config.cutmix, CLASSES, config.seed)
    o, s = config.optimizer, config.schedule
    warmup = resolve_steps(s.warmup, config.batch_size, len(images), steps)
    optimizer = keras_vit.training.Muon(
        keras_vit.training.WarmupSchedule(o.learning_rate, steps, warmup, s.decay),
        momentum=o.momentum,
        beta_2=o.beta_2,
        decay=o.weight_decay,
        global_clipnorm=o.clip_norm,
    )
    loss = keras_vit.training.SoftmaxCrossEntropy(label_smoothing=config.loss.label_smoothing)
    model.compile(optimizer, loss, steps_per_execution=config.steps_per_execution)
    return model


def accuracies(model, images: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Top-1 in percent of images (n, 32, 32, 3), and of their logits averaged with those of their mirror images."""
    logits = model.predict(images, batch_size=1000, verbose=0)
    both = logits + model.predict(images[:, :, ::-1], batch_size=1000, verbose=0)
    return {name: 100 * float(np.mean(np.argmax(x, -1) == labels)) for name, x in (("top1", logits), ("flips", both))}


def trained(config, data: str | None, held_out: bool, began: float) -> dict:
    """A run of a config: its accuracies, steps, and seconds since `began` until each stage's end."""
    import jax
    import keras

    from keras_vit.io.durations import resolve_steps

    images, labels = read(data)
    n = len(images) * 9 // 10 if held_out else len(images)
    test = (images[n:], labels[n:]) if held_out else read(data, "test")
    images, labels = images[:n], labels[:n]
    # Whole executions: others would be compiled, too.
    execution = config.steps_per_execution
    steps = math.ceil(resolve_steps(config.total, config.batch_size, n) / execution) * execution
    model, seconds = make_model(config, images, steps), {"built": time.time() - began}

    def note(batch, logs):
        seconds.setdefault("compiled", time.time() - began)

    source = batches(images, labels, config.batch_size, config.seed, padding(config.data.train_preprocess))
    compiled = keras.callbacks.LambdaCallback(on_train_batch_end=note)
    model.fit(source, steps_per_epoch=steps, verbose=0, callbacks=[compiled])
    seconds["trained"] = time.time() - began
    card = jax.local_devices()[0].device_kind
    return {"seed": config.seed, "steps": steps, "card": card, **accuracies(model, *test), "seconds": seconds}


def told(found: dict) -> str:
    """A run as a line."""
    seconds = ", ".join(f"{stage} {value:.1f} s" for stage, value in found["seconds"].items())
    return (
        f"seed {found['seed']}, {found['steps']} steps: {found['top1']:.2f}%, with flips {found['flips']:.2f}%;"
        f" {seconds} after the start"
    )


def main():
    values, runs = flags.FLAGS, []
    check(values.config)
    for seed in map(int, values.seeds.split(",")):
        values.config.seed = seed
        found = in_own_process(trained, values.config, values.npz, values.held_out, time.time())
        runs.append(found)
        print(told(found), flush=True)
        if values.output:
            with open(values.output, "a", encoding="utf-8") as file:
                print(json.dumps(found), file=file)
    top1, flips = (statistics.mean(found[name] for found in runs) for name in ("top1", "flips"))
    print(f"Mean of {len(runs)}: {top1:.2f}%, with flips {flips:.2f}%. {runs[0]['card']}")


def run():
    flags.path(
        "npz", None, "A file with images, labels, test_images and test_labels; without it Keras downloads CIFAR-10."
    )
    flags.string("seeds", "0,1,2", "Seeds, joined by commas.")
    flags.boolean("held_out", False, "Train on nine tenths of the training images and measure the others.")
    flags.string("output", "", "A file to which each run is added as a line of JSON.")
    flags.launch(main, with_config=True)


if __name__ == "__main__":
    run()
