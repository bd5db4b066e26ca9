"""Masks as labelling tools and data sets export them: names, splits and every pixel, or what to export instead.

A function per format writes nothing: it returns the files of an export, in the tool's own layout, and what is expected.
"""

import dataclasses
import json
import os
import re

import numpy as np
import pytest
import tensorflow as tf
from mask_files import opened, palette, photo, pil, png, save, write

from keras_vit.data.sources.selection import example_names
from keras_vit.data.splits import MissingSplit

pytestmark = pytest.mark.usefixtures("own_cache")
PHOTO = photo()
A = np.array([[0, 0, 0, 1], [0, 1, 2, 2], [1, 1, 2, 2]], "uint8")
B = np.array([[2, 2, 2, 2], [0, 0, 0, 0], [1, 1, 1, 1]], "uint8")
EDGE = np.array([[0, 255, 1, 1]] * 3, "uint8")  # with void
# The first 21 colours of VOC's palette, and that of 255.
VOC = [
    *[(0, 0, 0), (128, 0, 0), (0, 128, 0), (128, 128, 0), (0, 0, 128), (128, 0, 128), (0, 128, 128), (128, 128, 128)],
    *[(64, 0, 0), (192, 0, 0), (64, 128, 0), (192, 128, 0), (64, 0, 128), (192, 0, 128), (64, 128, 128)],
    *[(192, 128, 128), (0, 64, 0), (128, 64, 0), (0, 192, 0), (128, 192, 0), (0, 64, 128)],
    *[(1, 1, i) for i in range(21, 255)],
    (224, 224, 192),
]
NAMES, NAMED = ("bg", "cat", "dog"), {"classes.txt": "bg\ncat\ndog\n"}
FORMATS = {}


@dataclasses.dataclass
class Export:
    """The files of an export; class names and the mask of each image by split, or the message that refuses it."""

    files: dict
    names: tuple = ()
    splits: dict = dataclasses.field(default_factory=dict)
    refused: str = ""
    options: str = ""
    void: int = 255
    said: str = ""


def export(function):
    FORMATS[function.__name__] = function
    return function


def in_colors(values, colors):
    return png(np.array(colors, "uint8")[values])


def pairs(**masks):
    """The files images/a.jpg and masks/a.png of each mask `a`."""
    files = {f"images/{name}.jpg": PHOTO for name in masks}
    return files | {f"masks/{name}.png": mask for name, mask in masks.items()}


def values_of(stored):
    """Masks with these stored values for classes 0, 1, 2."""
    return png(np.array(stored)[A]), png(np.array(stored)[B])


@export
def voc_2012():
    edge = np.where(EDGE == 1, 15, EDGE)
    files = {f"JPEGImages/2007_00000{i}.jpg": PHOTO for i in (1, 2, 3)}
    files |= {f"SegmentationClass/2007_00000{i}.png": palette(edge, VOC) for i in (1, 2)}
    files |= {f"SegmentationObject/2007_00000{i}.png": palette(A, VOC) for i in (1, 2)}
    files |= {f"ImageSets/Segmentation/{name}.txt": text for name, text in {
        "train": "2007_000001\n", "val": "2007_000002\n", "trainval": "2007_000001\n2007_000002\n"
    }.items()}  # fmt: skip
    files["Annotations/2007_000001.xml"] = "<annotation></annotation>"
    names = tuple(
        "background aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike person"
        " pottedplant sheep sofa train tvmonitor".split()
    )
    splits = {"train": {"2007_000001.jpg": edge}, "val": {"2007_000002.jpg": edge}}
    return Export(files, names, splits | {"trainval": splits["train"] | splits["val"]})


@export
def cvat_segmentation_mask():
    colors = [(0, 0, 0), (250, 50, 83), (52, 209, 183)]
    return Export(
        {
            "labelmap.txt": "# label:color_rgb:parts:actions\nbackground:0,0,0::\ncat:250,50,83::\ndog:52,209,183::\n",
            "ImageSets/Segmentation/default.txt": "a\nsub/b c\n",
            "JPEGImages/a.jpg": PHOTO,
            "JPEGImages/sub/b c.jpg": PHOTO,
            "SegmentationClass/a.png": in_colors(A, colors),
            "SegmentationClass/sub/b c.png": in_colors(B, colors),
            "SegmentationObject/a.png": in_colors(A, colors),
            "SegmentationObject/sub/b c.png": in_colors(B, colors),
        },
        ("background", "cat", "dog"),
        {"train": {"a.jpg": A, "b c.jpg": B}},
    )


