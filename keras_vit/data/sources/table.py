"""Tables of images and classes: "csv:PATH" with a header line, or "jsonl:PATH" with one object per line.

Columns: image path (image, path, file or filename), class (label or class) and, optionally, split (split).
"csv:PATH?image=photo&label=breed&split=fold" names others; "csv:PATH?labels=none" has no classes. Relative paths are
relative to the table's folder. Cells are separated by commas, semicolons, tabs or "|", whichever fits the header.

A column mask without a column of classes, or the column of the option mask=, contains the paths of masks (masks.py). A
column text or caption without a column of classes, or the column of text=, contains texts about the images.
"""

import collections
import os
import re
import unicodedata

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.data.sources.base import RandomAccess
from keras_vit.data.sources.classes_file import check_first_label, read_class_names, warn_about_names
from keras_vit.data.sources.image_files import source_of_files
from keras_vit.data.sources.mask_files import source_of_masks
from keras_vit.data.sources.mask_sample import check_mask_options, interpret_masks, report, sample_masks
from keras_vit.data.sources.mask_tables import find_table
from keras_vit.data.sources.repeated_images import image_numbers, real_paths, select_rows
from keras_vit.data.sources.stratified import stratified_slice
from keras_vit.data.sources.table_rows import columns, csv_rows, first_names, jsonl_rows
from keras_vit.data.splits import SPLITS, canonical, find_split, fixed_shuffle, split_name, take_slice
from keras_vit.io.logs import log_once
from keras_vit.io.paths import in_threads, locate, read_text, split_options
from keras_vit.io.progress import stage
from keras_vit.io.suggest import counted, did_you_mean, listed

_COLUMNS = {
    "image": ("image", "path", "file", "filename"),
    "label": ("label", "class"),
    "split": ("split",),
    "mask": ("mask", "mask_path", "segmentation"),
    "text": ("text", "caption"),
}
_OPTIONS = "image label split classes first_label labels mask text colors values ignore palette".split()
_MOST_CLASSES = 1_000_000
# pandas writes integers as 1.0 in a column with missing values.
_INTEGER = re.compile(r"[-+]?\d+(\.0*)?", re.ASCII)
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE | re.ASCII)
_LIST_CLASSES = "list them in labels.txt next to the table, or pass ?classes=FILE."
_MISSING = ("nan", "na", "n/a", "<na>", "null")  # missing values in other software

# All str except line, an int; "" without a label, mask or text.
Row = collections.namedtuple("Row", "image label split mask text line")


def _wanted(text, options):
    """Returns {"image", "label", "split": accepted column names} from the options.

    labels=none drops "label"; masks replace it by "mask", texts by "text" unless label= names its column.

    Raises:
        ValueError: if labels= is not "none", or is combined with label options.
    """
    if options["labels"] not in ("", "none"):
        raise ValueError(
            f'"{text}": labels={options["labels"]}: expected labels=none, for no classes. label= names a column.'
        )
    clash = [name for name in ("label", "classes", "first_label") if options["labels"] and options[name]]
    if clash:
        raise ValueError(
            f'"{text}": labels=none, for no classes, contradicts {clash[0]}={options[clash[0]]}: remove one of them.'
        )
    without = {kind for kind in ("mask", "text") if not options[kind]}
    if options["mask"] or options["labels"] or (options["text"] and not options["label"]):
        without.add("label")
    kinds = [kind for kind in _COLUMNS if kind not in without]
    return {kind: (options[kind],) if options[kind] else _COLUMNS[kind] for kind in kinds}


def _check_columns(path, wanted, header, found):
    """Raises ValueError if the header lacks a column."""
    for kind, valid in wanted.items():
        if kind not in found and (kind != "split" or valid != _COLUMNS["split"]):
            without = ' Images without classes are "?labels=none".' if kind == "label" else ""
            raise ValueError(
                f'"{path}": expected a column for the {kind}, {" or ".join(valid)}, in the first line, got {header}.'
                f' Name another column: "{path}?{kind}=COLUMN".{without}'
            )


