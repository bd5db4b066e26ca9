"""`predict` on many machines with Apache Beam; files, columns and resuming are the same.

Beam's RunInference runs an exported SavedModel; its runner (Flink, Dataflow, or DirectRunner on this machine)
distributes the work and retries failures. Workers need this package with the extra [beam] and a shared folder, in
practice a bucket.
"""

import functools
import json
from collections.abc import Sequence
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.ml.inference.base import KeyedModelHandler, ModelHandler, PredictionResult, RunInference
from etils import epath

from keras_vit.answers import Column, find
from keras_vit.answers.classes import best, class_columns
from keras_vit.classification.classify import check_top_k
from keras_vit.data import ExampleErrors, open_source
from keras_vit.inference.answer_rows import check_finite
from keras_vit.inference.fingerprint import fingerprint_of_export
from keras_vit.inference.job import Job, owned_part
from keras_vit.inference.predict import Report
from keras_vit.inference.shards import take_folder
from keras_vit.io.beam_options import pipeline_options
from keras_vit.io.paths import locate
from keras_vit.io.progress import stage
from keras_vit.serving.export_description import METADATA, kinds_in


def read_export(folder: str) -> dict[str, Any]:
    """metadata.json of a SavedModel; ValueError for a folder not written by `keras_vit.export`."""
    path = epath.Path(folder) / METADATA
    if not path.exists() or "signatures" not in (metadata := json.loads(path.read_text())):
        raise ValueError(
            f'"{folder}" is not a SavedModel of this package, which a pipeline needs: write one with keras-vit export'
            " --model=... --output=FOLDER."
        )
    return metadata


def _signatures(metadata, kinds):
    """{signature: answers} that gives the requested answers; ValueError if the export lacks one."""
    has, chosen = metadata["signatures"], {}
    own = find(kinds_in(metadata)[0])
    if own.task and set(kinds) != {"features"}:
        raise ValueError(
            f"The export {own.does}, but a pipeline writes rows of classes, logits and features alone: use"
            " --answers=features, or leave out --beam and use --part=INDEX/COUNT on several machines."
        )
    for kind in kinds:
        name = "features" if kind == "features" else "pixels"
        if kind == "features" and "features" not in has and metadata["classes"] is None:
            name = "serving_default"
        if name not in has or kind != "features" and metadata["classes"] is None:
            raise ValueError(f'The export has no signature for "{kind}", only {", ".join(has)}.')
        chosen.setdefault(name, []).append(kind)
    return chosen


def _length(metadata, signature, output):
    """Length of a signature's output (b, length), from metadata such as "float32 (b, 192)"."""
    return int(metadata["signatures"][signature]["outputs"][output].rpartition(", ")[2].rstrip(")"))


class SavedModelHandler(ModelHandler[np.ndarray, PredictionResult, Any]):
    """Runs an exported model on batches of pixels (height, width, c) uint8; the answers are dicts of arrays.

    Args:
        folder: SavedModel folder.
        kinds, top_k: as in AnswerRows.
        batch_size: largest batch.
    """

    def __init__(self, folder: str, kinds: Sequence[str], top_k: int, batch_size: int):
        super().__init__(min_batch_size=1, max_batch_size=batch_size)
        metadata = read_export(folder)
        self._folder, self._kinds, self._signatures = folder, tuple(kinds), _signatures(metadata, kinds)
        self._top_k = min(check_top_k(top_k), metadata["classes"] or 0)
        self._names = metadata["class_names"] or [str(i) for i in range(metadata["classes"] or 0)]
        names = {kind: name for name, given in self._signatures.items() for kind in given if kind != "classes"}
        columns: list[Column] = []
        for kind in kinds:
            lone = kind != "classes"
            length = _length(metadata, names[kind], kind) if lone else 0
            columns += [Column(kind, "numbers", length)] if lone else class_columns(self._top_k)
        self.columns = tuple(columns)

    def load_model(self):
        import tensorflow as tf

        return tf.saved_model.load(self._folder)

    def run_inference(self, batch, model, inference_args=None):
        import tensorflow as tf

        images, outputs = tf.constant(np.stack(batch), tf.float32), {}
        for name in self._signatures:
            outputs |= {key: value.numpy() for key, value in model.signatures[name](images).items()}
        check_finite(outputs)
        answers = {kind: outputs[kind] for kind in self._kinds if kind != "classes"}
        if "classes" in self._kinds:
            answers |= best(outputs["probabilities"], np.array(self._names, object), self._top_k)
        for i, image in enumerate(batch):
            yield PredictionResult(image, {name: values[i] for name, values in answers.items()})


@functools.cache
def _source(data, split, data_dir):
    """A source, opened once per worker."""
    return open_source(data, split, data_dir)


