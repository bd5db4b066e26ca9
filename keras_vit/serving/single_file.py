"""A model as one file for another engine, with a description: converted, quantised, checked, put in place."""

import contextlib
import importlib
import importlib.util
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_vit.answers import Answer
from keras_vit.fit.checks.inputs import check_images
from keras_vit.fit.checks.pixels import InputRange
from keras_vit.io.atomic import check_folder, replacing
from keras_vit.io.progress import stage
from keras_vit.io.suggest import check_known
from keras_vit.layers.fake_quantization import IN_FLOATS, fake_quantizers
from keras_vit.models.finetuning.quantization_aware import FEWEST, learned_ranges, without_fake_quantization
from keras_vit.serving import export_description, static_int8
from keras_vit.serving.same_outputs import check_float32, compare
from keras_vit.serving.static_int8 import Layers, Runner

INTEGERS = ("full_int8", "full_int16")  # of LiteRT files: no floats
CALIBRATED = ("int8_static", *INTEGERS)
QUANTIZATIONS = ("int8_weights", "int8_dynamic", *CALIBRATED)
TRAINED = "int8_static"  # what a model with fake quantisation was trained for
_FOR_LOSS = {"prediction"}  # an output of query decoders
_DRAWN = 3  # batches of drawn images, of which one has to suit
_LARGEST = 2**31  # bytes of a protocol buffer, and of a flatbuffer
ADVICE = "Calibrate with more images, or take int8_dynamic."  # where a quantised file differs too much
_ADVICE_IN_INTEGERS = {
    "full_int8": "Calibrate with more images, or take full_int16.",
    "full_int16": "Calibrate with more images, or take int8_static, which needs floats.",
}
_WHOLE = {"classes", "features", "embeddings", "outputs"}  # answers that integers express; of others, the raw outputs


class FileFormat(NamedTuple):
    """A format's file ending, the module that writes and runs it, the one with its StaticFile, libraries, engine."""

    suffix: str
    module: str
    static: str
    libraries: tuple[str, ...]
    engine: str


FILES = {
    "onnx": FileFormat(
        ".onnx",
        "keras_vit.serving.onnx_format",
        "keras_vit.serving.onnx_static",
        ("onnx", "tf2onnx", "onnxruntime"),
        "ONNX Runtime",
    ),
    "litert": FileFormat(
        ".tflite",
        "keras_vit.serving.litert_format",
        "keras_vit.serving.litert_static",
        ("ai_edge_litert", "ai_edge_quantizer"),
        "LiteRT",
    ),
}
QUANTIZED = (*FILES, "web")  # a page has an ONNX file


def _check_path(path, format):
    suffix = FILES[format].suffix
    if "://" in path:
        raise ValueError(f'"{path}" is in a bucket. Export to a local file, then copy it there.')
    if not path.lower().endswith(suffix):
        raise ValueError(f'format="{format}" writes a file that ends in {suffix}, got "{path}".')
    if os.path.isdir(path):
        raise ValueError(f'"{path}" is a folder; format="{format}" writes a file. Give another name.')
    check_folder(os.path.dirname(os.path.abspath(path)))


def check_quantization(format: str, quantization: str | None, calibration: Any, ranges: Any = None) -> None:
    """Raises ValueError for an unknown quantisation, or one with missing or needless arguments."""
    if quantization is not None and format not in QUANTIZED:
        valid = " or ".join(f'"{each}"' for each in QUANTIZED)
        raise ValueError(
            f'quantization="{quantization}" is for format={valid}, got format="{format}". For a SavedModel or a .keras'
            ' file, quantise the model: model.quantize("int8").'
        )
    if quantization is not None:
        check_known(quantization, "quantization", QUANTIZATIONS, ", or None for floats")
    if quantization in INTEGERS and format != "litert":
        raise ValueError(
            f'quantization="{quantization}" is for format="litert", got format="{format}". Write a file that ends in'
            " .tflite, or take int8_static."
        )
    if quantization not in CALIBRATED and calibration is not None:
        raise ValueError(
            f"calibration is for quantization={' or '.join(map(repr, CALIBRATED))}, got quantization={quantization!r}."
            " Leave it out."
        )
    if quantization != "int8_static" and ranges is not None:
        raise ValueError(
            f'ranges are for quantization="int8_static", got quantization={quantization!r}. Leave them out.'
        )


