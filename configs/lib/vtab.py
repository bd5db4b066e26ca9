"""VTAB-1k's nineteen tasks (arXiv 1910.04867) as tensorflow-datasets' names: 800 examples to train on, 200 to choose
by.

The splits are the benchmark's. Seven tasks derive their labels from other features (docs/reference/derived_labels.md):
counts, distances, bins.
"""

# Name: (group, source, what the 200 are taken from, test split).
TASKS = {
    "caltech101": ("natural", "caltech101", "train[2753:2953]", "test"),
    "cifar100": ("natural", "cifar100", "train[45000:45200]", "test"),
    "dtd": ("natural", "dtd", "validation[:200]", "test"),
    "flowers": ("natural", "oxford_flowers102", "validation[:200]", "test"),
    "pets": ("natural", "oxford_iiit_pet", "train[2944:3144]", "test"),
    "sun397": ("natural", "sun397/tfds", "validation[:200]", "test"),
    "svhn": ("natural", "svhn_cropped", "train[65931:66131]", "test"),
    "camelyon": ("specialized", "patch_camelyon", "validation[:200]", "test"),
    "eurosat": ("specialized", "eurosat", "train[16200:16400]", "train[21600:]"),
    "resisc45": ("specialized", "resisc45", "train[18900:19100]", "train[25200:]"),
    "retinopathy": ("specialized", "diabetic_retinopathy_detection/btgraham-300", "validation[:200]", "test"),
    "dmlab": ("structured", "dmlab", "validation[:200]", "test"),
    "clevr-count": ("structured", "clevr?label=count(objects, 3, 10)", "train[63000:63200]", "validation"),
    "clevr-distance": (
        "structured",
        "clevr?label=least(objects.pixel_coords[2], 8, 8.5, 9, 9.5, 10)",
        "train[63000:63200]",
        "validation",
    ),
    "dsprites-location": (
        "structured",
        "dsprites?label=group(label_x_position, 16)",
        "train[589824:590024]",
        "train[663552:]",
    ),
    "dsprites-orientation": (
        "structured",
        "dsprites?label=group(label_orientation, 16)",
        "train[589824:590024]",
        "train[663552:]",
    ),
    "kitti": (
        "structured",
        'kitti?label=least(objects.location[2], 8, 20, 999, where=objects.type, among=("Car", "Van", "Truck"))',
        "validation[:200]",
        "test",
    ),
    "smallnorb-azimuth": ("structured", "smallnorb?label=label_azimuth", "test[:200]", "test[12150:]"),
    "smallnorb-elevation": ("structured", "smallnorb?label=label_elevation", "test[:200]", "test[12150:]"),
}
# Its images are 0 and 1.
ZERO_ONE = ("dsprites-location", "dsprites-orientation")
