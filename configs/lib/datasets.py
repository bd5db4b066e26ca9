"""Classes and examples of well-known datasets, so that a recipe can be planned without its data.

Counts of the splits are those of tensorflow-datasets' catalogue. imagenet21k and jft300m are not in it: their counts
are the papers' (arXiv 2010.11929, sections 4.1 and 4.3; 303M is JFT without its near-duplicates of the test sets).
"""

# Name: (classes, {split: examples}).
DATASETS = {
    "digits": (10, {"train": 1_437, "test": 360}),
    "cifar10": (10, {"train": 50_000, "test": 10_000}),
    "cifar100": (100, {"train": 50_000, "test": 10_000}),
    "imagenet2012": (1000, {"train": 1_281_167, "validation": 50_000}),
    "imagenet21k": (21_843, {"train": 14_197_122}),
    "jft300m": (18_291, {"train": 303_000_000}),
    "oxford_iiit_pet": (37, {"train": 3_680, "test": 3_669}),
    "oxford_flowers102": (102, {"train": 1_020, "validation": 1_020, "test": 6_149}),
    "caltech101": (102, {"train": 3_059, "test": 6_085}),
    "dtd": (47, {"train": 1_880, "validation": 1_880, "test": 1_880}),
    "svhn_cropped": (10, {"train": 73_257, "test": 26_032, "extra": 531_131}),
    "sun397/tfds": (397, {"train": 76_128, "validation": 10_875, "test": 21_750}),
    "patch_camelyon": (2, {"train": 262_144, "validation": 32_768, "test": 32_768}),
    "eurosat": (10, {"train": 27_000}),
    "resisc45": (45, {"train": 31_500}),
    "diabetic_retinopathy_detection/btgraham-300": (5, {"train": 35_126, "validation": 10_906, "test": 42_670}),
    "dmlab": (6, {"train": 65_550, "validation": 22_628, "test": 22_735}),
    "clevr?label=count(objects, 3, 10)": (8, {"train": 70_000, "validation": 15_000, "test": 15_000}),
    "clevr?label=least(objects.pixel_coords[2], 8, 8.5, 9, 9.5, 10)": (
        6,
        {"train": 70_000, "validation": 15_000, "test": 15_000},
    ),
    "dsprites?label=group(label_x_position, 16)": (16, {"train": 737_280}),
    "dsprites?label=group(label_orientation, 16)": (16, {"train": 737_280}),
    'kitti?label=least(objects.location[2], 8, 20, 999, where=objects.type, among=("Car", "Van", "Truck"))': (
        4,
        {"train": 6_347, "validation": 423, "test": 711},
    ),
    "smallnorb?label=label_azimuth": (18, {"train": 24_300, "test": 24_300}),
    "smallnorb?label=label_elevation": (9, {"train": 24_300, "test": 24_300}),
}
