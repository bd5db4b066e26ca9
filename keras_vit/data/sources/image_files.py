"""Identifies image formats by extension and first bytes, and reads those that TensorFlow lacks with Pillow."""

import dataclasses
import functools
import importlib.util
import io
import os
import re
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.data.ops.decode import needs_pillow
from keras_vit.data.ops.headers import MAX_PIXELS
from keras_vit.data.sources.base import RandomAccess
from keras_vit.io.logs import log_once, printable

HEAD = 18  # bytes that identify a format
_NAMED_ENDING = re.compile(r"\.[a-z][a-z0-9]{1,4}")  # a file type, unlike in "scan.2019" and "photo.jpg_2"
_ORIENTATION = 0x0112  # EXIF's tag
_BITS = 258  # TIFF's tag BitsPerSample
_opening = threading.Lock()  # warning filters are global to the process


@dataclasses.dataclass(frozen=True)
class Format:
    """An image format.

    Attributes:
        endings: tuple of str. File extensions, in lower case.
        start: bytes. Pattern of the first HEAD bytes.
        names: tuple of str. Names of the Pillow readers that may open it.
        module: str. Module of the library that reads it; "" for TensorFlow, which leaves odd files to Pillow.
    """

    endings: tuple[str, ...]
    start: bytes
    names: tuple[str, ...]
    module: str = "PIL"


# Formats with weaker signatures come last.
FORMATS = {
    "JPEG": Format((".jpg", ".jpeg", ".jpe", ".jfif", ".jif", ".mpo"), rb"\xff\xd8\xff", ("JPEG", "MPO"), ""),
    "PNG": Format((".png", ".apng"), rb"\x89PNG", ("PNG",), ""),
    "BMP": Format((".bmp", ".dib"), rb"BM....\0\0\0\0|\x28\0\0\0.{8}\x01\0", ("BMP", "DIB"), ""),
    "GIF": Format((".gif",), rb"GIF8", ("GIF",), ""),
    "WebP": Format((".webp",), rb"RIFF....WEBP", ("WEBP",), ""),
    "TIFF": Format((".tif", ".tiff"), rb"II[*+]\0|MM\0[*+]", ("TIFF",)),
    "AVIF": Format((".avif", ".avifs"), rb"....ftypavi[fs]", ("AVIF",)),
    "JPEG 2000": Format(
        (".jp2", ".j2k", ".j2c", ".jpc", ".jpf", ".jpx"), rb"\0\0\0\x0cjP  |\xff\x4f\xff\x51", ("JPEG2000",)
    ),
    "PNM": Format((".ppm", ".pgm", ".pbm", ".pnm", ".pfm"), rb"P[1-6fF]\s", ("PPM",)),
    "HEIC": Format((".heic", ".heif", ".hif"), rb"....ftyp(?:he[iv][cxms]|mif1|msf1)", ("HEIF", "AVIF"), "pillow_heif"),
    "PSD": Format((".psd",), rb"8BPS\0\x01", ("PSD",)),
    "DDS": Format((".dds",), rb"DDS \x7c\0\0\0", ("DDS",)),
    "QOI": Format((".qoi",), rb"qoif", ("QOI",)),
    "ICNS": Format((".icns",), rb"icns", ("ICNS",)),
    "BLP": Format((".blp",), rb"BLP[12]", ("BLP",)),
    "FTEX": Format((".ftc", ".ftu"), rb"FTEX", ("FTEX",)),
    "FITS": Format((".fits", ".fit"), rb"SIMPLE  =", ("FITS",)),
    "IM": Format((".im",), rb"Image type:", ("IM",)),
    "MSP": Format((".msp",), rb"DanM|LinS", ("MSP",)),
    "XV thumbnail": Format((".p7",), rb"P7 332", ("XVTHUMB",)),
    "XPM": Format((".xpm",), rb"/\* XPM \*/", ("XPM",)),
    "XBM": Format((".xbm",), rb"#define ", ("XBM",)),
    "Sun raster": Format((".ras", ".sun"), rb"\x59\xa6\x6a\x95", ("SUN",)),
    "DCX": Format((".dcx",), rb"\xb1\x68\xde\x3a", ("DCX",)),
    "PIXAR": Format((".pxr",), rb"\x80\xe8\0\0", ("PIXAR",)),
    "SGI": Format((".sgi", ".rgb", ".rgba", ".bw"), rb"\x01\xda[\0\1][\1\2]", ("SGI",)),
    "ICO": Format((".ico",), rb"\0\0\x01\0.\0", ("ICO",)),
    "CUR": Format((".cur",), rb"\0\0\x02\0[^\0]\0", ("CUR",)),
    "FLI": Format((".fli", ".flc"), rb"....[\x11\x12]\xaf", ("FLI",)),
    "PCX": Format((".pcx",), rb"\x0a[\0\2\3\5][\0\1][\1\2\4\x08]", ("PCX",)),
    "TGA": Format((".tga", ".icb", ".vda", ".vst"), rb".[\0\1][\1-\3\x09-\x0b].{13}[\1\x08\x0f\x10\x18\x20]", ("TGA",)),
}
_BY_ENDING = {ending: name for name, row in FORMATS.items() for ending in row.endings}
ENDINGS = tuple(_BY_ENDING)
NEEDS_HEIF = "to read them: pip install pillow-heif"


