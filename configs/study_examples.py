"""How much data a model needs (arXiv 2010.11929, section 4.3, figures 3 and 4), on CIFAR-10: subsets of its training
images, with a line each for a ViT, one with a convolutional stem, and a small ResNet.

    keras-vit pretrain --config=study_examples --sweep --data_dir=DIR --workdir=runs/examples

DIR contains the prepared dataset (`tfds build cifar10 --data_dir=DIR`), with images in random order: the first are a
random part. Every point trains for the same number of steps and is compared on train[90%:]; the test split is not used.
Results: docs/experiments/examples.md. A CPU without bfloat16 instructions needs --config.dtype=float32.

The paper's figures have curves: with 9M images of JFT a ResNet is ahead, with 90M and more the ViT-L/16; pre-trained on
ImageNet alone, large models are behind small ones.
"""

from .lib import study

SIZES = {
    "ViT": "model.depth=4",
    "convolutional stem": "model.depth=2",
    "ResNet": "model.units=(1, 1, 1);model.width_factor=0.5",
}
PARTS = "data.dev_train=train[:1%],train[:4%],train[:15%],train[:90%]"


def get_config():
    config = study.base("cifar10")
    config.picture.update(x="training_examples", lines=tuple(SIZES))
    config.sweep = "|".join(f"{study.FAMILIES[name]};{size};{PARTS}" for name, size in SIZES.items())
    return config
