"""Accuracy on CIFAR-10 against time of training on one accelerator, by kind of attention, with Keras on JAX.

    KERAS_BACKEND=jax python -m benchmarks.equal_time --seconds=20 --seeds=2

ViTs of about equal parameters attend on a grid of 16x16 patches of 2 pixels; the Swin begins with the same grid. They
train on nine tenths of the training split, in mixed bfloat16 with AdamW at a constant rate, flipped and shifted, and
are tested on the rest after every --steps steps, with averages of the weights, so that each point of a curve is the end
of a shorter run. The averages must forget the first weights within a run: --momentum ** steps is what they keep. Time
is that of the steps, without the first --steps, which compile. TensorFlow is not needed.
"""

import statistics
import time

from benchmarks.cifar10 import batches, read
from trainers import flags

_ATTENTION = {"global": {}, "window(4)": {}, "window(4, global=(2, 5))": {}, "axial": {"depth": 3}, "local(5)": {}}
_SWIN = {"patch_size": 2, "width": 96, "depths": (2, 5), "heads": 3, "window": 4}
_VIT = {"depth": 6, "positions": "sincos2d"}
KINDS = {kind: ("Ti/2", {**_VIT, **sizes, "attention": kind}) for kind, sizes in _ATTENTION.items()}
KINDS["Swin"] = "Swin-T", _SWIN
TESTED = 0.1  # of the images


def train(model, data, held_out, seconds, steps):
    """[(seconds of training, accuracy on what was held out)] of each epoch of `steps` steps."""
    import jax
    import keras

    from keras_vit.training import EvaluateAverage

    curve, spent = [], 0.0

    class Clock(keras.callbacks.Callback):
        compiled = False

        def on_epoch_begin(self, epoch, logs=None):
            self.began = time.perf_counter()

        def on_test_begin(self, logs=None):
            nonlocal spent
            jax.block_until_ready([variable.value for variable in self.model.trainable_variables])
            spent += (time.perf_counter() - self.began) if self.compiled else 0.0

        def on_epoch_end(self, epoch, logs=None):
            curve.append((spent, logs["val_accuracy"]))
            self.compiled = True
            self.model.stop_training = spent >= seconds

    fitting = {"steps_per_epoch": steps, "epochs": 10**6, "verbose": 0, "callbacks": [Clock(), EvaluateAverage()]}
    model.fit(data, validation_data=held_out, validation_batch_size=1000, **fitting)
    return curve


def trained(kind, images, labels, held_out, values, seed):
    """(parameters, forward FLOPs of an image, the curve) of one model."""
    import keras

    import keras_vit
    from keras_vit import models
    from keras_vit.models.families import find_spec
    from keras_vit.planning.model_counts import forward_flops

    keras.utils.set_random_seed(seed)
    variant, overrides = KINDS[kind]
    spec = find_spec(variant, **overrides)
    model = models.build(spec, image_size=images.shape[1], classes=10, dtype="mixed_bfloat16")
    rising = keras.optimizers.schedules.CosineDecay(0.0, 1, 1.0, warmup_target=values.rate, warmup_steps=200)
    averages = {"use_ema": True, "ema_momentum": values.momentum}
    optimizer = keras_vit.training.AdamW(rising, decay=0.05, global_clipnorm=1.0, **averages)
    model.compile(optimizer, keras_vit.training.SoftmaxCrossEntropy(), weighted_metrics=[keras_vit.training.Accuracy()])
    data = batches(images, labels, values.batch_size, seed)
    curve = train(model, data, held_out, values.seconds, values.steps)
    return model.count_params(), forward_flops(spec, images.shape[1]), curve


def accuracy_at(curve, mark):
    """The accuracy of the test nearest to a time."""
    return min(curve, key=lambda point: abs(point[0] - mark))[1]


def row(kind, parameters, flops, curves, steps, marks):
    """A kind as a table row: means over the seeds of the accuracies at `marks`, in seconds, then each seed's last."""
    counts, spent = [(len(curve) - 1) * steps for curve in curves], [curve[-1][0] for curve in curves]
    cells = [f"{parameters:,}", f"{flops / 1e6:.0f}", f"{1e3 * sum(spent) / sum(counts):.2f}"]
    cells += [f"{statistics.mean(counts):,.0f}"]
    cells += [f"{100 * statistics.mean(accuracy_at(curve, mark) for curve in curves):.1f}" for mark in marks]
    ends = ", ".join(f"{100 * curve[-1][1]:.1f}" for curve in curves)
    return f"| `{kind}` | {' | '.join(cells)} | {ends} |"


def main():
    values = flags.FLAGS
    images, labels = read(values.data)
    first = round((1 - TESTED) * len(images))
    held_out = images[first:], labels[first:]
    marks = [values.seconds / 4, values.seconds / 2]
    heads = ["parameters", "MFLOP", "ms of a step", "steps", *(f"% at {mark:g} s" for mark in marks)]
    print(f"| | {' | '.join(heads)} | at the end |\n|-{'|-' * (len(heads) + 1)}|", flush=True)
    for kind in values.kind or KINDS:
        found = [trained(kind, images[:first], labels[:first], held_out, values, seed) for seed in range(values.seeds)]
        parameters, flops, _ = found[0]
        print(row(kind, parameters, flops, [curve for *_, curve in found], values.steps, marks), flush=True)


def run():
    flags.strings("kind", f"Only this one of {tuple(KINDS)} (repeatable).")
    flags.path("data", None, "An .npz file with images and labels; by default Keras downloads CIFAR-10.")
    flags.number("seconds", 20.0, "Time of training of each model.", lowest=1)
    flags.number("rate", 1e-3, "Learning rate.")
    flags.number("momentum", 0.99, "Of the averages of the weights.", lowest=0, highest=1)
    flags.integer("batch_size", 256, "Images in a step.", lowest=1)
    flags.integer("steps", 200, "Steps between two tests.", lowest=1)
    flags.integer("seeds", 2, "Runs of each kind.", lowest=1)
    flags.launch(main)


if __name__ == "__main__":
    run()