def ending(name: str) -> str:
    """Returns a file name's extension in lower case, with its dot, or "" if it is not a file type."""
    text = os.path.splitext(name)[1].lower()
    return text if _NAMED_ENDING.fullmatch(text) else ""


def format_from_bytes(start: bytes) -> str | None:
    """Returns the format of a file from its first HEAD bytes; None if not an image."""
    return next((name for name, row in FORMATS.items() if re.match(row.start, start, re.DOTALL)), None)


def read_format(path: str) -> str | None:
    """Reads the format of a file from its first bytes; None if not an image, or unreadable."""
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            return format_from_bytes(file.read(HEAD))
    except tf.errors.OpError:
        return None


def is_readable(name: str) -> bool:
    """Whether the library that reads format `name` is installed."""
    return not FORMATS[name].module or importlib.util.find_spec(FORMATS[name].module) is not None


def infer_format(path: str) -> str | None:
    """Returns the format of a file by its extension.

    Opens the file only without an extension, or if the format's library is missing: the content may differ.
    """
    kind = ending(path)
    name = _BY_ENDING.get(kind)
    return name if kind and (name is None or is_readable(name)) else read_format(path) or name


@functools.cache
def _register_heif():
    """Registers Pillow's HEIC reader."""
    if not is_readable("HEIC"):
        raise ValueError(f"pillow-heif is not installed; {NEEDS_HEIF}")
    import pillow_heif

    pillow_heif.register_heif_opener()


def open_with_pillow(file, name: str):
    """Opens a file of format `name` as a Pillow image; reads only its header."""
    from PIL import Image

    if FORMATS[name].module == "pillow_heif":
        _register_heif()
    with _opening, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about large sizes, checked elsewhere, and damaged EXIF data
        return Image.open(file, formats=FORMATS[name].names)


def read_header(path: str) -> tuple[tuple[int, int], int, str] | None:
    """Reads a file's stored (height, width), EXIF orientation and Pillow's format; None if unreadable."""
    try:
        with open_with_pillow(path, read_format(path)) as image:
            return image.size[::-1], image.getexif().get(_ORIENTATION, 1), image.format
    except Exception:  # Pillow raises errors of any kind; decoding reports damage
        return None


def _depth(image):
    """Returns the bits of a Pillow image's grey levels if more than 8, else None."""
    if image.mode.startswith("I;16"):
        return image.tag_v2[_BITS][0] if image.format == "TIFF" else 16
    return 16 if (image.mode, image.format) == ("I", "PPM") else None  # Pillow scales these to 0..65535


def _warn_of_few_levels(values, bits, path):
    """Warns once if conversion to 8 bits loses most levels, such as of a microscope's 12 bits in 16."""
    if values.max() < 2 ** (bits - 3):
        log_once(
            logging.WARNING,
            f"{path or 'An image'} uses less than an eighth of the range of its {bits}-bit values and becomes nearly"
            " black in 8 bits. If others are like it, scale all to the full range first.",
            "few levels",
        )


def _warn_of_pages(image, path):
    """Warns once about a TIFF with several pages, such as a scan or a microscope's stack."""
    if image.format == "TIFF" and image.tag_v2.next:
        log_once(
            logging.WARNING,
            f"{path or 'A TIFF'} has several pages, but only the first page of a TIFF is read. To use the others, save"
            " each page as a file.",
            "pages",
        )


