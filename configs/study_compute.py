"""Accuracy against training compute (arXiv 2010.11929, section 4.4, figure 5), on CIFAR-10: ViTs, ViTs with a
convolutional stem, and ResNets, of three sizes each, for two lengths of training.

    keras-vit pretrain --config=study_compute --sweep --data_dir=DIR --workdir=runs/compute

DIR contains the prepared dataset (`tfds build cifar10 --data_dir=DIR`). The compute of a point is that of all its
training steps: forward and backward pass, matrix products and convolutions, 2 per multiply-add. Points are compared on
train[90%:]; the test split is not used. Results: docs/experiments/compute.md. A CPU without bfloat16 instructions needs
--config.dtype=float32.

The paper's figure has curves: ViTs reach a ResNet's accuracy with 2 to 4 times less compute, and hybrids are ahead of
ViTs at small compute budgets.
"""

from .lib import study

SIZES = {
    "ViT": ("model.depth=2;model.width=64", "model.depth=4;model.width=64", "model.depth=4;model.width=128"),
    "convolutional stem": (
        "model.depth=1;model.width=64",
        "model.depth=2;model.width=64",
        "model.depth=4;model.width=128",
    ),
    "ResNet": (
        "model.units=(1, 1);model.width_factor=0.5",
        "model.units=(1, 1, 1);model.width_factor=0.5",
        "model.units=(2, 2, 2);model.width_factor=0.5",
    ),
}
LENGTHS = "total=200 steps,400 steps"


def get_config():
    config = study.base("cifar10")
    points = {name: [f"{study.FAMILIES[name]};{size};{LENGTHS}" for size in sizes] for name, sizes in SIZES.items()}
    config.picture.update(x="training_flops", lines=tuple(name for name, parts in points.items() for _ in parts))
    config.sweep = "|".join(part for parts in points.values() for part in parts)
    return config