@export
def cvat_segmentation_mask_without_images():
    files = cvat_segmentation_mask().files
    files = {name: content for name, content in files.items() if not name.startswith("JPEGImages")}
    return Export(files, refused="2 masks but no images.*export the masks together with the images")


@export
def cvat_camvid():
    colors = [(0, 0, 0), (250, 50, 83), (52, 209, 183)]
    return Export(
        {
            "label_colors.txt": "# (color RGB)\n0 0 0 Void\n250 50 83 cat\n52 209 183 dog\n",
            "default.txt": "/default/a.png /defaultannot/a.png\n/default/b.png /defaultannot/b.png\n",
            "default/a.png": png(A),
            "default/b.png": png(A),
            "defaultannot/a.png": in_colors(A, colors),
            "defaultannot/b.png": in_colors(B, colors),
        },
        ("cat", "dog"),
        {"train": {"a.png": [[255, 255, 255, 0], [255, 0, 1, 1], [0, 0, 1, 1]],
                   "b.png": [[1, 1, 1, 1], [255] * 4, [0] * 4]}},
    )  # fmt: skip


@export
def cvat_camvid_with_subsets():
    files = {"label_colors.txt": "0 0 0 Void\n250 50 83 cat\n52 209 183 dog\n"}
    for subset, values in (("train", A), ("test", B)):
        files |= {
            f"{subset}.txt": f"/{subset}/a.png /{subset}annot/a.png\n",
            f"{subset}/a.png": png(A),
            f"{subset}annot/a.png": in_colors(values, [(0, 0, 0), (250, 50, 83), (52, 209, 183)]),
        }
    first, second = cvat_camvid().splits["train"].values()
    return Export(files, ("cat", "dog"), {"train": {"a.png": first}, "test": {"a.png": second}})


@export
def cvat_cityscapes():
    colors = [(0, 0, 0), (250, 50, 83), (52, 209, 183)]
    return Export(
        {
            "label_colors.txt": "0 0 0 background\n250 50 83 cat\n52 209 183 dog\n",
            "imgsFine/leftImg8bit/default/a_leftImg8bit.png": png(A),
            "gtFine/default/a_gtFine_color.png": in_colors(A, colors),
            "gtFine/default/a_gtFine_instanceIds.png": png(A.astype("uint16") * 1000),
            "gtFine/default/a_gtFine_labelIds.png": png(A),
        },
        ("background", "cat", "dog"),
        {"train": {"a_leftImg8bit.png": A}},
    )


@export
def cvat_kitti():
    colors = [(0, 0, 0), (250, 50, 83), (52, 209, 183)]
    return Export(
        {
            "label_colors.txt": "0 0 0 background\n250 50 83 cat\n52 209 183 dog\n",
            "default/image_2/a.png": png(A),
            "default/semantic_rgb/a.png": in_colors(A, colors),
            "default/instance/a.png": png(A.astype("uint16") * 256),
        },
        ("background", "cat", "dog"),
        {"train": {"a.png": A}},
    )


CITY = (
    "road sidewalk building wall fence pole traffic_light traffic_sign vegetation terrain sky person rider car truck"
    " bus train motorcycle bicycle"
)
CITY_NAMES = tuple(name.replace("_", " ") for name in CITY.split())


@export
def cityscapes_label_ids():
    ids = np.array([[7, 8, 0, 33], [11, 4, 26, 24], [7, 7, 7, 7]], "uint8")
    files = {
        f"{folder}/{split}/{city}/{city}_000000_000019_{end}": content
        for split, city in (("train", "ulm"), ("val", "bonn"))
        for folder, end, content in (
            ("leftImg8bit", "leftImg8bit.png", png(A)),
            ("gtFine", "gtFine_labelIds.png", png(ids)),
            ("gtFine", "gtFine_labelTrainIds.png", png(A)),
            ("gtFine", "gtFine_color.png", png(np.dstack([ids] * 3))),
            ("gtFine", "gtFine_instanceIds.png", png(ids.astype("uint16") * 1000)),
        )
    }
    expected = [[0, 1, 255, 18], [2, 255, 13, 11], [0, 0, 0, 0]]
    splits = {
        split: {f"{city}_000000_000019_leftImg8bit.png": expected}
        for split, city in (("train", "ulm"), ("val", "bonn"))
    }
    return Export(files, CITY_NAMES, splits)