def _text(value):
    """Converts text or a number to text, with 1.0 as 1; None for other values."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return None if isinstance(value, bool) or not isinstance(value, str | int | float) else str(value).strip()


def _read(kind, path, text, wanted):
    """Yields a table's Rows."""
    rows = list((csv_rows if kind == "csv" else jsonl_rows)(path, text, wanted))
    if not rows:
        raise ValueError(f'"{path}" has no rows.')
    # Lines of JSON may have different columns.
    header = list(dict.fromkeys(column for _, row in rows for column in row))
    found = columns(wanted, header)
    _check_columns(path, wanted, header, found)
    for line, row in rows:
        values = {which: _text(row.get(column)) for which, column in found.items()}
        for which, text in values.items():
            if which == "mask" and row.get(found[which]) in (None, ""):
                values[which] = ""  # an image without a mask
            elif not text or "\0" in text:
                expected = f'expected the {which} in column "{found[which]}", got {row.get(found[which])!r}'
                raise ValueError(f'"{path}", line {line}: {expected}.')
            elif "\n" in text and which in ("label", "split"):
                raise ValueError(
                    f'"{path}", line {line}: the {which} has several lines, from {text.splitlines()[0]!r}. Is a quote'
                    " open in an earlier line?"
                )
        label = unicodedata.normalize("NFC", values.get("label", ""))
        split, others = canonical(values.get("split", "train")), (values.get(which, "") for which in ("mask", "text"))
        yield Row(values["image"], label, split, *others, line)


def _check_names(path, rows):
    """Raises ValueError for labels that cannot be classes: missing, measurements, or numbers among names."""
    listed = f"If they are classes, {_LIST_CLASSES}"
    for row in rows:
        if row.label.lower() in _MISSING:
            raise ValueError(
                f'"{path}", line {row.line}: the label is missing ("{row.label}"). Remove rows without a class.'
                f" {listed}"
            )
    numbers = [row for row in rows if _NUMBER.fullmatch(row.label)]
    others = [row for row in rows if not _NUMBER.fullmatch(row.label)]
    if numbers and others:
        raise ValueError(
            f'"{path}": some labels are numbers ("{numbers[0].label}" in line {numbers[0].line}) and some are names '
            f'("{others[0].label}" in line {others[0].line}). {listed}'
        )
    if numbers:
        fraction = next(row.label for row in rows if not _INTEGER.fullmatch(row.label))
        raise ValueError(
            f'"{path}": the labels are numbers such as {fraction}, not classes. Regression needs a custom task:'
            f" docs/tasks.md. {listed}"
        )


def _check_spellings(path, rows, written):
    """Raises ValueError for integers that are written in two ways, such as 1 and 01, which would be one class."""
    spellings: dict[int, str] = {}
    for row, text in zip(rows, written):
        if (other := spellings.setdefault(int(text), text)) != text:
            raise ValueError(
                f'"{path}", line {row.line}: the labels "{text}" and "{other}" are one number. If they are one class,'
                f" write it in one way. If they are two, {_LIST_CLASSES}"
            )


def _of_numbers(path, rows, names, first):
    """Returns (labels from 0, class names) for integer labels that start at `first`."""
    written = [row.label.partition(".")[0] for row in rows]
    labels = [int(text) - first for text in written]
    _check_spellings(path, rows, written)
    low, top = min(labels), max(labels)
    if low < 0:
        row = rows[labels.index(low)]
        raise ValueError(
            f'"{path}", line {row.line}: expected a label from {first}, got {row.label}. Remove rows without a class.'
        )
    if names is None and top >= _MOST_CLASSES:
        raise ValueError(
            f'"{path}": expected integer labels as class numbers, got up to {top}. Use names, or 0, 1, 2...'
        )
    if names is None:
        names = tuple(str(i + first) for i in range(top + 1))
        if low == 1:
            text = '%s: no row has the label 0, so class 0 is empty. If the classes start at 1, add "?first_label=1".'
            log_once(logging.WARNING, text % path)
    if top >= len(names):
        row = rows[labels.index(top)]
        fix = (
            ' The labels start at 1: if the classes do, too, add "?first_label=1".'
            if low == 1 and top == len(names)
            else ""
        )
        raise ValueError(
            f'"{path}", line {row.line}: label "{row.label}" is not one of the {len(names)} classes:'
            f" {names[:5]}...{fix}"
        )
    return labels, names


