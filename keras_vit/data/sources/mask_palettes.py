"""Decides whether the pixels of palette files mean their index or their colour.

An index means a class only if the files share a palette: programs that optimise files reorder palettes, each file its
own. Entries that no pixel uses, and palettes cut after the last used entry, are no difference. Colours mean classes if
a table lists them; files of other palettes than the table's, but all alike, are read by index.
"""

import collections
import dataclasses
from collections.abc import Iterable

from keras_vit.data.sources.mask_files import COLOR, INDEX, OF_COLOR, OF_LEVEL, rgb
from keras_vit.data.sources.mask_tables import Table, palette_of_voc
from keras_vit.data.sources.mask_values import Found
from keras_vit.io.suggest import listed
from keras_vit.io.target_values import VOID

READINGS = {"": "", "index": INDEX, "colors": OF_COLOR}  # of the option palette=
_VOC_VOID = 0xE0E0C0
_SHOWN = 20  # classes whose colours an error proposes


@dataclasses.dataclass(frozen=True)
class Reading:
    """How palette files are read.

    Attributes:
        palettes: str. INDEX, OF_COLOR or OF_LEVEL.
        palette: dict. Colour of each index, if the files agree and are read by index; else empty.
        void: frozenset of int. Colours, as stored values, of pixels without a class.
        table: Table or None. The table, with colours if they follow from VOC's palette.
        note: str. What to report, or "".
    """

    palettes: str = INDEX
    palette: dict[int, int] = dataclasses.field(default_factory=dict)
    void: frozenset[int] = frozenset()
    table: Table | None = None
    note: str = ""


class _Palettes:
    """The palettes of the sampled files: {path: {index used: its colour, or None}}, and whole palettes.

    Palettes of several equal colours, which some programs write for grey files, are left out.
    """

    def __init__(self, found: Found):
        self.whole = {
            path: colors for path, colors in found.palettes.items() if len(set(colors)) > 1 or len(colors) == 1
        }
        self.used = {
            path: {i: colors[i] if i < len(colors) else None for i in found.counts[path]}
            for path, colors in self.whole.items()
        }
        self.by_index: dict[int, dict] = collections.defaultdict(dict)  # {index: {colour: first path}}
        for path, used in self.used.items():
            for i, color in used.items():
                self.by_index[i].setdefault(color, path)

    def difference(self) -> str:
        """Describes two files whose palettes differ where pixels use them, or returns ""."""
        for i, colors in sorted(self.by_index.items()):
            if len(colors) > 1:
                (one, first), (other, second) = list(colors.items())[:2]
                return f'index {i} is {_named(one)} in "{first}" and {_named(other)} in "{second}"'
        places = collections.defaultdict(dict)  # {colour: {index: first path}}
        for i, colors in self.by_index.items():
            for color, path in colors.items():
                places[color][i] = path
        for color, indices in places.items():
            for (i, first), (j, second) in zip(indices.items(), list(indices.items())[1:]):
                if color is not None and self._at(first, j) != color and self._at(second, i) != color:
                    return f'{_named(color)} is index {i} in "{first}" and {j} in "{second}"'
        return ""

    def _at(self, path, i):
        return self.whole[path][i] if i < len(self.whole[path]) else None

    def common(self) -> dict[int, int]:
        """The colour of each index on which the files agree: of used entries, else of all."""
        known = {i: next(iter(colors)) for i, colors in self.by_index.items() if len(colors) == 1}
        several = {i for colors in self.whole.values() for i in range(len(colors))} - known.keys()
        for i in several:
            colors = {colors[i] for colors in self.whole.values() if i < len(colors)}
            known |= {i: colors.pop()} if len(colors) == 1 else {}
        return {i: color for i, color in known.items() if color is not None}

    def frequent(self) -> tuple[str, dict[int, int]]:
        """Returns (a path, colours of all indices) of the most frequent order of colours."""
        orders = collections.Counter(tuple(colors[:_SHOWN]) for colors in self.whole.values())
        order = orders.most_common(1)[0][0]
        path = next(path for path, colors in self.whole.items() if tuple(colors[:_SHOWN]) == order)
        return path, dict(enumerate(order))


def _named(color):
    return "no colour" if color is None else str(rgb(color))


def _distinct(used):
    """Whether the colours of a file's used indices differ from each other."""
    return None not in used.values() and len(set(used.values())) == len(used)


def _void_colors(palettes, listed_colors, ignored, values):
    """Colours that mean void: VOC's, that of index 255, and of the ignored indices, unless they are a class's."""
    numbers = set(ignored) | (set() if VOID in values else {VOID})
    found = {_VOC_VOID} | {palettes.common()[i] for i in numbers if i in palettes.common()}
    return found - listed_colors


def _fits(used, colors):
    return _distinct(used) and set(used.values()) <= colors


def _by_table(palettes, table, ignored, difference):
    """Returns the Reading by a table with colours.

    Raises:
        ValueError: if neither colours nor indices have a clear meaning.
    """
    numbers = {red << 16 | green << 8 | blue: i for i, (red, green, blue) in enumerate(table.colors)}
    values = {value: i for i, value in enumerate(table.values or range(len(table.names)))}
    void = _void_colors(palettes, set(numbers), ignored, values)
    fitting = [used for used in palettes.used.values() if _fits(used, numbers.keys() | void)]
    if 2 * len(fitting) > len(palettes.used):
        other = [(i, c) for used in fitting for i, c in used.items() if c in numbers and numbers[c] != values.get(i)]
        if other and table.values is not None and not difference:
            index, color = other[0]
            raise ValueError(
                f'"{table.path}" contradicts the masks\' palettes: they have the colour {rgb(color)} at index {index}.'
                " Choose: ?palette=colors reads the colours, ?palette=index the indices."
            )
        note = "palettes are read by colour, since they order the colours unlike the table" if other else ""
        return Reading(OF_COLOR, {}, frozenset(COLOR + color for color in void), table, note)
    if not difference:
        return Reading(INDEX, palettes.common(), table=table)
    outside = sorted({c for used in palettes.used.values() for c in used.values()} - numbers.keys() - void - {None})
    raise ValueError(
        f"The masks' palettes differ: {difference}. So colours define the classes, but"
        f' {listed([str(rgb(color)) for color in outside], 3)} is not in "{table.path}": add it, or pass ?colors=FILE.'
        " ?palette=index reads the indices in spite of the colours."
    )


