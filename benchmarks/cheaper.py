"""Speed and accuracy of token merging and patch dropout, against the whole model in the same run.

    python -m benchmarks.cheaper --checkpoint=deit/tiny \\
        --data=csv:../shared/data/imagenet_sample/labels.csv?classes=1000

All forms classify the same images. Speeds are those of compiled forward passes that take turns; ratios are medians over
rounds, so that a busy machine slows both sides. --variant measures only speeds, with random weights.
"""

import pathlib

from benchmarks.in_turns import speeds
from trainers import flags

MERGING = tuple(range(2, 17, 2))
RATES = (0.1, 0.25, 0.4, 0.55)
WHOLE = "whole"


def forms(block):
    """{kind: {label: changes of the spec}} to compare with the whole model; `block` ranks the patches."""
    return {
        "token merging": {f"r = {r}": {"token_merging": r} for r in MERGING},
        "least heeded": {f"{rate:.0%}": {"patch_dropout": rate, "patch_dropout_block": block} for rate in RATES},
        "random": {f"{rate:.0%}": {"patch_dropout": rate} for rate in RATES},
    }


def _models(values):
    """{(kind, label): model}, the whole model first, with the checkpoint's weights, or random ones for a variant."""
    import keras_vit
    from keras_vit.checkpoints import transfer

    model = keras_vit.load(values.checkpoint) if values.checkpoint else keras_vit.ViT(values.variant)
    found = {WHOLE: model}
    for kind, changes in forms(values.block).items():
        found |= {(kind, label): transfer(model, **change) for label, change in changes.items()}
    return found


def _right(model, images, labels, batch_size):
    return int((model.predict(images, batch_size=batch_size, verbose=0).argmax(-1) == labels).sum())


def draw(rows):
    """Accuracy against speed, one curve per kind, from {(kind, label): (speed, accuracy)} in percent: PNG."""
    from keras_vit.inspection import figures

    series = {}
    for kind in dict.fromkeys(name[0] for name in rows if name != WHOLE):
        points = [rows[WHOLE], *(point for name, point in rows.items() if name[0] == kind)]
        series[kind] = tuple(zip(*points))
    return figures.lines(series, "speed, % of the whole model's", "top-1, %")


def main():
    import numpy as np
    import tensorflow as tf

    from benchmarks.quantization import read
    from keras_vit.planning import model_counts
    from keras_vit.planning.model_counts import count
    from keras_vit.prediction.preprocessing import preprocessing_text

    values = flags.FLAGS
    if bool(values.checkpoint) == bool(values.variant) or (values.checkpoint and not values.data):
        raise ValueError("Give --checkpoint and --data, or --variant for speeds alone.")
    models = _models(values)
    whole = models[WHOLE]
    if values.checkpoint:
        images, labels = read(values.data, preprocessing_text(whole))
    else:
        shape = (values.batch_size, *whole.image_size, whole.channels)
        images, labels = np.random.default_rng(0).integers(0, 256, shape, dtype="uint8"), None
    measured = speeds(models, tf.constant(images[: values.batch_size]), values.repeats, WHOLE)
    rows = {}
    print(
        f"{'':22} {'tokens':>6} {'GFLOP':>6} {'images/s':>8} {'of whole':>8}"
        f" {'' if labels is None else 'right of ' + str(len(labels))}"
    )
    for name, model in models.items():
        right = None if labels is None else _right(model, images, labels, values.batch_size)
        speed, ratio = measured[name]
        rows[name] = (100 * ratio, None if labels is None else 100 * right / len(labels))
        title = name if name == WHOLE else " ".join(name)
        gflop = model_counts.flops(count(model)) / 1e9
        print(
            f"{title:22} {model.tokens.shape[1]:6} {gflop:6.2f} {speed:8.1f} {ratio:8.2f}"
            f" {'' if right is None else right}",
            flush=True,
        )
    if values.output:
        if labels is None:
            raise ValueError("--output draws accuracy against speed: it needs --checkpoint and --data.")
        pathlib.Path(values.output).write_bytes(draw(rows))


def run():
    flags.string("checkpoint", None, "What keras_vit.load takes.")
    flags.string("data", None, "Labelled images: csv:FILE, folder:PATH, with the checkpoint's own class numbers.")
    flags.string("variant", None, "Instead of a checkpoint: a variant with random weights, for speeds alone.")
    flags.string("output", None, "A PNG file for the curves.")
    flags.integer("block", 3, "The block whose attention says which patches are heeded.", lowest=0)
    flags.integer("batch_size", 50, "Images a step.")
    flags.integer("repeats", 9, "Rounds; medians are reported.")
    flags.launch(main)


if __name__ == "__main__":
    run()
