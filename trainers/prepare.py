"""Writes any source as TFRecord files, which a run reads quickly, from a bucket too.

    keras-vit prepare --source=folder:PHOTOS --output=prepared --split=train --shards=16
    keras-vit prepare --source=csv:labels.csv --output=prepared --split=test --shards=4 --resize=512
    keras-vit prepare --source=imagenet2012 --output=gs://BUCKET/imagenet --shards=1024 \\
        --beam="--runner=DataflowRunner --project=NAME"

Then --config.data.source=tfrecord:prepared. Every image is decoded once; undecodable ones are left out and named in
prepare-SPLIT.json. Warns about huge images and files with the same contents. Examples are shuffled into files of equal
size; make the number of files a multiple of the hosts that read them, with 100 MB or more per file. If the process is
killed or the disk is full, the earlier output remains.

--beam runs an Apache Beam pipeline (the extra [beam]) with these options: over many machines, or locally with
--beam=--runner=DirectRunner. Files are then of about equal size, since a hash of its name places each example.
"""

import shlex

from . import flags, shared_flags


def main():
    from keras_vit.io.atomic import check_folder
    from keras_vit.io.progress import shown

    values = flags.FLAGS
    check_folder(values.output)
    with shown():
        write(values)


def _prepared(values, name, split, exclude):
    """Opens the source and writes it here; returns the report."""
    from keras_vit.data import open_source
    from keras_vit.data.records.write import write_records
    from keras_vit.data.sources.selection import without
    from keras_vit.io.progress import stage

    with stage(f"Opening {values.source}"):
        source = open_source(values.source, values.split, values.data_dir)
    source = without(source, exclude) if exclude else source
    options = (values.shards, values.resize or None, values.quality, values.shuffle_seed, values.overwrite)
    return write_records(source, values.output, name, split, *options)


def _prepared_by_beam(values, name, split, exclude):
    """The same as a Beam pipeline."""
    from keras_vit.data.records.write import write_report

    write_by_beam, folder = shared_flags.beam("keras_vit.data.beam_records").write_by_beam, values.output
    settings = (values.resize or None, values.quality, values.shuffle_seed)
    where = (values.source, values.split, values.data_dir, folder, name, split, values.shards)
    written = write_by_beam(*where, *settings, values.overwrite, exclude, shlex.split(values.beam))
    return write_report(folder, values.source, split, values.shards, *settings, written)


def write(values):
    """Writes the source as the flags say; prints a summary."""
    from keras_vit.data.records.write import default_name
    from keras_vit.data.sources.selection import read_names
    from keras_vit.data.splits import split_name
    from keras_vit.io.suggest import counted

    name, split = (
        values.name or default_name(values.source, values.data_dir),
        values.as_split or split_name(values.split),
    )
    exclude = read_names(values.exclude) if values.exclude else ()
    report = (_prepared if values.beam is None else _prepared_by_beam)(values, name, split, exclude)
    for example, reason in list(report["skipped"].items())[:10]:
        print(f"Left out {example}: {reason}")
    left_out = f", {len(report['skipped'])} left out: see prepare-{split}.json" if report["skipped"] else ""
    print(
        f"{counted(report['examples'], 'example')}, {report['bytes'] / 1e6:.1f} MB, in"
        f" {counted(report['files'], 'file')}{left_out}. To train on them: --data={values.output}, split {split}."
    )


def run():
    flags.string("source", None, "A folder, a table (.csv, .jsonl), or a tensorflow-datasets name.", required=True)
    flags.path("output", None, "The folder to write to; several splits can share one.", required=True)
    flags.string("split", "train", 'With slices: "train[90%:]".')
    flags.string("as_split", None, "The split's name in the output; by default its own.")
    flags.string("name", None, "Prefix of the files' names; by default made from the source's name.")
    flags.integer("shards", 16, "The number of files.", lowest=1)
    flags.integer(
        "resize",
        0,
        "Shrinks images with more pixels than this on the shorter side; 0 keeps all sizes.",
        lowest=0,
    )
    flags.integer("quality", 95, "JPEG quality of shrunk images, 1 to 100.", lowest=1, highest=100)
    flags.only_with("quality", "resize", bool, "--resize")
    flags.integer("shuffle_seed", 0, "Seed of the order of the examples.")
    flags.string("exclude", None, "A file with the names of examples to leave out.")
    flags.boolean("overwrite", False, "Replace a split that the output already has.")
    shared_flags.define_data_dir()
    shared_flags.define_beam()
    flags.launch(main)


if __name__ == "__main__":
    run()
