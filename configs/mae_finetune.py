"""Fine-tunes a model pre-trained by `mae` (arXiv 2111.06377, table 9), or trains the same model from scratch for
comparison.

    keras-vit finetune --config=mae_finetune --config.init=runs/mae --data_dir=DIR --workdir=runs/mae_finetune

After the colon, in any order: cifar10, on CPUs, or B/16, L/16 or H/14 on ImageNet (--config.init=mae/b16, for example).
For cifar10 also the share of the labels, all, 10percent or 1percent; pretrained, or scratch for comparison (then
`keras-vit pretrain`, without --config.init); and the optimizer, muon or adamw. Any other pre-training of the
same small ViT, such as `masked_patches`, is fine-tuned with this config, too. DIR contains tensorflow-datasets' data.

1% of CIFAR-10's labels are 500 images, 35 to 60 of each class. Results: docs/experiments/few_labels.md.
"""

from .lib import cifar10, common
from .lib.choices import choose

CHOICES = {
    "model": ("cifar10", "B/16", "L/16", "H/14"),
    "labels": tuple(cifar10.LABELS),
    "start": ("pretrained", "scratch"),
    "optimizer": ("muon", "adamw"),
}
ONLY = dict.fromkeys(("labels", "start", "optimizer"), "cifar10")
IMAGENET = {"mean": (123.675, 116.28, 103.53), "std": (58.395, 57.12, 57.375)}
# Table 9: (rate per 256 images, layer decay, drop path, epochs), and the result of table 3.
RECIPES = {
    "B/16": (5e-4, 0.65, 0.1, 100, "83.6%"),
    "L/16": (1e-3, 0.75, 0.2, 50, "85.9%"),
    "H/14": (1e-3, 0.75, 0.3, 50, "86.9%"),
}
STEPS = {"all": 4000, "10percent": 4000, "1percent": 1500}  # on CIFAR-10, by the share of labels


def get_config(argument=""):
    model, labels, start, optimizer = choose(argument, CHOICES, ONLY)
    config = _cifar10(labels, start, optimizer) if model == "cifar10" else _imagenet(model)
    config.model.fc_norm = True  # the mean of the patches, then a new normalisation
    return config


def _cifar10(labels, start, optimizer):
    config = cifar10.base()
    config.model.update(positions="learned", drop_path=0.1)
    config.data.train = cifar10.LABELS[labels]
    config.data.train_preprocess = (
        "decode|random_crop(32, padding=4)|random_flip|rand_augment(2, 9, translate=14, cut=6)"
    )
    config.total = f"{STEPS[labels]} steps"
    config.evaluate = config.checkpoint = "25%"
    if optimizer == "muon":
        config.optimizer.update(name="muon", learning_rate=3e-3, momentum=0.95, beta_2=0.98)
    else:
        config.optimizer.update(learning_rate=1e-3, beta_2=0.999)
    config.optimizer.layer_decay = None if start == "scratch" else 0.75
    config.loss.label_smoothing = 0.1
    config.mixup, config.cutmix = 0.8, 1.0
    config.schedule.warmup = "5%"
    return config


def _imagenet(variant):
    rate, layer_decay, drop_path, epochs, expected = RECIPES[variant]
    config = common.base()
    config.model.update(
        variant=variant, image_size=224, pool="gap", positions="learned", drop_path=drop_path, **IMAGENET
    )
    config.data.update(source="imagenet2012", train="train", evaluation="validation", shuffle_buffer=250_000)
    config.data.train_preprocess = (
        "decode|random_resized_crop(224, scale=(0.08, 1.0), method='bicubic')|random_flip|rand_augment(2,"
        " 9)|random_erasing(0.25)"
    )
    config.data.eval_preprocess = "decode|resize(256, method='bicubic')|central_crop(224)"
    config.batch_size = 1024
    config.total = f"{epochs} epochs"
    config.optimizer.update(learning_rate=rate * 1024 / 256, weight_decay=0.05, layer_decay=layer_decay, clip_norm=None)
    config.loss.label_smoothing = 0.1
    config.mixup, config.cutmix = 0.8, 1.0
    config.schedule.warmup = "5 epochs"
    config.expected = f"{expected} on ImageNet at 224 px, after 1600 epochs of mae (arXiv 2111.06377, table 3)"
    return config
