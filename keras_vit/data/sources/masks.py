"""Images with a mask of classes each, in folders: "masks:PATH". The mask has a class number for every pixel, or void.

Names of folders and files pair images with masks (mask_pairs.py); a file of classes, or the values found, say what the
values of masks stand for (mask_values.py). "masks:PATH?images=photos&masks=drawn" names the folders; further options:

    suffix   what names of masks end in, such as _mask
    classes  a file of class names, or their number
    colors   a file of colours and names, for RGB masks
    values   the classes' stored values in order, such as 0,7,8,11
    ignore   stored values, colours (#000000) or names of what is void; none

Masks handed out hold class numbers from 0 in the order of `class_names`, and `void` (io/void.py).
"""

import os
import random
from collections.abc import Sequence

from absl import logging

from keras_vit.data.sources.base import RandomAccess
from keras_vit.data.sources.folder import check_folder
from keras_vit.data.sources.mask_files import Mapping, source_of_masks, value_text
from keras_vit.data.sources.mask_pairs import find_pairs
from keras_vit.data.sources.mask_tables import Table, cityscapes, find_table, voc
from keras_vit.data.sources.mask_values import Found, count_values, find_mapping, shares, wrong_values
from keras_vit.data.splits import SPLITS, MissingSplit, canonical, split_name, split_range
from keras_vit.io.cache import cached_answer
from keras_vit.io.logs import log_once
from keras_vit.io.paths import in_threads, locate, split_options
from keras_vit.io.progress import stage
from keras_vit.io.suggest import counted, listed

OPTIONS = ("images", "masks", "suffix", "classes", "colors", "values", "ignore")
_SAMPLE = 100  # masks looked at when the classes are known
_MOST = 2000  # masks looked at to find the classes
_SHOWN = 30  # classes with their share in the report


