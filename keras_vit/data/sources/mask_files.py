"""Reads the stored values of mask files, without colour conversion, and maps them to class numbers.

TensorFlow reads PNG by palette index, grey value or colour; Pillow reads TIFF, BMP, GIF, PNM and lossless WebP. Lossy
formats are refused, since a changed value is another class. mask_palettes.py decides how palettes are read.
"""

import dataclasses
import io
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_vit.data.ops import orientation
from keras_vit.data.ops.decode_mask import (
    PALETTE,
    is_png,
    png_bits,
    png_color_type,
    png_colors,
    png_palette,
    png_values,
)
from keras_vit.data.sources.base import RandomAccess, Records
from keras_vit.data.sources.image_files import HEAD, format_from_bytes, open_with_pillow, source_of_files
from keras_vit.io.target_values import void_value

COLOR = 1 << 24  # added to a colour's 0xRRGGBB, to distinguish it from a grey value or an index
_LOSSY = ("JPEG", "AVIF", "HEIC", "JPEG 2000")
_LOSSLESS = ("PNG", "TIFF", "BMP", "GIF", "WebP", "PNM")
# What a pixel of a palette file stores: its index, its colour, or the level of a grey colour.
INDEX, OF_COLOR, OF_LEVEL = "index", "color", "level"
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "I", "I;16", "I;16B", "I;16L", "I;16N")


def value_text(value: int) -> str:
    """Formats a stored value for messages: "11", or "colour (64, 0, 128)"."""
    return f"colour {rgb(value)}" if value >= COLOR else str(value)


def rgb(value: int) -> tuple[int, int, int]:
    """Returns (red, green, blue) of a stored colour."""
    return (value >> 16 & 255, value >> 8 & 255, value & 255)


def encode_color(color: Sequence[int]) -> int:
    """Returns the stored value of (red, green, blue)."""
    return COLOR | color[0] << 16 | color[1] << 8 | color[2]


def _refuse_lossy(encoded, name):
    lossy = name in _LOSSY or (name == "WebP" and encoded[12:16] != b"VP8L")
    if lossy:
        raise ValueError(
            f"The mask is a {name}, a lossy format with wrong classes at every edge. Save the original labels as PNG."
        )
    if name not in _LOSSLESS:
        raise ValueError(f"Expected a mask as PNG, got {name or 'an unknown format'}.")


def _plain(image):
    """Converts a Pillow image of a mask to mode L, I;16 or RGB with the stored values."""
    from PIL import Image

    if image.info.get("compression") == "jpeg":
        raise ValueError("The mask is a TIFF with JPEG compression, which is lossy: save it as PNG.")
    if image.mode not in _MODES:
        raise ValueError(f"Expected mask pixels as integers of 1 to 16 bits, or RGB, got Pillow's mode {image.mode}.")
    if image.mode in ("RGB", "RGBA"):
        return image.convert("RGB")
    if image.mode == "P":
        return image
    values = np.asarray(image.getchannel(0) if image.mode in ("LA", "PA") else image)
    if values.min() < 0 or values.max() > 65535:
        raise ValueError(
            f"Expected mask values from 0 to 65535, got {values.min() if values.min() < 0 else values.max()}."
        )
    return Image.fromarray(values.astype("uint8" if values.max() < 256 else "uint16"))


def _as_png(encoded):
    """Converts the bytes of a mask in another format to a PNG with the same values."""
    name = format_from_bytes(encoded[:HEAD])
    _refuse_lossy(encoded, name)
    file = io.BytesIO()
    try:
        plain = _plain(open_with_pillow(io.BytesIO(encoded), name))
        plain.save(file, "PNG", **({"bits": 8} if plain.mode == "P" else {}))
    except ValueError:
        raise
    except Exception as error:  # Pillow raises many kinds of errors for damaged files
        raise ValueError(f"Damaged {name}: {error}") from None
    return file.getvalue()


def _as_png_array(encoded):
    return _as_png(np.asarray(encoded, object).item())


