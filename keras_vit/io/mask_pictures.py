"""Masks of class numbers as pictures: colours, overlays, a legend, PNG files. Needs only NumPy and Pillow.

A mask is (h, w) integers. Numbers outside the classes, such as void, are pixels without a class. Colours are
(red, green, blue), 0..255, one per class.
"""

import functools
import importlib.util
import io
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

Color = tuple[int, int, int]
# Okabe and Ito (2008), distinct to people with any colour vision; without their black, which is void.
_FIRST = ((230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0), (204, 121, 167))
WRONG: Color = (255, 0, 255)  # of wrong pixels in pictures of errors; far from every colour of `palette`
_LEVELS = 41  # per channel of the colours to choose from: more colours than a 16-bit mask has classes
_FARTHEST = 256  # colours chosen for their distance from all before
_TEXT, _GAP, _SWATCH = 14, 6, 16  # pixels: text size, distances, a legend's squares
_LONGEST = 28  # characters of a name in a legend


def _lab(colors):
    """Colours (n, 3), 0..255, in CIELAB (n, 3), where equal distances look about equal."""
    share = np.asarray(colors, "float64") / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    xyz = linear @ np.array(((0.4339, 0.2126, 0.0178), (0.3763, 0.7152, 0.1095), (0.1899, 0.0722, 0.8729)))
    root = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.stack([116 * root[:, 1] - 16, 500 * (root[:, 0] - root[:, 1]), 200 * (root[:, 1] - root[:, 2])], axis=-1)


@functools.lru_cache(maxsize=8)
def palette(classes: int) -> tuple[Color, ...]:
    """Distinct colours for `classes` classes, always the same; those of fewer classes come first.

    The first seven are distinct to people with any colour vision, the next ones as far from each other, black, white
    and WRONG as possible.

    Raises:
        ValueError: for more classes than a 16-bit mask has.
    """
    if not 0 <= classes < 2**16:
        raise ValueError(f"Expected 0 to 65,535 classes, got {classes!r}.")
    if classes <= len(_FIRST):
        return _FIRST[:classes]
    levels = np.round(np.linspace(0, 255, _LEVELS)).astype(int)
    every = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), axis=-1)
    coarse = every[::2, ::2, ::2].reshape(-1, 3)
    places, taken = _lab(coarse), _lab([*_FIRST, (0, 0, 0), (255, 255, 255), WRONG])
    nearest = np.min([((places - place) ** 2).sum(-1) for place in taken], axis=0)
    chosen: list[int] = []
    for _ in range(min(classes, _FARTHEST) - len(_FIRST)):
        chosen.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, ((places - places[chosen[-1]]) ** 2).sum(-1))
    found = [*_FIRST, *map(tuple, coarse[chosen].tolist())]
    if classes > _FARTHEST:
        used = {*found, (0, 0, 0), (255, 255, 255), WRONG}
        left = [color for color in map(tuple, every.reshape(-1, 3).tolist()) if color not in used]
        found += [left[i] for i in np.random.default_rng(0).permutation(len(left))[: classes - _FARTHEST]]
    return tuple(found)


def void_color(colors: Sequence[Color]) -> Color:
    """The colour of pixels without a class: black, or Pascal VOC's cream if a class is black."""
    return (224, 224, 192) if (0, 0, 0) in {tuple(color) for color in colors} else (0, 0, 0)


def colored(mask: Any, colors: Sequence[Color]) -> np.ndarray:
    """A mask (h, w) in its classes' colours, and `void_color` elsewhere: (h, w, 3) uint8."""
    mask = np.asarray(mask)
    table = np.array([*colors, void_color(colors)], "uint8")
    return table[np.where((mask >= 0) & (mask < len(colors)), mask, len(colors)).astype("int64")]


def rgb(image: Any) -> np.ndarray:
    """An image (h, w) or (h, w, c), pixels 0..255, as (h, w, 3) uint8: repeats grey, drops channels after the third."""
    pixels = np.clip(np.round(np.asarray(image, "float32")), 0, 255).astype("uint8")
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    return np.repeat(pixels[..., :1], 3, axis=-1) if pixels.shape[-1] < 3 else pixels[..., :3]


def overlay(image: Any, mask: Any, colors: Sequence[Color], alpha: float = 0.5) -> np.ndarray:
    """An image (h, w, c) under its mask (h, w): (h, w, 3) uint8; pixels without a class stay as they are.

    Args:
        image: pixels 0..255.
        mask: class numbers.
        colors: one per class.
        alpha: share of the colours, 0 to 1.

    Raises:
        ValueError: if the sizes differ.
    """
    pixels, mask = rgb(image), np.asarray(mask)
    if pixels.shape[:2] != mask.shape:
        raise ValueError(f"The image has {pixels.shape[:2]} pixels, and its mask {mask.shape}.")
    mixed = np.round((1 - alpha) * pixels + alpha * colored(mask, colors)).astype("uint8")
    return np.where(((mask >= 0) & (mask < len(colors)))[..., None], mixed, pixels)


