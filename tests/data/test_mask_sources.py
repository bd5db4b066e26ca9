"""Folders of images and masks: layouts, kinds of pixels, meanings of values, and what is refused."""

import io
import json
import logging
import re

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import from_arrays, open_source, training_batches
from keras_vit.data.errors import ExampleErrors, reason
from keras_vit.data.ops.registry import parse
from keras_vit.data.records.write import write_records
from keras_vit.data.source_names import with_kind
from keras_vit.data.sources.mask_pairs import find_pairs
from keras_vit.data.sources.mask_tables import cityscapes, read_table, voc
from keras_vit.data.sources.selection import example_names, labels_of
from keras_vit.data.splits import MissingSplit
from keras_vit.io.progress import Stage
from keras_vit.io.void import void_of

pil = pytest.importorskip("PIL.Image")
ROOMS = np.array([[0, 0, 0, 1], [0, 1, 2, 2], [1, 1, 2, 2]], "uint8")  # a mask of three classes
NAMES = "sky\nroad\ntree\n"
COLORS = {0: (10, 20, 30), 1: (40, 50, 60), 2: (70, 80, 90)}
TABLE = "name,r,g,b\nsky,10,20,30\nroad,40,50,60\ntree,70,80,90\n"
LABELMAP = "# label:color_rgb:parts:actions\nsky:10,20,30::\nroad:40,50,60::\ntree:70,80,90::\n"


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def told(caplog):
    """A function: the messages so far."""
    logging.getLogger("absl").propagate = True
    caplog.set_level("INFO", logger="absl")
    return lambda: [record.getMessage() for record in caplog.records]


