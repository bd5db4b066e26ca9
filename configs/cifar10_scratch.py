"""Trains a small ViT on CIFAR-10 from random weights, for CPUs.

    python -m trainers.pretrain --config=cifar10_scratch --data_dir=DIR --workdir=runs/cifar10

DIR holds the prepared dataset (`tfds build cifar10 --data_dir=DIR`).

2 cores of an AMD EPYC: 166 s, 52.6% test accuracy; 50.4% after 113 s.
"""

from .lib import common


def get_config():
    config = common.base()
    config.model.update(variant="Ti/4", image_size=32, depth=4, width=64, heads=4, mlp_dim=128, pool="gap")
    config.jit_compile = True

    config.data.source = "cifar10"
    config.data.train_preprocess = "decode|random_crop(32, padding=4)|random_flip"
    config.data.eval_preprocess = "decode|resize(32, 32)"
    config.data.shuffle_buffer = 50_000

    config.batch_size = 128
    config.total = "3 epochs"
    config.evaluate = "1 epochs"
    config.checkpoint = "200 steps"

    config.optimizer.learning_rate = 2e-3
    config.optimizer.weight_decay = 0.05
    config.schedule.warmup = "10%"
    return config
