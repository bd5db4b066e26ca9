"""Exports for serving and transfer learning elsewhere, with TensorFlow, ONNX Runtime or LiteRT alone."""

import os
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras

from keras_vit.answers import bind
from keras_vit.fit.checks.pixels import InputRange
from keras_vit.fit.model import Model
from keras_vit.io.atomic import check_folder
from keras_vit.io.suggest import check_known, listed, nearest
from keras_vit.models.model_and_path import check_model_and_path
from keras_vit.models.taps import ends_in_probabilities
from keras_vit.prediction.preprocessing import check_preprocessing
from keras_vit.serving import single_file, tensorflow_process
from keras_vit.serving.text_export import export_texts, takes_texts

FORMATS = ("tf_saved_model", *single_file.FILES, "web")
# Contents of a SavedModel, and our additions.
_PARTS = {"saved_model.pb", "fingerprint.pb", "keras_metadata.pb", "variables", "assets", "assets.extra"}
_OURS = {"README.md", "metadata.json"}
_DEFAULTS = {
    "options": {},
    "verbose": False,
    "quantization": None,
    "calibration": None,
    "ranges": None,
    "only_outputs": False,
    "runtime": None,
}
_BY_ENDING = {file.suffix: name for name, file in single_file.FILES.items()}
# Endings of files that export does not write, and would make folders of.
_OTHER_FILES = (
    ".keras .h5 .hdf5 .npz .safetensors .pt .pth .pt2 .pb .bin .ckpt .zip .tar .gz .tgz .xml .mlmodel .mlpackage"
    " .engine .lite .litert .ort".split()
)


def _is_export(path):
    """Whether a folder contains only an export, by its metadata.json, or by a signature's name in version 0.3."""
    there = set(os.listdir(path))
    if "saved_model.pb" not in there or there - _PARTS - _OURS:
        return False
    file, mark = (
        ("metadata.json", b'"keras_vit"') if "metadata.json" in there else ("saved_model.pb", b"features_training")
    )
    return mark in pathlib.Path(path, file).read_bytes()


def _others(path):
    """The names in a folder that are not of an export; all of a folder of other files."""
    there = set(os.listdir(path))
    return [] if not there or _is_export(path) else sorted(there - _PARTS - _OURS) or sorted(there)


def _check_place(path, others=_others):
    """Refuses a path where an export would replace other files, by `others` of a folder, or cannot be written."""
    if "://" in str(path):
        raise ValueError(f'"{path}" is in a bucket. Export to a local folder, then copy it there.')
    if os.path.isfile(path):
        raise ValueError(f'"{path}" is a file; an export is a folder. Give a new folder.')
    if os.path.isdir(path) and (lost := others(path)):
        raise ValueError(
            f'"{path}" contains other files than an export of keras_vit, which would be lost: {listed(lost, 5)}. Give a'
            " new or an empty folder."
        )
    check_folder(os.path.dirname(os.path.abspath(path)))


def check_ending(path: str, valid: Iterable[str], folder: str) -> None:
    """ValueError for a path that ends almost as `valid` files do; `folder` says how to write a folder of that name."""
    ending = os.path.splitext(path)[1].lower()
    close = nearest(ending, valid) if len(ending) > len(".v2") else []  # a version
    if close and ending not in valid:
        raise ValueError(f'"{path}" ends in {ending}: did you mean {close[0]}? {folder}')


def _choose_format(path, format):
    """The format, by the path's ending if it is None; ValueError for an ending that contradicts it."""
    ending = os.path.splitext(path)[1].lower()
    found = _BY_ENDING.get(ending, "tf_saved_model")
    if format not in (None, "tf_saved_model", "web"):
        return format  # which checks its own ending
    if format is None:
        valid = (*_BY_ENDING, *_OTHER_FILES)
        check_ending(path, valid, 'A SavedModel in a folder of that name needs format="tf_saved_model".')
    if ending in _OTHER_FILES:
        raise ValueError(
            f'"{path}" ends in {ending}, which is not an export format. Valid: a folder (a SavedModel), or a file that'
            f" ends in {' or '.join(_BY_ENDING)}. keras_vit.save writes .keras, .npz and safetensors."
        )
    if format is not None and found != "tf_saved_model":
        raise ValueError(
            f'format="{format}" writes a folder, got "{path}", a file of format="{found}". Leave format out, or give a'
            " folder."
        )
    return format or found