def _numbered(path, rows, names, first_label):
    """Returns (integer labels, class names). Classes are the sorted text labels; integers are class numbers."""
    texts = [row.label for row in rows]
    if names is not None and not first_label and set(texts) <= set(names):
        pass  # names that look like numbers
    elif all(_INTEGER.fullmatch(text) for text in texts):
        labels, names = _of_numbers(path, rows, names, int(first_label or 0))
        return np.array(labels), names
    elif names is None:
        _check_names(path, rows)
        names = tuple(sorted(set(texts)))
    label_of = {name: i for i, name in enumerate(names)}
    unknown = next((row for row in rows if row.label not in label_of), None)
    if unknown:
        near = did_you_mean(unknown.label, names)
        raise ValueError(
            f'"{path}", line {unknown.line}: label "{unknown.label}" is not one of the {len(names)} classes:'
            f" {names[:5]}...{near}"
        )
    return np.array([label_of[text] for text in texts]), names


def _paths(folder, names):
    """Resolves the file names in a table."""
    windows = next((name for name in names if "\\" in name), None)
    if windows and not tf.io.gfile.exists(os.path.join(folder, windows)):
        names = [name.replace("\\", "/") for name in names]
    return [name if "://" in name else os.path.join(folder, name) for name in names]


def _names_in(folder, work):
    """Lists the names in a folder; none if it does not exist."""
    work.advance()
    try:
        return set(tf.io.gfile.listdir(folder or "."))
    except tf.errors.OpError:
        return set()


def _missing(paths, work):
    """Finds {missing path: file that differs only in case, or ""}. Lists folders instead of checking each file."""
    folders = sorted({os.path.dirname(path) for path in paths})
    names = dict(zip(folders, in_threads(lambda folder: _names_in(folder, work), folders)))
    doubtful = [path for path in dict.fromkeys(paths) if os.path.basename(path) not in names[os.path.dirname(path)]]
    gone = [path for path, exists in zip(doubtful, in_threads(tf.io.gfile.exists, doubtful)) if not exists]
    other_case = {
        folder: {name.casefold(): name for name in names[folder]} for folder in {os.path.dirname(path) for path in gone}
    }
    return {path: other_case[os.path.dirname(path)].get(os.path.basename(path).casefold(), "") for path in gone}


def _without_missing(table, paths, rows, work):
    """Returns the positions of rows with existing images; reports the others.

    Raises:
        FileNotFoundError: if none exists.
    """
    gone = _missing(paths, work)
    lost = [i for i, path in enumerate(paths) if path in gone]
    if not lost:
        return range(len(rows))
    first, line = paths[lost[0]], rows[lost[0]].line
    near = f' Did you mean "{gone[first]}"? Names are case-sensitive.' if gone[first] else ""
    if len(lost) == len(rows):
        raise FileNotFoundError(
            f'"{table}", line {line}: there is no file "{first}". Paths are relative to the folder of the table.{near}'
        )
    log_once(
        logging.WARNING,
        f'"{table}": ignored {counted(len(lost), "row")} of {len(rows):,} with missing files, such as "{first}" in'
        f" line {line}.{near}",
    )
    kept = set(range(len(rows))) - set(lost)
    return sorted(kept)


