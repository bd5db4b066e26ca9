"""VTAB-1k's nineteen tasks (arXiv 1910.04867) as tensorflow-datasets' names: 800 examples to train on, 200 to choose by.

The splits are the benchmark's. A task is here once its dataset has the features "image" and "label"; the others, in OTHERS, derive
their labels from other features, which no source here does yet.
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
}
OTHERS = {
    "clevr-count": "clevr, the number of objects",
    "clevr-distance": "clevr, the nearest object's distance in six bins",
    "dsprites-location": "dsprites, label_x_position in sixteen bins",
    "dsprites-orientation": "dsprites, label_orientation in sixteen bins",
    "kitti": "kitti, the nearest vehicle's distance in four bins",
    "smallnorb-azimuth": "smallnorb, label_azimuth",
    "smallnorb-elevation": "smallnorb, label_elevation",
}