class _ReadFile(beam.DoFn):
    """File number -> ((number, row, label), image); "broken": (number, row); "reasons": (number, {name: why})."""

    def __init__(self, plan, data):
        self._plan, self._data = plan, data

    def process(self, number):
        job = self._plan(_source(*self._data))
        rows, errors = job.shards.range(number), ExampleErrors(job.shards.size)
        places = iter(rows)
        for images, labels, good in job.batches(rows, errors):
            for image, label, fine in zip(images, labels.tolist(), good):
                row = next(places)
                if fine:
                    yield (number, row, label), image
                else:
                    yield beam.pvalue.TaggedOutput("broken", (number, row))
        if errors.names:
            yield beam.pvalue.TaggedOutput("reasons", (number, errors.names))


def _answer(element):
    """((number, row, label), PredictionResult) -> (number, (row, label, answers))."""
    (number, row, label), result = element
    return number, (row, label, result.inference)


class _WriteFile(beam.DoFn):
    """Writes a file: (its number, all results of its rows) -> (rows, {name: why} of unreadable images)."""

    def __init__(self, plan, data, about):
        self._plan, self._data, self._about = plan, data, about

    def process(self, element):
        number, known = element
        job = self._plan(_source(*self._data))
        rows = job.shards.range(number)
        labels, good = np.zeros(len(rows), "int64"), np.zeros(len(rows), bool)
        answers = {column.name: _empty(column, len(rows)) for column in job.answers}
        for row, label, values in known["answers"]:
            i = row - rows.start
            labels[i], good[i] = label, True
            for name, value in values.items():
                answers[name][i] = value
        errors = {name: why for named in known["reasons"] for name, why in named.items()}
        if int(good.sum()) + len(list(known["broken"])) != len(rows):
            raise RuntimeError(f"File {number} has {int(good.sum())} answers for {len(rows)} rows.")
        job.write(number, labels, good, answers, errors, self._about)
        yield len(rows), errors


def _empty(column, n):
    """Empty rows (n, length) of an answer column."""
    return (
        np.full((n, column.length), "", object) if column.kind == "texts" else np.zeros((n, column.length), "float32")
    )


def _connect(pipeline, missing, read, handler, write):
    """Adds the steps of a job to a pipeline: read the missing files' images, answer, write."""
    found = (
        pipeline
        | "files" >> beam.Create(missing)
        | beam.Reshuffle()
        | "read" >> beam.ParDo(read).with_outputs("broken", "reasons", main="images")
    )
    answers = found.images | RunInference(KeyedModelHandler(handler)) | beam.Map(_answer)
    (
        {"answers": answers, "broken": found.broken, "reasons": found.reasons}
        | beam.CoGroupByKey()
        | "write" >> beam.ParDo(write)
    )


def predict_by_beam(
    export: str,
    data: str,
    folder: str,
    kinds: Sequence[str] = ("classes",),
    *,
    options: Sequence[str] = (),
    split: str = "train",
    data_dir: str | None = None,
    top_k: int = 5,
    preprocess: str | None = None,
    batch_size: int = 64,
    rows_per_file: int = 10_000,
    format: str = "parquet",
) -> Report:
    """`predict` with an exported model, as an Apache Beam pipeline.

    Args:
        export: SavedModel folder from `keras_vit.export`, readable by all workers.
        data, split, data_dir: as for `open_source`, which the workers call.
        folder: output folder, writable by all workers.
        options: Beam's options, such as ("--runner=FlinkRunner", "--flink_master=HOST:8081"); DirectRunner by default.
        kinds, top_k, preprocess, batch_size, rows_per_file, format: as in `predict`. A worker reads one file's rows at
            a time.

    Raises:
        ValueError: unsupported answers, an option unknown to Beam, or a folder with rows of another job.
    """
    export, folder = locate(export), locate(folder)
    metadata, handler = read_export(export), SavedModelHandler(export, kinds, top_k, batch_size)
    beam_options = pipeline_options(options)
    text = preprocess or metadata["preprocessing"]
    plan = functools.partial(
        Job.plan,
        folder=folder,
        split=split,
        preprocess=text,
        batch_size=batch_size,
        rows=rows_per_file,
        format=format,
        answers=handler.columns,
    )
    with stage(f"Opening {data}, {split}"):
        job = plan(open_source(data, split, data_dir))
    job.check_images((*metadata["image_size"], metadata["channels"]))
    about = {"model": export, "data": data, "data_dir": data_dir}
    description = job.description(fingerprint_of_export(export, metadata, kinds), about)
    with owned_part(job.shards, (0, 1)):
        take_folder(job.shards, description, free=tuple(about))
        missing = job.shards.missing()
        where = (data, split, data_dir)
        read, text = _ReadFile(plan, where), json.dumps(description, ensure_ascii=False)
        with stage(f"Predicting {job.source.name} by Beam"), beam.Pipeline(options=beam_options) as pipeline:
            _connect(pipeline, missing, read, handler, _WriteFile(plan, where, text))
    rows = sum(len(job.shards.range(i)) for i in missing)
    return Report(rows, (len(missing), job.shards.count - len(missing), job.shards.count), job.broken(missing))
