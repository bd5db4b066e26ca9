"""Finds the meaning of masks' values from a sample, and reports it in one line."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.data.sources.base import Records
from keras_vit.data.sources.mask_files import Mapping, records_of_masks, value_text
from keras_vit.data.sources.mask_palettes import Reading, convert_counts, find_reading
from keras_vit.data.sources.mask_tables import Table
from keras_vit.data.sources.mask_values import (
    STORED,
    UNCLEAR,
    UPRIGHT,
    Found,
    count_encoded,
    count_values,
    find_mapping,
    ignored_values,
    shares,
    wrong_values,
)
from keras_vit.data.splits import spread
from keras_vit.io.cache import cached_answer
from keras_vit.io.logs import log_once
from keras_vit.io.paths import in_threads
from keras_vit.io.progress import stage
from keras_vit.io.suggest import counted, listed

MEANINGS = ("classes", "colors", "values", "ignore", "palette")  # options that define the meaning of values
SAMPLE = 100  # masks to inspect if the classes are known
_MOST = 2000  # masks to inspect to find the classes
_SHOWN = 30  # classes to report with their share


def _found(names, results, complete):
    """Makes a Found from names and results, each ((stored value, pixels)..., palette, turned) or why it failed."""
    by_name = dict(zip(names, results))
    failed = {name: result for name, result in by_name.items() if isinstance(result, str)}
    good = {name: result for name, result in by_name.items() if name not in failed}
    counts = {name: dict(counts) for name, (counts, *_) in good.items()}
    palettes = {name: palette for name, (_, palette, _) in good.items() if palette is not None}
    return Found(counts, failed, complete, palettes, {name: row[-1] for name, row in good.items() if row[-1]})


def sample_masks(pairs: Sequence[tuple[str, str]], table: Table | None) -> Found:
    """Counts values in a sample of (image path, mask path) pairs; without a table in all, up to a limit."""
    sample = spread(pairs, SAMPLE if table is not None else _MOST)
    with_colors = table is not None and table.colors is not None

    def count():
        with stage("Reading masks", len(sample), "masks") as work:

            def one(pair):
                result = count_values(*pair, with_colors)
                work.advance()
                return result

            return [one(sample[0]), *in_threads(one, sample[1:])]  # the first call traces, so it precedes the threads

    files = [path for pair in sample for path in pair]
    results = cached_answer(f"values, palettes and turns of masks, colors={with_colors}", files, count)
    return _found([mask for _, mask in sample], results, len(sample) == len(pairs))


def sample_records(source: Records, table: Table | None) -> Found:
    """Counts values in the first masks of a source of records; in more masks without a table.

    Args:
        source: Records. Its examples have a "mask", encoded or integers.
        table: Table of classes, or None.
    """
    most, with_colors = SAMPLE if table is not None else _MOST, table is not None and table.colors is not None

    def one(mask):
        if isinstance(mask, bytes):
            return count_encoded(tf.constant(mask), with_colors)
        values, counts = np.unique(mask, return_counts=True)
        return [list(zip(values.tolist(), counts.tolist())), None, ""]

    def count():
        with stage(f"Reading masks of {source.name}"):
            masks = source.ordered().map(tf.autograph.experimental.do_not_convert(lambda example: example["mask"]))
            return [one(mask) for mask in masks.take(most).as_numpy_iterator()]

    results = cached_answer(
        f"values, palettes and turns of masks, {source.name}, colors={with_colors}", [f[0] for f in source.files], count
    )
    return _found([f"record {i}" for i in range(len(results))], results, len(results) == source.size)


def _values(text):
    """Parses the option values= into integers; None for ""."""
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isdecimal() for part in parts) or len(set(parts)) < len(parts):
        raise ValueError(f"values={text}: expected distinct stored values in class order, such as 0,7,8,11.")
    return [int(part) for part in parts] or None


def check_mask_options(text: str, options: dict[str, str]) -> None:
    """Raises ValueError for label options combined with mask=, and for mask options without it.

    Args:
        text: str. The source.
        options: dict. Its options.
    """
    others = ("label", "first_label", "labels") if options["mask"] else MEANINGS[1:]
    conflicting = [f"{key}={options[key]}" for key in others if options.get(key)]
    if conflicting:
        problem = "is for labels, but mask= selects masks" if options["mask"] else "needs a column of masks"
        raise ValueError(f'"{text}": {conflicting[0]} {problem}. Examples have either labels or masks.')


def _check_usable(title, mapping, found):
    """Warns about unusable masks in the sample.

    Raises:
        ValueError: if most are unusable.
    """
    wrong = found.failed | wrong_values(mapping, found)
    if not wrong:
        return
    path, why = next(iter(wrong.items()))
    total = len(found.counts) + len(found.failed)
    text = f'{title}: {len(wrong)} of {counted(total, "mask")} cannot be used, such as "{path}": {why}.'
    if 2 * len(wrong) > total:
        raise ValueError(
            f"{text} Expected {mapping.expected()}; specify other values with classes=, colors=, values= or ignore=."
        )
    log_once(logging.WARNING, text)


@dataclasses.dataclass(frozen=True)
class Meaning:
    """The meaning of a source's masks.

    Attributes:
        mapping: Mapping. Classes of stored values.
        found: Found. Values of the sampled masks, as the mapping has them.
        table: Table or None. The classes, if a file or the data set names them.
        note: str. What to report about palettes.
    """

    mapping: Mapping
    found: Found
    table: Table | None
    note: str


def _with_reading(mapping, reading: Reading):
    """Returns the Mapping with how palettes are read."""
    void = reading.void - mapping.classes.keys()
    return dataclasses.replace(
        mapping, palettes=reading.palettes, palette=reading.palette, ignored=mapping.ignored | void
    )


def _as_stored(title, found):
    """Reports images that EXIF data turns; returns whether masks belong to stored pixels where sizes do not tell."""
    of = {
        kind: [path for path, turned in found.turned.items() if turned == kind] for kind in (STORED, UPRIGHT, UNCLEAR)
    }
    as_stored = bool(of[STORED]) and not of[UPRIGHT]
    turned = of[STORED] + (of[UNCLEAR] if as_stored else [])
    if turned:
        log_once(
            logging.WARNING,
            f'{title}: {counted(len(turned), "mask")}, such as "{turned[0]}", have the stored pixels of an image that'
            " EXIF data turns, and are turned with it.",
        )
    if of[UNCLEAR] and not as_stored and not (of[UPRIGHT] and not of[STORED]):
        log_once(
            logging.WARNING,
            f"{title}: EXIF data turns or mirrors the images of {counted(len(of[UNCLEAR]), 'mask')} without changing"
            f' their size, such as that of "{of[UNCLEAR][0]}". The masks are used for the upright images; if they were'
            " drawn on the stored pixels, remove the EXIF data.",
        )
    return as_stored


def interpret_masks(
    title: str, table: Table | None, options: dict[str, str], found: Found, zero_is_void: bool = False
) -> Meaning:
    """Returns the Meaning of masks with the values `found`, and warns about unusable masks.

    Args:
        title: str. Name of the source.
        table: Table of classes, or None.
        options: dict. The options values, ignore and palette.
        found: Found. Values of the sampled masks.
        zero_is_void: bool. See `find_mapping`.

    Raises:
        ValueError: if most masks are unusable, or the meaning of values or palettes is unclear.
    """
    if not found.counts:
        bad, why = next(iter(found.failed.items()))
        raise ValueError(f'{title}: none of {counted(len(found.failed), "mask")} can be used, such as "{bad}": {why}')
    reading = find_reading(found, table, ignored_values(options["ignore"]), options["palette"])
    table, found = reading.table, convert_counts(found, reading)
    mapping = find_mapping(table, _values(options["values"]), options["ignore"], zero_is_void, found)
    mapping = dataclasses.replace(_with_reading(mapping, reading), as_stored=_as_stored(title, found))
    _check_usable(title, mapping, found)
    return Meaning(mapping, found, table, reading.note)


def _shown(values):
    return listed([value_text(value) for value in sorted(values)], 12)


def report(title: str, count: int, where: str, meaning: Meaning, ignored: Sequence[str] = (), doubt: str = "") -> None:
    """Logs one line about the masks' values; warns if files were ignored.

    Args:
        title: str. Name of the source, with its split.
        count: int. Number of images.
        where: str. Split of the sampled masks, such as "train".
        meaning: Meaning. Of the masks.
        ignored: sequence of str. Descriptions of ignored files.
        doubt: str. A further clause to warn with.
    """
    mapping, found = meaning.mapping, meaning.found
    part, void = shares(mapping, found)
    order = sorted(range(len(part)), key=lambda i: -part[i])
    shown = [f"{mapping.names[i]} {part[i]:.1%}" for i in order]
    looked = len(found.counts) + len(found.failed)
    of = f"{'all masks' if found.complete else counted(looked, 'mask')} of {where}"
    text = (
        f"{title}: {counted(count, 'image')} with masks of {counted(len(mapping.names), 'class')}; share of pixels in"
        f" {of}: {listed(shown, _SHOWN)}"
    )
    values = [value_text(value) for value in sorted(mapping.ignored) if value in found.values]
    text += f"; void {void:.1%} (stored as {', '.join(values)})" if values else "; no void"
    second = next((value for value in mapping.classes if value == 255 and mapping.classes[value]), None)
    text += f"; {second} is the class {mapping.names[1]}: ?ignore={second} makes it void" if second else ""
    if mapping.names[0].strip("_").lower() == "background":
        text += f"; {mapping.names[0]} is a class: ?ignore=0 makes it void"
    if meaning.table is None:
        text += f"; without a file of class names the values {_shown(mapping.classes)} are the classes"
        text += "" if values else ": ?ignore=VALUE makes one void"
    text += f"; {meaning.note}" if meaning.note else ""
    text += f"; {doubt}" if doubt else ""
    text += f"; ignored: {', '.join(ignored)}" if ignored else ""
    log_once(logging.WARNING if ignored or doubt or meaning.note else logging.INFO, f"{text}.")


def with_class_masks(source: Records, known: Records, table: Table | None, options: dict[str, str]) -> Records:
    """Maps a source's stored masks to classes, and logs the report.

    Args:
        source: Records. Its examples have stored masks.
        known: Records. The split that defines the classes: train, or `source` itself.
        table: Table of classes, or None.
        options: dict. The options values, ignore and palette.
    """
    meaning = interpret_masks(source.name, table, options, sample_records(known, table))
    report(source.name, source.size, "train" if known is not source else "these", meaning)
    return records_of_masks(source, meaning.mapping)
