"""Trains a student on labels and on a teacher's predictions: a small ViT on CIFAR-10, or after the colon a paper's
recipe for ImageNet.

    keras-vit pretrain --config=distillation --data_dir=DIR --config.objective.teacher=runs/cifar10_stem \\
        --workdir=runs/student

The student and its training are those of `cifar10_scratch`, in fewer steps: a step takes 1.2 times as long with a
teacher, so both train for the same time. The teacher is a run of `cifar10_stem`. DIR contains the prepared dataset
(`tfds build cifar10 --data_dir=DIR`).

After the colon: 6min or 20min, of training on CIFAR-10 with 2 cores (20min: 82.3% of the test split, 82.1% without a
teacher, means of 3 seeds); or for ImageNet, not run here:
    deit      ViT-B/16 with a distillation token and hard labels of the teacher (arXiv 2012.12877): 83.4% after 300
              epochs, 81.8% without a teacher. The paper's teacher, a RegNetY-16GF, is not in this package, so the
              recipe names a BiT. It does not repeat augmentations as the paper does.
    funmatch  ResNet-50, taught without labels on the same mixed crops (arXiv 2106.05237); the paper's longest run is
              --config.total="9600 epochs", 82.8%
"""

from ml_collections import config_dict

from . import cifar10_scratch
from .lib import common
from .lib.choices import choose

STEPS = {"6min": 3300, "20min": 10_700}
CHOICES = {"recipe": ("cifar10", "deit", "funmatch"), "length": tuple(STEPS)}
ONLY = {"length": "cifar10"}


def _cifar10(length):
    config = cifar10_scratch.get_config(length)
    config.total = f"{STEPS[length]} steps"
    config.objective.update(kind="soft", temperature=2.0, teacher=config_dict.placeholder(str))
    return config


def _imagenet():
    config = common.base()
    config.data.update(source="imagenet2012", train="train[:98%]", evaluation="validation", shuffle_buffer=250_000)
    config.data.eval_preprocess = "decode|resize(256)|central_crop(224)"
    return config


def _deit():
    config = _imagenet()
    config.model.update(variant="B/16", distillation_token=True, drop_path=0.1)
    config.data.train = "train"
    config.data.train_preprocess = (
        "decode|random_resized_crop(224, scale=(0.08, 1))|random_flip|rand_augment(2, 9)|random_erasing(0.25)"
    )
    config.objective.update(kind="hard", teacher="bit/R152x2-teacher-224")
    config.update(batch_size=1024, total="300 epochs", mixup=0.8, cutmix=1.0)
    config.loss.label_smoothing = 0.1
    config.optimizer.update(learning_rate=1e-3, weight_decay=0.05, clip_norm=None)
    config.schedule.warmup = "5 epochs"
    config.expected = "83.4% on ImageNet (arXiv 2012.12877, table 3, with another teacher)"
    return config


def _funmatch():
    config = _imagenet()
    config.model.variant = "R50x1"
    config.data.train_preprocess = "decode|random_resized_crop(224)|random_flip"
    config.objective.update(kind="consistent", teacher="bit/R152x2-teacher-224")
    config.update(batch_size=4096, total="1200 epochs", mixup=1.0)
    # 0.01: the authors' 3e-4 over their learning rate.
    config.optimizer.update(learning_rate=0.03, weight_decay=0.01, clip_norm=1.0)
    config.schedule.warmup = "5k steps"
    config.expected = "82.8% on ImageNet after 9600 epochs (arXiv 2106.05237)"
    return config


def get_config(argument=""):
    recipe, length = choose(argument, CHOICES, ONLY)
    config = _cifar10(length) if recipe == "cifar10" else {"deit": _deit, "funmatch": _funmatch}[recipe]()
    config.task = "distillation"
    return config
