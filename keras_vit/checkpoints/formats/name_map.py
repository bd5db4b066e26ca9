"""Name maps between a format's arrays and our weights, written once as a table and used in both directions.

A format's table, `Names`, has a line per array or layer: its name there, ours, how the values are stored, and for which
fields of the spec it exists. Its name map is {name in the file: Entry}; `pack` converts our values to the file's,
`unpack` the file's to ours. shown.py reads the table the other way: the fields of a spec that the arrays show.
"""

import dataclasses
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Self

import numpy as np

from keras_vit.models.spec import ViTSpec

LONGEST_NAME = 500  # characters: a longer name could make a pattern search for hours


@dataclasses.dataclass(frozen=True)
class Entry:
    """One array of a file.

    Attributes:
        ours: paths of the weights it contains.
        pack: (our arrays...) -> the file's array.
        unpack: (the file's array, shapes of our arrays) -> list of our arrays.
        axes: the file's axes as numbers of ours; () if shapes alone do not show them.
        parts: how many entries with the same path hold equal parts of one of ours, joined along its axis `joined`.
    """

    ours: tuple[str, ...]
    pack: Callable[..., np.ndarray]
    unpack: Callable[[np.ndarray, list], list]
    axes: tuple[int, ...] = ()
    parts: int = 1
    joined: int = -1


NameMap = dict[str, Entry]


def same(ours: str, shape: tuple | None = None) -> Entry:
    """The same values in the same order; `shape` is the file's, if it differs."""
    return Entry((ours,), lambda a: a if shape is None else a.reshape(shape), lambda a, shapes: [a.reshape(shapes[0])])


def transposed(axes: tuple[int, ...], *ours: str) -> Entry:
    """Arrays with the axes of ours in the order `axes`, several of them one after another along the file's first."""
    back = tuple(map(int, np.argsort(axes)))

    def pack(*arrays):
        parts = [a.transpose(axes) for a in arrays]
        return np.concatenate(parts) if len(parts) > 1 else parts[0]

    def unpack(a, shapes):
        ends = np.cumsum([shape[axes[0]] for shape in shapes])[:-1]
        return [part.transpose(back) for part in np.split(a, ends)]

    return Entry(ours, pack, unpack, axes)


def pointwise(ours: str) -> Entry:
    """torch's 1x1 convolution, (out, in, 1, 1), where ours is a matrix (in, out)."""
    return Entry((ours,), lambda a: a.T[:, :, None, None], lambda a, shapes: [a.reshape(a.shape[:2]).T])


