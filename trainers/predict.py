"""Runs a model over all images of a source, and writes its answers as Parquet or TFRecord files.

    python -m trainers.predict --model=runs/photos --data=images:PHOTOS --output=answers
    python -m trainers.predict --model=dino/s16 --data=cifar10 --split=train,test --answers=features --output=features

--answers, joined by commas: classes, the names and probabilities of the most probable --top_k; logits; features, the
embedding before the head. Every image has a row, in the data's order: split, row, name, label if the data has one, the
answers, and error, which says why an image is unreadable. pyarrow.parquet.read_table("answers") reads a folder's files.

The same command resumes a job, with the same output bit for bit. --part=0/4, 1/4, 2/4 and 3/4 share the work of four
machines with one folder, such as a bucket. --strategy=mirrored runs on all devices of a machine. --engine=openvino is
faster on CPUs (docs/performance.md).

--beam runs an exported model (`export`) as an Apache Beam pipeline with these options, on a cluster or locally:

    python -m trainers.predict --model=exported --data=images:PHOTOS --output=answers --beam=--runner=DirectRunner
"""

import shlex

from . import flags, loading


def _part(text):
    """--part as (index, count)."""
    index, slash, count = text.partition("/")
    if not (slash and index.isdigit() and count.isdigit() and int(index) < int(count)):
        raise ValueError(f"--part={text}: expected INDEX/COUNT, from 0/4 to 3/4 for four processes.")
    return int(index), int(count)


def _comma_separated(text, flag):
    """The parts of a flag's text."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or len(set(parts)) < len(parts):
        raise ValueError(f"--{flag}={text}: expected names joined by commas, each once.")
    return parts


def _print(report, split, values):
    """Prints what was written and what was left out."""
    from keras_vit.io.suggest import counted

    now, before, total = report.files
    parts = [f"{split}: wrote {counted(report.rows, 'row')} in {counted(now, 'file')} of {total:,} to {values.output}"]
    parts += [f"{before:,} existed already"] if before else []
    parts += (
        [f'{counted(len(report.broken), "image")} cannot be read: the column "error" says why'] if report.broken else []
    )
    print(f"{'; '.join(parts)}.")


def _predict(values, kinds, splits, options):
    """Runs the model here; yields (split, report)."""
    from keras_vit.data import open_source
    from keras_vit.distribution import strategy as find_strategy
    from keras_vit.inference import predict
    from keras_vit.io.progress import stage

    part = _part(values.part)
    strategy = find_strategy(values.strategy, tpu=values.tpu, model_parallel=values.model_parallel)
    if strategy.hosts > 1:
        raise ValueError(
            "Give each process its share with --part=INDEX/COUNT and --strategy=one: a common strategy is not needed."
        )
    strategy.check_batch(values.batch_size)
    sources = {}
    for split in splits:
        with stage(f"Opening {values.data}, {split}"):
            sources[split] = open_source(values.data, split, values.data_dir)
    with strategy.scope(), stage(f"Loading {values.model}"):
        model = loading.load(values.model)
    about = {"model": values.model, "data": values.data, "data_dir": values.data_dir}
    for split, source in sources.items():
        with strategy.scope():
            report = predict(
                model,
                source,
                values.output,
                kinds,
                split=split,
                part=part,
                broken_limit=values.broken_limit,
                about=about,
                engine=values.engine,
                **options,
            )
        yield split, report


def _predict_by_beam(values, kinds, splits, options):
    """Runs an export as a Beam pipeline; yields (split, report)."""
    loading.refuse("--beam runs an export")
    predict_by_beam = flags.beam("keras_vit.inference.beam").predict_by_beam
    where = (values.model, values.data, values.output, kinds)
    for split in splits:
        yield (
            split,
            predict_by_beam(*where, split=split, data_dir=values.data_dir, options=shlex.split(values.beam), **options),
        )


def main():
    from keras_vit.io.atomic import check_folder
    from keras_vit.io.progress import shown

    values = flags.FLAGS
    splits, kinds = _comma_separated(values.split, "split"), _comma_separated(values.answers, "answers")
    check_folder(values.output)
    names = ("top_k", "preprocess", "batch_size", "rows_per_file", "format")
    options = {name: getattr(values, name) for name in names}
    with shown():
        for split, report in (_predict if values.beam is None else _predict_by_beam)(values, kinds, splits, options):
            _print(report, split, values)


def run():
    flags.string("model", None, "A run directory, a checkpoint of any format, or a published name.", required=True)
    flags.string(
        "data", None, "A folder, a table (.csv, .jsonl), TFRecords, or a tensorflow-datasets name.", required=True
    )
    flags.string("split", "train", "The split of --data, or several joined by commas; with slices: train[:1000].")
    flags.path("output", None, "The folder to write to; the splits of the same data can share one.", required=True)
    flags.string("answers", "classes", "classes, logits, features, or several joined by commas.")
    flags.integer("top_k", 5, "Classes per image, at most.", lowest=1)
    flags.enum("format", "parquet", ["parquet", "tfrecord"], "The kind of the files.")
    flags.integer("rows_per_file", 10_000, "Rows in a file, rounded up to whole batches.", lowest=1)
    flags.integer("batch_size", 64, "Images per batch, over all devices.", lowest=1)
    flags.string("part", "0/1", "INDEX/COUNT: which share of the files this process writes.")
    flags.string("preprocess", None, "Preprocessing text; by default the model's own.")
    flags.integer(
        "broken_limit", None, "The largest number of unreadable images in this part; by default any number.", lowest=0
    )
    flags.string(
        "engine",
        None,
        "The engine that computes the model: openvino, or openvino_bfloat16; by default TensorFlow, or JAX.",
    )
    flags.only_with("top_k", "answers", lambda answers: "classes" in answers, "--answers=classes")
    flags.define_data_dir()
    flags.define_strategy()
    flags.define_beam()
    flags.only_with("engine", "strategy", lambda strategy: strategy == "one", "--strategy=one")
    for name in ("part", "broken_limit", "strategy", "engine"):
        flags.only_with(name, "beam", lambda beam: beam is None, "work without --beam")
    flags.launch(main, resumes=True, loads=True)


if __name__ == "__main__":
    run()
