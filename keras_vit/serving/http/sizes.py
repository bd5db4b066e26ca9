"""The cost of an image from its header, before decoding: its pixels, and a JPEG's number of scans."""

import io
import struct

import tensorflow as tf

from keras_vit.data.ops.gif import first_frame
from keras_vit.data.sources.image_files import FORMATS, HEAD, format_from_bytes, open_with_pillow
from keras_vit.serving.http.bodies import Refused

_CONTAINERS = ("ICO", "ICNS", "BLP")  # of images without a size in their header
_SCANS = 16  # more than any JPEG needs: libjpeg writes progressive ones with ten


def _by_pillow(encoded):
    """(width, height) by Pillow. Raises Refused, 400, if it fails and another library decodes the format."""
    from PIL import Image

    name = format_from_bytes(encoded[:HEAD])
    if name is None:
        return 0, 0
    if name in _CONTAINERS:
        raise Refused(400, f"{name} is not read here: save it as a PNG.")
    try:
        with open_with_pillow(io.BytesIO(encoded), name) as image:
            return image.size
    except Image.DecompressionBombError:
        raise
    except Exception:  # Pillow's readers raise all kinds of errors for damaged files
        if FORMATS[name].module:  # the decoder is the same, and reports the fault
            return 0, 0
        raise Refused(400, f"It cannot be decoded as an image: the header of the {name} is damaged.") from None


def _stated(encoded):
    """(width, height) as the format's decoder reads them; (0, 0) for what it will refuse.

    Pillow would refuse a PNG with a long text, and take minutes for a GIF with a long comment or a padded JPEG.
    """
    start, head = encoded[:2], encoded[:32].ljust(32, b"\0")
    if start == b"\x89P":
        if head[12:16] != b"IHDR":
            raise Refused(400, "It cannot be decoded as an image: the PNG does not begin with its header.")
        return struct.unpack_from(">II", head, 16)
    if start == b"BM" and head[14:18] == b"\x28\0\0\0":  # the header that TensorFlow reads
        width, height = struct.unpack_from("<ii", head, 18)
        return abs(width), abs(height)
    if start not in (b"\xff\xd8", b"GI"):
        return _by_pillow(encoded)
    try:
        height, width = (
            (first_frame(encoded)[2] if start == b"GI" else tf.image.extract_jpeg_shape(encoded)[:2]).numpy().tolist()
        )
    except tf.errors.InvalidArgumentError:
        return 0, 0
    return width, height


def check_size(encoded: bytes, megapixels: float) -> None:
    """Checks an image's header before its pixels; decoding reports other files.

    Raises:
        Refused: 413 for too many pixels, 400 for a damaged header.
    """
    from PIL import Image

    try:
        width, height = _stated(encoded)
    except Image.DecompressionBombError:
        raise Refused(413, f"It has far more than {megapixels:g} million pixels, the limit.") from None
    if width * height > megapixels * 1e6:
        raise Refused(413, f"It has {width} x {height} pixels, of {megapixels:g} million at most.")
    scans = encoded.count(b"\xff\xda") if encoded[:2] == b"\xff\xd8" else 1
    if width * height * scans > _SCANS * megapixels * 1e6:
        raise Refused(
            413,
            f"It is a JPEG of {width} x {height} pixels in {scans} scans, each of which goes over all of them: save it"
            " again.",
        )
