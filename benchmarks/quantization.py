"""What quantising a ViT costs: right answers, size of the file and images per second, against float32 in the same run.

    python -m benchmarks.quantization --checkpoint=../shared/data/deit_tiny --data=csv:../shared/data/imagenet_sample/labels.csv?classes=1000

Every form of the model classifies the same images. Speeds are those of the compiled forward pass, alternated round by round; the ratios are
medians of the ratios within each round, so that a busy machine slows both sides.
"""

import pathlib
import statistics
import tempfile
import time

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
    """A copy of the model, quantised."""
    import keras

    configs = {"int8": keras.quantizers.Int8QuantizationConfig, "int4": keras.quantizers.Int4QuantizationConfig}
    copy = model.clone()
    if mode is not None:
        copy.quantize(None if options else mode, config=configs[mode](**options) if options else None)
    return copy


def _read(source, preprocessing):
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


def measure(checkpoint, source, batch_size, repeats):
    """{form: {"right", "bytes", "images/s", "ratio"}}; "ratio" is the speed over that of float32."""
    import tensorflow as tf

    import keras_vit
    from keras_vit.serving.export import serving_preprocessing

    model = keras_vit.load(checkpoint)
    images, labels = _read(source, serving_preprocessing(model))
    models = {name: _quantized(model, *how) for name, how in FORMS.items()}
    found = {}
    for name, form in models.items():
        right = (form.predict(images, batch_size=batch_size, verbose=0).argmax(-1) == labels).sum()
        found[name] = {"right": int(right), "bytes": _size(form)}
    batch = tf.constant(images[:batch_size])
    forwards = {name: tf.function(lambda form=form: form(batch, training=False)) for name, form in models.items()}
    times = {name: [] for name in forwards}
    for _ in range(repeats + 1):  # the first round compiles
        for name, forward in forwards.items():
            began = time.perf_counter()
            forward().numpy()
            times[name].append(time.perf_counter() - began)
    for name, seconds in times.items():
        ratios = [a / b for a, b in zip(times["float32"][1:], seconds[1:])]
        found[name] |= {"images/s": len(batch) / statistics.median(seconds[1:]), "ratio": statistics.median(ratios)}
    return found


def main():
    values = flags.FLAGS
    print(f"{'':20} {'right':>5} {'MB':>6} {'images/s':>9} {'of float32':>10}")
    for name, row in measure(values.checkpoint, values.data, values.batch_size, values.repeats).items():
        print(f"{name:20} {row['right']:5} {row['bytes'] / 1e6:6.1f} {row['images/s']:9.1f} {row['ratio']:10.2f}")


def run():
    flags.string("checkpoint", None, "What keras_vit.load takes.", required=True)
    flags.string("data", None, "Labelled images: csv:FILE, folder:PATH, with the checkpoint's own class numbers.", required=True)
    flags.integer("batch_size", 50, "Images a step.")
    flags.integer("repeats", 9, "Rounds; medians are reported.")
    flags.launch(main)


if __name__ == "__main__":
    run()
