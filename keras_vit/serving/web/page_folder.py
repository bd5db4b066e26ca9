"""A model as a folder for any static server: a page that reads pictures and answers in the browser.

The folder has index.html with its scripts, model.onnx, for models with texts also text.onnx and tokenizer.json,
model.json, which describes these, and runtime/, with ONNX Runtime Web.
"""

import json
import os
import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.answers import Answer
from keras_vit.fit.checks.pixels import InputRange
from keras_vit.io.atomic import replacing
from keras_vit.io.progress import stage
from keras_vit.serving import export_description, single_file
from keras_vit.serving.same_outputs import compare
from keras_vit.serving.text_export import export_texts
from keras_vit.serving.web import runtime as runtime_files
from keras_vit.serving.web.page_steps import page_steps

DESCRIPTION = "model.json"
_OWN = pathlib.Path(__file__).with_name("page")
_SHARED = pathlib.Path(__file__).parents[1] / "page"  # with the page of the HTTP service
# The kinds of answers of page/answer_rows.js and page/texts.js.
DRAWN = ("classes", "masks", "depth", "objects", "instances", "embeddings")
_COMPUTED = "computed_"  # of outputs that only the comparison with the model needs
_OF_INTEGERS = ("int8_dynamic", "int8_static")  # whose operations WebGPU lacks


def _files_in(folder):
    """The files in a folder, as paths relative to it."""
    return {str(path.relative_to(folder).as_posix()) for path in pathlib.Path(folder).rglob("*") if not path.is_dir()}


def others(path: str) -> list[str]:
    """The files in a folder that are not of an exported page, by its description; without one, all its names."""
    try:
        described = json.loads(pathlib.Path(path, DESCRIPTION).read_text("utf-8"))
        if described["format"] == "web":
            return sorted(_files_in(path) - {DESCRIPTION, *described["files"]})
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return sorted(os.listdir(path))


def _kinds(answer):
    """The kinds of an answer's parts; its own if it has none."""
    return [part.kind for part in answer.parts.values()] if answer.kind == "several" else [answer.kind]


def check(model: keras.Model, path: str, answers: Sequence[Answer]) -> None:
    """Refuses, before any work, a model that a page cannot show.

    Raises:
        ValueError: for a kind of answer that is not DRAWN, a preprocessing that the page lacks, a model with texts
            without a tokenizer, or one that an ONNX file cannot express.
        ImportError: without the libraries of ONNX files.
    """
    [answer] = answers
    for kind in _kinds(answer):
        if kind not in DRAWN:
            raise ValueError(
                f'"{model.name}" gives {kind}, which a page cannot show: format="web" draws {", ".join(DRAWN)}. Write a'
                ' file instead, format="onnx".'
            )
    if model.channels not in (1, 3):
        raise ValueError(f'"{model.name}" takes images of {model.channels} channels: a browser reads 1 or 3.')
    if answer.reads_texts and model.tokenizer is None:
        raise ValueError(
            f'"{model.name}" has no tokenizer, and a page reads texts: set model.tokenizer ='
            ' keras_vit.Tokenizer.load(path, length), or export the image tower, model.tower("image").'
        )
    page_steps(answer.preprocessing, model.name)
    InputRange.known(answer.image_model)
    single_file.check(model, os.path.join(path, "model.onnx"), "onnx")


def _function(answer) -> Callable:
    """Pixels -> what the answer is made of, by name, and under other names what that was chosen from."""

    def outputs(images):
        found = answer.computed(answer.computes(images, training=False))
        computed = {name: keras.ops.cast(x, "float32") for name, x in found.items()}
        return {**{_COMPUTED + name: x for name, x in computed.items()}, **answer.in_page(computed)}

    return outputs


def _compare(answer, function, run, pixels, **how):
    """Refuses a file, by its runner, that computes other outputs than the model.

    Choices between close scores may differ: those of the file's own scores have to be the model's.
    """
    expected, found = {name: np.asarray(x) for name, x in function(pixels).items()}, run(pixels)
    computed = {name.removeprefix(_COMPUTED): x for name, x in found.items() if name.startswith(_COMPUTED)}
    expected |= {name: np.asarray(x) for name, x in answer.in_page(computed).items()}
    compare(expected, found, "ONNX Runtime", **how)


def _drawn_pixels(model, scale, calibration):
    """Images to compare outputs on, (3, h, w, c) float32, as the model takes them."""
    if calibration is not None:
        return calibration[:3]
    drawn = np.random.default_rng(0).uniform(0, 255, (3, *model.image_size, model.channels)).astype("float32")
    return scale.of_bytes(drawn)


def _rewrite(path, change):
    """Rewrites an ONNX file by a function that changes its model in place."""
    import onnx

    model = onnx.load(path)
    change(model)
    onnx.save(model, path)


def _without_computed(model):
    """Removes the outputs that only the comparison needs."""
    for i in reversed(range(len(model.graph.output))):
        if model.graph.output[i].name.startswith(_COMPUTED):
            del model.graph.output[i]