@export
def cityscapes_training_ids():
    return Export(
        {
            "leftImg8bit/train/ulm/u_leftImg8bit.png": png(A),
            "gtFine/train/ulm/u_gtFine_labelTrainIds.png": png(EDGE),
        },
        CITY_NAMES,
        {"train": {"u_leftImg8bit.png": EDGE}},
    )


@export
def ade20k():
    rows = "".join(f"{i}\t0.1\t10\t1\tthing {i}, other name\n" for i in range(1, 151))
    files = {"objectInfo150.txt": f"Idx\tRatio\tTrain\tVal\tName\n{rows}"}
    for split, part in (("training", "train"), ("validation", "val")):
        files |= {f"images/{split}/ADE_{part}_00000001.jpg": PHOTO}
        files |= {f"annotations/{split}/ADE_{part}_00000001.png": png(np.where(A == 2, 150, A).astype("uint8"))}
    expected = [[255, 255, 255, 0], [255, 0, 149, 149], [0, 0, 149, 149]]
    names = tuple(f"thing {i}" for i in range(1, 151))
    splits = {"train": {"ADE_train_00000001.jpg": expected}, "val": {"ADE_val_00000001.jpg": expected}}
    return Export(files, names, splits)


@export
def ade20k_without_names():
    files = {name: content for name, content in ade20k().files.items() if name != "objectInfo150.txt"}
    return Export(files, tuple(str(i) for i in range(1, 151)), ade20k().splits)


@export
def roboflow_semantic():
    files = {}
    for split, values in (("train", A), ("valid", B), ("test", B)):
        files |= {
            f"{split}/{split}_jpg.rf.0a1b.jpg": PHOTO,
            f"{split}/{split}_jpg.rf.0a1b_mask.png": png(values),
            f"{split}/_classes.csv": "Pixel Value, Class\n0, background\n1, cat\n2, dog\n",
        }
    splits = {
        name: {f"{split}_jpg.rf.0a1b.jpg": values}
        for name, split, values in (("train", "train", A), ("val", "valid", B), ("test", "test", B))
    }
    return Export(files, ("background", "cat", "dog"), splits)


@export
def supervisely_masks():
    grey, human = np.dstack([A] * 3), np.dstack([A * 90] * 3)
    return Export(
        {
            "meta.json": json.dumps({"classes": [{"title": "kiwi", "shape": "bitmap", "color": "#FF0000"}]}),
            "obj_class_to_machine_color.json": json.dumps({"kiwi": [1, 1, 1], "lemon": [2, 2, 2]}),
            "ds0/img/a.jpg": PHOTO,
            "ds0/ann/a.jpg.json": json.dumps({"size": {"height": 3, "width": 4}, "objects": []}),
            "ds0/masks_machine/a.png": png(grey),
            "ds0/masks_human/a.png": png(np.vstack([human, human])),
        },
        ("background", "kiwi", "lemon"),
        {"train": {"a.jpg": A}},
    )


@export
def datumaro_common_semantic_segmentation():
    colors = [[0, 0, 0], [200, 0, 0], [0, 200, 0]]
    meta = {"label_map": {"0": "background", "1": "cat", "2": "dog"}, "segmentation_colors": colors}
    return Export(
        {
            "dataset_meta.json": json.dumps(meta),
            "images/a.png": png(A),
            "images/b.png": png(A),
            "masks/a.png": in_colors(A, colors),
            "masks/b.png": in_colors(B, colors),
        },
        ("background", "cat", "dog"),
        {"train": {"a.png": A, "b.png": B}},
    )


@export
def segments_ai():
    return Export(
        {
            "v1.0/a.jpg": PHOTO,
            "v1.0/a_label_ground-truth.png": png(np.dstack([A] * 4)),
            "v1.0/a_label_ground-truth_semantic.png": png(A),
            "v1.0/b.jpg": PHOTO,
            "v1.0/b_label_ground-truth.png": png(np.dstack([A] * 4)),
            "v1.0/b_label_ground-truth_semantic.png": png(B),
        },
        ("cat", "dog"),
        {"train": {"a.jpg": [[255, 255, 255, 0], [255, 0, 1, 1], [0, 0, 1, 1]],
                   "b.jpg": [[1, 1, 1, 1], [255] * 4, [0] * 4]}},
        options="?values=1,2&ignore=0",
    ).with_names("cat\ndog\n")  # fmt: skip