def needs_calibration(model: keras.Model, format: str, quantization: str | None) -> bool:
    """Whether an export calibrates: always, unless training learned all ranges that the format rounds to."""
    return quantization in CALIBRATED and (format == "litert" or not fake_quantizers(model))


def check_ranges(model: keras.Model, format: str, quantization: str | None, calibration: Any, ranges: Any) -> None:
    """Raises ValueError unless the ranges of a static quantisation come from calibration, or from training.

    Given ranges have to be of the model's layers.
    """
    learned = bool(fake_quantizers(model))
    if learned and (format not in FILES or quantization != TRAINED):
        raise ValueError(
            f'"{model.name}" was trained for int8: export it to ONNX or LiteRT with quantization="int8_static", got'
            f' format="{format}" and quantization={quantization!r}. To export it in another form, take the model in'
            f" floats: {IN_FLOATS}."
        )
    if learned and ranges is not None:
        raise ValueError(f'"{model.name}" learned its ranges in training: leave ranges out.')
    calibrated = needs_calibration(model, format, quantization)
    if learned and calibration is not None and not calibrated:
        raise ValueError(f'"{model.name}" learned its ranges in training: leave calibration out.')
    if calibrated and calibration is None:
        other = "; or a model trained with keras_vit.models.quantize_aware, to ONNX" if quantization == TRAINED else ""
        other = "; LiteRT rounds more than training does, outputs and convolutions" if learned else other
        raise ValueError(
            f'quantization="{quantization}" needs calibration: {FEWEST} inputs or more like those that the model will'
            f" see{other}."
        )
    if ranges is not None:
        static_int8.check_ranges(model, ranges)


def check(model: keras.Model, path: str, format: str) -> None:
    """Refuses, before any work, models that one file of this format cannot express.

    Raises:
        ValueError: for a path with another ending, a model that does not compute in float32, or one that is too large.
        ImportError: naming the extra to install.
    """
    _check_path(path, format)
    distributions = [library.replace("_", "-") for library in FILES[format].libraries]
    for library in FILES[format].libraries:
        if importlib.util.find_spec(library) is None:
            raise ImportError(
                f'format="{format}" needs {library}, which is not installed: pip install {" ".join(distributions)}.'
            )
    check_float32(
        model, f'format="{format}"', 'Export the model in floats, with quantization="int8_dynamic" for example.'
    )
    if 4 * model.count_params() >= _LARGEST:
        raise ValueError(
            f'A file of format="{format}" can have 2 GB at most, and "{model.name}" has {model.count_params():,}'
            " parameters."
        )


def _dataset_pixels(dataset):
    """The pixels of a tf.data dataset of images or batches, with or without labels."""
    images = [np.asarray(keras.utils.unpack_x_y_sample_weight(element)[0]) for element in dataset]
    if not images:
        return np.zeros((0,), "float32")
    return np.concatenate(images) if images[0].ndim == 4 else np.stack(images)


