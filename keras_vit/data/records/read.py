"""TFRecord files of tf.train.Example: "tfrecord:FOLDER", written by keras-vit prepare, or "tfrecord:GLOB", any others.

An example has the image's bytes under image/encoded and its integer label under image/class/label, or under other keys:
"tfrecord:GLOB?image=KEY&label=KEY&first_label=1&classes=names.txt". A dataset.json next to the files describes them, so
opening reads no records. It, or else "?mask=KEY" or "?text=KEY", may declare class masks or texts instead of labels.
Others' records of objects show by their keys (object_records.py); "?boxes=PREFIX&labels=KEY" names other keys. Their
splits may be folders, as Roboflow writes them: train/cells.tfrecord, valid/cells.tfrecord.
"""

import dataclasses
import fnmatch
import os
import re
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from google.protobuf.message import DecodeError

from keras_vit.data.errors import DESCRIBED_WRONGLY, reason
from keras_vit.data.mapping import EXAMPLES
from keras_vit.data.records.description import (
    FEATURES,
    FEATURES_OF_BOXES,
    FEATURES_OF_MASKS,
    FEATURES_OF_TEXTS,
    NAME,
    Description,
    read_description,
)
from keras_vit.data.records.index import FRAME, record_counts
from keras_vit.data.records.label_map import check_same_names, with_label_map
from keras_vit.data.records.object_records import count_objects, has_objects, names_of_objects, object_parser
from keras_vit.data.sources.base import Records
from keras_vit.data.sources.classes_file import check_first_label, read_class_names
from keras_vit.data.sources.image_files import in_known_format
from keras_vit.data.sources.mask_files import identity_mapping, records_of_masks
from keras_vit.data.sources.mask_sample import MEANINGS, check_mask_options, with_class_masks
from keras_vit.data.sources.mask_tables import find_table
from keras_vit.data.splits import SPLITS, canonical, split_name, split_range
from keras_vit.io.cache import cached_answer
from keras_vit.io.logs import log_once
from keras_vit.io.paths import THREADS, in_threads, locate, split_options
from keras_vit.io.suggest import listed

_WILDCARD = re.compile(r"[*?\[]")
_SHARD = re.compile(r"(?P<base>.*)-(?P<number>\d+)-of-(?P<count>\d+)[^/]*")
_KEYS = ("image", "label", "first_label", "mask", "text", "boxes", "labels")  # options
_OTHER_FILES = (".txt", ".json", ".partial", ".csv", ".md", ".pbtxt", ".yaml")  # may be next to records


def _matching(pattern):
    """Lists the files that a glob matches, sorted, without hidden files and other formats."""
    folder, names = os.path.split(pattern)
    if tf.io.gfile.isdir(folder):  # its name may look like a glob
        paths = [os.path.join(folder, name) for name in fnmatch.filter(tf.io.gfile.listdir(folder), names)]
    else:
        paths = tf.io.gfile.glob(pattern)
    return [
        path for path in sorted(paths) if os.path.basename(path)[0] != "." and not path.lower().endswith(_OTHER_FILES)
    ]


def _in_splits(folder):
    """Lists the files of records in the folders train, valid and test, as Roboflow writes them."""
    if not tf.io.gfile.isdir(folder):
        return []
    inner = [name.rstrip("/") for name in sorted(tf.io.gfile.listdir(folder))]
    found = (path for name in inner if canonical(name) in SPLITS for path in _matching(os.path.join(folder, name, "*")))
    return [path for path in found if not tf.io.gfile.isdir(path)]


def _by_split(files, asked):
    """Assigns files to splits: by their folders if these are several splits, or else by words in their names, such as
    train-00000-of-01024; all "train" without any.
    """
    folders = {path: canonical(os.path.basename(os.path.dirname(path))) for path in files}
    if len(set(folders.values())) > 1 and set(folders.values()) <= set(SPLITS):
        words = {path: {folder} for path, folder in folders.items()}
    else:
        words = {
            path: {canonical(word) for word in re.split(r"[^A-Za-z0-9]+", os.path.basename(path))} for path in files
        }
    named = {split: [path for path in files if split in words[path]] for split in (*SPLITS, asked)}
    return {split: paths for split, paths in named.items() if paths} or {"train": files}


