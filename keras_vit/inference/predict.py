"""A model over all images of a source: what it answers, in files of rows. A job that was stopped goes on where it was.

model = keras_vit.load("runs/photos")
source = keras_vit.data.open_source("images:PHOTOS", "train")
keras_vit.inference.predict(model, source, "answers", ("classes", "features"))
"""

import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keras_vit.data import ExampleErrors
from keras_vit.data.sources.base import Source
from keras_vit.inference.answers import Answers
from keras_vit.inference.fingerprint import fingerprint_of_model
from keras_vit.inference.job import Job, owned_part
from keras_vit.inference.shards import take_folder
from keras_vit.io.progress import stage
from keras_vit.training.prediction.preprocessing import preprocessing_text


@dataclasses.dataclass(frozen=True)
class Report:
    """What a job did.

    Attributes:
        rows: written now.
        files: (written now, there before, of all parts).
        broken: {name: reason} of the images that could not be read, of the rows written now.
    """

    rows: int
    files: tuple[int, int, int]
    broken: dict[str, str]


def _check_part(part):
    """Refuses a part that is not (index, count)."""
    index, count = part
    if not 0 <= index < count:
        raise ValueError(f"part=({index}, {count}): expected an index from 0 to {count - 1}.")


def _errors(job, there, limit):
    """(ExampleErrors that goes on from the files that are there, {name: why} of these). Without a limit they are not
    read.
    """
    if limit is None:
        return ExampleErrors(job.source.size), {}
    errors, before = ExampleErrors(limit), job.broken(there)
    errors.names.update(before)
    if len(before) > limit:
        errors.stop(f"{len(before)} images of the files that are there could not be read, more than {limit}.")
    return errors, before


def _answered(answers, job, rows, errors, work) -> Iterator[tuple]:
    """(labels (n,), good (n,), {column: answers (n, ...)}) of these rows, batch by batch."""
    for images, labels, good in job.batches(rows, errors):
        yield labels, good, {name: values[: len(good)] for name, values in answers(images).items()}
        work.advance(len(good))


def _joined(batches):
    """The same of several batches."""
    labels, good, answers = zip(*batches)
    return (
        np.concatenate(labels),
        np.concatenate(good),
        {name: np.concatenate([batch[name] for batch in answers]) for name in answers[0]},
    )


def predict(
    model: Any,
    source: Source,
    folder: str | os.PathLike,
    kinds: Sequence[str] = ("classes",),
    *,
    split: str = "train",
    top_k: int = 5,
    preprocess: str | None = None,
    batch_size: int = 64,
    rows_per_file: int = 10_000,
    format: str = "parquet",
    part: tuple[int, int] = (0, 1),
    broken_limit: int | None = None,
    about: dict[str, Any] | None = None,
    engine: str | None = None,
) -> Report:
    """Writes a model's answers about every image of a source, as files in a folder. Files that are there already are
    not written again.

    The columns are those of inference.job.Job. The files of a job that was interrupted are those of one that was not,
    bit for bit.

    Args:
        model: what `keras_vit.load` gives, made in the scope of its strategy.
        source: a data source; labels are not needed.
        folder: local or in a bucket; other splits of the same data may be there.
        kinds: "classes", "logits" and "features", one or several (inference.answers).
        split: the name of this part of the data in the files.
        top_k: how many classes of an image, at most.
        preprocess: preprocessing text; None for the model's own.
        batch_size: images at once, over all devices.
        rows_per_file: rounded up to whole batches.
        format: "parquet" or "tfrecord".
        part: (index, count): of several processes or machines that share the work, this one writes the files index,
            index + count, ...
        broken_limit: how many images of this part may be unreadable, those of the files that are there included; None
            for any number.
        about: what else should be written down, for JSON.
        engine: what computes the model: None for Keras, or "openvino", which is faster on CPUs
            (keras_vit.serving.runner). Its answers differ in the last digits, so that it is part of what the job is.

    Raises:
        ValueError: if the model cannot give these answers or does not fit the preprocessing, the engine cannot compute
            it, the folder holds rows of another job, or more images than the limit cannot be read.
        ImportError: if the engine is not installed.
        FloatingPointError: if the model's answers are not finite.
        OSError: if the folder cannot be written to.
    """
    _check_part(part)
    answers, text, about = Answers(model, kinds, top_k, engine), preprocess or preprocessing_text(model), about or {}
    folder = os.path.expanduser(os.fspath(folder))
    job = Job.plan(source, folder, split, text, batch_size, rows_per_file, format, answers.columns)
    job.check_images(tuple(answers.model.input.shape[1:]))
    fingerprint = fingerprint_of_model(model, kinds) | ({} if engine is None else {"engine": engine})
    description, shards = job.description(fingerprint, about), job.shards
    with owned_part(shards, part):
        take_folder(shards, description, free=tuple(about))
        missing, own = shards.missing(part), range(part[0], shards.count, part[1])
        errors, before = _errors(job, sorted({*own} - {*missing}), broken_limit)
        rows = np.concatenate([np.arange(0), *(np.array(shards.range(i)) for i in missing)])
        written = json.dumps(description, ensure_ascii=False)
        with errors.raised(), stage(f"Predicting {source.name}", len(rows), "images") as work:
            stream = _answered(answers, job, rows, errors, work)
            for i in missing:
                batches = [next(stream) for _ in range(-(-len(shards.range(i)) // batch_size))]
                labels, good, given = _joined(batches)
                job.write(i, labels, good, given, errors.names, written)
    broken = {name: why for name, why in errors.names.items() if name not in before}
    return Report(len(rows), (len(missing), len(own) - len(missing), shards.count), broken)
