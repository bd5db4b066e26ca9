"""Trains a small ViT on CIFAR-10 from random weights, on CPUs.

    python -m trainers.pretrain --config=cifar10_scratch --data_dir=DIR --workdir=runs/cifar10

DIR holds the prepared dataset (`tfds build cifar10 --data_dir=DIR`).

2 cores of an AMD EPYC: 127 ms per step, so 2830 steps are six minutes; they gave 65.5% test accuracy (mean of 3 seeds; 64.7, 66.7, 65.1).
Twenty minutes, --config.total="9440 steps", gave 75.7% (one seed). `cifar10_stem` learns more in the same time.
A CPU without bfloat16 instructions (avx512_bf16, amx_bf16) needs --config.dtype=float32.
"""

from .lib import common


def get_config():
    config = common.base()
    config.model.update(variant="Ti/4", image_size=32, depth=4, width=64, heads=4, mlp_dim=128, gelu="tanh")
    config.model.update(mean=(125.3, 123.0, 113.9), std=(63.0, 62.1, 66.7))
    config.dtype = "mixed_bfloat16"

    config.data.source = "cifar10"
    config.data.train_preprocess = "decode|random_crop(32, padding=2)|random_flip"
    config.data.eval_preprocess = "decode|resize(32, 32)"
    config.data.shuffle_buffer = 50_000

    config.batch_size = 128
    config.total = "2830 steps"
    config.evaluate = "566 steps"
    config.checkpoint = "566 steps"

    config.optimizer.learning_rate = 3e-3
    config.optimizer.beta_2 = 0.98
    config.optimizer.weight_decay = 0.05
    config.schedule.warmup = "5%"
    return config
