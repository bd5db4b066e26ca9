"""Accuracy, file size and speed of a quantised ViT against float32 in the same run.

    python -m benchmarks.quantization --checkpoint=deit/tiny \\
        --data=csv:../shared/data/imagenet_sample/labels.csv?classes=1000

All forms classify the same images. Speeds are those of compiled forward passes that take turns; ratios are medians over
rounds, so that a busy machine slows both sides.
"""

import pathlib
import tempfile

from benchmarks.in_turns import speeds
from trainers import flags

# name: (mode, options of a keras.quantizers config)
FORMS = {
    "float32": (None, {}),
    "int8": ("int8", {}),
    "int8, weights alone": ("int8", {"activation_quantizer": None}),
    "int4": ("int4", {}),
    "float8": ("float8", {}),
}


def _quantized(model, mode, options):
    """A quantised copy of the model."""
    import keras

    configs = {"int8": keras.quantizers.Int8QuantizationConfig, "int4": keras.quantizers.Int4QuantizationConfig}
    copy = model.clone()
    if mode is not None:
        copy.quantize(None if options else mode, config=configs[mode](**options) if options else None)
    return copy


def read(source, preprocessing):
    """(images (n, h, w, c), labels (n,)) of a source."""
    import numpy as np

    from keras_vit.data import evaluation_batches, open_source

    batches = list(evaluation_batches(open_source(source, "train"), preprocessing, 50))
    images, labels, weights = (np.concatenate([np.asarray(batch[i]) for batch in batches]) for i in range(3))
    return images[weights > 0], labels[weights > 0]


def _size(model):
    """Bytes of the model's file."""
    import keras_vit

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.keras"
        keras_vit.save(model, path)
        return path.stat().st_size


def _right(model, images, labels, batch_size):
    """How many images the model classifies correctly."""
    return int((model.predict(images, batch_size=batch_size, verbose=0).argmax(-1) == labels).sum())


def main():
    import tensorflow as tf

    import keras_vit
    from keras_vit.prediction.preprocessing import preprocessing_text

    values = flags.FLAGS
    model = keras_vit.load(values.checkpoint)
    images, labels = read(values.data, preprocessing_text(model))
    models = {name: _quantized(model, *how) for name, how in FORMS.items()}
    print(f"{'':20} {'right of ' + str(len(labels)):>13} {'MB':>6}")
    for name, form in models.items():
        print(f"{name:20} {_right(form, images, labels, values.batch_size):13} {_size(form) / 1e6:6.1f}", flush=True)
    print(f"{'':20} {'images/s':>13} {'of float32':>10}")
    measured = speeds(models, tf.constant(images[: values.batch_size]), values.repeats, "float32")
    for name, (speed, ratio) in measured.items():
        print(f"{name:20} {speed:13.1f} {ratio:10.2f}")


def run():
    flags.string("checkpoint", None, "What keras_vit.load takes.", required=True)
    flags.string(
        "data", None, "Labelled images: csv:FILE, folder:PATH, with the checkpoint's own class numbers.", required=True
    )
    flags.integer("batch_size", 50, "Images a step.")
    flags.integer("repeats", 9, "Rounds; medians are reported.")
    flags.launch(main)


if __name__ == "__main__":
    run()