def _pixels(image, path):
    """Converts a Pillow image to upright, 8-bit grey or RGB; `path` is its name in warnings, or ""."""
    from PIL import Image, ImageOps

    _warn_of_pages(image, path)
    limit, bits = MAX_PIXELS // 2, _depth(image)
    if image.width * image.height > limit:
        raise ValueError(f"The image is too large: expected at most {limit} pixels, got {image.width * image.height}")
    if image.mode in ("I", "F") and bits is None:
        raise ValueError(
            f"expected pixels of 8 to 16 bits, got {'floats' if image.mode == 'F' else 'signed or 32-bit integers'}"
        )
    image = ImageOps.exif_transpose(image)
    if bits is not None:
        values = np.asarray(image)
        _warn_of_few_levels(values, bits, path)
        return Image.fromarray((values >> bits - 8).astype("uint8"))  # the high 8 bits, as for a PNG
    return image if image.mode == "L" else image.convert("RGB")


def _converted(encoded, path):
    """Converts an image's bytes with Pillow to a BMP or PNG for TensorFlow, 8-bit and upright.

    BMP takes a tenth of PNG's time; grey images become PNG, since BMP would need a palette.
    """
    from PIL import Image, UnidentifiedImageError

    name = format_from_bytes(encoded[:HEAD])
    if name is None:
        return encoded  # decoding will report that this is not an image
    try:
        pixels = _pixels(open_with_pillow(io.BytesIO(encoded), name), path)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    except Image.DecompressionBombError:
        raise ValueError(f"{name}: The image is too large: expected at most {MAX_PIXELS // 2} pixels") from None
    except UnidentifiedImageError:
        raise ValueError(f"Damaged {name}, or a variant that Pillow does not support") from None
    except Exception as error:  # Pillow raises many kinds of errors for damaged files
        raise ValueError(f"Damaged {name}: {error}") from None
    file = io.BytesIO()
    pixels.save(file, "PNG" if pixels.mode == "L" else "BMP")
    return file.getvalue()


def to_known_format(encoded: bytes, path: str = "") -> bytes:
    """Converts an image that needs Pillow to a format that TensorFlow supports, 8-bit and upright; other bytes stay.

    Args:
        encoded: bytes. Contents of the file.
        path: str. Name in warnings.

    Raises:
        ValueError: if it is unreadable, too large, or has float or 32-bit pixels.
    """
    return _converted(encoded, path) if needs_pillow(tf.constant(encoded)) else encoded


def _converted_array(encoded, path):
    """`_converted` for tf.numpy_function, which passes bytes in a graph and arrays eagerly."""
    encoded, path = (np.asarray(value, object).item() for value in (encoded, path))
    return _converted(encoded, printable(os.fsdecode(path)))


def in_known_format(encoded: tf.Tensor, path: tf.Tensor | bytes = b"") -> tf.Tensor:
    """`to_known_format` for scalar string tensors, in a graph."""

    def converted():
        return tf.ensure_shape(tf.numpy_function(_converted_array, [encoded, path], tf.string, stateful=False), ())

    return tf.cond(needs_pillow(encoded), converted, lambda: encoded)


def read_image(path: tf.Tensor) -> tf.Tensor:
    """Reads image file `path`, a scalar string tensor, in a format that `decode` supports. Runs in a graph."""
    return in_known_format(tf.io.read_file(path), path)


def source_of_files(
    title: str,
    class_names: Sequence[str],
    labels: np.ndarray | None,
    files: Sequence[str],
    columns: Mapping[str, Callable[[tf.Tensor], tf.Tensor]] | None = None,
    parse: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    **fields: Any,
) -> RandomAccess:
    """Makes a source of image files in this order.

    Args:
        title: str. Name in messages.
        class_names: sequence of str, in label order.
        labels: (n,) integers. Classes, or None.
        files: sequence of str. Paths.
        columns: dict. Functions from an example's number, a scalar int64 tensor, to its further values.
        parse, **fields: as for RandomAccess.
    """
    paths = tf.constant([os.fsencode(file) for file in files], tf.string)

    def lookup(i):
        return {"image": read_image(paths[i]), **{key: column(i) for key, column in (columns or {}).items()}}

    def name(i):
        return paths[i]

    return RandomAccess(title, tuple(class_names), labels, lookup, name, count=len(files), parse=parse, **fields)