def _check_repeated(table, files, rows):
    """Warns about images in several rows; raises ValueError if their classes differ."""
    first, again, elsewhere = {}, [], []
    for file, row in zip(files, rows):
        known = first.setdefault(file, row)
        if known is row:
            continue
        if known.label != row.label:
            raise ValueError(
                f'"{table}", line {row.line}: the image "{row.image}" has the class "{row.label}" here but'
                f' "{known.label}" in line {known.line}. Expected one class per image.'
            )
        if known.split != row.split:
            elsewhere += [] if {known.split, row.split} <= set(SPLITS) else [row]
        elif not row.text:  # an image may have several texts
            again.append(row)
    what = {
        "in the same split; each row counts, and a slice has all rows of an image or none": again,
        "in another split": elsewhere,
    }
    for where, repeated in what.items():
        if repeated:
            text = f'"{table}": {counted(len(repeated), "row")} with an image of an earlier row'
            log_once(logging.WARNING, f"{text}, {where}. The first is line {repeated[0].line}: {repeated[0].image}.")


def _without_leaks(table, files, rows):
    """Returns the positions of the rows whose image has no row in a later one of SPLITS; reports the others."""
    last = {}
    for file, row in zip(files, rows):
        if row.split in SPLITS:
            last[file] = max(last.get(file, 0), SPLITS.index(row.split))
    leaks = [i for i, row in enumerate(rows) if row.split in SPLITS and SPLITS.index(row.split) < last[files[i]]]
    if leaks:
        row, split = rows[leaks[0]], SPLITS[last[files[leaks[0]]]]
        log_once(
            logging.WARNING,
            f'"{table}": ignored {counted(len(leaks), "row")} with an image that is evaluated too, such as'
            f' "{row.image}" in line {row.line}, of {row.split}: another row has it in {split}.',
        )
    return sorted(set(range(len(rows))) - set(leaks))


def _sliced(split, order, files):
    """Returns the rows of a slice of the images of the rows `order`, in a fixed random order of the images."""
    images, first = image_numbers([files[i] for i in order])
    return np.array(order)[select_rows(images, take_slice(split, fixed_shuffle(range(len(first)))))]


def _stratified(title, split, order, files, labels, names):
    """Returns the rows of a stratified slice of the images of the rows `order`."""
    images, first = image_numbers([files[i] for i in order])
    order = np.array(order)
    return order[select_rows(images, stratified_slice(title, split, labels[order[first]], names))]


def _masks(title, split, options, folder, rows, paths, files):
    """Makes a source of rows with masks; `paths` are their images, `files` these with links resolved."""
    path, asked = title.partition(":")[2], canonical(split_name(split))
    drawn = [i for i, row in enumerate(rows) if row.mask]
    if not drawn:
        raise ValueError(f'"{path}": no row has a mask.')
    masks = dict(zip(drawn, _paths(folder, [rows[i].mask for i in drawn])))
    empty = {name: sum(row.split == name and not row.mask for row in rows) for name in {row.split for row in rows}}

    def drawn_in(name):
        """Returns a split's rows with existing files."""
        rows_left = [i for i in drawn if rows[i].split == name]
        with stage(f"Looking for the images of {path}", unit="folders") as work:
            for needed in (paths, masks):
                kept = _without_missing(path, [needed[i] for i in rows_left], [rows[i] for i in rows_left], work)
                rows_left = [rows_left[i] for i in kept]
        return rows_left

    # All splits use the classes of train.
    known_by = "train" if any(rows[i].split == "train" for i in drawn) else asked
    chosen_rows, table = drawn_in(asked), find_table(folder, options["classes"], options["colors"])
    known = chosen_rows if known_by == asked else drawn_in(known_by)
    found = sample_masks([(paths[i], masks[i]) for i in known], table)
    meaning = interpret_masks(title, table, options, found)
    ignored = [f"{counted(empty[asked], 'image')} without a mask"] if empty[asked] else []
    report(f"{title}, {asked}", len(chosen_rows), known_by, meaning, ignored)
    chosen_rows = _sliced(split, chosen_rows, files)
    return source_of_masks(title, meaning.mapping, [(paths[i], masks[i]) for i in chosen_rows])


