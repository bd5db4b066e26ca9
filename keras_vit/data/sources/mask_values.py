"""Maps stored values of masks to classes and void.

A table gives names and perhaps values and colours; without one, the values found in the masks are the classes. Common
conventions apply, and are reported, if the data are unambiguous; otherwise an error asks for the option ignore=.
"""

import collections
import dataclasses
import functools
import os
from collections.abc import Sequence

import tensorflow as tf

from keras_vit.data.errors import reason
from keras_vit.data.ops.decode_mask import PALETTE, png_color_type, png_palette
from keras_vit.data.sources.image_files import read_header
from keras_vit.data.sources.mask_files import COLOR, Mapping, decode_stored, encode_color, in_png, rgb, value_text
from keras_vit.data.sources.mask_tables import Table, is_void_name
from keras_vit.io.suggest import did_you_mean, listed
from keras_vit.io.target_values import VOID, void_value

_MOST_VALUES = 1000  # classes without names, at most
STORED, UPRIGHT, UNCLEAR = "stored", "upright", "unclear"
_BINARY = ("background", "foreground")


@dataclasses.dataclass(frozen=True)
class Found:
    """Values of the sampled masks.

    Attributes:
        counts: dict. {stored value: pixels} of each readable mask, by path.
        failed: dict. Reasons for the others, by path.
        complete: bool. Whether the sample is all masks.
        palettes: dict. The colours, as 0xRRGGBB, of each mask with a palette, whose values are indices.
        turned: dict. STORED, UPRIGHT or UNCLEAR, by mask, for images that EXIF data turns: the pixels it belongs to.
    """

    counts: dict[str, dict[int, int]]
    failed: dict[str, str]
    complete: bool
    palettes: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    turned: dict[str, str] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def values(self) -> list[int]:
        """All stored values, sorted."""
        return sorted(set().union(*self.counts.values()))

    def with_value(self, value: int) -> str:
        """Returns the path of the first mask with a value."""
        return next(path for path, counts in self.counts.items() if value in counts)


# JSON data about a mask: [(stored value, pixels)...], its palette's colours as 0xRRGGBB or None, and `turned` as of
# Found; or the reason why it is unusable.
Counts = tuple[list[tuple[int, int]], list[int] | None, str] | str


@functools.cache
def _counter(with_colors):
    """Returns a function, traced once per process: a mask's bytes -> (values, counts, (height, width), palette)."""

    def count(encoded):
        encoded = in_png(encoded)
        mask = decode_stored(encoded, with_colors)
        values, _, counts = tf.unique_with_counts(tf.reshape(mask, [-1]))
        has_palette = png_color_type(encoded) == PALETTE
        palette = tf.cond(has_palette, lambda: png_palette(encoded), lambda: tf.constant([-1]))
        return values, counts, tf.shape(mask)[:2], palette

    return tf.function(count, [tf.TensorSpec((), tf.string)], autograph=False).get_concrete_function()


def _pixel_counts(values, counts, palette, turned=""):
    palette = palette.numpy().tolist()
    return list(zip(values.numpy().tolist(), counts.numpy().tolist())), None if palette == [-1] else palette, turned


def count_encoded(encoded: tf.Tensor, with_colors: bool) -> Counts:
    """Counts pixels by stored value in a mask's bytes."""
    try:
        values, counts, _, palette = _counter(with_colors)(encoded)
    except (tf.errors.OpError, ValueError) as error:
        return reason(error)
    return _pixel_counts(values, counts, palette)


def _turned(path, size):
    """Returns (the upright size that an image's mask of `size` should have, or None if it fits; `turned` of Found)."""
    header = read_header(path)
    if header is None:
        return None, ""
    stored_size, orientation, kind = header
    swapped = orientation in (5, 6, 7, 8)
    upright, is_jpeg = stored_size[::-1] if swapped else stored_size, kind in ("JPEG", "MPO")
    if swapped and is_jpeg and size == stored_size != upright:
        return None, STORED
    if size != upright:
        return upright, ""
    unclear = orientation in (2, 3, 4) or (swapped and stored_size == upright)
    return None, UNCLEAR if unclear and is_jpeg else UPRIGHT if swapped else ""


