"""A model's answers for all images of a source, in files of rows. An interrupted job resumes.

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
from keras_vit.inference.answer_rows import AnswerRows
from keras_vit.inference.fingerprint import fingerprint_of_model
from keras_vit.inference.job import Job, owned_part
from keras_vit.inference.shards import take_folder
from keras_vit.io.progress import stage
from keras_vit.prediction.preprocessing import preprocessing_text


@dataclasses.dataclass(frozen=True)
class Report:
    """Result of a job.

    Attributes:
        rows: rows written now.
        files: (written now, already present, total of all parts).
        broken: {name: reason} of unreadable images in the rows written now.
    """

    rows: int
    files: tuple[int, int, int]
    broken: dict[str, str]


def check_part(part: tuple[int, int]) -> None:
    """Raises ValueError if a part is not a valid (index, count)."""
    index, count = part
    if not 0 <= index < count:
        raise ValueError(f"part=({index}, {count}): expected an index from 0 to {count - 1}.")


def _errors(job, there, limit):
    """(ExampleErrors that continue from the present files, {name: why} in them); without a limit they are not read."""
    if limit is None:
        return ExampleErrors(job.source.size), {}
    errors, before = ExampleErrors(limit), job.broken(there)
    errors.names.update(before)
    if len(before) > limit:
        errors.stop(f"{len(before)} images of the files that are there could not be read, more than {limit}.")
    return errors, before


def _answered(answers, job, rows, errors, work) -> Iterator[tuple]:
    """(labels (n,), good (n,), {column: answers (n, ...)}) of these rows, by batch."""
    for images, labels, good in job.batches(rows, errors):
        yield labels, good, {name: values[: len(good)] for name, values in answers(images).items()}
        work.advance(len(good))


def _joined(batches):
    """Several batches as one."""
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
    kinds: Sequence[str] | None = None,
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
    """Writes a model's answers for every image of a source to files in a folder; skips files that exist.

    inference.job.Job lists the columns. The files of an interrupted and resumed job are the same bit for bit.

    Args:
        model: from `keras_vit.load`, created in the scope of its strategy.
        source: a data source, with or without labels.
        folder: local or in a bucket; it may contain other splits of the same data.
        kinds: of the model's answers, "logits" and "features" (inference.answer_rows); None for its answers.
        split: name of the split in the files.
        top_k: largest number of classes per image.
        preprocess: preprocessing text; None for the model's own.
        batch_size: images per batch, over all devices.
        rows_per_file: rounded up to whole batches.
        format: "parquet" or "tfrecord".
        part: (index, count) to share work among processes or machines: this one writes files index, index + count, ...
        broken_limit: largest number of unreadable images in this part, including files that exist; None for no limit.
        about: further information for JSON.
        engine: None for Keras, or "openvino", which is faster on CPUs (keras_vit.serving.runner). Its answers differ in
            the last digits, so it is part of the job's identity.

    Raises:
        ValueError: unsupported answers, preprocessing or engine, rows of another job in the folder, or too many
            unreadable images.
        ImportError: the engine is not installed.
        FloatingPointError: answers are not finite.
        OSError: the folder is not writable.
    """
    check_part(part)
    kinds = model.answers or ("features",) if kinds is None else kinds
    answers, text, about = AnswerRows(model, kinds, top_k, engine), preprocess or preprocessing_text(model), about or {}
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