def with_names(self, text):
    return dataclasses.replace(self, files=self.files | {"classes.txt": text})


Export.with_names = with_names


@export
def labelme2voc():
    return Export(
        {
            "class_names.txt": "_background_\ncat\ndog\n",
            "JPEGImages/a.jpg": PHOTO,
            "SegmentationClass/a.png": palette(A, VOC),
            "SegmentationClassVisualization/a.jpg": PHOTO,
            "SegmentationObject/a.png": palette(B, VOC),
        },
        ("_background_", "cat", "dog"),
        {"train": {"a.jpg": A}},
    )


@export
def hasty_png():
    return Export(
        {**pairs(a=png(A)), "classes.txt": "background\ncat\ndog\n"},
        ("background", "cat", "dog"),
        {"train": {"a.jpg": A}},
    )


@export
def v7_masks():
    colors = [(0, 0, 0), (255, 46, 0), (0, 134, 255)]
    return Export(
        {
            **pairs(a=in_colors(A, colors)),
            "class_mapping.csv": "class_name,class_color\n__background__,0 0 0\ncat,255 46 0\ndog,0 134 255\n",
        },
        ("__background__", "cat", "dog"),
        {"train": {"a.jpg": A}},
    )


@export
def carvana():
    files = {}
    for i in range(2):
        files |= {f"train/0cd_0{i}.jpg": PHOTO, f"test/1ef_0{i}.jpg": PHOTO}
        mask = pil.fromarray((A > 0).astype("uint8"), "P")
        mask.putpalette([0, 0, 0, 255, 255, 255])
        files |= {f"train_masks/0cd_0{i}_mask.gif": save(mask, "GIF")}
    return Export(files, ("background", "foreground"), {"train": {f"0cd_0{i}.jpg": A > 0 for i in range(2)}})


@export
def black_and_white_png():
    return Export(
        pairs(a=png((A > 0) * np.uint8(255))),
        ("background", "foreground"),
        {"train": {"a.jpg": A > 0}},
    )


@export
def black_and_white_jpeg():
    mask = save(pil.fromarray((A > 0) * np.uint8(255)), "JPEG")
    return Export({"images/a.jpg": PHOTO, "masks/a.jpg": mask}, refused="The mask is a JPEG, a lossy format")


@export
def black_and_white_saved_from_a_jpeg():
    rng = np.random.default_rng(0)
    mask = np.kron(A > 0, np.ones((20, 20), bool)) * 255
    noisy = np.clip(mask + rng.integers(-6, 7, mask.shape), 0, 255).astype("uint8")
    files = {"images/a.jpg": photo(mask.shape), "masks/a.png": png(noisy)}
    return Export(files, refused="most pixels near 0 or 255: a lossy format such as JPEG")


@export
def a_png_for_each_class():
    files = {"images/a.jpg": PHOTO} | {f"masks/{name}/a.png": png(A > 0) for name in ("cat", "dog")}
    return Export(files, refused="two masks with one name.*draw them into one mask of class numbers")


@export
def a_png_for_each_object():
    files = {f"stage1_train/{i}/images/{i}.png": png(A) for i in "ab"}
    files |= {f"stage1_train/{i}/masks/{j}.png": png((A > 0) * np.uint8(255)) for i in "ab" for j in ("x", "y", "z")}
    return Export(files, refused="Several masks are beside each image: draw them into one mask")


@export
def label_studio_png():
    files = {"images/a.jpg": PHOTO}
    files |= {f"masks/task-{i}-annotation-7-by-1-tag-Car-0.png": png((A > 0) * np.uint8(255)) for i in (1, 2)}
    return Export(files, refused='brush masks of Label Studio.*"Car".*"Brush labels to COCO"')


@export
def ids_of_16_bits():
    many = np.arange(1600, dtype="uint16").reshape(40, 40)
    files = {"images/a.jpg": photo((40, 40)), "masks/a.png": png(many)}
    return Export(files, refused="1,600 different values, too many for classes")


@export
def classes_of_16_bits():
    first, second = values_of(np.array([0, 300, 40000], "uint16"))
    files = pairs(a=first, b=second)
    return Export(files, ("0", "300", "40000"), {"train": {"a.jpg": A, "b.jpg": B}})


