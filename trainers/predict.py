"""Runs a model over all images of a source, and writes its answers as Parquet or TFRecord files, masks as PNGs,
objects as Parquet and COCO's JSON, or depths as PNGs.

    keras-vit predict --model=runs/photos --data=images:PHOTOS --output=answers
    keras-vit predict --model=dino/s16 --data=cifar10 --split=train,test --answers=features --output=features

--answers, joined by commas: classes (the default), the names and probabilities of the most probable --top_k; logits;
features, the embedding before the head. Every image has a row: split, row, name, label if the data has one, the
answers, and error, which says why an image is unreadable. Rows of folders and tables are in a fixed random order: find
an image by name. pyarrow.parquet.read_table("answers") reads a folder's files.

A segmentation model writes masks: OUTPUT/SPLIT/NAME.png for every image, with class numbers and the classes' colours,
and classes.csv. --window=slide moves windows of the model's size over large images, --flips averages mirror images:

    keras-vit predict --model=runs/streets --data=images:PHOTOS --output=masks --window=slide

A depth model writes depths: OUTPUT/SPLIT/NAME.png, 16 bits of millimetres, or NAME.npy, float32, if the depth is
relative or the model's largest one above 65.5 m.

A detector writes objects: Parquet files with a row for each (name, class, score, box in pixels; one row for an image
without any), and OUTPUT/_SPLIT_coco.json, COCO's results, with the image and category ids of the data's COCO file:

    keras-vit predict --model=runs/cells --data=boxes:CELLS --split=test --output=found --threshold=0.05

A model of objects with masks writes these, too: run lengths in the column mask, and as segmentation in COCO's results.

--tiles=640 finds small objects in large images by overlapping tiles of 640 pixels.

A MultiModel writes the answers of each part, or of those in --answers, into the folder OUTPUT/PART.

The same command resumes a job, with the same output bit for bit. --part=0/4, 1/4, 2/4 and 3/4 share the work of four
machines with one folder, such as a bucket. --strategy=mirrored runs on all devices of a machine. --engine=openvino is
faster on CPUs (docs/performance.md).

--beam runs an exported model (`export`) as an Apache Beam pipeline with these options, on a cluster or locally:

    keras-vit predict --model=exported --data=images:PHOTOS --output=answers --beam=--runner=DirectRunner
"""

import itertools
import os
import shlex

from . import flags, loading, shared_flags

# Flags that only some answers take, with their defaults.
_OF_ROWS = {"top_k": 5, "preprocess": None, "format": "parquet", "engine": None}
_OF_FILES = {"rows_per_file": 10_000}
_OF_MASKS = {"window": "whole", "flips": False}
_OF_OBJECTS = {**dict.fromkeys(shared_flags.FINDING), "tiles": None, "tile_overlap": 0.2}
_IGNORED = {
    "masks": _OF_ROWS | _OF_FILES | _OF_OBJECTS,
    "objects": _OF_ROWS | _OF_MASKS,
    "instances": _OF_ROWS | _OF_MASKS,
    "depth": _OF_ROWS | _OF_FILES | _OF_MASKS | _OF_OBJECTS,
}
_IGNORED_BY_ROWS = _OF_MASKS | _OF_OBJECTS
_OF_FOUND = ("objects", "instances")
_OF_ONE_IMAGE = {"masks": "mask", "depth": "depth map"}  # files with an answer for an image
_BATCH, _WINDOWS = 64, 8  # images of rows; windows of masks, images or tiles of objects


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


def _print(split, report, kind, folder):
    """Prints what was written and left out."""
    from keras_vit.io.suggest import counted

    (now, before, total), noun = report.files, _OF_ONE_IMAGE.get(kind)
    masks, rows = noun is not None, "object" if kind in _OF_FOUND else "row"
    what = counted(now, noun) if masks else f"{counted(report.rows, rows)} in {counted(now, 'file')}"
    parts = [f"{split}: wrote {what} of {total:,} to {folder}"]
    parts += [f"{before:,} existed already"] if before else []
    if report.broken:
        why = "" if masks else ': the column "error" says why'
        parts.append(f"{counted(len(report.broken), 'image')} cannot be read{why}")
    print(f"{'; '.join(parts)}.")
    if kind in _OF_FOUND and now + before == total:
        from keras_vit.inference.object_prediction import results_path

        print(f"{split}: COCO's results: {results_path(folder, split)}")


