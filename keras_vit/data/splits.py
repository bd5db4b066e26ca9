"""Splits and slices, written as in tensorflow-datasets: "train", "train[:90%]", "test[100:200]"."""

import collections
import itertools
import os
import random
import re
from collections.abc import Iterable, Sequence

_WORDS = {"training": "train", "valid": "val", "validation": "val"}
SPLITS = ("train", "val", "test")
_SPLIT = re.compile(r"(?P<name>[\w.\-]+)(?:\[(?P<start>-?\d+%?)?:(?P<stop>-?\d+%?)?\])?")


class MissingSplit(ValueError):
    """An unknown split of a source; `splits` are the valid ones."""

    def __init__(self, message: str, splits: Iterable[str]):
        super().__init__(message)
        self.splits = list(splits)


def _bound(text, size, default, margin=0):
    """Converts a bound of a slice to an index; rounds percents, leaving at least `margin` examples on both sides.

    Percents count from the front before rounding, so train[:90%] and train[-10%:] are disjoint and complete.
    """
    if text is None:
        return default
    number, percent = int(text.rstrip("%")), text.endswith("%")
    if number < 0:
        number += 100 if percent else size
    index = min(max(round(number * size / 100) if percent else number, 0), size)
    return min(max(index, margin), size - margin) if percent and 0 < number < 100 else index


def canonical(name: str) -> str:
    """Returns a split's standard name; ignores case. "training" is "train"; "valid" and "validation" are "val"."""
    return _WORDS.get(name.lower(), name.lower() if name.lower() in SPLITS else name)


def _split_in(part):
    """Returns the split named in a folder's name, such as "cars_train" or "DET-val2017", or ""."""
    words = (re.sub(r"\d+$", "", word).lower() for word in re.split(r"[\W_]+", part))
    found = {canonical("test" if word == "testing" else word) for word in words} & {*SPLITS}
    return found.pop() if len(found) == 1 else ""


def merged_splits(folders: Iterable[str]) -> str:
    """Returns a clause about folders, below the root, that are named for several splits but read as one, or ""."""
    found = collections.defaultdict(set)
    for folder in folders:
        parts = folder.split(os.sep)
        place = next((i for i, part in enumerate(parts) if _split_in(part)), None)
        if place is not None:
            found[_split_in(parts[place])].add(os.sep.join(parts[: place + 1]))
    if len(found) < 2:
        return ""
    shown = [sorted(found[split])[0] for split in SPLITS if split in found]
    return f"{' and '.join(shown)} look like splits, but are read as one: open each alone"


def split_name(split: str) -> str:
    """'train[:90%]' -> 'train'.

    Raises:
        ValueError: if the text is not a split.
    """
    match = _SPLIT.fullmatch(split)
    if not match:
        raise ValueError(f'"{split}" is not a split. Write "train", "train[:90%]", "train[90%:]" or "test[100:200]".')
    return match["name"]


def split_range(split: str, size: int, margin: int = 0, check: bool = True) -> tuple[int, int]:
    """Returns (start, stop) of `split` in `size` examples.

    Args:
        split: str. "train", "train[:90%]"...
        size: int. Number of examples, at least twice `margin`.
        margin: int. Examples that a cut in percent leaves on both sides.
        check: bool. Whether to refuse an empty slice.

    Raises:
        ValueError: if the slice is empty.
    """
    split_name(split)
    match = _SPLIT.fullmatch(split)
    start, stop = _bound(match["start"], size, 0, margin), _bound(match["stop"], size, size, margin)
    if check and start >= stop:
        raise ValueError(
            f'The split "{split}" is empty: "{split_name(split)}" has {size} examples. Use a larger slice.'
        )
    return start, stop


def find_split(where: str, split: str, valid: Iterable[str], what: str = "") -> str:
    """Returns the standard name of the split in `split`, which may be a slice.

    Args:
        where: str. The data in messages, such as 'The folder "photos"'.
        split: str. "val", "validation[:50%]"...
        valid: iterable of str. Names of the splits.
        what: str. Words after the split's name in messages, such as " with masks".

    Raises:
        MissingSplit: if it is not valid.
    """
    name, valid = canonical(split_name(split)), list(valid)
    if name not in valid:
        example = f', and slices such as "{valid[0]}[80%:]"' if valid else ""
        raise MissingSplit(f'{where} has no split "{name}"{what}. Valid: {", ".join(valid[:10])}{example}.', valid)
    return name


def fixed_shuffle(items: Iterable) -> list:
    """Returns the items in a random order that depends only on their number, so that slices stay the same."""
    shuffled = list(items)
    random.Random(0).shuffle(shuffled)
    return shuffled


def spread(items: Sequence, most: int) -> list:
    """Returns at most `most` of the items, evenly spaced."""
    count = min(len(items), most)
    return [items[i * len(items) // count] for i in range(count)]


def take_slice(split: str, items: Sequence) -> Sequence:
    """Returns the slice in `split` of a split's items; raises as `split_range`."""
    return items[slice(*split_range(split, len(items)))]


def overlap(first: str, second: str) -> bool:
    """Whether two splits of the same data share examples, judged by their text: "train" and "train[:10%]" do.

    Does not compare percent slices with numeric ones, which would need the number of examples.
    """
    parts = ([_SPLIT.fullmatch(part.strip()) for part in split.split("+")] for split in (first, second))
    return any(a and b and _share(a, b) for a, b in itertools.product(*parts))


def _share(a, b):
    """Whether two matches of _SPLIT overlap."""
    in_percent = {bound.endswith("%") for match in (a, b) for bound in (match["start"], match["stop"]) if bound}
    if canonical(a["name"]) != canonical(b["name"]) or len(in_percent) > 1:
        return False
    size = 100 if in_percent == {True} else 10**12
    (start_a, stop_a), (start_b, stop_b) = (
        (_bound(match["start"], size, 0), _bound(match["stop"], size, size)) for match in (a, b)
    )
    return max(start_a, start_b) < min(stop_a, stop_b)
