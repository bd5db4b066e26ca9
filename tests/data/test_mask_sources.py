"""Folders of images and masks: kinds of pixels, meanings of values, and what is refused."""

import re

import numpy as np
import pytest
import tensorflow as tf
from mask_files import (
    COLORS,
    LABELMAP,
    NAMES,
    ROOMS,
    TABLE,
    everywhere,
    opened,
    painted,
    palette,
    photo,
    pil,
    png,
    read,
    rooms,
    save,
    tiff,
    wide_colors,
    write,
)

from keras_vit.data.errors import reason
from keras_vit.data.sources.mask_files import Mapping, class_mapper
from keras_vit.io.target_values import void_value

pytestmark = pytest.mark.usefixtures("own_cache")


LARGE = np.arange(1600, dtype="uint16").reshape(40, 40)

# (files, options, what is said): refused when the folder is opened.
REFUSED = {
    "names_differ": ({"images/a.jpg": photo(), "masks/b.png": png(ROOMS)}, "", "1 image and 1 mask do not match"),
    "no_masks": ({"images/a.jpg": photo()}, "", "has 1 image but no masks. Expected folders named images and masks"),
    "no_images": ({"masks/a.png": png(ROOMS)}, "", "has 1 mask but no images"),
    "nothing": ({"classes.txt": NAMES}, "", "has no images"),
    "two_masks": (rooms(**{"masks/0.bmp": b""}), "", "has two masks with one name: masks/0.bmp and masks/0.png"),
    "two_images": (rooms(**{"images/0.png": photo()}), "", "has two images with one name: images/0.jpg and"),
    "option": (rooms(), "?clases=3", 'has the option "clases=3". Valid: images=, masks=, suffix=, classes='),
    "one_folder_for_both": (rooms(), "?images=masks&masks=masks", "Expected two different folders"),
    "no_such_folder": (rooms(), "?images=images&masks=drawn", 'has no folder "drawn" .masks=. with images'),
    "jpegs": (everywhere(photo(), suffix=".jpg"), "", "The mask is a JPEG, a lossy format"),
    "lossy_webp": (everywhere(save(pil.fromarray(ROOMS), "WEBP"), suffix=".webp"), "", "The mask is a WebP, a lossy"),
    "colors_without_table": (everywhere(painted(), names=""), "", r"them: the pixel in row 0, column 0 is \(10, 20"),
    "one_class": (everywhere(png(ROOMS * 0), names=""), "", "values 0, 1 class and void: expected at least 2"),
    "one_above": (everywhere(png(ROOMS + 1)), "", r"values 1 to 3, .* Either 3 is void: add \?ignore=3. Or 0 is void"),
    "objects": (
        {"images/a.jpg": photo((40, 40)), "masks/a.png": png(LARGE)}, "", "1,600 different values, too many for classes"
    ),
    "unknown_name": (rooms(), "?ignore=trees", 'ignore=trees: expected stored values .* Did you mean "tree"?'),
    "value_twice": (rooms(), "?values=0,1,1", "values=0,1,1: expected distinct stored values"),
    "values_too_few": (rooms(), "?values=0,1", "expected one value per class, 3, got 2"),
    "no_names": (rooms(names=" \n"), "", "has no names"),
    "name_twice": (rooms(names="a\na\n"), "", "has a name twice: ..a.."),
    "color_twice": (rooms(names="", **{"class_dict.csv": "name,r,g,b\na,1,1,1\nb,1,1,1"}), "", "has a colour twice"),
    "color_too_large": (rooms(names="", **{"label_colors.txt": "300 0 0 a"}), "", r"to 255, got \(300, 0, 0\)"),
    "odd_line": (rooms(names="", **{"class_dict.csv": "name,r,g,b\na,1,1"}), "", "has a line that does not match its"),
    "no_colors": (rooms(), "?colors=classes.txt", "classes.txt. has no colours. Expected lines such as"),
    "missing_color": (
        rooms(**{"other.csv": "name,r,g,b\nsky,1,2,3"}), "?colors=other.csv", "has no colours for .'road', 'tree'."
    ),
    "missing_file": (rooms(), "?classes=names.txt", "Cannot read .*names.txt"),
    "values_outside": (
        everywhere(png(ROOMS * 9)), "", "3 of 3 masks cannot be used, .*it has the value 9.* Expected 0, 1"
    ),
    "all_void": (everywhere(png(ROOMS * 0 + 255)), "", "3 of 3 masks cannot be used, .*it is all void"),
    "floats": (everywhere(tiff(ROOMS.astype("float32")), suffix=".tif"), "", "as integers of .* got Pillow's mode F"),
    "negative": (everywhere(tiff(ROOMS.astype("int32") - 1), suffix=".tif"), "", "from 0 to 65535, got -1"),
    "wide_colors": (everywhere(wide_colors(), names="", **{"class_dict.csv": TABLE}), "", "16-bit RGB colours"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_folders_without_a_clear_meaning_are_refused(name, tmp_path):
    files, options, message = REFUSED[name]
    write(tmp_path, files)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        opened(tmp_path, options)


# (files, what is said): one example of three fails when it is read, by name; opening the folder warns.
BROKEN = {
    "size": (rooms(png(ROOMS[:2])), "differ in size .*: the mask has 2, 4 and the image 3, 4 Save the mask at"),
    "twice_the_size": (rooms(png(ROOMS.repeat(2, 0).repeat(2, 1))), "the mask has 6, 8 and the image 3, 4"),
    "value": (rooms(png(ROOMS + ROOMS // 2 * 2)), "The mask has the value 4 in row 1 column 2 but expected are 0, 1"),
    "color": (
        rooms(png(np.dstack([ROOMS] * 3)), others=painted(), names="", **{"class_dict.csv": TABLE}),
        r"The mask has the colour \(0, 0, 0\) in row 0 column 0",
    ),
    "all_void": (rooms(png(ROOMS * 0 + 255)), "The mask is all void: no pixel has a class"),
    "jpeg": (rooms(photo()), "The mask is a JPEG, a lossy format"),
    "cut_short": (rooms(png(ROOMS)[:60]), "Invalid PNG|PNG"),
    "empty": (rooms(b""), "Expected a mask as PNG, got an unknown format"),
    "text": (rooms(b"no image, but a line of text"), "Expected a mask as PNG, got an unknown format"),
}  # fmt: skip


@pytest.mark.extended
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_mask_fails_alone_and_by_name(name, tmp_path, told):
    files, message = BROKEN[name]
    write(tmp_path, files)
    source = opened(tmp_path)
    assert any("1 of 3 masks cannot be used" in text and "masks/0.png" in text for text in told())
    assert set(np.unique(read(source, "1.jpg"))) == {0, 1, 2}
    with pytest.raises((tf.errors.OpError, ValueError)) as error:
        read(source)
    assert re.search(message, reason(error.value))


GAPS = np.array([0, 7, 11], "uint8")[ROOMS]
VOID_LAST = np.where(ROOMS == 2, 255, ROOMS).astype("uint8")
# (files, options, class names, the first mask's class_mapper values)
TREATED = {
    "grey": (rooms(), "", ("sky", "road", "tree"), ROOMS),
    "one_bit": (everywhere(png(ROOMS > 0), names=""), "", ("background", "foreground"), ROOMS > 0),
    "binary": (everywhere(png((ROOMS > 0) * np.uint8(255)), names=""), "", ("background", "foreground"), ROOMS > 0),
    "binary_named": (
        everywhere(png((ROOMS > 0) * np.uint8(255)), names="polyp\n"), "", ("background", "polyp"), ROOMS > 0
    ),
    "void_is_255": (everywhere(png(VOID_LAST), names=""), "", ("0", "1"), VOID_LAST),
    "no_void": (everywhere(png(VOID_LAST), names=""), "?ignore=none", ("0", "1", "255"), ROOMS),
    "two_bits": (everywhere(palette(ROOMS, COLORS.values(), bits=2)), "", ("sky", "road", "tree"), ROOMS),
    "palette_without_entries": (everywhere(palette(ROOMS, [(0, 0, 0)], bits=8)), "", ("sky", "road", "tree"), ROOMS),
    "palette_of_equal_colors": (everywhere(palette(ROOMS, [(9, 9, 9)] * 3)), "", ("sky", "road", "tree"), ROOMS),
    "sixteen_bits": (everywhere(png(ROOMS.astype("uint16") * 1000), names=""), "", ("0", "1000", "2000"), ROOMS),
    "sixteen_bit_tiff": (
        everywhere(tiff(ROOMS.astype("uint16") * 1000), names="", suffix=".tif"), "", ("0", "1000", "2000"), ROOMS
    ),
    "gif": (everywhere(save(pil.fromarray(ROOMS), "GIF"), suffix=".gif"), "", ("sky", "road", "tree"), ROOMS),
    "gaps": (everywhere(png(GAPS), names=""), "", ("0", "7", "11"), ROOMS),
    "gaps_named": (everywhere(png(GAPS)), "?values=0,7,11", ("sky", "road", "tree"), ROOMS),
    "numbered_names": (everywhere(png(GAPS), names="0 sky\n7 road\n11 tree\n"), "", ("sky", "road", "tree"), ROOMS),
    "from_1": (everywhere(png(ROOMS), names="road\ntree\n"), "?ignore=0", ("road", "tree"), np.uint8(ROOMS - 1)),
    "background_ignored": (
        everywhere(png(ROOMS), names="background\nroad\ntree\n"), "?ignore=0", ("road", "tree"), np.uint8(ROOMS - 1)
    ),
    "ignored_by_name": (rooms(), "?ignore=sky", ("road", "tree"), np.uint8(ROOMS - 1)),
    "two_ignored": (everywhere(png(GAPS), names=""), "?ignore=0,200", ("7", "11"), np.uint8(ROOMS - 1)),
    "named_void": (rooms(names="sky\nroad\nVoid\n"), "", ("sky", "road"), VOID_LAST),
    "colors": (everywhere(painted(), names="", **{"class_dict.csv": TABLE}), "", ("sky", "road", "tree"), ROOMS),
    "rgba": (
        everywhere(painted(alpha=7), names="", **{"label_colors.txt": "10 20 30\tsky\n40 50 60\troad\n70 80 90\ttree"}),
        "", ("sky", "road", "tree"), ROOMS,
    ),
    "labelmap": (
        everywhere(painted(), names="", **{"labelmap.txt": LABELMAP}),
        "?ignore=#0a141e", ("road", "tree"), np.uint8(ROOMS - 1),
    ),
    "colors_in_the_order_of_names": (
        everywhere(painted(), names="tree\nroad\nsky\n", **{"class_dict.csv": TABLE}), "", ("tree", "road", "sky"),
        2 - ROOMS,
    ),
    "grey_in_rgb": (everywhere(png(np.dstack([ROOMS] * 3))), "", ("sky", "road", "tree"), ROOMS),
}  # fmt: skip


@pytest.mark.extended
@pytest.mark.parametrize("name", TREATED)
def test_values_of_every_kind_become_class_numbers(name, tmp_path):
    files, options, names, expected = TREATED[name]
    write(tmp_path, files)
    source = opened(tmp_path, options)
    assert (source.class_names, source.void) == (names, 255)
    mask = read(source)
    assert mask.dtype == np.uint8
    np.testing.assert_array_equal(mask, expected)


def test_palettes_are_read_by_the_colors_of_the_table(tmp_path):
    files = rooms(palette(ROOMS, list(COLORS.values())[::-1]), others=painted(), names="")
    write(tmp_path, files | {"class_dict.csv": TABLE, "masks/1.png": palette(ROOMS, COLORS.values())})
    source = opened(tmp_path)
    np.testing.assert_array_equal(read(source, "1.jpg"), ROOMS)
    np.testing.assert_array_equal(read(source), 2 - ROOMS)


def test_files_of_another_palette_than_the_sample_fail_by_name():
    mapping = Mapping({0: 0, 1: 1, 2: 2}, frozenset([255]), tuple("abc"), 255, palette={0: 5, 1: 0xFF0000})

    def classes(encoded):
        return class_mapper(mapping)(tf.constant(encoded))

    red, blue, last = (255, 0, 0), (0, 0, 5), (9, 9, 9)
    for colors in ([blue, red, last], [blue, red, red], [last] * 3):
        np.testing.assert_array_equal(classes(palette(ROOMS, colors))[..., 0], ROOMS)
    np.testing.assert_array_equal(classes(palette(ROOMS * 0, [blue, last]))[..., 0], ROOMS * 0)  # 1 is unused
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        classes(palette(ROOMS, [blue, last, red]))
    assert "differs from that of other masks: index 1 is (9, 9, 9) here and (255, 0, 0) there" in reason(error.value)


def test_an_option_decides_between_indices_and_colors(tmp_path):
    files = everywhere(palette(ROOMS, list(COLORS.values())[::-1]), names="")
    write(tmp_path, files | {"classes.csv": "id,name,r,g,b\n0,sky,10,20,30\n1,road,40,50,60\n2,tree,70,80,90\n"})
    with pytest.raises(ValueError, match=r"contradicts the masks' palettes.*\?palette=colors reads the colours"):
        opened(tmp_path)
    np.testing.assert_array_equal(read(opened(tmp_path, "?palette=index")), ROOMS)
    np.testing.assert_array_equal(read(opened(tmp_path, "?palette=colors")), 2 - ROOMS)
    with pytest.raises(ValueError, match="palette=rgb: expected index or colors"):
        opened(tmp_path, "?palette=rgb")


def test_colors_come_from_the_table(tmp_path):
    write(tmp_path, everywhere(painted(), names="", **{"class_dict.csv": TABLE}))
    assert opened(tmp_path).colors == tuple(COLORS.values())


def test_masks_of_255_classes_have_a_void_above_them(tmp_path):
    assert (void_value(254), void_value(255), void_value(70_000)) == (255, 65535, 65535)
    names = "".join(f"{i}\n" for i in range(300))
    write(tmp_path, everywhere(png(np.array([[299, 65535, 255, 0]] * 3, "uint16")), names=names))
    source = opened(tmp_path, "?ignore=65535")
    assert source.void == 65535 and source.read(tf.constant(0, tf.int64))["void"].dtype == tf.int32
    np.testing.assert_array_equal(read(source)[0], [299, 65535, 255, 0])