def _is_grey(color):
    return color is not None and len(set(rgb(color))) == 1


def _of_greys(palettes, found, names, difference):
    """Returns the Reading of palettes of grey colours, among grey files or different from each other; else None.

    Raises:
        ValueError: if indices and levels are equally possible.
    """
    pairs = {(i, color) for used in palettes.used.values() for i, color in used.items()}
    if not all(_is_grey(color) for _, color in pairs) or all(i == color % 256 for i, color in pairs):
        return None
    plain = {value for path, counts in found.counts.items() if path not in found.palettes for value in counts}
    levels, indices = {color % 256 for _, color in pairs}, {i for i, _ in pairs}
    note = "palettes of grey levels are read by level"
    if difference or (plain and levels <= plain | set(range(names))):
        return Reading(OF_LEVEL, note=note)
    if not plain or indices <= plain:
        return None
    raise ValueError(
        "Some masks are grey, and others have a palette of grey levels: it is unclear whether its indices"
        f" ({listed(sorted(map(str, indices)), 5)}) or its levels ({listed(sorted(map(str, levels)), 5)}) are the"
        " classes. ?palette=index reads the indices; save the masks alike to use the levels."
    )


def _as_voc(palettes, table):
    """Returns the table with VOC's colours if all colours are those of its first classes, or of void; else None."""
    if table is None or len(table.names) > 256:
        return None
    colors = palette_of_voc(len(table.names))
    valid = {red << 16 | green << 8 | blue for red, green, blue in colors} | {_VOC_VOID}
    fits = all(_fits(used, valid) for used in palettes.used.values())
    return dataclasses.replace(table, colors=colors) if fits and table.values is None else None


def _lines(names: Iterable[str], colors):
    return " ".join(f'"{name},{",".join(map(str, rgb(colors[i])))}"' for i, name in enumerate(names) if i in colors)


def _unclear(palettes, table, difference):
    """Returns the error for palettes that differ without a table of colours."""
    path, colors = palettes.frequent()
    names = [f"class{i}" for i in sorted({i for used in palettes.used.values() for i in used})]
    names = list(table.names) if table is not None else names
    return ValueError(
        f"The masks' palettes differ: {difference}. So an index is not a class. List the classes' colours in a file,"
        f" for example colors.csv, and pass ?colors=colors.csv. In the order of {path!r} its lines would be"
        f" {_lines(names[:_SHOWN], colors)}{' ...' if len(names) > _SHOWN else ''}. ?palette=index reads the indices"
        " in spite of the colours."
    )


def find_reading(found: Found, table: Table | None, ignored: Iterable[int], option: str) -> Reading:
    """Returns how to read the sampled masks' palettes.

    Args:
        found: Found. Values of the masks, with palettes.
        table: Table of classes, or None.
        ignored: iterable of int. Stored values of the option ignore=.
        option: str. The option palette=: "index", "colors" or "".

    Raises:
        ValueError: for an unknown option, and if palettes differ and no colours are known.
    """
    if option not in READINGS:
        raise ValueError(f"palette={option}: expected index or colors.")
    palettes = _Palettes(found)
    if not palettes.used or option == "index":
        return Reading(table=table)
    difference = palettes.difference()
    has_colors = table is not None and table.colors is not None
    if option == "colors":
        if not has_colors:
            raise ValueError("palette=colors needs a table of colours: ?colors=FILE.")
        known = {red << 16 | green << 8 | blue for red, green, blue in table.colors}
        void = _void_colors(palettes, known, ignored, table.values or range(len(table.names)))
        return Reading(OF_COLOR, void=frozenset(COLOR + color for color in void), table=table)
    if has_colors:
        return _by_table(palettes, table, ignored, difference)
    greys = _of_greys(palettes, found, 0 if table is None else len(table.names), difference)
    if greys is not None:
        return dataclasses.replace(greys, table=table)
    if not difference:
        return Reading(INDEX, palettes.common(), table=table)
    colored = _as_voc(palettes, table)
    if colored is None:
        raise _unclear(palettes, table, difference)
    note = "the masks' palettes differ, and are read by VOC's colours: ?colors=FILE defines others"
    return Reading(OF_COLOR, void=frozenset([COLOR + _VOC_VOID]), table=colored, note=note)


def convert_counts(found: Found, reading: Reading) -> Found:
    """Returns the values of the masks as `reading` reads palette files."""
    if reading.palettes == INDEX:
        return found
    counts = dict(found.counts)
    for path, colors in found.palettes.items():
        if len(colors) > 1 and len(set(colors)) == 1:
            continue
        counter = collections.Counter()
        for i, count in counts[path].items():
            value = i if i >= len(colors) else colors[i] % 256 if reading.palettes == OF_LEVEL else COLOR + colors[i]
            counter[value] += count
        counts[path] = dict(counter)
    return dataclasses.replace(found, counts=counts)
