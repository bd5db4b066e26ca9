"""Writes any source as TFRecord files, which a run reads quickly, from a bucket too.

    python -m trainers.prepare --source=folder:PHOTOS --output=prepared --split=train --shards=16
    python -m trainers.prepare --source=csv:labels.csv --output=prepared --split=test --shards=4 --resize=512
    python -m trainers.prepare --source=imagenet2012 --output=gs://BUCKET/imagenet --shards=1024 \\
        --beam="--runner=DataflowRunner --project=NAME"

Then --config.data.source=tfrecord:prepared. Every image is decoded once; those that do not decode are left out and
named in prepare-SPLIT.json. Huge images, and files with the same contents, are named in a warning. The examples are
shuffled and in files of equal size. If the process is killed or the disk is full, the output is as it was before. Make
the number of files a multiple of the hosts that will read them, with 100 MB or more per file.

--beam does it as a pipeline of Apache Beam (the extra [beam]), with these options of Beam's: over many machines, or on
this one with --beam=--runner=DirectRunner. Files are then of about equal size, since each example finds its own by a
hash of its name.
"""

import json
import os
import re
import shlex

from . import flags


def default_name(source: str, data_dir: str | None = None) -> str:
    """A name for the files, from the source's text: the last part of its path, without extension and without dots that
    would hide them.
    """
    from keras_vit.io.paths import locate

    kind, _, rest = source.partition("?")[0].partition(":")
    if kind in ("folder", "images", "csv", "jsonl", "tfrecord"):
        path = rest.rstrip("/*")
        kind = os.path.basename(os.path.abspath(locate(path, data_dir))) if path else ""
    return re.sub(r"[^\w.\-]+", "_", os.path.splitext(kind.lstrip("."))[0]) or "data"


def prepare(source, folder, name, split, shards, resize=None, quality=95, seed=0, overwrite=False):
    """Writes the examples of `source`, shuffled; returns the report, which is also written to the folder.

    Raises:
        ValueError: if the folder already has the split, another process is writing to it, there are fewer examples than
            files, the examples have more than an image and a label, or none decodes.
        OSError: if it cannot be written.
    """
    import tensorflow as tf

    from keras_vit.data.records.write import ShardWriter, encoder, serialized
    from keras_vit.data.scan import scan
    from keras_vit.data.sources.examine import warn_of_files
    from keras_vit.io.lock import owned
    from keras_vit.io.progress import stage

    if not 1 <= shards <= source.size:
        raise ValueError(f"--shards={shards} for {source.size} examples: expected 1 to {source.size}.")
    warn_of_files(source)
    skipped, size, shrunk = {}, 0, 0
    shard_writer = ShardWriter(folder, name, split, shards, source.class_names, overwrite)
    tf.io.gfile.makedirs(folder)
    progress = stage(f"Writing {folder}", source.size, "images")
    with owned(folder), shard_writer as writer, progress as work:
        for example, values, reason in scan(source, encoder(resize, quality), seed):
            if reason:
                skipped[example] = reason
            else:
                record = serialized(example, values, source.class_names)
                writer.write(record)
                size, shrunk = size + len(record), shrunk + int(values[4])
            work.advance()
        if len(skipped) > source.size - shards:
            raise ValueError(f"Of {source.size} images {len(skipped)} do not decode: {dict(list(skipped.items())[:3])}")
    told = {"examples": sum(writer.counts), "bytes": size, "shrunk": shrunk, "skipped": skipped}
    return write_report(folder, source.name, split, shards, resize, quality, seed, told)


def write_report(folder, source, split, shards, resize, quality, seed, told):
    """Writes prepare-SPLIT.json from the settings and what is `told` of the examples; returns its contents."""
    from keras_vit.io.atomic import write_bytes

    report = {
        "source": source,
        "split": split,
        "files": shards,
        "resize": resize,
        "quality": quality,
        "shuffle_seed": seed,
        **told,
    }
    write_bytes(
        os.path.join(folder, f"prepare-{split}.json"), json.dumps(report, indent=1, ensure_ascii=False).encode()
    )
    return report


def main():
    from keras_vit.io.atomic import check_folder
    from keras_vit.io.progress import shown

    values = flags.FLAGS
    check_folder(values.output)
    with shown():
        write(values)


def _prepared(values, name, split, exclude):
    """Opens the source and writes it as the flags say, here; returns the report."""
    from keras_vit.data import open_source
    from keras_vit.data.sources.selection import without
    from keras_vit.io.progress import stage

    with stage(f"Opening {values.source}"):
        source = open_source(values.source, values.split, values.data_dir)
    source = without(source, exclude) if exclude else source
    options = (values.shards, values.resize or None, values.quality, values.shuffle_seed, values.overwrite)
    return prepare(source, values.output, name, split, *options)


def _prepared_by_beam(values, name, split, exclude):
    """The same as a pipeline of Beam."""
    write_by_beam, folder = flags.beam("keras_vit.data.beam").write_by_beam, values.output
    settings = (values.resize or None, values.quality, values.shuffle_seed)
    where = (values.source, values.split, values.data_dir, folder, name, split, values.shards)
    told = write_by_beam(*where, *settings, values.overwrite, exclude, shlex.split(values.beam))
    return write_report(folder, values.source, split, values.shards, *settings, told)


def write(values):
    """Writes the source as the flags say; prints what was done."""
    from keras_vit.data.sources.selection import read_names
    from keras_vit.data.splits import split_name

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
        f"{report['examples']} examples, {report['bytes'] / 1e6:.1f} MB, in {report['files']} files{left_out}. "
        f"Train from them with --config.data.source=tfrecord:{values.output}, split {split}."
    )


def run():
    flags.string(
        "source", None, 'What --config.data.source takes: "folder:PATH", "csv:PATH", "cifar10"...', required=True
    )
    flags.path("output", None, "The folder to write to; several splits can share one.", required=True)
    flags.string("split", "train", 'With slices: "train[90%:]".')
    flags.string("as_split", None, "The split's name in the output; none for its own name.")
    flags.string("name", None, "What the files' names begin with; none for a name made from the source's.")
    flags.integer("shards", 16, "The number of files.", lowest=1)
    flags.integer(
        "resize",
        0,
        "Images whose shorter side is longer than this are shrunk to it; 0 to keep all as they are.",
        lowest=0,
    )
    flags.integer("quality", 95, "Quality of the JPEGs that are shrunk, 1 to 100.", lowest=1, highest=100)
    flags.only_with("quality", "resize", bool, "--resize")
    flags.integer("shuffle_seed", 0, "Seed of the order of the examples.")
    flags.string("exclude", None, "A file with the names of examples to leave out.")
    flags.boolean("overwrite", False, "Replace a split that the output already has.")
    flags.define_data_dir()
    flags.define_beam()
    flags.launch(main)


if __name__ == "__main__":
    run()