def _wanted_in(kind, text, options, contents):
    """`_wanted`; a table without classes has masks or texts if it has their column. Sets options["mask"] or "text"."""
    names, targets = first_names(kind, contents), ("mask", "text", "label", "labels", "first_label")
    if any(options[key] for key in targets) or names & set(_COLUMNS["label"]):
        return _wanted(text, options)
    found = [which for which in ("mask", "text") if names & set(_COLUMNS[which])][:1]
    options.update(zip(found, found))
    return _wanted(text, options) | {which: _COLUMNS[which] for which in found}


def _log_found(title, split, files, names):
    """Logs the number of images and classes, and warns about doubtful class names; `files` are those of the rows."""
    of_classes = f" of {counted(len(names), 'class')} ({listed(names)})" if names else ""
    images = len(set(files))
    of_rows = f" in {counted(len(files), 'row')}" if images < len(files) else ""
    log_once(logging.INFO, f"{title}, {split}: {counted(images, 'image')}{of_rows}{of_classes}.")
    warn_about_names(title, names)


def table(kind: str, text: str, split: str = "train", data_dir: str | None = None) -> RandomAccess:
    """Opens the rows of a split; without a split column, all rows are "train".

    Slices are of images, stratified (stratified.py): an image with several rows has all of them in a slice, or none.
    Rows of train whose image is in val or test are left out. Labels are class names, or numbers from 0 or the option
    first_label=; all splits share the classes. A file labels.txt next to the table, or the option classes= (a number of
    classes or another file), fixes the classes and their order. labels=none leaves the labels out. Rows with missing
    images are skipped with a warning. A column of masks or texts replaces the labels; the options colors=, values=,
    ignore= and palette= define the masks' values.

    Args:
        kind: str. "csv" or "jsonl".
        text: str. Path of the table, relative to `data_dir` if given, and options.
        split: str. A split, with or without a slice.
        data_dir: str. Base of a relative path.

    Raises:
        FileNotFoundError: if the table or all images are missing.
        ValueError: for rows without an image or label and invalid labels, with their line; for unknown splits and
            columns.
    """
    path, options = split_options(text, **dict.fromkeys(_OPTIONS, ""))
    check_first_label(text, options["first_label"])
    path, name = locate(path, data_dir), canonical(split_name(split))
    folder, title, contents = os.path.dirname(path), f"{kind}:{path}", read_text(path)
    wanted = _wanted_in(kind, text, options, contents)
    check_mask_options(text, options)
    rows, labels, names = list(_read(kind, path, contents, wanted)), None, ()
    if "label" in wanted:
        labels, names = _numbered(path, rows, read_class_names(folder, options["classes"]), options["first_label"])
    paths = _paths(folder, [row.image for row in rows])
    files = real_paths(paths)
    _check_repeated(path, files, rows)
    kept = _without_leaks(path, files, rows)
    if len(kept) < len(rows):
        rows, paths, files = ([values[i] for i in kept] for values in (rows, paths, files))
        labels = None if labels is None else labels[kept]
    find_split(f'"{path}"', split, dict.fromkeys(row.split for row in rows))
    if options["mask"]:
        return _masks(title, split, options, folder, rows, paths, files)
    order = [i for i, row in enumerate(rows) if row.split == name]
    with stage(f"Looking for the images of {path}", unit="folders") as work:
        kept_rows = _without_missing(path, [paths[i] for i in order], [rows[i] for i in order], work)
        order = [order[i] for i in kept_rows]
    _log_found(title, name, [files[i] for i in order], names)
    if labels is None:
        order = _sliced(split, order, files)
    else:
        order = _stratified(title, split, order, files, labels, names)
    files, labels = [paths[i] for i in order], None if labels is None else labels[order]
    if "text" not in wanted:
        return source_of_files(title, names, labels, files)
    texts = tf.constant([rows[i].text for i in order], tf.string)
    return source_of_files(title, names, labels, files, {"text": lambda i: texts[i]})