def count_values(image: str, mask: str, with_colors: bool) -> Counts:
    """Counts pixels by stored value in a mask file, unless it is unusable with its image."""
    try:
        values, counts, size, palette = _counter(with_colors)(tf.io.read_file(os.fsencode(mask)))
    except (tf.errors.OpError, ValueError) as error:
        return reason(error)
    size = tuple(size.numpy().tolist())
    expected, turned = _turned(image, size)
    if expected is not None:
        return f"its size (height, width) is {size}, but its upright image has {expected}"
    return _pixel_counts(values, counts, palette, turned)


def ignored_values(text: str) -> set[int]:
    """Returns the stored grey values and indices in the option ignore=."""
    return {int(part) for part in map(str.strip, text.split(",")) if part.isdecimal()}


def _ignored(text, table):
    """Parses the option ignore= into (stored values of void, names of void)."""
    values, names = set(), set()
    known = {name.lower(): name for name in table.names} if table else {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        if part.lower() in known:
            names.add(known[part.lower()])
        elif part.isdecimal():
            values.add(int(part))
        elif part.startswith("#") and len(part) == 7:
            values.add(encode_color(bytes.fromhex(part[1:])))
        else:
            raise ValueError(
                f"ignore={part}: expected stored values such as 255 or 0,255, colours such as #000000, or class"
                f" names.{did_you_mean(part, known.values())}"
            )
    return values, names


def _numbers(table, values, ignored, zero_is_void):
    """Returns (stored value of each name in the table, stored values of void) for grey masks and palettes."""
    names, count = table.names, len(table.names)
    if values is not None:
        return values, ignored
    if table.values is not None:
        return table.values, ignored | ({0} if zero_is_void else set())
    first = 0
    if zero_is_void or (0 in ignored and not (is_void_name(names[0]) or names[0].strip("_").lower() == "background")):
        first, ignored = 1, ignored | {0}
    return tuple(range(first, first + count)), ignored


def _check_one_above(table, ignored, found):
    """Refuses masks with one value more than names: its meaning is ambiguous."""
    count = len(table.names)
    extra = [value for value in found.values if count <= value < COLOR and value != VOID and value not in ignored]
    if extra != [count] or table.exact or any(map(is_void_name, table.names)):
        return
    first = "0 is void and the classes are numbered from 1: add ?ignore=0"
    last = f"{count} is void: add ?ignore={count}"
    raise ValueError(
        f'The masks have the values {found.values[0]} to {count}, as in "{found.with_value(count)}", for'
        f" {count} classes ({listed(list(table.names), 3)}). Either {last}. Or {first}."
        f' Options follow the folder: "masks:FOLDER?ignore={count}".'
    )


def _map_table(table, values, ignore, keep_void, zero_is_void, found):
    """Returns the Mapping of mask values by a table."""
    ignored, void_names = ignore
    if not keep_void and not table.exact:
        void_names = void_names | {name for name in table.names if is_void_name(name)}
    if values is None and table.values is None and not zero_is_void and not ignored:
        _check_one_above(table, ignored, found)
    numbers, ignored = _numbers(table, values, ignored, zero_is_void)
    if len(numbers) != len(table.names):
        raise ValueError(f"values=: expected one value per class, {len(table.names)}, got {len(numbers)}.")
    colors = [None] * len(numbers) if table.colors is None else [encode_color(color) for color in table.colors]
    rows = list(zip(table.names, numbers, colors))
    kept = [row for row in rows if row[0] not in void_names and row[1] not in ignored and row[2] not in ignored]
    void = {code for row in rows if row not in kept for code in row[1:] if code is not None} | set(table.void)
    if not keep_void:
        void |= {VOID, void_value(len(numbers))} - set(numbers)
    classes = {code: i for i, row in enumerate(kept) for code in row[1:] if code is not None}
    names = tuple(row[0] for row in kept)
    shown = None if table.colors is None else tuple(rgb(row[2]) for row in kept)
    return Mapping(classes, frozenset((void | ignored) - classes.keys()), names, void_value(len(names)), shown)


def _two_values(table, found):
    """Returns the second value of masks with two values, 0 and another, unless a table contradicts; else None."""
    greys = [value for value in found.values if value < COLOR]
    fits = table is None or (len(table.names) <= 2 and table.values is None and table.colors is None)
    return greys[1] if fits and len(greys) == 2 and greys[0] == 0 and greys == found.values else None


def _check_noise(found):
    """Refuses masks of black and white whose edges a lossy format or resizing has blurred."""
    counts = collections.Counter()
    for pixels in found.counts.values():
        counts.update(pixels)
    dark, light = ([value for value in counts if low <= value <= high] for low, high in ((0, 16), (239, 255)))
    ends = sum(counts[value] for value in dark + light)
    if len(dark) > 3 and len(light) > 3 and ends > 0.8 * sum(counts.values()):
        raise ValueError(
            f"The masks have {len(counts)} different values, most pixels near 0 or 255: a lossy format such as JPEG, or"
            " resizing, blurred black and white. Save the original masks as PNG, or set values from 128 to 255 and the"
            " others to 0."
        )


def _map_values(values, ignored, found):
    """Returns the Mapping of masks without a table: each value is a class."""
    if values is None:
        _check_noise(found)
    if len(found.values) > _MOST_VALUES:
        raise ValueError(
            f"The masks have {len(found.values):,} different values, too many for classes: they may number objects or"
            " measure depth. If they are classes, name them: ?classes=FILE."
        )
    if values is None:
        values = [value for value in found.values if value not in ignored and value != VOID]
    names = tuple(map(str, values))
    void = ignored | ({VOID} - set(values))
    return Mapping({value: i for i, value in enumerate(values)}, frozenset(void), names, void_value(len(names)))


def find_mapping(
    table: Table | None, values: Sequence[int] | None, ignore: str, zero_is_void: bool, found: Found
) -> Mapping:
    """Returns the Mapping of masks with the values `found`.

    Args:
        table: Table of classes, or None.
        values: sequence of int. Stored values in class order, from the option values=; None for 0, 1, ...
        ignore: str. The option: comma-separated stored values, #rrggbb or names; "none"; or "" for conventions.
        zero_is_void: bool. Whether the dataset's layout implies it, like ADE20K's.
        found: Found. Values of the sampled masks.

    Raises:
        ValueError: if void is ambiguous, or there are fewer than two classes.
    """
    keep_void = ignore == "none"
    ignored = (set(), set()) if keep_void else _ignored(ignore, table)
    second = None if ignore or values is not None or zero_is_void else _two_values(table, found)
    if second is not None:
        names = _BINARY if table is None else table.names if len(table.names) == 2 else (_BINARY[0], *table.names)
        void = {VOID} - {second}
        mapping = Mapping({0: 0, second: 1}, frozenset(void), tuple(names), VOID)
    elif table is not None:
        mapping = _map_table(table, values, ignored, keep_void, zero_is_void and not ignore, found)
    else:
        mapping = _map_values(values, ignored[0] | ({0} if zero_is_void and not ignore else set()), found)
        if keep_void and VOID in found.values:
            mapping = _map_values(found.values, set(), found)
    if len(mapping.names) < 2:
        shown = listed([value_text(value) for value in found.values])
        raise ValueError(
            f"The masks have the values {shown}, {len(mapping.names)} class and"
            f" {'void' if mapping.ignored else 'no void'}: expected at least 2 classes. With ?ignore=none every value"
            " is a class."
        )
    return mapping


def wrong_values(mapping: Mapping, found: Found) -> dict[str, str]:
    """Finds sampled masks with a value outside the mapping, or with only void: {path: reason}."""
    wrong = {}
    for path, counts in found.counts.items():
        outside = [value for value in counts if value not in mapping.all]
        if outside:
            wrong[path] = f"it has the value {value_text(min(outside))}"
        elif not any(value in mapping.classes for value in counts):
            wrong[path] = "it is all void"
    return wrong


def shares(mapping: Mapping, found: Found) -> tuple[list[float], float]:
    """Returns (each class's share of the labelled pixels, void's share of all pixels) in the sampled masks."""
    total = collections.Counter()
    for counts in found.counts.values():
        total.update(counts)
    pixels = [0] * len(mapping.names)
    for value, number in mapping.classes.items():
        pixels[number] += total[value]
    void = sum(total[value] for value in mapping.ignored)
    labelled = max(sum(pixels), 1)
    return [count / labelled for count in pixels], void / max(sum(pixels) + void, 1)