def _check(model, path, format):
    """(the export's path, with "~" expanded; its format), checked."""
    path = check_model_and_path("export", model, path)
    format = _choose_format(path, format)
    check_known(format, "export format", FORMATS, ". keras_vit.save writes weights for other libraries")
    if format == "tf_saved_model":
        _check_place(path)
        InputRange.known(model)  # its signatures take image files
    if format == "web":
        from keras_vit.serving.web import page_folder

        _check_place(path, page_folder.others)
    if not model.answers:
        raise ValueError(
            f'"{model.name}", a {type(model).__name__}, trains another model: export that one,'
            " keras_vit.export(model.get_encoder(), path), or --load.head=drop. For classes, fine-tune it"
            " first: keras-vit finetune --init=..."
        )
    shows_texts = format == "web" and model.answers == ("embeddings",)  # a page has both towers
    if model.image_size is None or len(model.inputs) > 1 and not shows_texts:
        raise ValueError(
            f'Expected a model with one input of images (b, h, w, c) of fixed size, got "{model.name}", a'
            f" {type(model).__name__} with the input shape {model.input_shape}."
        )
    if model.classes is not None and ends_in_probabilities(model):
        raise ValueError(
            f'"{model.name}" has classes, so that its outputs should be logits, but it ends in a softmax or sigmoid,'
            " and an export would apply one twice. Leave it out of the model, or set model.classes = None to export"
            " the outputs as they are."
        )
    return path, format


def _write(model, place, options):
    """Writes a checked export, unless its libraries are missing or the preprocessing does not suit the model."""
    if options["format"] in single_file.QUANTIZED:
        given = (options.get(name) for name in ("quantization", "calibration", "ranges"))
        single_file.check_ranges(model, options["format"], *given)
    if options["format"] in single_file.FILES:
        single_file.check(model, place, options["format"])
    if options["format"] == "web":
        from keras_vit.serving.web import page_folder  # imports TensorFlow

        page_folder.check(model, place, bind(model, **options["options"]))
    check_preprocessing(model)
    tensorflow_process.write(model, place, {**_DEFAULTS, **options})


def export_outputs(
    model: keras.Model, by_keras: Callable, path: str | os.PathLike, format: str | None, options: dict[str, Any]
) -> None:
    """The implementation of Model.export.

    Args:
        model: a keras_vit.Model.
        by_keras: Keras' method, which writes all formats but ONNX.
        path, format, options: its arguments; format None for the one of the path's ending.
    """
    format = _choose_format(os.fspath(path), format)
    if format != "onnx":
        return by_keras(path, format=format, **options)
    given = [name for name, value in options.items() if value is not None and name != "verbose"]
    if given:
        raise ValueError(f'{", ".join(given)}: without effect for format="onnx": its batches have any size.')
    place, _ = _check(model, path, format)
    _write(model, place, {"format": format, "only_outputs": True})


def write_outputs(model: Model, path: str, quantization: str | None = None, calibration: Any = None) -> None:
    """Writes a file for ONNX Runtime or LiteRT, by the path's ending, with the model's own outputs alone.

    They have the names of `named_outputs`. Arguments as of `export`.
    """
    place, format = _check(model, path, None)
    how = {"quantization": quantization, "calibration": calibration}
    _write(model, place, {"format": format, "only_outputs": True, **how})