@export
def rgba():
    colors = [(0, 0, 0, 0), (200, 0, 0, 255), (0, 200, 0, 128)]
    return Export(
        {
            **pairs(a=in_colors(A, colors)),
            "class_dict.csv": "name,r,g,b\nbackground,0,0,0\ncat,200,0,0\ndog,0,200,0\n",
        },
        ("background", "cat", "dog"),
        {"train": {"a.jpg": A}},
    )


@export
def coco_stuff():
    first = png(np.array([[0, 0, 15, 255]] * 3, "uint8"))
    files = {"labels.txt": "0: unlabeled\n" + "".join(f"{i}: thing {i}\n" for i in range(1, 183))}
    for split in ("train2017", "val2017"):
        files |= {f"images/{split}/{split}.jpg": PHOTO}
        files |= {f"stuffthingmaps_trainval2017/{split}/{split}.png": first}
    names = tuple(f"thing {i}" for i in range(1, 183))
    expected = [[0, 0, 15, 255]] * 3
    return Export(files, names, {"train": {"train2017.jpg": expected}, "val": {"val2017.jpg": expected}})


@export
def pascal_context():
    files = {"ImageSets/SegmentationContext/train.txt": "2008_000002\n"}
    files |= {"ImageSets/SegmentationContext/val.txt": "2008_000003\n", "classes.txt": "background\ncat\ndog\n"}
    for i in (2, 3):
        files |= {f"JPEGImages/2008_00000{i}.jpg": PHOTO, f"SegmentationClassContext/2008_00000{i}.png": png(A)}
    splits = {"train": {"2008_000002.jpg": A}, "val": {"2008_000003.jpg": A}}
    return Export(files, ("background", "cat", "dog"), splits)


@export
def mapillary_vistas():
    labels = [
        {"color": [165, 42, 42], "name": "animal--bird", "readable": "Bird", "evaluate": True},
        {"color": [0, 192, 0], "name": "animal--ground-animal", "readable": "Ground Animal", "evaluate": True},
        {"color": [0, 0, 0], "name": "void--unlabeled", "readable": "Unlabeled", "evaluate": False},
    ]
    files = {f"config_{version}.json": json.dumps({"labels": labels}) for version in ("v1.2", "v2.0")}
    colors = [label["color"] for label in labels] + [[0, 0, 0]] * 253
    for split in ("training", "validation"):
        files |= {f"{split}/images/{split}.jpg": PHOTO}
        for version, values in (("v1.2", B), ("v2.0", A)):
            files |= {f"{split}/{version}/labels/{split}.png": palette(values, colors)}
            files |= {f"{split}/{version}/instances/{split}.png": png(A.astype("uint16") * 256)}
    expected = np.where(A == 2, 255, A)
    splits = {"train": {"training.jpg": expected}, "val": {"validation.jpg": expected}}
    return Export(files, ("Bird", "Ground Animal"), splits, options="?masks=v2.0/labels")


@export
def keras_vit_predict():
    names = ("sky", "unknown", "road", "rare")
    rows = "0,sky,230,159,0\n1,unknown,86,180,233\n2,road,0,158,115\n3,rare,240,228,66\n"
    colors = [(230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66)] + [(0, 0, 0)] * 252
    return Export(
        {
            "photos/a.jpg": PHOTO,
            "photos/b.jpg": PHOTO,
            "found/classes.csv": "class,name,red,green,blue\n" + rows,
            "found/train/a.png": palette(A, colors),
            "found/train/b.png": palette(B, colors),
            "found/train.json": "{}",
        },
        names,
        {"train": {"a.jpg": A, "b.jpg": B}},
        options="?images=photos&masks=found",
    )


@export
def keras_vit_predict_of_300_classes():
    rows = "".join(f"{i},c{i},{i % 256},{i // 256},7\n" for i in range(300))
    mask = png(np.array([[299, 255, 0, 254]] * 3, "uint16"))
    return Export(
        {**pairs(a=mask), "classes.csv": "class,name,red,green,blue\n" + rows},
        tuple(f"c{i}" for i in range(300)),
        {"train": {"a.jpg": [[299, 255, 0, 254]] * 3}},
        void=65535,
    )


def stripped(values, colors):
    """A mask as `magick -strip` writes it: a palette of the used colours alone."""
    used, indices = np.unique(values, return_inverse=True)
    return palette(indices.reshape(values.shape), [colors[i] for i in used])


@export
def imagemagick_of_voc_colors():
    one = np.where(A == 1, 2, 0)
    return Export(
        {
            "classes.txt": "bg\nred\ngreen\n",
            **pairs(a=stripped(one, VOC), b=stripped(A, VOC)),
        },
        ("bg", "red", "green"),
        {"train": {"a.jpg": one, "b.jpg": A}},
        said="the masks' palettes differ, and are read by VOC's colours",
    )


