"""Odd images through decoding and evaluation: what other software shows upright is read, the rest is skipped.

The table in docs/reference/image_formats.md lists the same by kind. The expected pixels are Pillow's, of
`ImageOps.exif_transpose(image).convert("RGB")`.
"""

import io
import struct
import zlib

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import ExampleErrors, evaluation_batches, open_source, parse
from keras_vit.data.ops.decode import _webp_pixels
from keras_vit.data.sources import image_files
from keras_vit.data.sources.image_files import read_image, to_known_format

pil = pytest.importorskip("PIL.Image")
SKIPPED, SHOWN = "skipped", "shown"  # the latter without a comparison of pixels

_RANDOM = np.random.default_rng(0)
_PHOTO = pil.fromarray(_RANDOM.integers(0, 256, (6, 8, 3), dtype="uint8")).resize((40, 30), pil.Resampling.BICUBIC)
_GREY = _PHOTO.convert("L")
_PALETTE = _PHOTO.convert("P", palette=pil.Palette.ADAPTIVE)
_CLEAR = _PHOTO.copy()
_CLEAR.putalpha(pil.fromarray(_RANDOM.integers(0, 256, (30, 40), dtype="uint8")))


def _save(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def _exif(orientation, order="<"):
    """EXIF data with that orientation, or without one if None."""
    exif = pil.Exif()
    exif.endian = order
    exif[0x010F] = "maker"
    if orientation is not None:
        exif[0x0112] = orientation
    return exif


def _xmp(orientation):
    return f'<rdf:Description tiff:Orientation="{orientation}"/>'.encode()


def _segment(marker, data):
    return b"\xff" + bytes([marker]) + struct.pack(">H", len(data) + 2) + data


def _chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _turned():
    """{file name: bytes} of images with an orientation, wherever software writes it."""
    jpeg, png = _save(_PHOTO, "JPEG"), _save(_PHOTO, "PNG")
    files = {
        f"turned{i}{order}.{kind}": _save(_PHOTO, kind, exif=_exif(i, order), **options)
        for i in range(1, 9)
        for order in "<>"
        for kind, options in (("jpeg", {}), ("png", {}), ("webp", {"lossless": True}))
    }
    exif = _exif(6).tobytes()
    text = f"\nexif\n{len(exif):8d}\n{exif.hex()}\n"
    xmp = _chunk(b"iTXt", b"XML:com.adobe.xmp" + bytes(5) + _xmp(8))
    after_others = _segment(0xED, b"Photoshop 3.0\0" + bytes(20)) + _segment(0xFE, b"words") + _segment(0xE1, exif)
    return files | {
        "late_exif.jpg": jpeg[:20] + after_others + jpeg[20:],
        "xmp.jpg": _save(_PHOTO, "JPEG", xmp=_xmp(5)),
        "xmp_after_exif.jpg": _save(_PHOTO, "JPEG", exif=_exif(1), xmp=_xmp(5)),
        "late_exif.png": png[:-12] + _chunk(b"eXIf", exif[6:]) + png[-12:],
        "xmp.png": png[:33] + xmp + png[33:],
        "imagemagick.png": png[:33] + _chunk(b"tEXt", b"Raw profile type exif\0" + text.encode()) + png[33:],
        "xmp.webp": _save(_PHOTO, "WEBP", lossless=True, xmp=_xmp(3)),
        "turned.tif": _save(_PHOTO, "TIFF", exif=_exif(6)),
        "turned.avif": _save(_PHOTO, "AVIF", exif=_exif(6)),
        "pair.mpo": _save(_PHOTO, "MPO", save_all=True, append_images=[_GREY.convert("RGB")], exif=_exif(6)),
    }


def _bmp(bits, data, colours=b"", compression=0, masks=b"", header=40, size=(16, 3)):
    """A BMP of rows `data`, the lowest first; `header` of 12 bytes is OS/2's."""
    info = struct.pack("<IHHHH", 12, *size, 1, bits)
    if header > 12:
        rest = (*size, 1, bits, compression, len(data), 0, 0, len(colours) // 4, 0)
        info = (struct.pack("<IiiHHIIiiII", header, *rest) + (masks if header > 40 else b"")).ljust(header, b"\0")
    after = (masks if header == 40 else b"") + colours
    start = 14 + len(info) + len(after)
    return b"BM" + struct.pack("<IHHI", start + len(data), 0, 0, start) + info + after + data


def _bmps():
    """{file name: bytes} of BMPs that TensorFlow reads with wrong colours, or not at all."""

    def rows(width):
        return _RANDOM.bytes(3 * width)

    def colours(count, width=4):
        return _RANDOM.integers(0, 256, (count, width), dtype="uint8").tobytes()

    runs = b"".join(bytes([16, level]) + b"\0\0" for level in (1, 3, 2)) + b"\0\1"
    return {
        "1bit.bmp": _save(_PHOTO.convert("1"), "BMP"),
        "1bit_colours.bmp": _bmp(1, rows(4), colours(2)),
        "4bit.bmp": _bmp(4, rows(8), colours(16)),
        "16bit.bmp": _bmp(16, rows(32)),
        "565.bmp": _bmp(16, rows(32), b"", 3, struct.pack("<III", 0xF800, 0x7E0, 0x1F)),
        "fields.bmp": _bmp(32, rows(64), b"", 3, struct.pack("<IIII", 0xFF, 0xFF00, 0xFF0000, 0xFF000000), 108),
        "fields_of_40.bmp": _bmp(32, rows(64), b"", 3, struct.pack("<III", 0xFF0000, 0xFF00, 0xFF)),
        "version5.bmp": _bmp(24, rows(48), header=124),
        "rle.bmp": _bmp(8, runs, colours(256), 1),
        "os2.bmp": _bmp(8, rows(16), colours(256, 3), header=12),
        "few_colours.bmp": _bmp(8, _RANDOM.integers(0, 7, 48, dtype="uint8").tobytes(), colours(7)),
        "more_after.bmp": _bmp(24, rows(48)) + b"more",
        "plain.dib": _save(_PHOTO, "DIB"),
    }


def _gif(screen, *frames, between=b"", transparency=None):
    """A GIF of a `screen` (width, height) and frames (left, top, pixels (h, w)), with `between` before the first."""
    start, parts = b"", []
    for left, top, pixels in frames:
        image = pil.fromarray(pixels, "L")
        data = bytearray(_save(image, "GIF", optimize=False))
        at = data.index(struct.pack("<BHHHH", 0x2C, 0, 0, *image.size))
        start = start or bytes(data[:6]) + struct.pack("<HH", *screen) + bytes(data[10:at])
        data[at + 1 : at + 5] = struct.pack("<HH", left, top)
        parts.append(bytes(data[at:-1]))
    control = b"" if transparency is None else bytes([0x21, 0xF9, 4, 1, 0, 0, transparency, 0])
    return start + between + control + b"".join(parts) + b";"


def _bombs():
    """Small files whose headers claim more pixels than are read."""
    jpeg = bytearray(_save(_PHOTO, "JPEG"))
    start = jpeg.index(b"\xff\xc0") + 5
    jpeg[start : start + 4] = struct.pack(">HH", 60000, 60000)
    png = bytearray(_save(pil.fromarray(_RANDOM.integers(0, 256, (100, 100), dtype="uint8")), "PNG")) + b"\0" * 10000
    png[16:24] = struct.pack(">II", 40000, 40000)
    gif, bmp = bytearray(_save(_PALETTE, "GIF")), bytearray(_save(_PHOTO, "BMP"))
    gif[6:10] = struct.pack("<HH", 60000, 60000)
    bmp[18:26] = struct.pack("<ii", 60000, -60000)
    return {"bomb.jpg": jpeg, "bomb.png": png, "bomb.gif": gif, "bomb.bmp": bmp}


def _good():
    """{file name: bytes} of what decodes."""
    jpeg, png = _save(_PHOTO, "JPEG"), _save(_PHOTO, "PNG")
    small = {
        f"{w}x{h}.{kind}": _save(_PHOTO.resize((w, h)), kind)
        for w, h in ((1, 1), (1, 40), (3, 2))
        for kind in ("jpeg", "png")
    }
    line, grey = _PHOTO.resize((20000, 100)), _gif((40, 30), (0, 0, np.asarray(_GREY)))
    by_pillow = {f"plain.{kind}": _save(_PHOTO, kind) for kind in "TGA PCX SGI DDS QOI IM PPM TIFF JPEG2000".split()}
    by_pillow |= {f"plain.{kind}": _save(_CLEAR.resize((16, 16)), kind) for kind in ("ICO", "ICNS")}
    by_pillow |= {f"plain.{kind}": _save(_GREY.convert("1"), kind) for kind in ("MSP", "XBM")}
    return {
        **_turned(),
        **_bmps(),
        **small,
        **by_pillow,
        "line.jpg": _save(line, "JPEG"),
        "plain.jpg": jpeg,
        "grey.jpg": _save(_GREY, "JPEG"),
        "cmyk.jpg": _save(_PHOTO.convert("CMYK"), "JPEG"),
        "progressive.jpg": _save(_PHOTO, "JPEG", progressive=True),
        "profile.jpg": _save(_PHOTO, "JPEG", icc_profile=b"p" * 3000),
        "poor.jpg": _save(_PHOTO, "JPEG", quality=1),
        "full_colour.jpg": _save(_PHOTO, "JPEG", subsampling=0),
        "no_orientation.jpg": _save(_PHOTO, "JPEG", exif=_exif(None)),
        "orientation_of_9.jpg": _save(_PHOTO, "JPEG", exif=_exif(9)),
        "garbage_after_end.jpg": jpeg + b"garbage" * 100,
        "video_after_end.jpg": jpeg + bytes(200_000),
        "png_inside.jpg": png,
        "jpeg_inside.png": jpeg,
        "grey.png": _save(_GREY, "PNG"),
        "grey_alpha.png": _save(_CLEAR.convert("LA"), "PNG"),
        "alpha.png": _save(_CLEAR, "PNG"),
        "palette.png": _save(_PALETTE, "PNG"),
        "palette_clear.png": _save(_PALETTE, "PNG", transparency=3),
        "palette_4bit.png": _save(_PHOTO.convert("P", palette=pil.Palette.ADAPTIVE, colors=7), "PNG", bits=4),
        "1bit.png": _save(_PHOTO.convert("1"), "PNG"),
        "plain.bmp": _save(_PHOTO, "BMP"),
        "alpha.bmp": _save(_CLEAR, "BMP"),
        "grey.bmp": _save(_GREY, "BMP"),
        "palette.bmp": _save(_PALETTE, "BMP"),
        "plain.gif": _save(_PALETTE, "GIF"),
        "clear.gif": _save(_PALETTE, "GIF", transparency=3),
        "part.gif": _gif((40, 50), (7, 5, np.asarray(_GREY))),
        "part_of_clear.gif": _gif((60, 50), (7, 5, np.asarray(_GREY)), transparency=200),
        "no_palette.gif": grey[:10] + b"\0" + grey[11:13] + grey[13 + 3 * 256 :],
        "animated.webp": _save(_PHOTO, "WEBP", save_all=True, append_images=[_PHOTO.rotate(90)], lossless=True),
        "animated.png": _save(_PHOTO, "PNG", save_all=True, append_images=[_PHOTO.rotate(90)]),
        "animated.gif": _save(_PALETTE, "GIF", save_all=True, append_images=[_PALETTE.rotate(90)]),
        "lossless.webp": _save(_PHOTO, "WEBP", lossless=True),
        "lossy.webp": _save(_PHOTO, "WEBP"),
        "alpha.webp": _save(_CLEAR, "WEBP", lossless=True, exact=True),
    }


def _odd():
    """{file name: (bytes, SHOWN, SKIPPED or pixels)} of images that Pillow shows differently, or that nobody shows."""
    jpeg, png, gif, webp = (_save(_PHOTO, kind) for kind in ("JPEG", "PNG", "GIF", "WEBP"))
    damaged = bytearray(png)
    damaged[60] ^= 255
    broken_exif = _save(_PHOTO, "JPEG", exif=_exif(6)).replace(b"II*\0", b"II*\0\xff\xff\xff\x7f", 1)
    skipped = {
        "empty.jpg": b"",
        "text.jpg": b"this is no image",
        "start_only.jpg": b"\xff\xd8\xff",
        "noise_after_start.jpg": b"\xff\xd8\xff\xe0" + _RANDOM.bytes(500),
        "half.jpg": jpeg[: len(jpeg) // 2],
        "half.png": png[: len(png) // 2],
        "half.gif": gif[: len(gif) // 2],
        "half.webp": webp[: len(webp) // 2],
        "damaged.png": bytes(damaged),
        "half.bmp": _bmps()["4bit.bmp"][:-9],
        **_bombs(),
    }
    deep = np.asarray(_GREY).astype("uint16") * 257
    return {
        **{name: (bytes(data), SKIPPED) for name, data in skipped.items()},
        "16bit.png": (_save(pil.fromarray(deep), "PNG"), np.repeat(np.asarray(_GREY)[..., None], 3, -1)),
        "broken_exif.jpg": (broken_exif, SHOWN),
        "large.jpg": (_save(_GREY.resize((8000, 6000)), "JPEG"), SHOWN),
    }


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    """(folder, {path: expected outcome}): the images in two class folders."""
    from PIL import ImageOps

    def upright(data):
        return np.asarray(ImageOps.exif_transpose(pil.open(io.BytesIO(data))).convert("RGB"))

    animals = {**{name: (data, upright(data)) for name, data in _good().items()}, **_odd()}
    root, expected = tmp_path_factory.mktemp("zoo"), {}
    for i, (name, (data, outcome)) in enumerate(sorted(animals.items())):
        path = root / f"class{i % 2}" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        expected[str(path)] = outcome
    return root, expected


def _is(outcome, kind):
    return isinstance(outcome, str) and outcome == kind


@pytest.mark.extended
def test_pixels_are_what_pillow_shows(zoo):
    _, expected = zoo
    assert len(expected) >= 140
    decode = tf.function(
        lambda path: parse("decode").image(read_image(path)),
        input_signature=[tf.TensorSpec((), tf.string)],
        autograph=False,
    )
    for path, outcome in expected.items():
        if _is(outcome, SKIPPED):
            with pytest.raises(tf.errors.InvalidArgumentError):
                decode(path)
        elif _is(outcome, SHOWN):
            assert decode(path).shape[-1] == 3, path
        else:
            np.testing.assert_array_equal(decode(path), outcome, err_msg=path)


@pytest.mark.extended
def test_tensorflow_alone_reads_the_same_or_refuses_by_name(zoo):
    """The op in an export: Pillow's pixels or an error, never other pixels."""
    decode = tf.function(parse("decode").image, input_signature=[tf.TensorSpec((), tf.string)], autograph=False)
    refused = {}
    for path, outcome in zoo[1].items():
        try:
            image = decode(tf.io.read_file(path))
        except tf.errors.InvalidArgumentError as error:
            refused[path.rsplit("/")[-1]] = error.message
        else:
            assert _is(outcome, SHOWN) or np.array_equal(image, outcome), path
    by_name = {
        "imagemagick.png": "A PNG with EXIF data from an old ImageMagick needs Pillow",
        "animated.webp": "An animated WebP needs Pillow",
        **{name: "A BMP with bit fields, RLE, 1, 4 or 16 bits per pixel, or an OS/2 header" for name in _bmps()},
        **{f"{kind}.{kind}".replace(kind, "plain", 1): "Unknown image file format" for kind in ("TIFF", "TGA", "PPM")},
    }
    del by_name["few_colours.bmp"], by_name["more_after.bmp"], by_name["plain.dib"]
    for name, text in by_name.items():
        assert text in refused[name], name
    assert not [name for name in refused if name.startswith("turned") and not name.endswith((".tif", ".avif"))]


@pytest.mark.extended
def test_of_an_animation_only_the_first_frame_is_read():
    """TensorFlow alone decodes all frames: 20 of 8000 x 8000 pixels, a file of 52 kB, in 14 s and 1.5 GB."""
    shades = _RANDOM.integers(0, 256, (20, 30), dtype="uint8")
    later = _gif((8, 8), (0, 0, np.zeros((8000, 8000), "uint8")))
    later = later[later.index(struct.pack("<BHHHH", 0x2C, 0, 0, 8000, 8000)) : -1]
    comment = b"!\xfe" + b"".join(bytes([n]) * (n + 1) for n in range(1, 256)) + b"\0"  # in chunks of all sizes
    decode = parse("decode(1)").image
    for between in (b"", comment):
        for screen, left, top in (((30, 20), 0, 0), ((40, 50), 7, 5), ((4, 60), 0, 3)):
            file = _gif(screen, (left, top, shades), between=between)
            shown = np.zeros((max(screen[1], top + 20), max(screen[0], left + 30)), "uint8")
            shown[top : top + 20, left : left + 30] = shades
            for data in (file, file[:-1] + 2 * later + b";", file[:-1] + b"junk"):
                np.testing.assert_array_equal(decode(data)[..., 0], shown)
    for cut in (12, 300, len(file) - 3):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="The GIF is damaged or truncated: it has no complete frame"
        ):
            decode(file[:cut])
    with pytest.raises(tf.errors.InvalidArgumentError, match="The image is too large"):
        decode(_gif((8, 8), (65_000, 65_000, shades)))


def test_a_png_has_its_header_first():
    """libpng passes over chunks that it does not know, and what is told of the size would be theirs."""
    data = _save(_PHOTO, "PNG")
    data = data[:8] + _chunk(b"aaAa", struct.pack(">II", 8, 8)) + data[8:] + bytes(20_000)
    with pytest.raises(tf.errors.InvalidArgumentError, match="The PNG does not start with its header"):
        parse("decode").image(data)


@pytest.mark.extended
def test_a_large_jpeg_is_decoded_at_a_fraction(zoo):
    """8000 x 6000 at half its sides: 36 MB instead of 144; means over 2 x 2 pixels of the picture."""
    (path,) = (path for path in zoo[1] if path.endswith("large.jpg"))
    image = parse("decode(1)").image(tf.io.read_file(path))
    assert image.shape == (3000, 4000, 1)
    shown = np.asarray(_GREY.resize((4000, 3000))).astype(int)
    assert np.abs(image[..., 0].numpy() - shown).mean() < 2


def test_the_size_of_a_webp_is_read_before_its_pixels():
    plain = [_save(_PHOTO, "WEBP"), _save(_PHOTO, "WEBP", lossless=True), _save(_CLEAR, "WEBP")]
    assert [data[12:16] for data in plain] == [b"VP8 ", b"VP8L", b"VP8X"]
    assert [int(_webp_pixels(tf.constant(data))) for data in plain] == 3 * [40 * 30]
    for data, at, size in zip(plain, (26, 21, 24), (b"\xff\x3f\xff\x3f", b"\xff\xff\xff\x0f", b"\xff\x3f\0\xff\x3f\0")):
        with pytest.raises(tf.errors.InvalidArgumentError, match="expected at most 134217728 pixels"):
            parse("decode").image(tf.constant(data[:at] + size + data[at + len(size) :]))


@pytest.mark.extended
def test_evaluation_counts_every_image_that_decodes_and_says_what_it_skips(zoo):
    skipped = {path for path, outcome in zoo[1].items() if _is(outcome, SKIPPED)}
    source, errors = open_source(f"folder:{zoo[0]}", "train"), ExampleErrors()
    assert source.size == len(zoo[1])
    batches = evaluation_batches(source, "decode|resize(8, 12)", 16, errors=errors)
    assert sum(weights.sum() for *_, weights in batches.as_numpy_iterator()) == len(zoo[1]) - len(skipped)
    assert set(errors.names) == skipped
    reasons = {path.rsplit("/")[-1]: reason for path, reason in errors.names.items()}
    assert reasons["text.jpg"].startswith("It is not an image of a known format")
    assert reasons["half.bmp"].startswith("Damaged BMP: image file is truncated")
    assert reasons["half.jpg"] == "The JPEG is truncated: its end marker is missing."
    assert all("too large" in reasons[f"bomb.{kind}"] for kind in ("jpg", "png", "gif", "bmp"))


@pytest.fixture
def said(monkeypatch):
    """The warnings about the pixels of files, as if each were the first about its subject."""
    texts = []
    monkeypatch.setattr(image_files, "log_once", lambda level, text, about: texts.append(text))
    return texts


def test_a_microscopes_12_bits_in_16_bring_a_warning(said):
    for brightest in (4000, 40000):
        to_known_format(_save(pil.fromarray(np.full((4, 4), brightest, "uint16")), "TIFF"), "a.tif")
    assert len(said) == 1 and said[0].startswith("a.tif uses less than an eighth of the range of its 16-bit values")


def test_a_tiff_of_several_pages_brings_a_warning(said, tmp_path):
    several = {"save_all": True, "append_images": [_PHOTO.rotate(90), _GREY]}
    (tmp_path / "\xfc b.tif").write_bytes(_save(_PHOTO, "TIFF", **several))
    (tmp_path / "one.tif").write_bytes(_save(_PHOTO, "TIFF"))
    for name in ("one.tif", "\xfc b.tif"):
        image = parse("decode").image(read_image(tf.constant(str(tmp_path / name))))
        np.testing.assert_array_equal(image, np.asarray(_PHOTO))
    assert [text.partition(" has several pages")[0] for text in said] == [str(tmp_path / "\xfc b.tif")]


@pytest.mark.extended
def test_a_large_jpeg_has_all_its_pixels_on_request(large_jpeg):
    shapes = [parse(text).image(large_jpeg.read_bytes()).shape for text in ("decode(1)", "decode(1, whole=True)")]
    assert shapes == [(2200, 4000, 1), (4400, 8000, 1)]
