"""Trains a small ViT on CIFAR-10 from random weights, on CPUs.

    keras-vit pretrain --config=cifar10_scratch --data_dir=DIR --workdir=runs/cifar10
    keras-vit pretrain --config=cifar10_scratch:20min --data_dir=DIR --workdir=runs/cifar10_20

After the colon: 6min or 20min, of training on 2 cores of an AMD EPYC with bfloat16 instructions. DIR contains the
prepared dataset (`tfds build cifar10 --data_dir=DIR`). `cifar10_stem` reaches a higher accuracy in the same time.

Steps take 67 ms; their number leaves time for evaluations and slower machines. Six minutes: 76.6% of the test split,
77.1% with test-time flips; twenty: 82.1% and 82.2% (means of 3 seeds). docs/recipes.md describes how it was chosen,
without the test split, and what else was tried. A CPU without bfloat16 instructions (avx512_bf16, amx_bf16) needs
--config.dtype=float32.
"""

from .lib import common
from .lib.choices import choose

STEPS = {"6min": 4000, "20min": 13_000}
CHOICES = {"length": tuple(STEPS)}


def get_config(argument=""):
    [length] = choose(argument, CHOICES)
    config = common.base()
    config.model.update(
        variant="Ti/4", image_size=32, depth=4, width=64, heads=4, mlp_dim=128, mlp_activation="gelu_tanh"
    )
    config.model.update(mean=(125.3, 123.0, 113.9), std=(63.0, 62.1, 66.7))
    config.dtype = "mixed_bfloat16"

    config.data.source = "cifar10"
    config.data.train_preprocess = "decode|random_crop(32, padding=2)|random_flip"
    config.data.eval_preprocess = "decode|resize(32, 32)"
    config.data.shuffle_buffer = 50_000
    config.data.update(dev_train="train[:90%]", dev_evaluation="train[90%:]")
    config.sweep = "optimizer.learning_rate=1.5e-3,3e-3,6e-3"

    config.batch_size = 128
    config.total = f"{STEPS[length]} steps"
    config.evaluate = config.checkpoint = "20%"
    # Test-time flips, at the end: twice the time of a prediction.
    config.evals.flips = {"evaluator": "classification", "flips": True}

    config.optimizer.update(name="muon", learning_rate=3e-3, momentum=0.95, beta_2=0.98, weight_decay=0.05)
    config.schedule.warmup = "5%"
    return config