@export
def imagemagick_of_other_colors():
    colors = [(0, 0, 0), (255, 0, 0), (0, 255, 0)]
    return Export(
        {
            **NAMED,
            **pairs(a=stripped(np.where(A == 1, 2, 0), colors), b=stripped(A, colors)),
        },
        refused=r'index 1 is \(0, 255, 0\) in .*a.png" and \(255, 0, 0\) in .*pass \?colors=colors.csv. .*"cat,',
    )


@export
def imagemagick_of_other_colors_with_a_table():
    unclear = imagemagick_of_other_colors()
    files = unclear.files | {"colors.csv": "dog,0,255,0\nbg,0,0,0\ncat,255,0,0\n"}
    splits = {"train": {"a.jpg": np.where(A == 1, 2, 0), "b.jpg": A}}
    return Export(files, NAMES, splits, options="?colors=colors.csv")


@export
def gifs_with_a_palette_each():
    colors = [(0, 0, 0), (255, 0, 0), (0, 255, 0)]
    files = {"class_dict.csv": "name,r,g,b\nbg,0,0,0\ncat,255,0,0\ndog,0,255,0\n"}
    for name, order in (("a", [0, 1, 2]), ("b", [2, 0, 1])):
        mask = pil.fromarray(np.argsort(order).astype("uint8")[A], "P")
        mask.putpalette([channel for i in order for channel in colors[i]])
        files |= {f"images/{name}.jpg": PHOTO, f"masks/{name}.gif": save(mask, "GIF")}
    return Export(files, NAMES, {"train": {"a.jpg": A, "b.jpg": A}})


@export
def a_file_of_one_class_has_a_palette_of_one_color():
    colors = [(0, 0, 0), (255, 0, 0), (0, 255, 0)]
    files = {"class_dict.csv": "name,r,g,b\nbg,0,0,0\ncat,255,0,0\ndog,0,255,0\n"}
    for name, values in (("a", A), ("b", A * 0 + 2)):
        files |= {f"images/{name}.jpg": PHOTO, f"masks/{name}.png": stripped(values, colors)}
    return Export(files, NAMES, {"train": {"a.jpg": A, "b.jpg": A * 0 + 2}})


@export
def imagemagick_of_greys():
    levels = [(value,) * 3 for value in (0, 7, 11)]
    return Export(
        {
            "classes.txt": "0 bg\n7 cat\n11 dog\n",
            **pairs(a=stripped(np.where(A == 1, 2, 0), levels), b=stripped(A, levels)),
        },
        NAMES,
        {"train": {"a.jpg": np.where(A == 1, 2, 0), "b.jpg": A}},
    )


@export
def a_table_in_another_order_than_the_palettes():
    colors = [(0, 0, 0), (255, 0, 0), (0, 255, 0)]
    return Export(
        {
            **pairs(a=palette(A, colors + [(0, 0, 0)] * 253)),
            "labelmap.csv": "name,r,g,b\ndog,0,255,0\nbg,0,0,0\ncat,255,0,0\n",
        },
        ("dog", "bg", "cat"),
        {"train": {"a.jpg": np.array([1, 2, 0], "uint8")[A]}},
        said="palettes are read by colour, since they order the colours unlike the table",
    )


@export
def palettes_cut_after_the_last_used_color():
    colors = [(5, 5, 5), (255, 0, 0), (0, 255, 0)]
    return Export(
        {
            **NAMED,
            **pairs(a=palette(np.minimum(A, 1), colors[:2]), b=palette(B, colors + [(9, 9, 9)] * 253, transparency=0)),
        },
        NAMES,
        {"train": {"a.jpg": np.minimum(A, 1), "b.jpg": B}},
    )


@export
def paddleseg_lists():
    return Export(
        {
            **NAMED,
            "images/x/a.jpg": PHOTO,
            "images/y/a.jpg": PHOTO,
            "labels/x/a.png": png(A),
            "labels/y/a.png": png(B),
            "train.txt": "images/x/a.jpg labels/x/a.png\n",
            "val.txt": "images/y/a.jpg labels/y/a.png\n",
        },
        NAMES,
        {"train": {"x/a.jpg": A}, "val": {"y/a.jpg": B}},
    )