@functools.cache
def font(size: int = _TEXT) -> Any:
    """A Pillow font of `size` pixels: DejaVu Sans of matplotlib, which has more scripts, or Pillow's own."""
    from PIL import ImageFont

    if importlib.util.find_spec("matplotlib") is not None:
        import matplotlib

        path = os.path.join(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
        if os.path.exists(path):
            return ImageFont.truetype(path, size)
    return ImageFont.load_default(size)


def drawable(name: str, number: int) -> str:
    """A class name as a picture shows it: shortened, or "class NUMBER" if the font lacks a character."""
    mask_of = font().getmask
    unknown = bytes(mask_of("\U0010fffe"))
    if not name.isprintable() or any(bytes(mask_of(c)) == unknown for c in set(name) if not c.isspace()):
        return f"class {number}"
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 9]}...{name[-6:]}"


def text(words: str, width: int | None = None) -> np.ndarray:
    """A line of black text on white: (h, width, 3) uint8, cut or filled up to `width` pixels."""
    from PIL import Image, ImageDraw

    wanted = int(np.ceil(font().getlength(words))) if width is None else width
    picture = Image.new("RGB", (max(wanted, 1), _TEXT + _GAP), "white")
    ImageDraw.Draw(picture).text((0, _TEXT + 1), words, "black", font(), anchor="ls")
    return np.asarray(picture)


def _entry(words, color, width):
    """A coloured square and words: (h, width, 3) uint8."""
    line = np.full((_SWATCH + _GAP, width, 3), 255, "uint8")
    line[:_SWATCH, :_SWATCH] = 96  # an outline, since a colour may be white
    line[1 : _SWATCH - 1, 1 : _SWATCH - 1] = color
    words = text(words)[: len(line), : max(width - _SWATCH - 2 * _GAP, 0)]
    line[: len(words), _SWATCH + _GAP : _SWATCH + _GAP + words.shape[1]] = words
    return line


def legend(names: Sequence[str], colors: Sequence[Color], width: int = 480) -> np.ndarray:
    """Coloured squares with names, in as many columns as fit into `width` pixels: (h, width, 3) uint8, on white.

    A name that the font cannot draw is "class N", its position.
    """
    if not names:
        return np.full((0, width, 3), 255, "uint8")
    words = [drawable(name, number) for number, name in enumerate(names)]
    wanted = max(text(word).shape[1] for word in words) + _SWATCH + 3 * _GAP
    columns = max(1, min((width - _GAP) // wanted, len(words)))
    rows, each = -(-len(words) // columns), min(wanted, width - _GAP)
    picture = np.full((rows * (_SWATCH + _GAP) + 2 * _GAP, width, 3), 255, "uint8")
    for i, (word, color) in enumerate(zip(words, colors)):
        column, row = divmod(i, rows)
        top, left = _GAP + row * (_SWATCH + _GAP), _GAP + column * each
        picture[top : top + _SWATCH + _GAP, left : left + each] = _entry(word, color, each)
    return picture


def with_legend(picture: np.ndarray, names: Sequence[str], colors: Sequence[Color], mask: Any = None) -> np.ndarray:
    """A picture (h, w, 3) uint8 above the legend of the classes in `mask` (None for all): (h', w', 3) uint8."""
    shown = range(len(names)) if mask is None else [i for i in np.unique(mask).tolist() if 0 <= i < len(names)]
    words = [drawable(names[i], i) for i in shown]
    width = max(picture.shape[1], 240)
    below = legend(words, [colors[i] for i in shown], width)
    above = np.full((len(picture), width, 3), 255, "uint8")
    above[:, : picture.shape[1]] = picture
    return np.concatenate([above, below])


def png(picture: np.ndarray) -> bytes:
    """A picture (h, w, 3) uint8 as a PNG file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG")
    return buffer.getvalue()


def mask_png(mask: Any, colors: Sequence[Color]) -> bytes:
    """A mask (h, w) as a PNG file of class numbers, which viewers show in the classes' colours.

    With fewer than 255 classes it is a palette PNG of 8 bits, otherwise grey of 16 bits.
    """
    from PIL import Image

    mask, buffer = np.asarray(mask), io.BytesIO()
    if len(colors) >= 255:
        Image.fromarray(mask.astype("uint16")).save(buffer, "PNG")
        return buffer.getvalue()
    picture = Image.fromarray(mask.astype("uint8"))
    table = [*colors, *[void_color(colors)] * (256 - len(colors))]
    picture.putpalette(np.array(table, "uint8").tobytes())
    picture.save(buffer, "PNG")
    return buffer.getvalue()
