"""Adam against SGD for a ResNet, each at several learning rates (arXiv 2010.11929, appendix D.1): a small BiT.

    keras-vit pretrain --config=study_optimizer:digits --sweep --runs=3 --workdir=runs/optimizer
    keras-vit pretrain --config=study_optimizer:cifar10 --sweep --runs=3 --data_dir=DIR \\
        --workdir=runs/optimizer_cifar10

DIR contains the prepared dataset. The points train on a part of the training split and are compared on the rest of it.
Plain Adam is adamw with --config.optimizer.weight_decay=0. The paper pre-trains ResNets on JFT with either, and then
fine-tunes both with SGD: most transfer better from Adam. This study compares them without transfer. On the digits:
docs/experiments/optimizer.md; on CIFAR-10: not run here.
"""

from .lib import common, study
from .lib.choices import choose

CHOICES = {"data": study.DATA}
OPTIMIZERS = (
    "optimizer.name=adamw;optimizer.beta_2=0.98;optimizer.learning_rate=3e-4,1e-3,3e-3",
    # SGD's usual 1e-4 is decoupled here, as Adam's is.
    "optimizer.name=momentum;optimizer.weight_decay=1e-4;optimizer.learning_rate=0.01,0.03,0.1",
)


def get_config(argument=""):
    [data] = choose(argument, CHOICES)
    config = study.base(data)
    size, channels = config.model.image_size, config.model.channels
    config.model = common.base().model
    config.model.update(variant="R50x1", units=(2, 2), width_factor=0.5, image_size=size, channels=channels)
    config.optimizer.beta_2 = common.base().optimizer.beta_2  # SGD has none
    config.sweep = "|".join(OPTIMIZERS)
    return config