@export
def lists_that_share_an_image():
    files = paddleseg_lists().files | {"val.txt": "images/y/a.jpg\nimages/x/a.jpg\n"}
    return Export(files, refused="put 1 images into train and val, such as images/x/a.jpg")


@export
def segnet_camvid():
    files = {"classes.txt": "sky\nroad\n"}
    for split, values in (("train", A), ("val", B)):
        files |= {f"{split}/{split}.png": png(A), f"{split}annot/{split}.png": png(values)}
        files |= {f"{split}.txt": f"/SegNet/CamVid/{split}/{split}.png /SegNet/CamVid/{split}annot/{split}.png\n"}
    void = {name: np.where(values == 2, 255, values) for name, values in (("train", A), ("val", B))}
    return Export(files, ("sky", "road"), {name: {f"{name}.png": values} for name, values in void.items()})


def _boxes_of_coco(image):
    return json.dumps(
        {
            "images": [{"id": 1, "file_name": image, "height": 3, "width": 4}],
            "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 2, 2]}],
            "categories": [{"id": 1, "name": "cat"}],
        }
    )


@export
def coco_boxes_beside_masks():
    files = {"instances_train.json": _boxes_of_coco("train.jpg"), **NAMED}
    for split, values in (("train", A), ("val", B)):
        files |= {f"{split}/images/{split}.jpg": PHOTO, f"{split}/masks/{split}.png": png(values)}
    return Export(files, NAMES, {"train": {"train.jpg": A}, "val": {"val.jpg": B}})


@export
def yolo_boxes_beside_masks():
    files = {"data.yaml": "names: [cat]\ntrain: images\nval: images\n", **NAMED}
    files |= {"images/a.jpg": PHOTO, "labels/a.txt": "0 0.5 0.5 0.5 0.5\n", "masks/a.png": png(A)}
    return Export(files, NAMES, {"train": {"a.jpg": A}})


@export
def masks_alone_are_named():
    files = coco_boxes_beside_masks().files | {"instances_train.json": "not read"}
    return Export(files, NAMES, coco_boxes_beside_masks().splits, options="?masks=masks")


@export
def oxford_pets():
    files = {"annotations/trainval.txt": "cat_1 1 1 1\ncat_2 1 1 1\n", "annotations/test.txt": "dog_1 2 2 1\n"}
    for name, values in (("cat_1", A), ("cat_2", B), ("dog_1", B)):
        files |= {f"images/{name}.jpg": PHOTO, f"annotations/trimaps/{name}.png": png(values + 1)}
    splits = {"train": {"cat_1.jpg": A, "cat_2.jpg": B}, "test": {"dog_1.jpg": B}}
    return Export(files, ("1", "2", "3"), splits, said="the values 1, 2, 3 are the classes")


@export
def semantic_drone():
    colors = [(0, 0, 0), (128, 64, 128), (130, 76, 0)]
    files = {"class_dict_seg.csv": "name, r, g, b\nunlabeled, 0, 0, 0\npaved-area, 128, 64, 128\ndirt, 130, 76, 0\n"}
    for name, values in (("000", A), ("001", B)):
        files |= {
            f"dataset/original_images/{name}.jpg": PHOTO,
            f"dataset/label_images_semantic/{name}.png": png(values),
            f"RGB_color_image_masks/{name}.png": in_colors(values, colors),
        }
    expected = [np.array([255, 0, 1], "uint8")[values] for values in (A, B)]
    return Export(files, ("paved-area", "dirt"), {"train": dict(zip(("000.jpg", "001.jpg"), expected))})


@export
def massachusetts_buildings(kinds=("png", "tiff")):
    files = {"label_class_dict.csv": "name,r,g,b\nbackground,0,0,0\nbuilding,255,255,255\n"}
    mask = in_colors(np.minimum(A, 1), [(0, 0, 0), (255, 255, 255)])
    for kind in kinds:
        for name in ("1", "2"):
            files |= {f"{kind}/train/{name}.{kind}": PHOTO, f"{kind}/train_labels/{name}.png": mask}
    return Export(files, refused="has each image twice, as png and as tiff, in png and tiff. Open one of them")


@export
def massachusetts_buildings_once():
    splits = {"train": dict.fromkeys(("1.png", "2.png"), np.minimum(A, 1))}
    return Export(massachusetts_buildings(["png"]).files, ("background", "building"), splits)