def _not_computed(found):
    """The names of the outputs that are chosen from computed ones."""
    return {name for name in found if not name.startswith(_COMPUTED)}


def _named(report):
    """What a static quantisation measured, by the model's own names of its outputs."""
    own = {
        part: {name.removeprefix(_COMPUTED): value for name, value in report[part].items()}
        for part in ("differences", "same")
    }
    return {**report, **own}


def _write_model(model, answer, folder, quantization, calibration, ranges):
    """Writes model.onnx, compared with the model before and after its weights are made smaller.

    Returns what a static quantisation measured, or None.
    """
    import tensorflow as tf

    from keras_vit.serving import onnx_format
    from keras_vit.serving.web.half_weights import halve

    path, whole = os.path.join(folder, "model.onnx"), os.path.join(folder, "float.onnx")
    takes = tf.TensorSpec((None, *model.image_size, model.channels), tf.float32, "images")
    function = tf.function(_function(answer), input_signature=[takes], autograph=False)
    pixels = _drawn_pixels(model, InputRange.of(answer.image_model), calibration)
    with stage("Converting the model for ONNX Runtime"), single_file.quiet():
        onnx_format.convert(function, takes, whole)
    with stage("Comparing the file's outputs with the model's"), single_file.quiet():
        _compare(answer, function, onnx_format.runner(whole), pixels)
    report, advice = None, {}
    if quantization:
        how = (quantization, calibration, (answer,), ranges, _not_computed)
        report, advice = single_file.quantize(model, "onnx", whole, path, *how), {"advice": single_file.ADVICE}
    else:
        with stage("Halving the weights"):
            shutil.copy(whole, path)
            _rewrite(path, halve)
    os.unlink(whole)
    with stage("Comparing the smaller file's outputs"), single_file.quiet():
        _compare(answer, function, onnx_format.runner(path), pixels, exact=False, **advice)
        _rewrite(path, _without_computed)
    return report


def _write_texts(model, folder):
    """Writes text.onnx and tokenizer.json; returns their description."""
    from keras_vit.image_text.zero_shot import TEMPLATES
    from keras_vit.serving.web.half_weights import halve

    path, tokenizer = os.path.join(folder, "text.onnx"), model.tokenizer
    with stage("Converting the text encoder for ONNX Runtime"):
        export_texts(model.tower("text"), path, "onnx", {})
        os.unlink(f"{path}.json")
        _rewrite(path, halve)
    tokenizer.save(folder)
    return {
        "tokenizer": {
            "kind": tokenizer.kind,
            "length": tokenizer.length,
            "start": tokenizer.start,
            "end": tokenizer.end,
            "pad": tokenizer.pad,
        },
        "templates": TEMPLATES["photo"],
        "scale": model.scale,
        "bias": model.bias,
        "activation": model.activation,
    }


def _describe(model, answer, quantization, report, engines, texts, folder):
    """What model.json says."""
    scale = InputRange.of(answer.image_model)
    sizes = {name: os.path.getsize(os.path.join(folder, name)) for name in sorted(_files_in(folder))}
    return {
        **export_description.describe(model, (answer,)),
        "format": "web",
        "quantization": quantization,
        **({"int8": _named(report)} if report else {}),
        "engines": engines,
        "steps": page_steps(answer.preprocessing, model.name),
        "range": {"factor": np.ravel(scale.factor).tolist(), "offset": np.ravel(scale.offset).tolist()},
        "texts": texts,
        "files": sizes,
    }


def write(
    model: keras.Model,
    path: str,
    answers: Sequence[Answer],
    quantization: str | None,
    calibration: Any,
    ranges: Mapping[str, float] | None,
    runtime: str | os.PathLike | None,
) -> None:
    """Writes the folder atomically; arguments as in `keras_vit.export`, with a model's bound answers.

    Raises:
        ValueError, ImportError: as in `check`, and for a file whose outputs differ from the model's.
        FileNotFoundError: without the libraries of the page.
        OSError: if writing fails.
    """
    check(model, path, answers)
    [answer] = answers
    engines = ["wasm"] if quantization in _OF_INTEGERS else ["webgpu", "wasm"]
    libraries = runtime_files.find(runtime, engines, answer.reads_texts)
    pixels = None if calibration is None else single_file.calibration_pixels(model, calibration)
    with replacing(path) as folder:
        os.makedirs(os.path.join(folder, "runtime"))
        for file in (*_OWN.iterdir(), *_SHARED.iterdir()):
            shutil.copyfile(file, os.path.join(folder, file.name))
        for file in libraries:
            shutil.copyfile(file, os.path.join(folder, "runtime", file.name))
        report = _write_model(model, answer, folder, quantization, pixels, ranges)
        texts = _write_texts(model, folder) if answer.reads_texts else None
        described = _describe(model, answer, quantization, report, engines, texts, folder)
        with open(os.path.join(folder, DESCRIPTION), "w", encoding="utf-8") as out:
            json.dump(described, out, indent=2, ensure_ascii=False)
