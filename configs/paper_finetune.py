"""Fine-tunes as the paper does (arXiv 2010.11929, table 4), the learning rate chosen on a held-out part of the training
split.

    keras-vit finetune --config=paper_finetune:L/16,cifar10 --config.init=imagenet21k/L_16 --data_dir=DIR \\
        --sweep --runs=3 --workdir=runs/l16_cifar10

After the colon, in any order: B/16, B/32, L/16, L/32 or H/14; imagenet, cifar10, cifar100, pets or flowers; 384 (px) or
high (512 px, 518 for H/14, with averaged weights on ImageNet, as in table 2). H/14's 384 is 378, the nearest size that
its patches divide. DIR contains tensorflow-datasets' data. Without --sweep the learning rate is 0.01.

The paper's results from ImageNet-21k at 384 px (table 5): B/16 ImageNet 83.97%, CIFAR-10 98.95%, CIFAR-100 91.67%, Pets
94.43%, Flowers 99.38%; L/16 at 512 px (table 2): 85.30%, 99.15%, 93.25%, 94.67%, 99.61%. Means of three runs, on TPUs
v3. Not run here.
"""

from .lib import paper
from .lib.choices import choose

CHOICES = {"variant": tuple(paper.TABLE_5["imagenet"]), "task": tuple(paper.TASKS), "size": ("384", "high")}


def get_config(argument=""):
    variant, task, size = choose(argument, CHOICES)
    config = paper.fine_tuning(task)
    pixels = paper.sizes(variant)[size]
    config.model.update(variant=variant, image_size=pixels)
    config.data.train_preprocess = f"decode|random_resized_crop({pixels})|random_flip"
    config.data.eval_preprocess = f"decode|resize({pixels}, {pixels})"
    if size == "high" and task == "imagenet":
        config.optimizer.ema = 0.9999
    if size == "384":
        config.expected = f"{paper.TABLE_5[task][variant]}% from ImageNet-21k (arXiv 2010.11929, table 5)"
    elif variant == "L/16":
        config.expected = f"{paper.TABLE_2[task]}% from ImageNet-21k (arXiv 2010.11929, table 2)"
    return config
