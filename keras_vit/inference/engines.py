"""A model in ONNX Runtime, OpenVINO and LiteRT, in floats and int8: size, speed, and its task's measure.

    rows = keras_vit.inference.engines.compare(evaluator, setting, calibration)

Each file returns the model's outputs, and the evaluator measures the model with these instead of those of Keras, so
that every task is compared by what it is ranked by. The engines take turns, image by image: what else runs on the
machine slows all of them.
"""

import dataclasses
import importlib
import importlib.util
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from absl import logging

from keras_vit.answers.answer import named_outputs
from keras_vit.evaluation.data import default_preprocessing, spread_images
from keras_vit.evaluation.registry import Evaluator, Setting
from keras_vit.fit.checks.pixels import InputRange
from keras_vit.io.json_files import read_json
from keras_vit.io.progress import stage
from keras_vit.models.finetuning.quantization_aware import learned_ranges, without_fake_quantization
from keras_vit.serving import single_file
from keras_vit.serving.export import write_outputs

TURNS = 30
_KERAS, FLOAT32 = "Keras", "float32"
_COMPARED = 16  # images for the largest difference


class Row(NamedTuple):
    """A model in an engine.

    Attributes:
        engine: its name.
        weights: float32, int8_dynamic, int8_static, full_int8 or full_int16.
        megabytes: size of the file; None for the model itself.
        milliseconds: median time of one image.
        speed: as a multiple of the engine's float32, the median of the turns' ratios.
        score: the task's measure.
        difference: the largest absolute difference from the model's outputs.
        floats: how many products stayed in floats in int8_static, and of how many; None for other weights.
    """

    engine: str
    weights: str
    megabytes: float | None
    milliseconds: float
    speed: float
    score: float
    difference: float
    floats: tuple[int, int] | None = None


class _Form(NamedTuple):
    engine: str
    weights: str
    path: str
    run: Callable[[np.ndarray], dict[str, np.ndarray]]


class _Outputs(keras.layers.Layer):
    """The outputs that a function of arrays gives, as a layer: (b, h, w, c) -> tensors like the model's.

    Args:
        run: images -> {name: array}.
        like: the model's symbolic outputs.
    """

    def __init__(self, run: Callable, like: Any):
        super().__init__()
        self._run, self._like = run, like

    def compute_output_spec(self, images):
        return keras.tree.map_structure(lambda x: keras.KerasTensor(x.shape, "float32"), self._like)

    def call(self, images):
        import tensorflow as tf

        like = named_outputs(self._like)
        names = list(like)

        def arrays(pixels):
            found = self._run(np.asarray(pixels, "float32"))
            return [found[name] for name in names]

        values = tf.numpy_function(arrays, [images], [tf.float32] * len(names))
        for value, name in zip(values, names):
            value.set_shape((images.shape[0], *like[name].shape[1:]))
        if isinstance(self._like, dict):
            return dict(zip(names, values))
        return list(values) if isinstance(self._like, (list, tuple)) else values[0]


def with_outputs_of(model: keras.Model, run: Callable[[np.ndarray], dict[str, np.ndarray]]) -> keras.Model:
    """The model with outputs that `run` computes: for evaluators, which read its outputs, classes and names.

    Args:
        model: a keras_vit.Model.
        run: images (b, h, w, c) float32 -> the model's outputs by name, as `named_outputs` names them.
    """
    layer = _Outputs(run, model.output)
    found = layer(model.input)

    class Computed(type(model)):  # type: ignore[misc]
        output = property(lambda self: found)
        outputs = property(lambda self: keras.tree.flatten(found))

        def call(self, inputs, training=None, mask=None):
            return layer(inputs)

    computed = object.__new__(Computed)
    own = {name: value for name, value in vars(model).items() if name != "_finders"}
    computed.__dict__.update(own, _finders={}, predict_function=None, _jit_compile=False)
    return computed


def _libraries(format):
    return all(importlib.util.find_spec(library) for library in single_file.FILES[format].libraries)


def _openvino(path):
    from keras_vit.serving.openvino_engine import openvino_core

    options = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino_core().compile_model(path, "CPU", options)
    names = [output.get_any_name() for output in compiled.outputs]

    def run(images):
        found = compiled(images)
        return {name: found[name] for name in names}

    return run


def _forms(model: keras.Model, folder: str, calibration: np.ndarray, integers: bool = False) -> Iterator[_Form]:
    """The model's files, in the engines that are installed; of one trained for int8 as trained, or else in floats."""
    if not any(_libraries(format) for format in single_file.FILES):
        raise ValueError(
            "No engine is installed: pip install onnx tf2onnx onnxruntime, or ai-edge-litert ai-edge-quantizer."
        )
    plain = without_fake_quantization(model) if learned_ranges(model) else model
    for format, kind in single_file.FILES.items():
        if not _libraries(format):
            logging.info("%s is left out: %s are not installed.", kind.engine, ", ".join(kind.libraries))
            continue
        module = importlib.import_module(kind.module)
        full = single_file.INTEGERS if integers and format == "litert" else ()
        for weights in (FLOAT32, "int8_dynamic", "int8_static", *full):
            path = os.path.join(folder, weights + kind.suffix)
            quantization = None if weights == FLOAT32 else weights
            written = model if weights == single_file.TRAINED else plain
            given = calibration if single_file.needs_calibration(written, format, quantization) else None
            try:
                with stage(f"Writing {weights} for {kind.engine}"):
                    write_outputs(written, path, quantization, given)
            except ValueError as error:
                if weights not in full:
                    raise
                logging.warning("%s is left out: %s", weights, error)
                continue
            yield _Form(kind.engine, weights, path, module.runner(path))
            if format == "onnx" and weights != "int8_dynamic" and importlib.util.find_spec("openvino"):
                yield _Form("OpenVINO", weights, path, _openvino(path))