def _jobs(values, model):
    """[(model, the answers to write, folder)]: those of --answers, or else the model's own. A MultiModel has a job, and
    a folder in --output, for each part.

    Raises:
        ValueError: for answers that the model does not give, or that need files of their own beside others, and flags
            that would be ignored.
    """
    from keras_vit.answers import does

    own = [*(model.parts or model.answers or ("features",))]
    kinds = own if values.answers is None else _comma_separated(values.answers, "answers")
    valid = [*own, *(["logits"] if "classes" in own else []), *(["features"] if "features" not in own else [])]
    missing = [kind for kind in kinds if kind not in valid]
    if missing:
        raise ValueError(
            f"--answers={','.join(missing)}: {values.model} {does(model)}. Valid for this model: {', '.join(valid)}."
        )
    jobs = [(model, kinds, values.output)]
    if model.parts:
        folders = {kind: os.path.join(values.output, kind) for kind in kinds}
        jobs = [(model, ["features"], folders["features"])] if "features" in kinds else []
        jobs += [(part, list(part.answers), folders[kind]) for kind, part in model.parts.items() if kind in kinds]
    alone = [kind for _, kinds, _ in jobs for kind in kinds if kind in _WRITERS and len(kinds) > 1]
    if alone:
        raise ValueError(f"--answers={alone[0]} stands alone.")
    ignored = [set(_IGNORED.get(kinds[0], _IGNORED_BY_ROWS).items()) for _, kinds, _ in jobs]
    given = [name for name, default in set.intersection(*ignored) if getattr(values, name) != default]
    if given:
        raise ValueError(f"--{min(given)} would be ignored: it is not for --answers={','.join(kinds)}.")
    return jobs


def _options(values):
    """The flags of rows of answers, as arguments of `predict`."""
    names = ("top_k", "preprocess", "rows_per_file", "format")
    return {"batch_size": values.batch_size or _BATCH, **{name: getattr(values, name) for name in names}}


def _row_options(values):
    return {**_options(values), "engine": values.engine}


def _mask_options(values):
    return {"batch_size": values.batch_size or _WINDOWS, **shared_flags.windows(values)}


def _depth_options(values):
    return {"batch_size": values.batch_size or _WINDOWS}


def _object_options(values):
    few = {"batch_size": values.batch_size or _WINDOWS, "rows_per_file": values.rows_per_file}
    return {**few, **shared_flags.finding(values), **shared_flags.tiles(values)}


# {kind of answer: (function of keras_vit.inference that writes files of its own, its arguments from the flags)}, and
# what writes a row for each image.
_WRITERS = {
    "masks": ("predict_masks", _mask_options),
    "objects": ("predict_objects", _object_options),
    "instances": ("predict_objects", _object_options),
    "depth": ("predict_depths", _depth_options),
}
_WRITE_ROWS = ("predict", _row_options)