@export
def uavid():
    files = {"colors.csv": "clutter,0,0,0\nbuilding,128,0,0\nroad,128,64,128\n"}
    colors = [(0, 0, 0), (128, 0, 0), (128, 64, 128)]
    for split, values in (("train", A), ("val", B)):
        files |= {f"uavid_{split}/{split}1/Images/{split}.png": PHOTO}
        files |= {f"uavid_{split}/{split}1/Labels/{split}.png": in_colors(values, colors)}
    splits = {"train": {"train.png": A, "val.png": B}}
    said = "uavid_train and uavid_val look like splits, but are read as one: open each alone"
    return Export(files, ("clutter", "building", "road"), splits, options="?colors=colors.csv", said=said)


def foreign(content, name="export.json"):
    return {"a.jpg": PHOTO, "b.jpg": PHOTO, name: content if isinstance(content, str) else json.dumps(content)}


@export
def vgg_image_annotator():
    return Export(
        foreign({"a.jpg1": {"filename": "a.jpg", "regions": [{"shape_attributes": {"name": "polygon"}}]}}),
        refused="no masks.*VGG Image Annotator",
    )


@export
def label_studio_json():
    return Export(
        foreign('[{"id": 1, "annotations": [{"result": [{"from_name": "label", "value": {"rle": [0]}}]}]}]'),
        refused="no masks.*Label Studio",
    )


@export
def supervisely_json():
    return Export(
        foreign({"objects": [{"classTitle": "cat", "geometryType": "bitmap"}]}), refused="no masks.*Supervisely"
    )


@export
def cvat_for_images():
    return Export(
        foreign("<annotations><version>1.1</version></annotations>", "annotations.xml"), refused="no masks.*CVAT"
    )


def turned(orientation, size):
    exif = pil.Exif()
    exif[0x0112] = orientation
    return photo(size, exif=exif)


@export
def masks_of_stored_pixels():
    """A camera's photograph, held upright: its pixels lie on their side, and so does its mask."""
    return Export(
        {
            **NAMED,
            **pairs(a=png(A), b=png(B)),
            "images/a.jpg": turned(6, (3, 4)),
            "images/b.jpg": turned(3, (3, 4)),
        },
        NAMES,
        {"train": {"a.jpg": [[1, 0, 0], [1, 1, 0], [2, 2, 0], [2, 2, 1]],
                   "b.jpg": [[1, 1, 1, 1], [0, 0, 0, 0], [2, 2, 2, 2]]}},
        said="2 masks, such as .*have the stored pixels of an image that EXIF data turns, and are turned with it",
    )  # fmt: skip


@export
def masks_of_upright_pixels():
    return Export(
        {
            **NAMED,
            **pairs(a=png(A), b=png(B)),
            "images/a.jpg": turned(6, (4, 3)),
            "images/b.jpg": turned(3, (3, 4)),
        },
        NAMES,
        {"train": {"a.jpg": A, "b.jpg": B}},
    )


@export
def masks_of_unclear_pixels():
    return Export(
        {**NAMED, "images/a.jpg": turned(2, (3, 4)), "masks/a.png": png(A)},
        NAMES,
        {"train": {"a.jpg": A}},
        said="EXIF data turns or mirrors the images of 1 mask without changing their size",
    )


def _masks(source):
    paths = example_names(source)
    return {path: source.read(tf.constant(i, tf.int64))["mask"].numpy()[..., 0] for i, path in enumerate(paths)}


@pytest.mark.extended
@pytest.mark.parametrize("name", FORMATS)
def test_an_export_opens_with_its_pixels_or_is_named(name, tmp_path, told):
    made = FORMATS[name]()
    write(tmp_path, made.files)
    if made.refused:
        with pytest.raises(ValueError, match=f"(?s){made.refused}"):
            opened(tmp_path, made.options)
        return
    used = {}
    for split, expected in made.splits.items():
        source = opened(tmp_path, made.options, split)
        assert (source.class_names, source.void, source.size) == (made.names, made.void, len(expected))
        found = _masks(source)
        for path, mask in found.items():
            (own,) = [mask for image, mask in expected.items() if path.endswith(f"{os.sep}{image}")]
            np.testing.assert_array_equal(mask, own, err_msg=path)
        if split != "trainval":
            assert not used.keys() & found.keys()
            used |= found
    with pytest.raises(MissingSplit) as error:
        opened(tmp_path, made.options, "no-split")
    assert set(error.value.splits) == set(made.splits)
    assert not made.said or any(re.search(made.said, text) for text in told())