def _times(runs: Sequence[Callable], images: np.ndarray, turns: int) -> np.ndarray:
    """Seconds (turns, runs) of one image, in turns; the first turn, which compiles, does not count."""
    times = np.zeros((turns + 1, len(runs)))
    for turn in range(turns + 1):
        image = images[turn % len(images)][None]
        for i, run in enumerate(runs):
            began = time.perf_counter()
            run(image)
            times[turn, i] = time.perf_counter() - began
    return times[1:]


def _keras(model):
    """The model's forward pass, compiled: images -> outputs by name."""
    import tensorflow as tf

    forward = tf.function(lambda images: named_outputs(model(images, training=False)), autograph=False)
    return lambda images: {name: value.numpy() for name, value in forward(tf.constant(images)).items()}


def _floats(form):
    """(products in floats, products) of a file in static int8, by its description."""
    if form.weights != "int8_static":
        return None
    about = read_json(f"{form.path}.json", "Compare again.")["int8"]
    return sum(len(group["products"]) for group in about["floats"]), about["products"]


def _score(evaluator, setting, model):
    return evaluator.prepare(dataclasses.replace(setting, model=model, verbose=False))().measures[evaluator.score]


def _difference(expected, run, images):
    """The largest absolute difference, for images one by one."""
    found = [run(image[None]) for image in images]
    return float(max(np.abs(one[name] - expected[name][i]).max() for i, one in enumerate(found) for name in expected))


def compare(
    evaluator: Evaluator, setting: Setting, calibration: np.ndarray, turns: int = TURNS, integers: bool = False
) -> list[Row]:
    """A model in every engine that is installed: size, speed, and the evaluator's score.

    Args:
        evaluator: such as of `task.evaluator()`.
        setting: the model, with a source of images.
        calibration: pixels (n, h, w, c) as the model takes them, for int8_static and integers; 16 or more.
        turns: how often each engine computes one image.
        integers: whether to add LiteRT's files without floats, which CPUs compute slowly.

    Raises:
        ValueError: if no engine is installed, for another backend than TensorFlow, or as `keras_vit.export`.
    """
    if keras.backend.backend() != "tensorflow":
        raise ValueError("Engines are compared on the TensorFlow backend: set KERAS_BACKEND=tensorflow.")
    model = setting.model.without_auxiliary()
    setting = dataclasses.replace(setting, model=model)
    shown = spread_images(setting.source, setting.preprocess or default_preprocessing(model), _COMPARED)
    images = InputRange.of(model).of_bytes(shown).astype("float32")
    with tempfile.TemporaryDirectory() as folder:
        forms = [_Form(_KERAS, FLOAT32, "", _keras(model)), *_forms(model, folder, calibration, integers)]
        with stage("Timing the engines in turns"):
            times = _times([form.run for form in forms], images, turns)
        expected = forms[0].run(images)
        rows, base = [], {form.engine: i for i, form in enumerate(forms) if form.weights == FLOAT32}
        for i, form in enumerate(forms):
            with stage(f"Measuring {form.engine} in {form.weights}"):
                computed = with_outputs_of(model, form.run) if form.path else model
                score = _score(evaluator, setting, computed)
            size = os.path.getsize(form.path) / 1e6 if form.path else None
            speed = statistics.median(times[:, base[form.engine]] / times[:, i])
            milliseconds = 1e3 * statistics.median(times[:, i])
            difference = _difference(expected, form.run, images)
            rows.append(Row(form.engine, form.weights, size, milliseconds, speed, score, difference, _floats(form)))
    return rows


def table(rows: Sequence[Row], title: str, percent: bool = True) -> str:
    """The rows as a Markdown table; `title` names the score, shown in percent or as it is."""
    lines = [
        f"| engine | weights | MB | ms per image | times as fast | {title} | largest difference |",
        "|-|-|-|-|-|-|-|",
    ]
    for row in rows:
        score = f"{100 * row.score:.2f}%" if percent else f"{row.score:.4g}"
        size = "-" if row.megabytes is None else f"{row.megabytes:.2f}"
        weights = row.weights
        if row.floats and row.floats[0]:
            weights += f", {row.floats[0]} of {row.floats[1]} in floats"
        cells = (
            row.engine,
            weights,
            size,
            f"{row.milliseconds:.2f}",
            f"{row.speed:.2f}",
            score,
            f"{row.difference:.2g}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