def _check_all_shards(files):
    """Raises FileNotFoundError if a numbered set such as train-00000-of-00003 is incomplete."""
    shards = {path: _SHARD.fullmatch(path) for path in files}
    for base, count in sorted({(match["base"], match["count"]) for match in shards.values() if match}):
        present = {
            match["number"] for match in shards.values() if match and (match["base"], match["count"]) == (base, count)
        }
        numbers = (str(i).zfill(len(count)) for i in range(int(count)))
        missing = [f"{base}-{number}-of-{count}" for number in numbers if number not in present]
        if missing:
            raise FileNotFoundError(
                f"{len(missing)} of {int(count)} files are missing: {listed(missing, 3)}. To read only the existing"
                f' files, use a glob: "tfrecord:{base}-*".'
            )


def _first_record(path):
    """Returns the keys of a file's first record."""
    try:
        for record in tf.data.TFRecordDataset(path).take(1).as_numpy_iterator():
            return sorted(tf.train.Example.FromString(record).features.feature)
    except (tf.errors.OpError, DecodeError) as error:
        raise ValueError(f'"{path}" is not a TFRecord file of tf.train.Examples: {reason(error)}') from None
    raise ValueError(f'"{path}" has no records.')


def _damaged(files):
    """Finds the first damaged file: (path, reason), or None."""
    for path in files:
        try:
            for _ in tf.data.TFRecordDataset(path):
                pass
        except tf.errors.OpError as error:
            return path, reason(error)
    return None


def _range_of_labels(files, key):
    """Finds the smallest and largest label; reads all records once."""
    logging.info(
        "Reading the labels of %d files, once. A labels.txt next to them, or classes=NUMBER, would avoid this.",
        len(files),
    )

    def extremes():
        feature = {key: tf.io.FixedLenFeature((), tf.int64)}
        records = tf.data.TFRecordDataset(files, num_parallel_reads=THREADS)
        labels = records.map(
            lambda record: tf.io.parse_single_example(record, feature)[key], num_parallel_calls=EXAMPLES
        )
        try:
            limits = np.iinfo("int64")
            found = labels.reduce(
                (limits.max, limits.min), lambda old, n: (tf.minimum(old[0], n), tf.maximum(old[1], n))
            )
            return [int(number) for number in found]
        except tf.errors.OpError as error:
            path, why = _damaged(files) or (files[0], reason(error))
            raise ValueError(f'"{path}" is damaged: {why}. Copy or write it again.') from None

    return cached_answer(f"range of {key}", files, extremes)


def _numbers_as_names(pattern, files, key, first):
    """Returns class names "0", "1", ... up to the largest label; `first` is the first class's label.

    Raises:
        ValueError: for labels below the first.
    """
    low, high = _range_of_labels(files, key)
    if low < first:
        raise ValueError(
            f'The files "{pattern}" have the label {low}; expected at least {first}. Remove records without a class, or'
            ' specify the first class\'s label: "?first_label=NUMBER".'
        )
    if low == 1 > first:
        text = '%s: no record has the label 0, so class 0 is empty. If the classes start at 1, add "?first_label=1".'
        log_once(logging.WARNING, text % pattern)
    return tuple(str(i) for i in range(high - first + 1))


def _describe_objects(pattern, splits, split, options, features):
    """The Description of others' files with boxes, with classes numbered from 1 unless first_label says otherwise."""
    first = int(options["first_label"] or 1)
    names = read_class_names(os.path.dirname(pattern), options["classes"])
    found = count_objects(pattern, splits[split], features)
    if names is None:
        known = splits.get("train", splits[split])  # all splits have its classes
        theirs = with_label_map(count_objects(pattern, known, features), known)
        check_same_names(pattern, theirs, with_label_map(found, splits[split]))
        names = names_of_objects(pattern, theirs, first)
    counts = dict(zip(splits[split], record_counts(splits[split])))
    return Description(pattern, names, features, first, {split: counts}, most_objects={split: found["most"]})


