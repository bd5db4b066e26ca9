"""Evaluates a trained model and writes report.html beside its figures.

    python -m trainers.evaluate --model=runs/digits_finetune --data=digits --split=test --output=runs/digits_finetune

--model is what keras_vit.load takes: a run directory, a file of any format, a published name. The images are preprocessed as the model's file says; --preprocess overrides it.
"""

import json
import pathlib

from absl import logging

from . import flags


def evaluate(model, source, preprocess, batch_size, limit=500, broken=None):
    """Measures of `model` over `source`; also the first images, uint8, up to `limit`, with all logits and labels.

    Examples that cannot be used are left out, and `broken`, a data.Broken, is told of them.

    Raises:
        ValueError: if none can be used.
    """
    import numpy as np

    from keras_vit.data import Broken, evaluation_batches
    from keras_vit.evaluation import classify, report

    broken = broken or Broken()
    batches = evaluation_batches(source, preprocess, batch_size, broken=broken)
    with broken.raised():
        logits, labels = classify(model, batches)
        if not len(labels):
            raise ValueError(f"None of the {source.size} examples of {source.name} can be used: the warnings say why.")
        first = batches.take(-(-limit // batch_size)).as_numpy_iterator()
        images = np.concatenate([images[weights > 0] for images, _, weights in first])[:limit]
    return report(logits, labels), images, logits, labels


def write_report(folder, title, model, measures, images, logits, labels, records):
    """Writes report.html to `folder`, or says what it needs."""
    from keras_vit.inspection import make_report
    from keras_vit.training.files import write_bytes

    n = len(images)
    try:
        page = make_report(title, model, images, labels[:n], logits[:n], measures, records)
    except ImportError as error:
        logging.warning("No report.html: %s", error)
        return
    write_bytes(folder / "report.html", page.encode())
    logging.info("Report: %s", folder / "report.html")


def check_classes(model, source):
    """Refuses data whose classes are not the model's.

    Raises:
        ValueError: naming both.
    """
    if len(source.class_names) != model.classes:
        raise ValueError(f"The model has {model.classes} classes, the data {len(source.class_names)}.")
    if model.class_names is not None and tuple(source.class_names) != model.class_names:
        raise ValueError(f"The model's classes are {model.class_names[:10]}, the data's {tuple(source.class_names)[:10]}.")


def main():
    import keras_vit
    from keras_vit.data import open_source
    from keras_vit.serving.export import serving_preprocessing
    from keras_vit.training.files import write_bytes
    from keras_vit.training.rundir import RunDirectory

    values = flags.FLAGS
    model = keras_vit.load(values.model)
    source = open_source(values.data, values.split, values.data_dir)
    check_classes(model, source)
    preprocess = values.preprocess or serving_preprocessing(model)
    measures, images, logits, labels = evaluate(model, source, preprocess, values.batch_size)
    top5 = f", top-5 {measures['top5']:.2%}" if "top5" in measures else ""
    print(f"{values.data} {values.split}: top-1 {measures['top1']:.2%}{top5}, loss {measures['loss']:.4f}, {len(labels)} images")
    if values.output:
        folder = pathlib.Path(values.output)
        folder.mkdir(parents=True, exist_ok=True)
        records = RunDirectory(values.model).metrics() if pathlib.Path(values.model).is_dir() else []
        title = f"{values.model} on {values.data} {values.split}"
        write_bytes(folder / "evaluation.json", json.dumps(measures, indent=2).encode())
        write_report(folder, title, model, measures, images, logits, labels, records)


def run():
    flags.string("model", None, "A run directory, a checkpoint of any format, or a published name.", required=True)
    flags.string("data", "digits", "digits, folder:PATH, csv:PATH, a tensorflow-datasets name: as --config.data.source.")
    flags.string("split", "test", 'With slices: "train[90%:]".')
    flags.string("preprocess", None, "Preprocessing text; none for the model's own.")
    flags.string("output", None, "A folder for report.html and evaluation.json; none for the printed line only.")
    flags.integer("batch_size", 64, "Images a batch.")
    flags.define_data_dir()
    flags.launch(main)


if __name__ == "__main__":
    run()
