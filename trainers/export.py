"""Exports a model: as a SavedModel for image bytes, for ONNX Runtime or LiteRT, or as weights for another library.

    keras-vit export --model=runs/digits_finetune --output=exported/digits
    keras-vit export --model=runs/digits_finetune --output=digits.onnx --int8
    keras-vit export --model=runs/digits_finetune --output=page --format=web
    keras-vit export --model=runs/mine --output=for_torch --format=timm

--model accepts a run directory, a checkpoint of any format or a published name. --format, by default the one of the
output's ending: tf_saved_model; onnx or litert (one file, in floats or with --quantization); web (a folder with a page
that answers in the browser, docs/web.md); timm or huggingface (a folder for PyTorch users), google (.npz),
mmsegmentation (.pth), keras (.keras).
--int8, short for --quantization=int8_static, calibrates on --calibration_images of the run's own training images, or
of --calibration. --quantization=full_int8 or full_int16 does, too, and writes a LiteRT file for chips without floats.
`keras-vit evaluate --model=RUN --engines` compares formats and quantisations: size, speed, and the task's measure.
--class_names=names.txt names the classes of a model without class names, --key=model_ema chooses one of several models
in a file.
"""

from absl import logging
from etils import epath

from . import flags, loading, shared_flags

IMAGES = 256  # as in runs/calibration_images.py, whose import would take --help seconds
_BY_ENDING = {".onnx": "onnx", ".tflite": "litert", ".npz": "google", ".pth": "mmsegmentation", ".keras": "keras"}


def main():
    from keras_vit.io.progress import shown

    with shown():
        export(flags.FLAGS)


def _quantization(values):
    """--quantization, for which --int8 is short."""
    if values.int8 and values.quantization not in (None, "int8_static"):
        raise ValueError(f"--int8 is short for --quantization=int8_static, got --quantization={values.quantization}.")
    from keras_vit.serving.single_file import CALIBRATED, INTEGERS

    found = "int8_static" if values.int8 else values.quantization
    given = {"calibration": values.calibration is not None, "calibration_images": values.calibration_images != IMAGES}
    if found not in CALIBRATED and any(given.values()):
        raise ValueError(
            f"--{next(name for name in given if given[name])} is for --int8 and --quantization="
            f"{' or '.join(INTEGERS)}, and would be ignored."
        )
    return found


def export(values):
    """Exports as the flags say."""
    import keras_vit
    from keras_vit.checkpoints.save import FORMATS
    from keras_vit.io.atomic import check_folder
    from keras_vit.io.progress import stage
    from keras_vit.io.suggest import did_you_mean
    from keras_vit.runs.calibration_images import calibration_images, calibration_source
    from keras_vit.serving.export import FORMATS as EXPORTS
    from keras_vit.serving.export import check_ending
    from keras_vit.serving.single_file import QUANTIZED, check_quantization, needs_calibration

    valid = (*EXPORTS, *FORMATS)
    ending = epath.Path(values.output).suffix.lower()
    form = _BY_ENDING.get(ending, "tf_saved_model") if values.format is None else values.format
    if form not in valid:
        raise ValueError(f'Unknown export format "{form}".{did_you_mean(form, valid)} Valid: {", ".join(valid)}.')
    if values.format is None:
        check_ending(values.output, _BY_ENDING, "A SavedModel in a folder of that name needs --format=tf_saved_model.")
    check_folder(epath.Path(values.output).parent)
    quantization, source = _quantization(values), None
    answering, finding = {"top_k": values.top_k, "activation": values.activation}, shared_flags.finding(values)
    check_quantization(form, quantization, values.calibration)
    with stage(f"Loading {values.model}"):
        model = loading.load(values.model, class_names=values.class_names, key=values.key)
    calibrated = values.calibration is not None or needs_calibration(model, form, quantization)
    if calibrated and form in QUANTIZED:
        with stage("Opening the images to calibrate on"):
            source = calibration_source(values.model, values.calibration, values.data_dir)
    with stage(f"Exporting to {values.output}"):
        if form in FORMATS:
            for name, value in {**answering, **finding}.items():
                if value is not None:
                    raise ValueError(f"--{name} would be ignored: format={form} is for weights, not answers.")
            keras_vit.save(model, values.output, format=form)
        else:
            how = {"quantization": quantization, **answering, **finding, "runtime": values.runtime}
            if source is not None:
                how["calibration"] = calibration_images(model, source, values.calibration_images)
            keras_vit.export(model, values.output, format=form, **how)
    logging.info("Exported %s to %s.", values.model, values.output)
    if form == "tf_saved_model":
        _warn_of_formats(values.model, values.data_dir)