def _describe(pattern, files, split, options):
    """Makes the Description of files without a dataset.json; counts only the records of `split`.

    Raises:
        ValueError: if no file belongs to the split, or the first record lacks the keys.
    """
    splits = _by_split(files, split)
    if split not in splits:
        raise ValueError(f'The names of the files "{pattern}" have no split "{split}". Valid: {", ".join(splits)}.')
    usual = FEATURES_OF_MASKS if options["mask"] else FEATURES_OF_TEXTS if options["text"] else FEATURES
    features = {kind: options[kind] or key for kind, key in usual.items()}
    keys = _first_record(splits[split][0])
    of_boxes = {kind: options[kind] or key for kind, key in FEATURES_OF_BOXES.items()}
    named = options["boxes"] or options["labels"]
    if named or usual is FEATURES and features["label"] not in keys and has_objects(keys, of_boxes):
        return _describe_objects(pattern, splits, split, options, of_boxes)
    for kind, key in features.items():
        if key not in keys:
            raise ValueError(
                f'"{splits[split][0]}" has no "{key}" in its first record, only {keys}. Write "{pattern}?{kind}=KEY".'
            )
    first = int(options["first_label"] or 0)
    names = read_class_names(os.path.dirname(pattern), options["classes"]) if usual is FEATURES else ()
    if names is None:
        names = _numbers_as_names(pattern, files, features["label"], first)
    counts = record_counts(splits[split])
    return Description(pattern, names, features, first, {split: dict(zip(splits[split], counts))})


def _check_sizes(counts, description):
    """Raises ValueError if a file of {path: records} has changed in length. Opens no file."""
    for path, stat in zip(counts, in_threads(tf.io.gfile.stat, counts)):
        size, least = description.bytes.get(os.path.basename(path)), counts[path] * FRAME
        if stat.length < least or size not in (None, stat.length):
            expected = f"{least:,} or more" if size is None else f"{size:,}"
            raise ValueError(
                f'"{path}" has {stat.length:,} bytes; expected {expected} by {NAME}. Copy or write it again.'
            )


def _described(description, pattern, files, split):
    """Returns {path: records} of the files of `split` that match the pattern, as listed in dataset.json.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: for an unknown split, or a file that has changed in length.
    """
    name = description.match_split(split)
    if name is None:
        raise ValueError(f'"{pattern}" has no split "{split}". Valid: {", ".join(description.splits)}.')
    folder, names = os.path.split(pattern)
    named = {os.path.join(folder, name): n for name, n in description.splits[name].items()}
    wanted = {path: n for path, n in named.items() if fnmatch.fnmatch(os.path.basename(path), names)}
    existing = set(files)
    missing = [path for path in wanted if path not in existing]
    if missing or not wanted:
        what = (
            f"{len(missing)} of {len(wanted)} files are missing: {missing[:3]}"
            if wanted
            else "no file of the split matches"
        )
        raise FileNotFoundError(f'"{pattern}", split "{split}": {what}. {NAME} lists {len(named)} files.')
    _check_sizes(wanted, description)
    return wanted


def _cut(counts, start, stop):
    """Returns (path, records to skip, records to take) of each file with records from `start` to `stop`."""
    parts, before = [], 0
    for path, count in counts.items():
        skip, end = max(start - before, 0), min(stop - before, count)
        if skip < end:
            parts.append((path, skip, end - skip))
        before += count
    return tuple(parts)


_FEATURES = {
    "image": tf.io.FixedLenFeature((), tf.string),
    "label": tf.io.FixedLenFeature((), tf.int64),
    "mask": tf.io.FixedLenFeature((), tf.string),
    "text": tf.io.FixedLenSequenceFeature((), tf.string, allow_missing=True),  # a record may have several
}


def _parser(features, kind):
    """Returns a function from a record to {"image", kind}, as stored; `features` are the keys."""
    keys = {name: features[name] for name in ("image", kind)}
    expected = {key: _FEATURES[name] for name, key in keys.items()}

    def parse(record):
        example = tf.io.parse_single_example(record, expected)
        return {"image": in_known_format(example[keys["image"]]), kind: example[keys[kind]]}

    return parse