def _spread(items, most):
    """At most so many items, evenly spaced."""
    return items if len(items) <= most else [items[i * len(items) // most] for i in range(most)]


def look(pairs: Sequence[tuple[str, str]], table: Table | None) -> Found:
    """What a sample of the masks of (image path, mask path) holds; all masks, up to a limit, if there is no table."""
    sample = _spread(pairs, _SAMPLE if table is not None else _MOST)
    with_colors = table is not None and table.colors is not None

    def count():
        with stage("Looking into masks", len(sample), "masks") as work:

            def one(pair):
                result = count_values(*pair, with_colors)
                work.advance()
                return list(result.items()) if isinstance(result, dict) else result

            return [one(sample[0]), *in_threads(one, sample[1:])]  # the first traces, before the threads

    files = [path for pair in sample for path in pair]
    answer = cached_answer(f"values of masks, colors={with_colors}", files, count)
    results = {mask: result for (_, mask), result in zip(sample, answer)}
    failed = {path: result for path, result in results.items() if isinstance(result, str)}
    counts = {path: dict(result) for path, result in results.items() if path not in failed}
    return Found(counts, failed, len(sample) == len(pairs))


def _built_in(parts, masks):
    """The Table of a well-known data set, by its folders' and files' names; None for others."""
    stems = [os.path.splitext(os.path.basename(path))[0] for path in masks]
    if "gtfine" in parts or any(stem.endswith(("_gtFine_labelIds", "_gtFine_labelTrainIds")) for stem in stems[:1]):
        return cityscapes(stems[0].endswith("TrainIds"))
    is_voc = "segmentationclass" in parts and all(stem[:4].isdecimal() and stem[4:5] == "_" for stem in stems[:10])
    return voc() if is_voc else None


def _values(text):
    """The option values= as integers; None for ""."""
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isdecimal() for part in parts) or len(set(parts)) < len(parts):
        raise ValueError(f"values={text}: expected different stored values in the order of the classes: 0,7,8,11.")
    return [int(part) for part in parts] or None


def _ignored_by_layout(parts, table, ignore):
    """(ignore, is 0 void): the option, or what the data set's own layout says."""
    if ignore or table is None:
        return ignore, False
    if os.path.basename(table.path) == "objectInfo150.txt":
        return "", True
    # SegNet's copies of CamVid number void after the classes.
    return (str(len(table.names)), False) if any(part.endswith("annot") for part in parts) else ("", False)


def _report(title, split, pairs, known_by, mapping: Mapping, found: Found, table: Table | None):
    """Reports in one line what was found; warns if some of it cannot be used."""
    part, void = shares(mapping, found)
    order = sorted(range(len(part)), key=lambda i: -part[i])
    shown = [f"{mapping.names[i]} {part[i]:.1%}" for i in order]
    looked = len(found.counts) + len(found.failed)
    of = f"{'all masks' if found.complete else counted(looked, 'mask')} of {known_by}"
    text = (
        f"{title}, {split}: {counted(len(pairs.splits[split]), 'image')} with masks of"
        f" {counted(len(mapping.names), 'class')}; by the pixels of {of}: {listed(shown, _SHOWN)}"
    )
    values = [value_text(value) for value in sorted(mapping.ignored) if value in found.values]
    text += f"; void {void:.1%} (stored as {', '.join(values)})" if values else "; no void"
    second = next((value for value in mapping.classes if value == 255 and mapping.classes[value]), None)
    text += f"; {second} is the class {mapping.names[1]}: ?ignore={second} makes it void" if second else ""
    if table is None:
        text += f"; without a file of class names the values {mapping.expected()} are the classes"
    partners = pairs.told(split)
    text += f"; ignored: {', '.join(partners)}" if partners else ""
    log_once(logging.WARNING if partners else logging.INFO, f"{text}.")


def _check_usable(title, mapping, found):
    """Warns about masks that cannot be used among those looked at.

    Raises:
        ValueError: if they are most of them.
    """
    wrong = found.failed | wrong_values(mapping, found)
    if not wrong:
        return
    path, why = next(iter(wrong.items()))
    total = len(found.counts) + len(found.failed)
    text = f'{title}: of {counted(total, "mask")} {len(wrong)} cannot be used, such as "{path}": {why}.'
    if 2 * len(wrong) > total:
        raise ValueError(
            f"{text} Expected the values {mapping.expected()}; see the options classes=, colors=, values= and ignore=."
        )
    log_once(logging.WARNING, text)


def masks(path: str, split: str = "train", data_dir: str | None = None) -> RandomAccess:
    """The source of `split` of a folder of images and masks, relative to `data_dir`, if given.

    Opening reads the values of a sample of the masks, or of up to 2,000 if no file names the classes. One line reports
    what was found.

    Args:
        path: the folder, with options.
        split: as the folders say; all is "train" if they do not. Slices are of a fixed random order.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if nothing matches, the split is missing, or the meaning of values is unclear.
    """
    folder, chosen = split_options(path, **dict.fromkeys(OPTIONS, ""))
    root, title = locate(folder, data_dir), f"masks:{folder}"
    check_folder(root)
    with stage(f"Reading the folder {root}", unit="files") as work:
        pairs = find_pairs(root, chosen, work)
    asked = canonical(split_name(split))
    if not pairs.splits.get(asked):
        raise MissingSplit(
            f'The folder "{root}" has no split "{asked}" with masks; it has: {", ".join(pairs.splits)}. A slice is one,'
            f' too: "{next(iter(pairs.splits))}[80%:]".',
            [name for name in pairs.splits if pairs.splits[name]],
        )
    # The classes of every split are those of train.
    known_by = next(name for name in (*SPLITS, asked) if pairs.splits.get(name))
    files = [mask for _, mask in pairs.splits[known_by]]
    table = find_table(root, chosen["classes"], chosen["colors"]) or _built_in(pairs.parts, files)
    found = look(pairs.splits[known_by], table)
    if not found.counts:
        bad, why = next(iter(found.failed.items()))
        raise ValueError(f'{title}: none of {counted(len(found.failed), "mask")} can be used, such as "{bad}": {why}')
    ignore, zero_is_void = _ignored_by_layout(pairs.parts, table, chosen["ignore"])
    mapping = find_mapping(table, _values(chosen["values"]), ignore, zero_is_void, found)
    _check_usable(title, mapping, found)
    _report(title, asked, pairs, known_by, mapping, found, table)
    chosen_pairs = list(pairs.splits[asked])
    random.Random(0).shuffle(chosen_pairs)
    return source_of_masks(title, mapping, chosen_pairs[slice(*split_range(split, len(chosen_pairs)))])