def calibration_pixels(model: keras.Model, images: Any) -> np.ndarray:
    """Calibration images as pixels (n, h, w, c) float32, as the model takes them.

    Args:
        images: pixels (n, h, w, c); a list of what `model.preprocess` takes: paths, bytes, PIL images...; or a finite
            tf.data dataset of pixels, batched or not.

    Raises:
        ValueError: for fewer than 16 images, another size, or pixels on another scale.
    """
    if hasattr(images, "element_spec"):
        pixels = _dataset_pixels(images)
    else:
        pixels = np.asarray(model.preprocess(list(images)) if isinstance(images, (list, tuple)) else images)
    expected = (*model.image_size, model.channels)
    if pixels.ndim != 4 or pixels.shape[1:] != expected and len(pixels):
        raise ValueError(
            f"calibration: expected pixels of shape (n, {', '.join(map(str, expected))}), got {pixels.shape}."
        )
    if len(pixels) < FEWEST:
        raise ValueError(
            f"calibration: expected at least {FEWEST} images like those that the model will see, got {len(pixels)}."
            " 100 or more are better."
        )
    if not np.isfinite(pixels).all():
        raise ValueError("calibration: the pixels have values that are not finite.")
    check_images(model, pixels)
    return pixels.astype("float32")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """A context that hides the converters' remarks."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _drawn(model, seed):
    """Images to compare outputs on, (3, h, w, c) float32, as the model takes them."""
    pixels = np.random.default_rng(seed).uniform(0, 255, (3, *model.image_size, model.channels))
    return InputRange.of(model).of_bytes(pixels.astype("float32"))


def _any_order(answers):
    """Whether outputs are of objects, whose order depends on close decisions."""
    return any(answer.finds_objects for answer in answers)


def _sorted(found, derived):
    """The outputs that follow from no others, `in_any_order`."""
    return static_int8.in_any_order({name: x for name, x in found.items() if name not in derived})


def _check_outputs(
    function: Callable,
    run: Callable,
    pixels: np.ndarray,
    quantization: str | None,
    engine: str,
    answers: Sequence[Answer],
    any_order: bool,
) -> None:
    """Runs a batch, and one image alone: a file with a batch size that is fixed by mistake fails here.

    Args:
        answers: those in the file.
        any_order: whether outputs of a quantised file are compared in any order.
    """
    quantized = quantization is not None
    advice = {"advice": _ADVICE_IN_INTEGERS.get(quantization, ADVICE)} if quantization else {}
    for images in (pixels, pixels[:1]):
        found = run(images)
        derived = {name: x for answer in answers for name, x in answer.expected(found).items()}
        expected = {name: np.asarray(x) for name, x in {**function(images), **derived}.items()}
        if quantized and any_order:
            expected |= _sorted(expected, derived)
            found = {**found, **_sorted(found, derived)}
        compare(expected, found, engine, exact=not quantized, **advice)


def _check_file(model, function, run, pixels, *how):
    """`_check_outputs` on the first pixels, or on drawn images if there are none: some others if they fail, because
    close decisions choose a decoder's queries.
    """
    if pixels is not None:
        return _check_outputs(function, run, pixels[:3], *how)
    for seed in range(_DRAWN):
        try:
            return _check_outputs(function, run, _drawn(model, seed), *how)
        except ValueError:
            if seed == _DRAWN - 1:
                raise


def quantize(
    model: keras.Model,
    format: str,
    whole: str,
    path: str,
    quantization: str,
    inputs: np.ndarray | None,
    answers: Sequence[Answer],
    ranges: Mapping[str, float] | None,
    derived: Callable[[dict], set] | None = None,
    reference: Runner | None = None,
) -> dict[str, Any] | None:
    """Quantises the float file `whole` to `path`; returns what a calibrated quantisation measured, or None.

    Args:
        model: the model in the file.
        inputs: (n, ...), for a calibrated quantisation, to calibrate and to measure on.
        answers: the model's bound answers.
        ranges: as in `keras_vit.export`.
        derived: of the file's outputs, the names of those that follow from others; by default the answers'.
        reference: the model as it was trained for int8, with the layers in `ranges`; None for one in floats.
    """
    kind = FILES[format]
    engine = importlib.import_module(kind.module)
    if quantization in INTEGERS:
        with quiet():
            from keras_vit.serving import litert_integers
        assert inputs is not None
        return litert_integers.write(whole, path, inputs, InputRange.of(model), wide=quantization == "full_int16")
    if quantization != "int8_static":
        with stage("Quantising the file"), quiet():
            engine.quantize(whole, path, quantization)
        return None
    with quiet():
        static = importlib.import_module(kind.static)
    assert inputs is not None
    found = engine.runner(whole)(inputs[:1])
    follow = derived(found) if derived else {name for answer in answers for name in answer.expected(found)}
    layers = Layers.of(model, ranges)
    trained = ranges if reference and ranges else ()
    how = (layers, follow, _any_order(answers), trained, reference)
    report = static_int8.write(static.StaticFile, engine.runner, whole, path, inputs, *how)
    static_int8.log(report)
    if format == "litert":
        report["operations"] = engine.operations(path)
    return report


def _quantize_learned(plain, ranges, format, whole, path, inputs):
    """Quantises the float file `whole` of `plain` to `path` as it was trained: the layers in `ranges`, and no others.

    Returns a description, JSON.
    """
    with quiet():
        static = importlib.import_module(FILES[format].static)
    file = static.StaticFile(whole, inputs, Layers.of(plain, ranges))
    floats = [group for group, layers in file.groups.items() if not set(layers) <= ranges.keys()]
    file.write(path, floats)
    done = {layer for group, layers in file.groups.items() if group not in floats for layer in layers}
    left = sorted(ranges.keys() - done)
    if left:
        logging.warning("These layers were trained for int8, but stay in floats: %s.", ", ".join(left))
    return {"products": len(ranges), "floats": [{"products": [path]} for path in left]}


def _describe(model, answers, format, quantization, expected):
    """The description next to the file: JSON."""
    shapes = {name: {"dtype": value.dtype.name, "shape": ["b", *value.shape[1:]]} for name, value in expected.items()}
    return {
        **export_description.describe(model, answers),
        "format": format,
        "quantization": quantization,
        "inputs": {"images": {"dtype": "float32", "shape": ["b", *model.image_size, model.channels]}},
        "outputs": shapes,
    }


def write(
    model: keras.Model,
    path: str,
    format: str,
    answers: Sequence[Answer],
    quantization: str | None,
    calibration: Any,
    only_outputs: bool = False,
    ranges: Mapping[str, float] | None = None,
) -> None:
    """Writes the file and PATH.json; arguments as in `keras_vit.export`, with a model's bound answers.

    `only_outputs` leaves out features and what the answers make of the outputs.
    """
    import tensorflow as tf

    from keras_vit.serving.signatures import all_outputs, own_outputs

    kind = FILES[format]
    pixels = None if calibration is None else calibration_pixels(model, calibration)

    def traced(model):
        signature = own_outputs(model) if only_outputs else all_outputs(model, answers)
        return tf.function(signature.function, input_signature=[signature.takes], autograph=False), signature.takes

    def arrays(images):
        return {name: value.numpy() for name, value in function(images).items()}

    integers = quantization in INTEGERS
    only_outputs = only_outputs or integers and not _WHOLE.issuperset(model.answers)
    function, takes = traced(model)
    if integers:  # chips plan memory in advance
        takes = tf.TensorSpec((1, *takes.shape[1:]), takes.dtype, takes.name)
    learned = learned_ranges(model)
    plain = without_fake_quantization(model, rounded=True) if learned else model
    with (
        replacing(path) as file,
        replacing(f"{path}.json") as beside,
        tempfile.TemporaryDirectory() as folder,
    ):
        with quiet():
            engine = importlib.import_module(kind.module)
        whole = os.path.join(folder, "float" + kind.suffix) if quantization else file
        with stage(f"Converting the model for {kind.engine}"), quiet():
            engine.convert(traced(plain)[0] if learned else function, takes, whole)
        report = None
        if learned and pixels is None:
            report = _quantize_learned(plain, learned, format, whole, file, _drawn(model, 0))
        elif quantization:
            derived = (lambda found: _FOR_LOSS) if only_outputs else None
            known = (learned, derived, arrays) if learned else (ranges, derived)
            report = quantize(plain, format, whole, file, quantization, pixels, answers, *known)
        with stage("Comparing the file's outputs with the model's"), quiet():
            checked = () if only_outputs else answers
            how = (quantization, kind.engine, checked, _any_order(answers))
            _check_file(model, function, engine.runner(file), pixels, *how)
        metadata = _describe(model, answers, format, quantization, function.get_concrete_function().structured_outputs)
        if report:
            metadata["int8"] = {**report, "ranges": "learned"} if learned else report
        if integers:
            metadata |= engine.integer_tensors(file)
        with open(beside, "w", encoding="utf-8") as out:
            json.dump(metadata, out, indent=2, ensure_ascii=False)
