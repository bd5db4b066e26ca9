"""Trains a linear head on a frozen model, to measure its features.

    keras-vit finetune --config=linear_probe:B/16,cifar10 --config.init=imagenet21k/B_16 --data_dir=DIR \\
        --sweep \\
        --workdir=runs/probe

After the colon, in any order: B/16, B/32, L/16, L/32, S/16, S/32, Ti/16 or H/14; cifar10, cifar100, imagenet, pets or
flowers. DIR contains tensorflow-datasets' data. Steps and held-out parts are those of configs/paper_finetune.py; the
grid goes higher, because only a head is trained. The paper has no table of such runs: its own linear evaluation is
few-shot and in closed form (configs/data_study.py). Not run here.
"""

from .lib import paper
from .lib.choices import choose

CHOICES = {
    "variant": ("B/16", "B/32", "L/16", "L/32", "S/16", "S/32", "Ti/16", "H/14"),
    "task": ("cifar10", *(t for t in paper.TASKS if t != "cifar10")),
}


def get_config(argument=""):
    variant, task = choose(argument, CHOICES)
    config = paper.fine_tuning(task)
    config.model.update(variant=variant, image_size=224)
    config.linear_probe = True
    config.data.train_preprocess = "decode|random_resized_crop(224, scale=(0.3, 1.0))|random_flip"
    config.data.eval_preprocess = "decode|resize(256)|central_crop(224)"
    config.optimizer.update(learning_rate=0.1, clip_norm=None)
    config.sweep = "optimizer.learning_rate=0.01,0.03,0.1,0.3,1"
    return config