def _warn_of_formats(model, data_dir):
    """Warns if the run was trained on images of formats that its export does not read."""
    from keras_vit.data import open_source
    from keras_vit.io.logs import quiet
    from keras_vit.runs.evaluate import own_data
    from keras_vit.runs.file_notes import EXPORTED, not_exported

    own = own_data(model)
    try:
        with quiet(logging.ERROR):
            formats = own and not_exported(open_source(own.data["source"], own.data["train"], data_dir))
    except (ValueError, OSError):  # the data are elsewhere
        return
    if formats:
        logging.warning(
            "%s was trained on %s images, too, such as %s, and the export reads only %s: convert others first.",
            *(model, " and ".join(formats), next(iter(formats.values())), EXPORTED),
        )


def run():
    flags.string("model", None, "A run directory, a checkpoint of any format, or a published name.", required=True)
    flags.path(
        "output",
        None,
        "The folder or file to write; an existing one is replaced once the new one is complete.",
        required=True,
    )
    flags.string(
        "format",
        None,
        "tf_saved_model, onnx, litert, web, timm, huggingface, google, mmsegmentation or keras; by default the one of"
        " the ending of --output, .onnx, .tflite, .npz, .pth or .keras, or else tf_saved_model.",
    )
    flags.string(
        "class_names",
        None,
        "A file with one class name a line, or imagenet, cifar10 or cifar100; by default the model's own.",
    )
    flags.string("key", None, "Which model of several in the file of --model, such as model_ema.")
    flags.integer("top_k", None, "How many classes are returned for each image; by default 5.", lowest=1)
    flags.string(
        "activation",
        None,
        "softmax or sigmoid, from logits to probabilities; by default sigmoid for a model trained with it, else"
        " softmax.",
    )
    flags.boolean("int8", False, "For onnx, litert and web: short for --quantization=int8_static.")
    flags.string(
        "quantization",
        None,
        "For onnx, litert and web: int8_weights, int8_dynamic or int8_static; for litert also full_int8 or full_int16,"
        " for chips without floats; by default floats.",
    )
    flags.string(
        "calibration",
        None,
        "For int8: images like those that the model will see, such as PHOTOS or csv:FILE; by default the training"
        " images of the run.",
    )
    flags.integer(
        "calibration_images",
        IMAGES,
        "How many images, spread over the source, are read; a quarter is held out, to measure on.",
        lowest=16,
    )
    flags.path(
        "runtime",
        None,
        "For web: a folder with the npm package onnxruntime-web, such as node_modules; by default npm installs it into"
        " the cache folder, once.",
    )
    shared_flags.define_data_dir()
    shared_flags.define_finding()
    files = ("onnx", "litert", "web")
    for name in ("activation", *shared_flags.FINDING):
        flags.only_with(
            name,
            "format",
            lambda form: form in (None, "tf_saved_model", *files),
            "--format=tf_saved_model, onnx, litert or web",
        )
    flags.only_with("quantization", "format", lambda form: form in (None, *files), "--format=onnx, litert or web")
    flags.only_with("int8", "format", lambda form: form in (None, *files), "--format=onnx, litert or web")
    flags.only_with("runtime", "format", lambda form: form == "web", "--format=web")
    flags.only_with("top_k", "format", lambda form: form in (None, "tf_saved_model"), "--format=tf_saved_model")
    flags.launch(main, loads=True)


if __name__ == "__main__":
    run()