def export(
    model: keras.Model,
    path: str | os.PathLike,
    format: str | None = None,
    top_k: int | None = None,
    verbose: bool = False,
    activation: str | None = None,
    quantization: str | None = None,
    calibration: Any = None,
    threshold: float | None = None,
    iou: float | None = None,
    limit: int | None = None,
    soft: bool | None = None,
    across_classes: bool | None = None,
    ranges: Mapping[str, float] | None = None,
    runtime: str | os.PathLike | None = None,
) -> None:
    """Writes `model` to run without this package: a SavedModel folder, one file for ONNX Runtime or LiteRT, or a page.

    ONNX and LiteRT files take images (b, h, w, c) float32, pixels 0..255, in batches of any size, and return float32:
    "logits" and "probabilities" for a model with classes, "outputs" for a custom head, and "features" if the model
    pools. PATH.json next to the file describes it and its preprocessing. OpenVINO reads ONNX files, too. The file's
    outputs are compared with the model's before it is put in place. The rest applies to SavedModels.

    Signatures:
        serving_default: encoded images (b,) strings -> {"probabilities", "classes", "status"}, the top k with names.
        pixels, pixels_uint8: images (b, h, w, c), 0..255 -> {"logits", "probabilities"}.
        features: images (b, h, w, c) float32 -> {"features"}.
        encoded_features: encoded images -> {"features", "status"}.
        attention: images (b, h, w, c) float32 -> {"attention" (b, h, w)}, on the patch grid.
        encoded_attention: encoded images -> {"attention", "status"}.
        pixels_training, features_training: with dropout, for the call_training_endpoint of keras.layers.TFSMLayer.

    An image that cannot be decoded fails alone: its "status" says why. Batches are dynamic, outputs float32, variables
    trainable. A ViT or BiT without a head has no pixels signatures, and its serving_default maps pixels to features. A
    model with a custom head returns {"outputs"} from pixels, and from serving_default unless its class names are known
    (see keras_vit.Model). Models that have no attention, or merge patches, have no attention signatures.

    A segmentation model returns {"ids" (b, h, w) int32, "probabilities" (b, h, w, classes)} for the pixels of its own
    size, from signatures and files, and logits from pixels_training. Its signature encoded_masks maps encoded images to
    {"mask_bytes", "status"}: PNG files of class numbers, each at its image's own size, as `model.segment` makes them.
    A model for depth returns {"depth" (b, h, w)} instead, and has no masks.

    A detector returns {"boxes" (b, d, 4), "scores" (b, d), "labels" (b, d) int32}, the best `limit` objects in order of
    their scores: boxes are top, left, bottom, right as fractions of the image; serving_default also has "classes"
    (b, d), names. Empty places have score 0, label -1 and the name "". Files also return "logits" and "candidates", the
    boxes from which these were chosen; so does pixels_training, as "logits" and "boxes".

    A text encoder, or a DualEncoder's `tower("text")`, maps token ids (b, n) int32 to features or embeddings, as a
    SavedModel with Keras' signatures or an ONNX file.

    A page (format="web", docs/web.md) is a folder for any static server. It answers for pictures in the browser, with
    ONNX Runtime Web, and keeps them there. Its weights are stored in float16 unless quantised.

    The folder's README.md and metadata.json describe the model, assets/classes.txt has its class names, and
    assets.extra requests that warm up TensorFlow Serving. An existing export at `path` is replaced once the new one is
    complete. On the JAX backend, a process on the TensorFlow backend makes the export.

    Args:
        model: a ViT or BiT, a keras_vit.Model built on one, a SegmentationModel, a DetectionModel, or a text encoder;
            as a page also a DualEncoder with its tokenizer.
        path: a local folder; for "onnx" and "litert" a local file ending in ".onnx" or ".tflite".
        format: "tf_saved_model", "onnx", "litert" or "web"; None for the one of the path's ending, a SavedModel without
            one.
        top_k: classes that serving_default returns, None for 5; files return all.
        verbose: print a SavedModel's signatures.
        activation: from logits to probabilities, for a model with classes, as in `model.classify`: "softmax",
            "sigmoid", or None for the model's own.
        quantization: of a file's dense layers; None for floats. "int8_weights": weights only; "int8_dynamic":
            activations too, scaled at each call; "int8_static": scaled by `calibration`. Layers that change the
            outputs of held-out images too much stay in floats (static_int8.py). For LiteRT also "full_int8" and
            "full_int16": bytes in and integers throughout, for chips without floats (litert_integers.py).
        calibration: for the last three, at least 16 images like those to expect: pixels (n, h, w, c), a list of what
            `model.preprocess` takes, or a finite tf.data dataset of pixels; for a text encoder token ids (n, length).
            Every fourth is held out. A model trained for int8 needs it for LiteRT alone (docs/serving.md).
        threshold, iou, limit, soft, across_classes: a detector's, as in `model.detect`; None for its defaults.
        ranges: for "int8_static", {path of a layer with a kernel: largest absolute value of its input}, such as learned
            ranges; other layers are calibrated. Paths are inside the model, as `quantize_aware` returns them. Layers
            that read the same tensor take the largest.
        runtime: for a page, a folder with the npm package onnxruntime-web, such as node_modules; None to have npm
            install it into the cache folder once.

    Raises:
        ValueError: for anything but a model of this package and a path, an unknown format or one that the path's ending
            contradicts, options without effect, an input other than one image, a preprocessing text for images of
            another size or number of channels, classes as probabilities, a path that is a file, in a bucket, or a
            folder of other files, or an ONNX or LiteRT file with outputs that differ from the model's.
        ImportError: if the format's library is not installed.
        FileNotFoundError: for a page, if `runtime` lacks its files, or there is no npm.
        OSError: if writing fails; every error leaves `path` as it was.
    """
    if isinstance(model, keras.Model) and takes_texts(model):
        given = {"top_k": top_k, "activation": activation, "threshold": threshold, "runtime": runtime}
        how = {"quantization": quantization, "calibration": calibration, "ranges": ranges}
        return export_texts(model, os.fspath(path), _choose_format(os.fspath(path), format), given, **how)
    if isinstance(model, Model):
        model = model.without_auxiliary()
    place, format = _check(model, path, format)
    own = {"top_k": top_k, "activation": activation, "threshold": threshold, "iou": iou, "limit": limit, "soft": soft}
    own = {name: value for name, value in {**own, "across_classes": across_classes}.items() if value is not None}
    bind(model, **own)  # refuses those without effect
    for name, is_set in {"top_k": top_k is not None, "verbose": verbose}.items():
        if is_set and format != "tf_saved_model":
            raise ValueError(
                f'{name} is for format="tf_saved_model": a file of format="{format}" returns the probabilities of all'
                " classes."
            )
    if runtime is not None and format != "web":
        raise ValueError(f'runtime is for format="web", got format="{format}". Leave it out.')
    single_file.check_quantization(format, quantization, calibration, ranges)
    options = {"format": format, "options": own, "verbose": verbose}
    if runtime is not None:
        options["runtime"] = os.fspath(runtime)
    how = {"quantization": quantization, "calibration": calibration, "ranges": ranges}
    _write(model, place, {**options, **how})
