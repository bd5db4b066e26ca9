"""Folders of images and masks: layouts, splits, messages, failed examples, and well-known datasets."""

import json

import numpy as np
import pytest
from mask_files import ROOMS, everywhere, opened, photo, pil, png, read, rooms, write

from keras_vit.data import open_source, training_batches
from keras_vit.data.errors import ExampleErrors
from keras_vit.data.source_names import with_kind
from keras_vit.data.sources.mask_pairs import find_pairs
from keras_vit.data.sources.selection import example_names
from keras_vit.data.splits import MissingSplit
from keras_vit.io.progress import Stage

pytestmark = pytest.mark.usefixtures("own_cache")


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
    "kvasir": (["images/a.jpg"], ["masks/a.jpg"], {"kavsir_bboxes.json": "{}"}, {"train": 1}),
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
    assert not any(pairs.report_lines(split) for split in splits)
    assert with_kind(str(tmp_path)) == f"masks:{tmp_path}"


def test_a_link_does_not_put_an_image_into_two_splits(tmp_path):
    write(tmp_path, {"train/images/a.jpg": "", "train/masks/a.png": "", "val/masks/b.png": "", "val/images/c.jpg": ""})
    (tmp_path / "val" / "images" / "b.jpg").symlink_to(tmp_path / "train" / "images" / "a.jpg")
    with pytest.raises(ValueError, match="same image in train and val, by a link: train/images/a.jpg and val/images/b"):
        find_pairs(str(tmp_path), dict.fromkeys(("images", "masks", "suffix"), ""), Stage(""))


def test_a_list_of_val_alone_is_not_train(tmp_path):
    write(tmp_path, {"images/a.jpg": "", "images/b.jpg": "", "masks/a.png": "", "masks/b.png": "", "val.txt": "b\n"})
    pairs = find_pairs(str(tmp_path), dict.fromkeys(("images", "masks", "suffix"), ""), Stage(""))
    assert pairs.splits == {"val": [(f"{tmp_path}/images/b.jpg", f"{tmp_path}/masks/b.png")]}
    assert pairs.report_lines("val") == ["2 files outside the splits with masks (a.jpg, a.png)"]


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
    line = (
        f"masks:{tmp_path}, train: 3 images with masks of 3 classes; share of pixels in all masks of train: sky 50.0%,"
    )
    assert [text for text in told() if text.startswith(line)][0].endswith(
        "tree 50.0%, road 0.0%; void 33.3% (stored as 255)."
    )


def test_slices_are_disjoint_and_complete(tmp_path):
    write(tmp_path, rooms(count=10))
    parts = [example_names(opened(tmp_path, "", split)) for split in ("train[:80%]", "train[80%:]")]
    assert [len(part) for part in parts] == [8, 2]
    assert sorted(sum(parts, [])) == [f"{tmp_path}/images/{i}.jpg" for i in range(10)]
    with pytest.raises(MissingSplit, match='has no split "val" with masks. Valid: train, and slices'):
        opened(tmp_path, "", "val")


@pytest.mark.extended
def test_a_run_counts_broken_masks_and_goes_on_without_them(tmp_path):
    write(tmp_path, rooms(png(ROOMS * 0 + 255)))
    errors = ExampleErrors()

    def select(example):
        return (example["image"], example["mask"])

    batches = training_batches(opened(tmp_path), "decode|resize(3, 4)", 3, errors=errors, select=select)
    for _, masks in batches.take(2).as_numpy_iterator():
        np.testing.assert_array_equal(masks[..., 0], [ROOMS] * 3)
    (name,) = errors.names
    assert name.endswith("images/0.jpg") and errors.names[name].startswith("The mask is all void")


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


@pytest.mark.extended
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
    assert f"share of pixels in 100 masks of train: Road {road:.1%}" in line
    assert line.endswith(f"; void {void:.1%} (stored as 11).")


def test_ade20k(shared_data):
    source = open_source(f"masks:{shared_data / 'ade20k_sample'}?images=images&masks=annotations", "train")
    assert (len(source.class_names), source.class_names[:2], source.void) == (150, ("wall", "building"), 255)
    stored = np.asarray(pil.open(shared_data / "ade20k_sample/annotations/ADE_val_00000001.png"))
    np.testing.assert_array_equal(read(source, "1.jpg"), np.uint8(stored - 1))
