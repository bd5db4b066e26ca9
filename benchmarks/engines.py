"""One model in TensorFlow, ONNX Runtime, OpenVINO and LiteRT, in floats and int8: accuracy, size, speed, latency.

    python -m benchmarks.engines --checkpoint=deit/tiny \\
        --data=csv:../shared/data/imagenet_sample/labels.csv?classes=1000

The forms take turns, batch by batch, so that a busy machine slows them all; speeds are medians, and ratios medians of
the ratios within each turn. OpenVINO reads the ONNX files. "kept" counts the images that both float32 and the form
classify correctly. int8_static is calibrated on the first half of the images.
"""

import pathlib
import statistics
import tempfile
import time

from benchmarks.quantization import read
from trainers import flags

BASE = "TensorFlow float32"
ENGINES = {"onnx": "ONNX Runtime", "litert": "LiteRT"}
# Name, the ONNX file's quantisation, and the precision of the rest.
OPENVINO = (
    ("float32", None, "f32"),
    ("bfloat16", None, "bf16"),
    ("int8_static", "int8_static", "f32"),
    ("int8_static, the rest in bfloat16", "int8_static", "bf16"),
)


def _tensorflow(model):
    """The compiled forward pass, pixels (b, h, w, c) -> logits."""
    import tensorflow as tf

    forward = tf.function(lambda images: model(images, training=False))
    return lambda images: forward(tf.constant(images)).numpy()


def _file(model, folder, format, quantization, calibration):
    """(pixels -> logits by the format's engine, bytes of the file)"""
    import importlib

    import keras_vit
    from keras_vit.serving.single_file import FILES

    path = pathlib.Path(folder) / f"{quantization}{FILES[format].suffix}"
    keras_vit.export(model, path, format=format, quantization=quantization, calibration=calibration)
    run = importlib.import_module(FILES[format].module).runner(str(path))
    return lambda images: run(images)["logits"], path.stat().st_size


def _openvino(path, precision):
    """Returns pixels -> logits by OpenVINO, in `precision` (f32 or bf16) where the file is not int8."""
    from keras_vit.serving.openvino_engine import openvino_core

    options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": precision}
    compiled = openvino_core().compile_model(path, "CPU", options)
    return lambda images: compiled({"images": images})["logits"]


def _forms(model, half, folder, calibration):
    """{name: (pixels -> logits, bytes)}; `half` is the model in bfloat16."""
    weights = 4 * model.count_params()
    forms = {BASE: (_tensorflow(model), weights), "TensorFlow bfloat16": (_tensorflow(half), weights)}
    for format, engine in ENGINES.items():
        for how in (None, "int8_weights", "int8_dynamic", "int8_static"):
            pixels = calibration if how == "int8_static" else None
            forms[f"{engine} {how or 'float32'}"] = _file(model, folder, format, how, pixels)
    for name, how, precision in OPENVINO:
        path = pathlib.Path(folder) / f"{how}.onnx"
        forms[f"OpenVINO {name}"] = _openvino(str(path), precision), path.stat().st_size
    return forms


def _times(forms, images, turns):
    """{name: seconds per turn} for one batch, without the first turn, which compiles."""
    times = {name: [] for name in forms}
    for turn in range(turns + 1):
        for name, (run, _) in forms.items():
            began = time.perf_counter()
            run(images)
            if turn:
                times[name].append(time.perf_counter() - began)
    return times


def _ratio(times, name):
    return statistics.median(a / b for a, b in zip(times[BASE], times[name]))


def main():
    import numpy as np

    import keras_vit
    from keras_vit.prediction.preprocessing import preprocessing_text

    values = flags.FLAGS
    model = keras_vit.load(values.checkpoint)
    half = keras_vit.load(values.checkpoint, dtype="mixed_bfloat16")
    images, labels = read(values.data, preprocessing_text(model))
    images = images.astype("float32")
    with tempfile.TemporaryDirectory() as folder:
        forms = _forms(model, half, folder, images[: len(images) // 2])
        logits = {
            name: np.concatenate([run(images[i : i + 25]) for i in range(0, len(images), 25)])
            for name, (run, _) in forms.items()
        }
        one, eight = _times(forms, images[:1], values.turns), _times(forms, images[:8], max(values.turns // 4, 5))
    right = {name: value.argmax(-1) == labels for name, value in logits.items()}
    print(
        f"| | right of {len(labels)} | kept | MB | batch 1, images/s | of float32 | batch 8, images/s | of float32 |"
        " p50, ms | p99, ms | differs by |"
    )
    print("|-|-|-|-|-|-|-|-|-|-|-|")
    for name, (_, size) in forms.items():
        p50, p99 = np.percentile(one[name], (50, 99)) * 1e3
        cells = [
            name,
            right[name].sum(),
            (right[name] & right[BASE]).sum(),
            f"{size / 1e6:.1f}",
            f"{1e3 / p50:.1f}",
            f"{_ratio(one, name):.2f}",
        ]
        cells += [f"{8 / statistics.median(eight[name]):.1f}", f"{_ratio(eight, name):.2f}", f"{p50:.0f}", f"{p99:.0f}"]
        print(
            "|", " | ".join(map(str, cells)), "|", f"{np.abs(logits[name] - logits[BASE]).max():.1g}", "|", flush=True
        )


def run():
    flags.string("checkpoint", None, "What keras_vit.load takes.", required=True)
    flags.string(
        "data", None, "Labelled images: csv:FILE, folder:PATH, with the checkpoint's own class numbers.", required=True
    )
    flags.integer("turns", 100, "Turns of batch 1; a quarter of them for batch 8.", lowest=1)
    flags.launch(main)


if __name__ == "__main__":
    run()