def in_png(encoded: tf.Tensor) -> tf.Tensor:
    """Converts the bytes of a mask, a scalar string tensor, to PNG, in a graph.

    Raises:
        ValueError: at run time, for lossy or unknown formats and unsupported pixels.
    """

    def converted():
        return tf.ensure_shape(tf.numpy_function(_as_png_array, [encoded], tf.string, stateful=False), ())

    return tf.cond(is_png(encoded), lambda: encoded, converted)


def decode_stored(encoded: tf.Tensor, with_colors: bool, palettes: str = INDEX) -> tf.Tensor:
    """Decodes a mask's stored values, int32 (h, w, 1): grey values, palette indices, or COLOR + 0xRRGGBB.

    Args:
        encoded: scalar string tensor. A PNG.
        with_colors: bool. Whether a table of colours exists; without one, the channels of RGB masks must be equal, and
            are read as grey.
        palettes: str. INDEX; OF_COLOR or OF_LEVEL for the colours of palettes, where an index without a colour stays.

    Raises:
        InvalidArgumentError: at run time, for colours without a table, or more than 8 bits per channel.
    """

    def colors():
        few = tf.debugging.Assert(png_bits(encoded) == 8, ["The mask has 16-bit RGB colours: save it with 8 bits."])
        with tf.control_dependencies([few]):
            pixels = tf.cast(png_colors(tf.identity(encoded)), tf.int32)
        red, green, blue = tf.split(pixels, 3, -1)
        if with_colors:
            return COLOR + red * 65536 + green * 256 + blue
        colored = ((red != green) | (green != blue))[..., 0]
        first = tf.concat([tf.where(colored), [[0, 0]]], 0)[0]
        message = tf.strings.format(
            "The mask has colours but no table defines them: the pixel in row {}, column {} is ({}, {}, {}). List"
            " colours and names in a file, with lines such as road,128,64,128, and pass it as ?colors=FILE.",
            [*tf.unstack(first), *tf.unstack(pixels[first[0], first[1]], 3)],
        )
        with tf.control_dependencies([tf.debugging.Assert(~tf.reduce_any(colored), [message])]):
            return tf.identity(red)

    def plain():
        values = png_values(encoded)
        if palettes == INDEX:
            return values
        return tf.cond(
            png_color_type(encoded) == PALETTE, lambda: _looked_up(encoded, values, palettes), lambda: values
        )

    is_color = tf.reduce_any(png_color_type(encoded) == [2, 6])
    return tf.ensure_shape(tf.cond(is_color, colors, plain), (None, None, 1))


def _looked_up(encoded, indices, palettes):
    """Returns the colours of palette `indices`, as COLOR + 0xRRGGBB or as levels; an index without a colour stays."""
    palette = tf.pad(png_palette(encoded), [[0, 1]])
    last = tf.size(palette) - 1
    several = (last == 1) | tf.reduce_any(palette[:-1] != palette[:1])  # several equal colours mean nothing
    colors = tf.gather(palette, tf.minimum(indices, last))
    return tf.where((indices < last) & several, colors % 256 if palettes == OF_LEVEL else COLOR + colors, indices)


@dataclasses.dataclass(frozen=True)
class Mapping:
    """The meaning of stored values.

    Attributes:
        classes: dict. Class number of each stored value.
        ignored: frozenset of int. Stored values that mean void.
        names: tuple of str. Class names.
        void: int. Value of void in the result of `class_mapper`.
        colors: tuple of (red, green, blue), or None. Class colours.
        palettes: str. What pixels of palette files store: INDEX, OF_COLOR or OF_LEVEL.
        palette: dict. Colour, 0xRRGGBB, of each palette index, from which files read by index may not differ; empty
            without a check.
        as_stored: bool. Whether a mask belongs to the stored pixels of an image that EXIF data turns, where the sizes
            do not tell.
    """

    classes: dict[int, int]
    ignored: frozenset[int]
    names: tuple[str, ...]
    void: int
    colors: tuple[tuple[int, int, int], ...] | None = None
    palettes: str = INDEX
    palette: dict[int, int] = dataclasses.field(default_factory=dict)
    as_stored: bool = False

    @property
    def all(self) -> dict[int, int]:
        """{stored value: class number or void}."""
        return self.classes | dict.fromkeys(self.ignored, self.void)

    @property
    def with_colors(self) -> bool:
        """Whether colours define classes."""
        return any(value >= COLOR for value in self.classes)

    def expected(self) -> str:
        """Lists the valid values for messages."""
        shown = [value_text(value) for value in sorted(self.all)]
        return ", ".join(shown[:12]) + ("..." if len(shown) > 12 else "")


