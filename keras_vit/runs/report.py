"""Writing report.html, for a run or an evaluation."""

import keras
import numpy as np
from absl import logging

from keras_vit.data import evaluation_batches
from keras_vit.inspection import report
from keras_vit.io.atomic import write_bytes

SAMPLES = 500  # examples that a report chooses from


def _counted(batch):
    """(x, y) of the examples of a batch whose weight is above 0, as arrays."""
    x, y, weights = batch
    return keras.tree.map_structure(lambda array: array[weights > 0], (x, y))


def _samples(setting):
    """(x, y) of the first examples that can be read, as arrays."""
    batches = evaluation_batches(
        setting.source, setting.preprocess, setting.batch_size, errors=setting.errors, select=setting.select
    )
    first = batches.take(-(-SAMPLES // setting.batch_size)).as_numpy_iterator()
    return keras.tree.map_structure(lambda *parts: np.concatenate(parts)[:SAMPLES], *map(_counted, first))


def write_report(folder, title, task, model, setting, evaluation, records):
    """Writes report.html to `folder`, or logs which package it would need.

    Args:
        folder: a path.
        title: the title of the page.
        task: the Task that provides the sections.
        model: the model, on one device.
        setting: the evaluation's Setting, with its data.
        evaluation: an Evaluation.
        records: the records of metrics.jsonl; may be empty.
    """
    try:
        page = report.page(title, task.report(model, evaluation, _samples(setting), records))
    except ImportError as error:
        logging.warning("No report.html: %s", error)
        return
    write_bytes(folder / "report.html", page.encode())
    logging.info("Report: %s", folder / "report.html")