def save(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png(values, **options):
    return save(pil.fromarray(np.asarray(values)), **options)


def photo(size=ROOMS.shape, **options):
    return save(pil.fromarray(np.full((*size, 3), 100, "uint8")), "JPEG", **options)


def palette(values, colors, **options):
    image = pil.fromarray(np.asarray(values, "uint8"))
    image.putpalette([channel for color in colors for channel in color])
    return save(image, **options)


def painted(values=ROOMS, alpha=None):
    pixels = np.array([COLORS[i] for i in range(3)], "uint8")[values]
    layers = pixels if alpha is None else np.concatenate([pixels, np.full((*values.shape, 1), alpha, "uint8")], -1)
    return png(layers)


def wide_colors():
    return tf.io.encode_png(np.zeros((*ROOMS.shape, 3), "uint16")).numpy()


def tiff(values, **options):
    return save(pil.fromarray(values), "TIFF", **options)


def write(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def rooms(first=None, suffix=".png", names=NAMES, others=None, count=3, size=ROOMS.shape, **further):
    """The files of images and masks: `first` is the first mask, `others` are the further ones."""
    first = png(ROOMS) if first is None else first
    others = png(ROOMS) if others is None else others
    files = {f"images/{i}.jpg": photo(size if i == 0 else ROOMS.shape) for i in range(count)}
    files |= {f"masks/{i}{suffix}": first if i == 0 else others for i in range(count)}
    return files | ({"classes.txt": names} if names else {}) | further


def everywhere(mask, **options):
    return rooms(mask, others=mask, **options)


def opened(root, options="", split="train"):
    return open_source(f"masks:{root}{options}", split)


def read(source, name="0.jpg"):
    """The mask (h, w) of the example whose image has that name, after `decode`."""
    number = next(i for i, path in enumerate(example_names(source)) if path.endswith(name))
    return parse("decode")(source.read(tf.constant(number, tf.int64)), None)["mask"].numpy()[..., 0]


LARGE = np.arange(1600, dtype="uint16").reshape(40, 40)
UPRIGHT = pil.Exif()
UPRIGHT[0x0112] = 6
ROTATED = photo((3, 4), exif=UPRIGHT)

# (files, options, what is said): refused when the folder is opened.
REFUSED = {
    "names_differ": ({"images/a.jpg": photo(), "masks/b.png": png(ROOMS)}, "", "none of 1 image has a mask of its"),
    "no_masks": ({"images/a.jpg": photo()}, "", "has 1 image and no masks. Expected images and masks in folders"),
    "no_images": ({"masks/a.png": png(ROOMS)}, "", "has 1 mask and no images"),
    "nothing": ({"classes.txt": NAMES}, "", "has no images"),
    "two_masks": (rooms(**{"masks/0.bmp": b""}), "", "has two masks of one name: masks/0.bmp and masks/0.png"),
    "two_images": (rooms(**{"images/0.png": photo()}), "", "has two images of one name: images/0.jpg and images/0.png"),
    "option": (rooms(), "?clases=3", 'has the option "clases=3". Valid: images=, masks=, suffix=, classes='),
    "half_an_option": (rooms(), "?masks=masks", "images= and masks= name two folders: give both"),
    "no_such_folder": (rooms(), "?images=images&masks=drawn", 'There is no folder "drawn" .masks=. with images'),
    "jpegs": (everywhere(photo(), suffix=".jpg"), "", "The mask is a JPEG, which does not keep values exactly"),
    "lossy_webp": (everywhere(save(pil.fromarray(ROOMS), "WEBP"), suffix=".webp"), "", "The mask is a WebP, which"),
    "colors_without_table": (everywhere(painted(), names=""), "", r"them: the pixel in row 0, column 0 is \(10, 20"),
    "one_class": (everywhere(png(ROOMS * 0), names=""), "", "values 0, which are 1 class and void: there is nothing"),
    "one_above": (everywhere(png(ROOMS + 1)), "", r"values 1 to 3, .* Either 3 is void: add \?ignore=3. Or 0 is void"),
    "objects": (
        {"images/a.jpg": photo((40, 40)), "masks/a.png": png(LARGE)}, "", "1,600 different values, too many for classes"
    ),
    "unknown_name": (rooms(), "?ignore=trees", 'ignore=trees: expected stored values .* Did you mean "tree"?'),
    "value_twice": (rooms(), "?values=0,1,1", "values=0,1,1: expected different stored values"),
    "values_too_few": (rooms(), "?values=0,1", "values= gives 2 values for 3 classes"),
    "no_names": (rooms(names=" \n"), "", "names no class"),
    "name_twice": (rooms(names="a\na\n"), "", "has a name twice: ..a.."),
    "color_twice": (rooms(names="", **{"class_dict.csv": "name,r,g,b\na,1,1,1\nb,1,1,1"}), "", "has a colour twice"),
    "color_too_large": (rooms(names="", **{"label_colors.txt": "300 0 0 a"}), "", r"has the colour \(300, 0, 0\)"),
    "odd_line": (rooms(names="", **{"class_dict.csv": "name,r,g,b\na,1,1"}), "", "has a line unlike its header"),
    "no_colors": (rooms(), "?colors=classes.txt", "classes.txt. has no colours; expected lines such as"),
    "missing_color": (
        rooms(**{"other.csv": "name,r,g,b\nsky,1,2,3"}), "?colors=other.csv", "has no colour for .'road', 'tree'."
    ),
    "missing_file": (rooms(), "?classes=names.txt", "Cannot read .*names.txt"),
    "values_outside": (
        everywhere(png(ROOMS * 9)), "", "of 3 masks 3 cannot be used, .*it has the value 9.* Expected the values 0, 1"
    ),
    "all_void": (everywhere(png(ROOMS * 0 + 255)), "", "of 3 masks 3 cannot be used, .*it is all void"),
    "floats": (everywhere(tiff(ROOMS.astype("float32")), suffix=".tif"), "", "pixels of the kind F; expected integers"),
    "negative": (everywhere(tiff(ROOMS.astype("int32") - 1), suffix=".tif"), "", "The mask has the value -1"),
    "wide_colors": (everywhere(wide_colors(), names="", **{"class_dict.csv": TABLE}), "", "RGB colours of 16 bits"),
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
    "not_turned": (rooms() | {"images/0.jpg": ROTATED}, "The mask fits the image as stored, before it is turned"),
    "value": (rooms(png(ROOMS + ROOMS // 2 * 2)), "The mask has the value 4 in row 1 column 2 and expected are 0, 1"),
    "color": (
        rooms(png(np.dstack([ROOMS] * 3)), others=painted(), names="", **{"class_dict.csv": TABLE}),
        r"The mask has the colour \(0, 0, 0\) in row 0 column 0",
    ),
    "all_void": (rooms(png(ROOMS * 0 + 255)), "The mask is all void: no pixel has a class"),
    "jpeg": (rooms(photo()), "The mask is a JPEG, which does not keep values exactly"),
    "cut_short": (rooms(png(ROOMS)[:60]), "Invalid PNG|PNG"),
    "empty": (rooms(b""), "The mask is no image of a known format"),
    "text": (rooms(b"no image, but a line of text"), "The mask is no image of a known format"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_mask_fails_alone_and_by_name(name, tmp_path, told):
    files, message = BROKEN[name]
    write(tmp_path, files)
    source = opened(tmp_path)
    assert any("of 3 masks 1 cannot be used" in text and "masks/0.png" in text for text in told())
    assert set(np.unique(read(source, "1.jpg"))) == {0, 1, 2}
    with pytest.raises((tf.errors.OpError, ValueError)) as error:
        read(source)
    assert re.search(message, reason(error.value))


GAPS = np.array([0, 7, 11], "uint8")[ROOMS]
VOID_LAST = np.where(ROOMS == 2, 255, ROOMS).astype("uint8")
# (files, options, class names, the first mask's canonical values)
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


@pytest.mark.parametrize("name", TREATED)
def test_values_of_every_kind_become_class_numbers(name, tmp_path):
    files, options, names, expected = TREATED[name]
    write(tmp_path, files)
    source = opened(tmp_path, options)
    assert (source.class_names, source.void) == (names, 255)
    mask = read(source)
    assert mask.dtype == np.uint8
    np.testing.assert_array_equal(mask, expected)


def test_a_palette_with_the_colors_of_other_classes_is_refused(tmp_path):
    files = rooms(palette(ROOMS, list(COLORS.values())[::-1]), others=painted(), names="")
    write(tmp_path, files | {"class_dict.csv": TABLE, "masks/1.png": palette(ROOMS, COLORS.values())})
    source = opened(tmp_path)
    np.testing.assert_array_equal(read(source, "1.jpg"), ROOMS)
    with pytest.raises(tf.errors.InvalidArgumentError, match="palette has the table's colours at other indices"):
        read(source)


def test_colors_come_from_the_table(tmp_path):
    write(tmp_path, everywhere(painted(), names="", **{"class_dict.csv": TABLE}))
    assert opened(tmp_path).colors == tuple(COLORS.values())


def test_masks_of_255_classes_have_a_void_above_them(tmp_path):
    assert (void_of(254), void_of(255), void_of(70_000)) == (255, 65535, 65535)
    names = "".join(f"{i}\n" for i in range(300))
    write(tmp_path, everywhere(png(np.array([[299, 65535, 255, 0]] * 3, "uint16")), names=names))
    source = opened(tmp_path, "?ignore=65535")
    assert source.void == 65535 and source.read(tf.constant(0, tf.int64))["void"].dtype == tf.int32
    np.testing.assert_array_equal(read(source)[0], [299, 65535, 255, 0])


# {layout: (names of images, names of masks, further files, splits)}
LAYOUTS = {
    "segnet": (["train/a.jpg", "val/b.jpg"], ["trainannot/a.png", "valannot/b.png"], {}, {"train": 1, "val": 1}),
    "camvid": (["images/a.png", "images/b.png"], ["labels/a_L.png", "labels/b_L.png"], {}, {"train": 2}),
    "camvid_in_parts": (["train/a.png"], ["train_labels/a_L.png"], {}, {"train": 1}),
    "cityscapes": (
        ["leftImg8bit/train/ulm/u_0_leftImg8bit.png", "leftImg8bit/val/bonn/b_0_leftImg8bit.png"],
        ["gtFine/train/ulm/u_0_gtFine_labelIds.png", "gtFine/val/bonn/b_0_gtFine_labelIds.png"],
        {
            "gtFine/train/ulm/u_0_gtFine_color.png": "", "gtFine/train/ulm/u_0_gtFine_instanceIds.png": "",
            "gtFine/train/ulm/u_0_gtFine_labelTrainIds.png": "", "gtFine/train/ulm/u_0_gtFine_polygons.json": "",
        },
        {"train": 1, "val": 1},
    ),
    "ade20k": (
        ["images/training/a.jpg", "images/validation/b.jpg"],
        ["annotations/training/a.png", "annotations/validation/b.png"], {}, {"train": 1, "val": 1},
    ),
    "voc": (
        ["JPEGImages/a.jpg", "JPEGImages/b.jpg"], ["SegmentationClass/a.png", "SegmentationClass/b.png"],
        {
            "ImageSets/Segmentation/train.txt": "a\n", "ImageSets/Segmentation/val.txt": "b\n",
            "JPEGImages/c.jpg": "", "SegmentationObject/a.png": "",
        },
        {"train": 1, "val": 1},
    ),
    "parts_outside": (["train/images/a.jpg", "test/images/b.jpg"], ["train/masks/a.png", "test/masks/b.png"], {},
                      {"train": 1, "test": 1}),
    "parts_inside": (["images/train/a.jpg", "images/valid/b.jpg"], ["masks/train/a.png", "masks/valid/b.png"], {},
                     {"train": 1, "val": 1}),
    "beside": (["a.jpg", "b.jpg"], ["a_mask.png", "b_mask.png"], {}, {"train": 2}),
    "roboflow": (["train/a.jpg", "valid/b.jpg"], ["train/a_mask.png", "valid/b_mask.png"], {"train/_classes.csv": ""},
                 {"train": 1, "val": 1}),
    "satellites": (["train/1_sat.jpg", "train/2_sat.jpg"], ["train/1_mask.png", "train/2_mask.png"], {}, {"train": 2}),
    "marks_before": (["images/image_1.png"], ["masks/mask_1.png"], {}, {"train": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_usual_layouts_are_paired_and_split(name, tmp_path):
    images, masks, further, splits = LAYOUTS[name]
    write(tmp_path, dict.fromkeys([*images, *masks], "") | further)
    pairs = find_pairs(str(tmp_path), dict.fromkeys(("images", "masks", "suffix"), ""), Stage(""))
    found = [pair for split in pairs.splits.values() for pair in split]
    assert sorted(found) == sorted((f"{tmp_path}/{i}", f"{tmp_path}/{m}") for i, m in zip(images, masks))
    assert {split: len(found) for split, found in pairs.splits.items()} == splits
    assert not any(pairs.told(split) for split in splits)
    assert with_kind(str(tmp_path)) == f"masks:{tmp_path}"


def test_options_name_the_folders_and_the_ending(tmp_path):
    write(tmp_path, {"photos/a.jpg": "", "drawn/a-x.png": "", "other/a.png": ""})
    chosen = {"images": "photos", "masks": "drawn", "suffix": "-x"}
    pairs = find_pairs(str(tmp_path), chosen, Stage(""))
    assert pairs.splits == {"train": [(f"{tmp_path}/photos/a.jpg", f"{tmp_path}/drawn/a-x.png")]}


def test_missing_partners_are_told_by_name_and_count(tmp_path, told):
    write(tmp_path, rooms(**{"images/lonely.jpg": photo(), "masks/lost.png": png(ROOMS), "masks/gone.png": png(ROOMS)}))
    assert opened(tmp_path).size == 3
    (line,) = [text for text in told() if "3 images with masks" in text]
    assert "ignored: 1 image without a mask (lonely.jpg), 2 masks of no image (gone.png, lost.png)" in line


def test_one_line_says_what_was_found(tmp_path, told):
    write(tmp_path, everywhere(png(np.where(ROOMS == 1, 255, ROOMS).astype("uint8"))))
    opened(tmp_path)
    line = f"masks:{tmp_path}, train: 3 images with masks of 3 classes; by the pixels of all masks of train: sky 50.0%,"
    assert [text for text in told() if text.startswith(line)][0].endswith(
        "tree 50.0%, road 0.0%; void 33.3% (stored as 255)."
    )


def test_slices_are_disjoint_and_complete(tmp_path):
    write(tmp_path, rooms(count=10))
    parts = [example_names(opened(tmp_path, "", split)) for split in ("train[:80%]", "train[80%:]")]
    assert [len(part) for part in parts] == [8, 2]
    assert sorted(sum(parts, [])) == [f"{tmp_path}/images/{i}.jpg" for i in range(10)]
    with pytest.raises(MissingSplit, match='has no split "val" with masks; it has: train. A slice is one'):
        opened(tmp_path, "", "val")


def test_a_run_counts_broken_masks_and_goes_on_without_them(tmp_path):
    write(tmp_path, rooms(png(ROOMS * 0 + 255)))
    errors = ExampleErrors()
    select = lambda example: (example["image"], example["mask"])  # noqa: E731
    batches = training_batches(opened(tmp_path), "decode|resize(3, 4)", 3, errors=errors, select=select)
    for _, masks in batches.take(2).as_numpy_iterator():
        np.testing.assert_array_equal(masks[..., 0], [ROOMS] * 3)
    (name,) = errors.names
    assert name.endswith("images/0.jpg") and errors.names[name].startswith("The mask is all void")


ROWS = [
    ("images/0.jpg", "masks/0.png"),
    ("images/1.jpg", ""),
    ("images/2.jpg", "masks/2.png"),
    ("images/2.jpg", "x.png"),
]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_table_may_name_masks(kind, tmp_path, told):
    if kind == "csv":
        table = "image;mask\n" + "".join(f"{image};{mask}\n" for image, mask in ROWS)
    else:
        table = "".join(json.dumps({"image": image, "mask": mask or None}) + "\n" for image, mask in ROWS)
    write(tmp_path, rooms(names="", **{f"table.{kind}": table, "names.txt": "road\ntree\n"}))
    source = open_source(f"{kind}:{tmp_path}/table.{kind}?ignore=0&classes=names.txt", "train")
    assert (source.size, source.class_names, source.void) == (2, ("road", "tree"), 255)
    np.testing.assert_array_equal(read(source), np.uint8(ROOMS - 1))
    assert any("ignored: 1 row of 3 whose file is missing, such as" in text and "x.png" in text for text in told())
    assert any(text.endswith("void 33.3% (stored as 0); ignored: 1 image without a mask.") for text in told())


def test_a_table_has_masks_or_labels(tmp_path):
    write(
        tmp_path,
        rooms(**{"a.csv": "image,label,mask\nimages/0.jpg,cat,masks/0.png\n", "b.csv": "image,mask\nimages/0.jpg,\n"}),
    )
    assert open_source(f"csv:{tmp_path}/a.csv", "train").class_names == ("cat",)
    assert open_source(f"csv:{tmp_path}/a.csv?mask=mask", "train").class_names == ("sky", "road", "tree")
    for options, message in {
        "a.csv?mask=mask&label=label": "label=label is of labels, and mask= of masks",
        "a.csv?ignore=0": "ignore=0 is of masks, and there is no column of them",
        "b.csv": "no row has a mask",
    }.items():
        with pytest.raises(ValueError, match=message):
            open_source(f"csv:{tmp_path}/{options}", "train")


@pytest.fixture
def records(tmp_path):
    """(the source, the report of writing it to "records") of four images with masks of colours, one all void."""
    files = rooms(png(np.zeros((*ROOMS.shape, 3), "uint8")), others=painted(), names="", count=4)
    write(tmp_path, files | {"class_dict.csv": TABLE + "void,0,0,0\n"})
    source = opened(tmp_path)
    return source, write_records(source, str(tmp_path / "records"), "rooms", "train", 2)


def test_records_hold_masks_of_classes(records, tmp_path):
    source, report = records
    assert report["examples"] == 3
    ((name, why),) = report["skipped"].items()
    assert name.endswith("images/0.jpg") and why.startswith("The mask is all void")
    copy = open_source(with_kind(str(tmp_path / "records")), "train")
    assert (copy.class_names, copy.void, copy.colors) == (source.class_names, 255, tuple(COLORS.values()))
    for example in copy.ordered().as_numpy_iterator():
        assert set(example) == {"image", "mask", "void"} and example["void"] == 255
        np.testing.assert_array_equal(example["mask"][..., 0], ROOMS)
    description = json.loads((tmp_path / "records" / "dataset.json").read_text())
    assert description["features"] == {"image": "image/encoded", "mask": "image/segmentation/class/encoded"}
    for text in ("labels_of", "class_counts"):
        with pytest.raises(ValueError, match="has no labels"):
            labels_of(copy) if text == "labels_of" else copy.class_counts()


def test_a_run_on_records_of_masks_resumes_exactly(records, tmp_path):
    source = open_source(f"tfrecord:{tmp_path}/records", "train")
    select = lambda example: (example["image"], example["mask"])  # noqa: E731
    batches = lambda start: training_batches(  # noqa: E731
        source, "decode|random_crop(2)", 2, seed=3, start_step=start, select=select
    )
    whole = list(batches(0).take(4).as_numpy_iterator())
    rest = list(batches(2).take(2).as_numpy_iterator())
    for ours, theirs in zip(rest, whole[2:]):
        np.testing.assert_array_equal(ours[1], theirs[1])
    assert len({mask.tobytes() for _, mask in whole}) > 1


def test_records_of_other_writers_have_a_key_of_masks(tmp_path):
    features = lambda values: tf.train.Features(  # noqa: E731
        feature={key: tf.train.Feature(bytes_list=tf.train.BytesList(value=[v])) for key, v in values.items()}
    )
    with tf.io.TFRecordWriter(str(tmp_path / "val-00000-of-00001.tfrecord")) as writer:
        for mask in (png(ROOMS), palette(ROOMS, [(9, 9, 9)] * 3)):
            writer.write(tf.train.Example(features=features({"img": photo(), "seg": mask})).SerializeToString())
    write(tmp_path, {"names.txt": "road\ntree\n"})
    source = open_source(f"tfrecord:{tmp_path}?image=img&mask=seg&classes=names.txt&ignore=0", "val")
    assert (source.class_names, source.size, source.void) == (("road", "tree"), 2, 255)
    for example in source.ordered().as_numpy_iterator():
        np.testing.assert_array_equal(example["mask"][..., 0], np.uint8(ROOMS - 1))
    with pytest.raises(ValueError, match="label=x is of labels, and mask= of masks"):
        open_source(f"tfrecord:{tmp_path}?image=img&mask=seg&label=x", "val")


def test_masks_in_records_shrink_with_their_images(tmp_path):
    large = np.kron(ROOMS, np.ones((10, 10), "uint8"))
    write(tmp_path, {"images/a.jpg": photo(large.shape), "masks/a.png": png(large), "classes.txt": NAMES})
    write_records(opened(tmp_path), str(tmp_path / "records"), "a", "train", 1, resize=6)
    (example,) = open_source(f"tfrecord:{tmp_path}/records", "train").ordered().as_numpy_iterator()
    np.testing.assert_array_equal(example["mask"][..., 0], np.kron(ROOMS, np.ones((2, 2))))
    assert tf.io.decode_jpeg(example["image"]).shape == (6, 8, 3)


def test_records_of_masks_and_of_labels_are_kept_apart(records, tmp_path):
    labels = from_arrays(np.zeros((2, 4, 4, 3), "uint8"), [0, 1])
    with pytest.raises(ValueError, match="records of another form: its dataset.json says .*mask"):
        write_records(labels, str(tmp_path / "records"), "rooms", "val", 1)


def test_masks_stay_encoded_in_memory(tmp_path):
    write(tmp_path, rooms())
    source = opened(tmp_path).cached()
    assert source.lookup(0)["mask"].numpy() in [path.read_bytes() for path in tmp_path.glob("masks/*")]
    np.testing.assert_array_equal(read(source), ROOMS)


@pytest.mark.parametrize("encoded", [False, True])
def test_arrays_may_be_masks_of_classes(encoded):
    values = np.where(ROOMS == 1, 255, ROOMS)
    masks = [png(values.astype("uint8"))] if encoded else values[None, ..., None].astype("int64")
    images = np.zeros((1, *ROOMS.shape, 3), "uint8")
    names, colors = ("sky", "road", "tree"), list(COLORS.values())
    source = from_arrays(images, None, names, features={"mask": masks}, colors=colors)
    assert (source.class_names, source.void, source.colors) == (names, 255, tuple(colors))
    example = source.read(tf.constant(0, tf.int64))
    assert example["mask"].dtype == example["void"].dtype == tf.uint8 and example["void"] == 255
    np.testing.assert_array_equal(example["mask"][..., 0], values)
    if not encoded:
        with pytest.raises(ValueError, match="a mask has the value 2; class_names has 2 names, for 0 to 1, and 255 is"):
            from_arrays(images, None, names[:2], features={"mask": masks})


def test_tables_of_well_known_data_sets():
    table = cityscapes(train_ids=False)
    assert (len(table.names), table.values[:3], table.values[-1]) == (19, (7, 8, 11), 33)
    assert sorted(table.values + table.void) == list(range(34))
    table = voc()
    assert len(table.names) == 21 and table.colors[:3] == ((0, 0, 0), (128, 0, 0), (0, 128, 0))
    assert (table.names[15], table.colors[15], table.colors[20]) == ("person", (192, 128, 128), (0, 64, 128))


def test_label_ids_of_cityscapes_become_the_19_classes(tmp_path):
    ids = np.array([[7, 8, 0, 33]] * 3, "uint8")
    objects = [{"label": "road", "polygon": [[0, 0], [1, 0], [1, 2]]}]
    files = {
        "leftImg8bit/train/ulm/u_leftImg8bit.png": photo(),
        "gtFine/train/ulm/u_gtFine_labelIds.png": png(ids),
        "gtFine/train/ulm/u_gtFine_polygons.json": json.dumps({"imgHeight": 3, "imgWidth": 4, "objects": objects}),
    }
    write(tmp_path, files)
    np.testing.assert_array_equal(read(opened(tmp_path), "8bit.png")[0], [0, 1, 255, 18])


def test_camvid(told, shared_data):
    """Shares of pixels counted with Pillow and NumPy."""
    source = open_source(str(shared_data / "camvid"), "val")
    assert (source.size, source.void, source.class_names[::10]) == (101, 255, ("Sky", "Bicyclist"))
    name = example_names(source)[0]
    stored = np.asarray(pil.open(name.replace("/val/", "/valannot/").replace(".jpg", ".png")))
    np.testing.assert_array_equal(read(source, name), np.where(stored == 11, 255, stored))
    (line,) = [text for text in told() if "with masks of 11 classes" in text]
    files = sorted((shared_data / "camvid" / "trainannot").iterdir())
    sample = np.concatenate([np.asarray(pil.open(files[i * 367 // 100])).ravel() for i in range(100)])
    road, void = (sample[sample < 11] == 3).mean(), (sample == 11).mean()
    assert f"by the pixels of 100 masks of train: Road {road:.1%}" in line
    assert line.endswith(f"; void {void:.1%} (stored as 11).")


def test_ade20k(shared_data):
    source = open_source(f"masks:{shared_data / 'ade20k_sample'}?images=images&masks=annotations", "train")
    assert (len(source.class_names), source.class_names[:2], source.void) == (150, ("wall", "building"), 255)
    stored = np.asarray(pil.open(shared_data / "ade20k_sample/annotations/ADE_val_00000001.png"))
    np.testing.assert_array_equal(read(source, "1.jpg"), np.uint8(stored - 1))


def test_tables_are_read(tmp_path):
    write(tmp_path, {"_classes.csv": "Pixel Value, Class\n0, background\n3, big cat\n"})
    table = read_table(str(tmp_path / "_classes.csv"))
    assert (table.names, table.values, table.colors) == (("background", "big cat"), (0, 3), None)
