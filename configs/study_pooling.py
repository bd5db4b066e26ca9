"""Class token, mean of the patches or attention pooling, each at several learning rates (arXiv 2010.11929, appendix
D.3, figure 9).

    keras-vit pretrain --config=study_pooling:digits --sweep --runs=3 --workdir=runs/pooling
    keras-vit pretrain --config=study_pooling:cifar10 --sweep --runs=3 --data_dir=DIR \\
        --workdir=runs/pooling_cifar10

DIR contains the prepared dataset. The points train on a part of the training split and are compared on the rest of it.
In the paper, average pooling was worse than the class token at the class token's learning rate, but as good at a
different one. On the digits: docs/experiments/pooling.md. `cifar10`: not run here.
"""

from .lib import study
from .lib.choices import choose

CHOICES = {"data": study.DATA}


def get_config(argument=""):
    [data] = choose(argument, CHOICES)
    config = study.base(data)
    config.sweep = "model.pool=token,gap,map;optimizer.learning_rate=1e-3,3e-3,1e-2"
    return config