def _label_parser(features, first, classes):
    """Returns a function from a record to {image, label from 0}. A label outside the classes fails the whole source."""
    parse = _parser(features, "label")
    what = f"{DESCRIBED_WRONGLY} it has {classes} classes from {first} to {first + classes - 1}, and the label"
    fix = (
        'here. If the classes start at 1, add "?first_label=1"; classes= sets their number. In dataset.json, change'
        " first_label and class_names."
    )

    def parse_label(record):
        example = parse(record)
        number = example["label"] - first
        valid = (number >= 0) & (number < classes)
        with tf.control_dependencies([tf.debugging.Assert(valid, [what, example["label"], fix])]):
            return {"image": example["image"], "label": tf.identity(number)}

    return parse_label


def _train_records(source, pattern, files, options):
    """Returns the records of train, whose masks define the classes, or the source itself without a train."""
    if "train" not in _by_split(files, "train"):
        return source
    counts = _describe(pattern, files, "train", options).splits["train"]
    return dataclasses.replace(source, files=_cut(counts, 0, sum(counts.values())))


def _written_description(text, folder, options):
    """The folder's dataset.json, or None; ValueError for options that it defines."""
    several = _WILDCARD.search(folder) and not tf.io.gfile.isdir(folder)
    description = None if several else read_description(folder)
    conflicting = [key for key, value in options.items() if value]
    if description is not None and conflicting:
        raise ValueError(
            f'"{text}": remove the options {", ".join(conflicting)}, which {NAME} in "{folder}" already defines.'
        )
    return description


def tfrecord(text: str, split: str = "train", data_dir: str | None = None, buffer: int = 10_000) -> Records:
    """Opens a split of TFRecord files.

    Without a dataset.json, file names give the split ("train-00000-of-01024"), records are counted once and the counts
    cached, and class names come from labels.txt next to the files or classes=FILE, else "0", "1", ... With mask=KEY
    examples have masks instead of labels, with the options of data/sources/masks.py for their values; with text=KEY
    texts, of which a record may have several.

    Args:
        text: str. A folder or a glob, relative to `data_dir` if given, with options.
        split: str. A split, or a slice of its records in file order.
        data_dir: str. Base of a relative path.
        buffer: int. Size of the shuffle buffer, in records.

    Raises:
        FileNotFoundError: if there are no such files, or a numbered set is incomplete.
        ValueError: if they lack the split or the keys, are damaged, or are not TFRecord files.
    """
    path, options = split_options(text, **dict.fromkeys((*_KEYS, *MEANINGS), ""))
    check_mask_options(text, options)
    check_first_label(text, options["first_label"])
    pattern, name = locate(path, data_dir), canonical(split_name(split))
    files_only = not tf.io.gfile.isdir(pattern)
    pattern = pattern if files_only else os.path.join(pattern, "*")
    files = _matching(pattern)
    files = (
        files
        if files_only
        else [path for path in files if not tf.io.gfile.isdir(path)] or _in_splits(os.path.dirname(pattern))
    )
    if not files:
        raise FileNotFoundError(f'No file matches "{pattern}". Expected a folder of TFRecord files, or a glob.')
    description = _written_description(text, os.path.dirname(pattern), options)
    if description is not None:
        counts = _described(description, pattern, files, split_name(split))
    else:
        if not files_only:
            _check_all_shards(files)
        description = _describe(pattern, files, name, options)
        counts = description.splits[name]
    parts = _cut(counts, *split_range(split, sum(counts.values())))
    title, features, class_names = f"tfrecord:{path}", description.features, description.class_names
    if "mask" in features:
        source = Records(title, (), parts, _parser(features, "mask"), buffer)
        if not options["mask"]:
            return records_of_masks(source, identity_mapping(class_names, description.colors))
        table = find_table(os.path.dirname(pattern), options["classes"], options["colors"])
        return with_class_masks(source, _train_records(source, pattern, files, options), table, options)
    if "text" in features:
        return Records(title, (), parts, _parser(features, "text"), buffer)
    objects: dict[str, Any] = {}
    if "boxes" in features:
        most = (description.most_objects or {}).get(description.match_split(split_name(split)))
        objects = {"most_objects": most, "outlined": "masks" in features, "stuff": tuple(description.stuff or ())}
        parse = object_parser(features, description.first_label, len(class_names))
    else:
        parse = _label_parser(features, description.first_label, len(class_names))
    return Records(title, class_names, parts, parse, buffer, **objects)
