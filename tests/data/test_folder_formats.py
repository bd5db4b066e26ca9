"""Formats of the files in a folder: what is decoded, to which pixels, and what is named as damaged."""

import io
import struct

import numpy as np
import pytest
from image_folders import decoded, pixels, write

from keras_vit.data.sources.image_files import to_known_format

pil = pytest.importorskip("PIL.Image")


@pytest.mark.extended
def test_endings_of_all_kinds_are_read(tmp_path):
    kinds = {"a.jfif": "JPEG", "b.JPE": "JPEG", "c.JPG": "JPEG", "d.tif": "TIFF", "e.TIFF": "TIFF", "f.webp": "WEBP"}
    kinds |= {"g.dib": "BMP", "h.jp2": "JPEG2000", "i.ppm": "PPM", "j.avif": "AVIF"}
    kinds |= {"without": "PNG", "scan.2019": "JPEG", "photo.jpg_2": "JPEG", "tiff without": "TIFF", "named.jpg": "TIFF"}
    write(tmp_path, "dog/x.png")
    for name, kind in kinds.items():
        write(tmp_path, f"cat/{name}", kind=kind)
    images, reasons = decoded(tmp_path)
    assert images.keys() == {*kinds, "x.png"} and not reasons
    for name in ("d.tif", "e.TIFF", "tiff without", "named.jpg", "i.ppm"):
        np.testing.assert_array_equal(images[name], pixels(sum(map(ord, f"cat/{name}"))), err_msg=name)


@pytest.mark.extended
def test_odd_tiffs_are_read_as_other_formats_are(tmp_path):
    """As docs/reference/image_formats.md says; damaged ones are named with the reason."""
    photo = pil.fromarray(pixels())
    grey, clear = np.asarray(photo.convert("L")), photo.copy()
    clear.putalpha(100)
    turned = pil.Exif()
    turned[0x0112] = 3
    deep = pil.fromarray(grey.astype("uint16") * 257)
    (tmp_path / "cat").mkdir()

    def save(image, name, **options):
        return image.save(tmp_path / "cat" / name, "TIFF", **options)

    (
        save(deep, "deep.tif"),
        save(photo.convert("L"), "grey.tif"),
        save(clear, "alpha.tif"),
        save(photo.convert("CMYK"), "cmyk.tif"),
    )
    save(photo, "turned.tif", exif=turned), save(photo, "pages.tif", save_all=True, append_images=[photo.rotate(90)])
    save(photo.convert("1"), "bits.tif"), save(photo, "lzw.tif", compression="tiff_lzw")
    save(pil.fromarray(grey.astype("float32")), "float.tif")
    whole = (tmp_path / "cat" / "lzw.tif").read_bytes()
    (tmp_path / "cat" / "half.tif").write_bytes(whole[: len(whole) // 2])
    write(tmp_path, "dog/x.png")
    images, reasons = decoded(tmp_path)
    three = np.repeat(grey[..., None], 3, -1)
    expected = {"deep.tif": three, "grey.tif": three, "turned.tif": pixels()[::-1, ::-1]}
    expected |= {"cmyk.tif": np.asarray(photo.convert("CMYK").convert("RGB"))}
    expected |= dict.fromkeys(("alpha.tif", "pages.tif", "lzw.tif"), pixels())
    for name, image in expected.items():
        np.testing.assert_array_equal(images[name], image, err_msg=name)
    assert set(np.unique(images["bits.tif"])) == {0, 255}
    assert reasons.keys() == {"float.tif", "half.tif"}
    assert reasons["float.tif"] == "TIFF: expected pixels of 8 to 16 bits, got floats" and reasons[
        "half.tif"
    ].startswith("Damaged TIFF, or a variant")


def tiff_of_12_bits(levels):
    """A grey TIFF of levels (h, w) from 0 to 4095, w even. Pillow reads such files and does not write them."""
    first, second = levels[:, ::2].astype("uint8" if levels.max() < 256 else "uint16"), levels[:, 1::2]
    data = np.stack([first >> 4, (first & 15) << 4 | second >> 8, second & 255], -1).astype("uint8").tobytes()
    h, w = levels.shape
    tags = {256: w, 257: h, 258: 12, 259: 1, 262: 1, 273: 8, 277: 1, 278: h, 279: len(data)}
    entries = b"".join(
        struct.pack("<HHII", tag, 4 if tag in (273, 279) else 3, 1, value) for tag, value in tags.items()
    )
    return struct.pack("<4sI", b"II*\0", 8 + len(data)) + data + struct.pack("<H", len(tags)) + entries + bytes(4)


def test_of_more_than_8_bits_the_high_8_are_taken():
    levels = np.arange(0, 4096, 256).reshape(2, 8)

    def pgm(highest, kind):
        return b"P5 8 2 %d\n" % highest + levels.astype(kind).tobytes()

    for file, expected in (
        (tiff_of_12_bits(levels), levels >> 4),
        (pgm(65535, ">u2"), levels >> 8),
        (pgm(4095, ">u2"), np.round(levels / 4095 * 65535).astype(int) >> 8),
    ):
        np.testing.assert_array_equal(np.asarray(pil.open(io.BytesIO(to_known_format(file)))), expected)


@pytest.mark.extended
def test_heic_is_read_by_pillow_heif(tmp_path):
    heif = pytest.importorskip("pillow_heif")
    heif.register_heif_opener()
    write(tmp_path, "dog/x.png")
    write(tmp_path, "cat/a.HEIC", "cat/without", kind="HEIF")
    images, reasons = decoded(tmp_path)
    assert images.keys() == {"a.HEIC", "without", "x.png"} and not reasons
    np.testing.assert_array_equal(images["a.HEIC"], np.asarray(pil.open(tmp_path / "cat" / "a.HEIC")))