class _Numbers:
    """Maps stored values to class numbers or void, and values outside the mapping to -1."""

    def __init__(self, mapping: Mapping):
        grey = {value: number for value, number in mapping.all.items() if value < COLOR}
        self._table = np.full(max(grey, default=0) + 2, -1, "int32")  # the last entry serves all higher values
        self._table[list(grey)] = list(grey.values())
        self._codes = sorted(value for value in mapping.all if value >= COLOR) or [COLOR]
        self._of_codes = np.array([mapping.all.get(code, -1) for code in self._codes], "int32")

    def of_greys(self, values):
        last = len(self._table) - 1
        return tf.gather(self._table, tf.where(values < 0, last, tf.minimum(values, last)))

    def of_colors(self, values):
        flat = tf.reshape(values, [-1])
        place = tf.minimum(tf.searchsorted(self._codes, flat), len(self._codes) - 1)
        number = tf.where(tf.gather(self._codes, place) == flat, tf.gather(self._of_codes, place), -1)
        return tf.reshape(number, tf.shape(values))

    def of(self, values):
        """Returns the numbers of values that are either all colours or not, judged by the first."""
        return tf.cond(values[0, 0, 0] >= COLOR, lambda: self.of_colors(values), lambda: self.of_greys(values))


def _color_text(value):
    """Formats a colour, a scalar tensor, for messages of graphs: "(64, 0, 128)"."""
    return tf.strings.format("({}, {}, {})", [value // 65536 % 256, value // 256 % 256, value % 256])


def _same_palette(encoded, indices, palette):
    """Asserts that the colours of the palette `indices` in a file are those of `palette`, {index: 0xRRGGBB}."""
    known = np.full(max(palette) + 1, -1, "int32")
    known[list(palette)] = list(palette.values())
    palette_colors = png_palette(encoded)
    size = tf.minimum(tf.size(palette_colors), len(known))
    palette_colors, known = palette_colors[:size], tf.constant(known)[:size]
    # Several equal colours mean nothing.
    several = (tf.size(palette_colors) == 1) | tf.reduce_any(palette_colors != palette_colors[:1])
    others = tf.where((known >= 0) & (palette_colors != known) & several)[:, 0]  # (n,)

    def check():
        equal = tf.cast(others, tf.int32)[:, None] == tf.reshape(indices, [1, -1])  # (n, h * w)
        used = tf.reduce_any(equal, -1)  # (n,)
        i = tf.concat([tf.boolean_mask(others, used), others[:1]], 0)[0]
        message = ["The mask's palette differs from that of other masks: index", i, "is"]
        message += [_color_text(palette_colors[i]), "here and", _color_text(known[i]), "there. List the classes'"]
        message.append("colours: ?colors=FILE.")
        with tf.control_dependencies([tf.debugging.Assert(~tf.reduce_any(used), message)]):
            return tf.constant(True)

    return tf.cond(tf.size(others) > 0, check, lambda: tf.constant(True))


def _checked(mapping, values, ids):
    """Returns the `ids` (h, w, 1) of `values` after checking that the mapping has all and some are not void."""
    wrong = ids[..., 0] < 0
    row, column = tf.unstack(tf.concat([tf.where(wrong), [[0, 0]]], 0)[0])
    value = values[row, column, 0]
    shown = tf.where(value >= COLOR, "the colour " + _color_text(value), tf.strings.format("the value {}", value))
    message = ["The mask has", shown, "in row", row, "column", column, "but expected are", mapping.expected()]
    message += ["Correct or list it: ?classes=FILE, ?colors=FILE, ?values=0,1,... or ?ignore=VALUE."]
    some = tf.reduce_any(ids != mapping.void)
    checks = [
        tf.debugging.Assert(~tf.reduce_any(wrong), message),
        tf.debugging.Assert(some, ["The mask is all void: no pixel has a class to learn from."]),
    ]
    with tf.control_dependencies(checks):
        return tf.cast(ids, tf.uint8 if mapping.void < 256 else tf.int32)


def class_mapper(mapping: Mapping) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function from a mask, PNG bytes (a scalar string) or integers (h, w, 1), to class numbers and void.

    The result is uint8, or int32 if void is 65535.

    Raises:
        InvalidArgumentError: at run time, for values outside the mapping, or a mask that is all void.
    """
    numbers = _Numbers(mapping)

    def apply(encoded):
        if encoded.dtype != tf.string:
            values = tf.cast(encoded, tf.int32)
            return _checked(mapping, values, numbers.of_greys(values))
        values = decode_stored(encoded, mapping.with_colors, mapping.palettes)
        if mapping.palettes == INDEX and mapping.palette:
            is_palette = png_color_type(encoded) == PALETTE
            known = tf.cond(is_palette, lambda: _same_palette(encoded, values, mapping.palette), lambda: True)
            with tf.control_dependencies([known]):
                values = tf.identity(values)
        ids = numbers.of(values) if mapping.with_colors else numbers.of_greys(values)
        return _checked(mapping, values, ids)

    return apply


def identity_mapping(names: Sequence[str], colors: Sequence[tuple[int, int, int]] | None = None) -> Mapping:
    """Returns the Mapping of masks that already contain class numbers and void."""
    void = void_value(len(names))
    shown = None if colors is None else tuple((int(red), int(green), int(blue)) for red, green, blue in colors)
    return Mapping({i: i for i in range(len(names))}, frozenset([void]), tuple(names), void, shown)


def _upright(mask, image, as_stored):
    """Turns a mask of a JPEG's stored pixels, if the sizes or `as_stored` tell, like EXIF data turns the image."""

    def turned(kind):
        size, mask_size = tf.image.extract_jpeg_shape(image)[:2], tf.shape(mask)[:2]
        clear = (kind >= 5) & (size[0] != size[1])
        is_stored = (clear | as_stored) & tf.reduce_all(mask_size == size)
        return tf.cond(is_stored, lambda: orientation.upright(mask, kind), lambda: mask)

    def of_jpeg():
        kind = orientation.of_jpeg(image)
        return tf.cond(kind == 1, lambda: mask, lambda: turned(kind))

    return tf.cond(tf.io.is_jpeg(image), of_jpeg, lambda: mask)


def with_classes(mapping: Mapping) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Returns a function that maps an example's stored mask to upright class numbers, and adds "void"."""
    apply = class_mapper(mapping)

    def parse(example):
        mask = example["mask"]
        mask = apply(in_png(mask) if mask.dtype == tf.string else mask)
        if example["image"].dtype == tf.string:
            mask = _upright(mask, example["image"], mapping.as_stored)
        return {**example, "mask": mask, "void": tf.constant(mapping.void, mask.dtype)}

    return parse


def records_of_masks(source: Records, mapping: Mapping) -> Records:
    """Returns `source` with its masks, encoded or integers, mapped to class numbers."""
    classes = with_classes(mapping)

    return dataclasses.replace(
        source,
        class_names=mapping.names,
        parse=lambda record: classes(source.parse(record)),
        void=mapping.void,
        colors=mapping.colors,
    )


def source_of_masks(title: str, mapping: Mapping, pairs: Sequence[tuple[str, str]]) -> RandomAccess:
    """Makes a source of (image path, mask path) pairs in this order; `title` is its name in messages."""
    masks = tf.constant([os.fsencode(mask) for _, mask in pairs])
    columns, fields = {"mask": lambda i: tf.io.read_file(masks[i])}, {"void": mapping.void, "colors": mapping.colors}
    images = [image for image, _ in pairs]
    return source_of_files(title, mapping.names, None, images, columns, with_classes(mapping), **fields)