def part_of(entry: Entry, number: int, parts: int) -> Entry:
    """The entry of one of equal parts of our array, along its last axis."""

    def pack(a):
        return entry.pack(np.split(a, parts, axis=-1)[number])

    def unpack(a, shapes):
        *outer, last = shapes[0]
        return entry.unpack(a, [(*outer, last // parts)])

    return dataclasses.replace(entry, pack=pack, unpack=unpack, parts=parts)


def without_key(value: str, key: str) -> Entry:
    """The values' bias of an attention without one of keys, which would add the same to all scores of a query."""
    return Entry((value, key), lambda value, key: value, lambda a, shapes: [a, np.zeros(shapes[1], a.dtype)])


def positions(ours: str, rows: int = 0, shape: tuple | None = None) -> Entry:
    """A position table (1, prefix + n, d), in the file without its first `rows` rows, or with a zero row before them
    if `rows` is -1; `shape` is the file's, if it has others than three axes.
    """

    def pack(a):
        a = a[:, rows:] if rows >= 0 else np.concatenate([np.zeros_like(a[:, :1]), a], axis=1)
        return a if shape is None else a.reshape(shape)

    def unpack(a, shapes):
        a = a.reshape(1, -1, shapes[0][-1])
        if rows < 0:
            return [a[:, 1:]]
        return [np.concatenate([np.zeros((1, rows, a.shape[-1]), a.dtype), a], axis=1)]

    return Entry((ours,), pack, unpack)


# {how a table says that an array is stored: the file's axes as numbers of ours}.
_AXES = {
    "linear": (1, 0),  # torch: (out, in) where ours is (in, out)
    "conv": (3, 2, 0, 1),  # torch: (out, in, h, w) where ours is (h, w, in, out)
    "enlargement": (0, 3, 1, 2),  # torch, transposed: (in, out, h, w) where ours is (in, h, w, out)
    "depthwise": (2, 3, 0, 1),  # torch: (d, 1, h, w) where ours is (h, w, d, 1)
}
_ARRAYS: dict[str, Callable[..., Entry]] = {
    "same": lambda fields, *ours: same(*ours) if len(ours) == 1 else transposed((0,), *ours),
    "pointwise": lambda fields, ours: pointwise(ours),
    "without_key": lambda fields, *ours: without_key(*ours),
    "positions": lambda fields, ours: positions(ours, fields.get("missing_rows", 0)),
    "flat_positions": lambda fields, ours: positions(ours, 0, (-1, fields["width"])),
    **{name: lambda fields, *ours, axes=axes: transposed(axes, *ours) for name, axes in _AXES.items()},
}
_BATCH_NORM = {
    ".weight": ("/gamma", "same"),
    ".bias": ("/beta", "same"),
    ".running_mean": ("/moving_mean", "same"),
    ".running_var": ("/moving_variance", "same"),
}
_BIAS = {".bias": ("/bias", "same")}
# {a layer in a table: {end of a name there: (of ours, how the array is stored)}}.
_LAYERS = {
    "dense": {".weight": ("/kernel", "linear"), **_BIAS},
    "matrix": {".weight": ("/kernel", "linear")},
    "bias": _BIAS,
    "norm": {".weight": ("/gamma", "same"), ".bias": ("/beta", "same")},
    "convolution": {".weight": ("/kernel", "conv"), **_BIAS},
    "kernel": {".weight": ("/kernel", "conv")},
    "enlarging": {".weight": ("/kernel", "enlargement"), **_BIAS},
    "pixelwise": {".weight": ("/kernel", "pointwise"), **_BIAS},
    "batch_norm": _BATCH_NORM,
    "conv_bn": {
        ".conv.weight": ("/conv/kernel", "conv"),
        **{f".bn{theirs}": (f"/norm{ours}", stored) for theirs, (ours, stored) in _BATCH_NORM.items()},
    },
    "flax_dense": {"/kernel": ("/kernel", "same"), "/bias": ("/bias", "same")},
    "flax_heads": {"/kernel": ("/kernel", "of_heads"), "/bias": ("/bias", "of_heads")},
    "flax_norm": {"/scale": ("/gamma", "same"), "/bias": ("/beta", "same")},
}
_DEFAULTS = {f.name: f.default for f in dataclasses.fields(ViTSpec) if f.default is not dataclasses.MISSING}


class _Row:
    """A line of a table: names with {i} for a block's number, how the array is stored, when it exists, and (number,
    count) if it is one of several parts of ours.
    """

    def __init__(
        self, theirs: str, ours: Iterable[str], stored: str, when: str, part: tuple[int, int] = (0, 1)
    ) -> None:
        self.theirs, self.ours, self.stored, self.when, self.part = theirs, tuple(ours), stored, when, part

    def exists(self, fields):
        return all(_holds(part.strip(), fields) for part in self.when.split(",")) if self.when else True


def _holds(condition, fields):
    name, _, value = condition.removeprefix("not ").partition("=")
    found = fields.get(name)
    # 0 registers are none; a LayerScale of 0.0 is one, and so is a stem without stages.
    is_met = str(found) == value if value else isinstance(found, (float, tuple)) or bool(found)
    return is_met is not condition.startswith("not ")


def _alternatives(text):
    """The texts of one with a choice: "a<b,c>" is "ab" and "ac"."""
    before, _, rest = text.partition("<")
    choice, _, after = rest.partition(">")
    return [before + each + after for each in choice.split(",")] if rest else [text]


def _rows(text):
    for line in filter(None, map(str.strip, text.splitlines())):
        columns, _, when = line.partition("  if ")
        theirs, ours, stored = columns.split()
        pairs, parts = [(theirs, _alternatives(ours))], 1
        if "<" in theirs and "<" in ours:
            pairs = [(a, [b]) for a, b in zip(_alternatives(theirs), _alternatives(ours), strict=True)]
        elif "<" in theirs:
            pairs = [(name, [ours]) for name in _alternatives(theirs)]
            parts = len(pairs)
        for i, (name, paths) in enumerate(pairs):
            for end, (of_ours, array) in _LAYERS.get(stored, {"": ("", stored)}).items():
                yield _Row(name + end, [path + of_ours for path in paths], array, when.strip(), (i % parts, parts))


class Names:
    """A format's table of names.

    Each line has the name in the file, ours, how it is stored (an array or a layer, see _ARRAYS and _LAYERS) and, after
    "if", fields of the spec that must be set, or have a value: "pre_norm, not fc_norm, pool=map". "a<b,c>" on both
    sides are two lines; on ours alone the file's array holds all of them, on theirs alone the file's arrays hold equal
    parts of ours. Lines with {i} exist for each block.

    Args:
        text: the lines.
        stored: {name: (fields, our paths...) -> Entry} of arrays that only this format stores so.
    """

    def __init__(self, text: str | Iterable[_Row], stored: Mapping[str, Callable[..., Entry]] = {}) -> None:
        self.rows = list(_rows(text)) if isinstance(text, str) else list(text)
        self.stored = {**_ARRAYS, **stored}

    def __add__(self, other: Self) -> Self:
        return type(self)([*self.rows, *other.rows], {**self.stored, **other.stored})

    def spelled(self, **words: Any) -> Self:
        """The table with each {word} replaced by its text or number; a word that is None drops its lines."""
        none = tuple(f"{{{word}}}" for word, text in words.items() if text is None)

        def filled(text):
            return re.sub(r"\{(\w+)\}", lambda match: str(words.get(match[1], match[0])), text)

        rows = (row for row in self.rows if not any(word in row.theirs for word in none))
        return type(self)(
            (_Row(filled(row.theirs), map(filled, row.ours), row.stored, row.when, row.part) for row in rows),
            self.stored,
        )

    def map(self, fields: Mapping[str, Any] = {}, **others: Any) -> NameMap:
        """{name in the file: Entry} of a model with these fields of its spec, and `others` that the table names."""
        fields = {**_DEFAULTS, **fields, **others}
        entries = {}
        for repeated, rows in itertools.groupby(self.rows, lambda row: "{i}" in row.theirs):
            rows = [row for row in rows if row.exists(fields)]
            for i in range(fields["depth"] if repeated else 1):
                entries |= {row.theirs.format(i=i): self.entry(row, fields, i) for row in rows}
        return entries

    def entry(self, row: _Row, fields: Mapping[str, Any], i: int = 0) -> Entry:
        """The Entry of a line, for block number i."""
        entry = self.stored[row.stored](fields, *(path.format(i=i) for path in row.ours))
        return entry if row.part[1] == 1 else part_of(entry, *row.part)


def spellings(text: str) -> dict[str, dict[str, str | None]]:
    """{column: {word: its spelling there}} of a table whose first line names the columns; None for "-"."""
    (_, *columns), *lines = (line.split() for line in filter(None, map(str.strip, text.splitlines())))
    return {
        column: {word: None if found[i] == "-" else found[i] for word, *found in lines}
        for i, column in enumerate(columns)
    }


def batch_norm_counters(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A file's arrays with the counters that torch keeps in each batch normalisation, zero."""
    counted = [name.removesuffix("running_mean") for name in arrays if name.endswith("running_mean")]
    return {**arrays, **{f"{name}num_batches_tracked": np.zeros((), "int64") for name in counted}}


def summary(names: Iterable[str], limit: int = 8) -> str:
    """Names for a message: the first few and the count."""
    names = sorted(names)
    return f"{', '.join(names[:limit])}{', ...' if len(names) > limit else ''} ({len(names)})"


def _check_names(name_map: NameMap, names: Collection[str], paths: Collection[str], where: object) -> None:
    """Compares the file's names and the model's paths with the name map; ValueError lists names on one side only."""
    missing, unexpected = name_map.keys() - names, names - name_map.keys()
    if missing or unexpected:
        parts = [
            f"{what}: {summary(names)}" for what, names in (("missing", missing), ("unexpected", unexpected)) if names
        ]
        raise ValueError(
            f'The array names in "{where}" do not match the model that the file seems to contain. {"; ".join(parts)}.'
        )
    mapped = {path for entry in name_map.values() for path in entry.ours}
    if mapped != paths:
        raise ValueError(
            f'The arrays of "{where}" do not match the model that the file itself describes: {summary(mapped ^ paths)}.'
        )


def unpack(
    name_map: NameMap, arrays: Mapping[str, np.ndarray], shapes: Mapping[str, tuple], where: object
) -> dict[str, np.ndarray]:
    """Our weights {path: array} from a file's arrays.

    Args:
        name_map: {name in the file: Entry}.
        arrays: {name in the file: array}.
        shapes: {our path: shape} of the model.
        where: the file's name, for messages.

    Raises:
        ValueError: for missing or unexpected names, or different shapes; lists them, with both shapes.
    """
    _check_names(name_map, arrays.keys(), shapes.keys(), where)
    mismatches, weights = [], {}
    joined: dict[tuple[str, int], list[np.ndarray]] = {}  # {(path, axis): parts}
    for name, entry in name_map.items():
        ours = [tuple(shapes[path]) for path in entry.ours]
        # Only the shape matters: broadcast arrays take no memory.
        expected = entry.pack(*(np.broadcast_to(np.float32(0), shape) for shape in ours)).shape
        if arrays[name].shape != expected:
            mismatches.append(f"{name} is {arrays[name].shape} in the file, {expected} in the model")
            continue
        found = zip(entry.ours, entry.unpack(arrays[name], ours), strict=True)
        if entry.parts == 1:
            weights.update(found)
        for path, part in found if entry.parts > 1 else ():
            joined.setdefault((path, entry.joined), []).append(part)
    if mismatches:
        raise ValueError(
            f'Shapes in "{where}" do not match the model: {"; ".join(mismatches[:8])} ({len(mismatches)}).'
        )
    return weights | {path: np.concatenate(parts, axis) for (path, axis), parts in joined.items()}


def pack(name_map: NameMap, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A file's arrays, contiguous, from our weights {path: array}; ValueError if the format has no place for some."""
    mapped = {path for entry in name_map.values() for path in entry.ours}
    if weights.keys() - mapped:
        raise ValueError(f"This format has no place for the weights {summary(weights.keys() - mapped)}.")
    return {
        name: np.ascontiguousarray(entry.pack(*(weights[path] for path in entry.ours)))
        for name, entry in name_map.items()
    }