def _predict(values, splits):
    """Runs the model here; yields (split, report, the kind of answers, folder)."""
    from keras_vit import inference
    from keras_vit.data import open_source
    from keras_vit.data.sources.folder import folders_read_once
    from keras_vit.distribution import strategy as find_strategy
    from keras_vit.io.progress import stage

    part = _part(values.part)
    strategy = find_strategy(values.strategy, tpu=values.tpu, model_parallel=values.model_parallel)
    if strategy.hosts > 1:
        raise ValueError(
            "Give each process its share with --part=INDEX/COUNT and --strategy=one: a common strategy is not needed."
        )
    strategy.check_batch(values.batch_size or _BATCH)
    sources = {}
    with folders_read_once():
        for split in splits:
            with stage(f"Opening {values.data}, {split}"):
                sources[split] = open_source(values.data, split, values.data_dir)
    with strategy.scope(), stage(f"Loading {values.model}"):
        model = loading.load(values.model)
    jobs = _jobs(values, model)
    shared = {"part": part, "broken_limit": values.broken_limit}
    about = {"model": values.model, "data": values.data, "data_dir": values.data_dir}
    for (split, source), (model, kinds, folder) in itertools.product(sources.items(), jobs):
        with strategy.scope():
            function, options = _WRITERS.get(kinds[0], _WRITE_ROWS)
            options = {**options(values), **({} if kinds[0] in _WRITERS else {"kinds": kinds})}
            where = (model, source, folder)
            report = getattr(inference, function)(*where, split=split, about=about, **options, **shared)
        yield split, report, kinds[0], folder


def _predict_by_beam(values, splits):
    """Runs an export as a Beam pipeline; yields (split, report, the kind of answers, folder)."""
    loading.refuse("--beam runs an export")
    predict_by_beam = shared_flags.beam("keras_vit.inference.beam").predict_by_beam
    kinds = _comma_separated("classes" if values.answers is None else values.answers, "answers")
    where = (values.model, values.data, values.output, kinds)
    options = {**_options(values), "data_dir": values.data_dir, "options": shlex.split(values.beam)}
    for split in splits:
        yield split, predict_by_beam(*where, split=split, **options), kinds[0], values.output


def main():
    from keras_vit.io.atomic import check_folder
    from keras_vit.io.progress import shown

    values = flags.FLAGS
    splits = _comma_separated(values.split, "split")
    if values.answers is not None:
        _comma_separated(values.answers, "answers")
    check_folder(values.output)
    with shown():
        for written in (_predict if values.beam is None else _predict_by_beam)(values, splits):
            _print(*written)


def run():
    flags.string("model", None, "A run directory, a checkpoint of any format, or a published name.", required=True)
    flags.string(
        "data", None, "A folder, a table (.csv, .jsonl), TFRecords, or a tensorflow-datasets name.", required=True
    )
    flags.string("split", "train", "The split of --data, or several joined by commas; with slices: train[:1000].")
    flags.path("output", None, "The folder to write to; the splits of the same data can share one.", required=True)
    flags.string(
        "answers",
        None,
        "classes, logits, features, or several joined by commas; or masks, objects, instances or depth; by default"
        " what the model gives.",
    )
    flags.integer("top_k", _OF_ROWS["top_k"], "Classes per image, at most.", lowest=1)
    flags.enum("format", _OF_ROWS["format"], ["parquet", "tfrecord"], "The kind of the files.")
    rows = "Images in a file; for classes, logits and features rounded up to whole batches."
    flags.integer("rows_per_file", _OF_FILES["rows_per_file"], rows, lowest=1)
    flags.integer(
        "batch_size",
        None,
        f"Images per batch, over all devices; by default {_BATCH}, {_WINDOWS} (or tiles) for objects, and for masks"
        f" {_WINDOWS} windows.",
        lowest=1,
    )
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
    flags.only_with("top_k", "answers", lambda answers: answers is None or "classes" in answers, "--answers=classes")
    shared_flags.define_windows()
    shared_flags.define_finding()
    shared_flags.define_tiles()
    shared_flags.define_data_dir()
    shared_flags.define_strategy()
    shared_flags.define_beam()
    flags.only_with("engine", "strategy", lambda strategy: strategy == "one", "--strategy=one")
    here = ("part", "broken_limit", "strategy", "engine", "window", "flips")
    for name in (*here, *shared_flags.FINDING, *shared_flags.TILES):
        flags.only_with(name, "beam", lambda beam: beam is None, "work without --beam")
    flags.launch(main, resumes=True, loads=True)


if __name__ == "__main__":
    run()
