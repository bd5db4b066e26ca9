"""Trains a ViT with a convolutional stem on CIFAR-10 from random weights, on one GPU.

    KERAS_BACKEND=jax keras-vit pretrain --config=cifar10_gpu --data_dir=DIR --workdir=runs/cifar10_gpu
    KERAS_BACKEND=jax keras-vit pretrain --config=cifar10_gpu:5min --data_dir=DIR --workdir=runs/cifar10_5min

After the colon: 60s or 5min, what an H100 is meant to take for compilation and training. DIR contains the prepared
dataset (`tfds build cifar10 --data_dir=DIR`). `python -m benchmarks.gpu_cifar10` trains the same without TensorFlow.

`cifar10_stem`'s kind of model, with six or fourteen times the arithmetic: six convolutions, 16 tokens, four blocks.
Neither was run on a GPU yet, so the numbers of epochs are estimates. docs/experiments/cifar10.md has runs of a few
epochs on a CPU.
"""

from .lib import common
from .lib.choices import choose

CHOICES = {"length": ("60s", "5min")}
EPOCHS = {"60s": 36, "5min": 100}
WIDTHS = {"60s": (64, 128, 256), "5min": (96, 192, 384)}  # at 32, 16 and 8 pixels


def get_config(argument=""):
    [length] = choose(argument, CHOICES)
    first, second, width = WIDTHS[length]
    config = common.base()
    config.model.update(variant="Ti/1", image_size=32, mean=(125.3, 123.0, 113.9), std=(63.0, 62.1, 66.7))
    config.model.update(conv_stem=(first, second, second, width, width, width), conv_strides=(1, 2, 1, 2, 1, 2))
    config.model.update(conv_form="residual", depth=4, width=width, heads=width // 64, mlp_dim=2 * width)
    config.model.update(mlp_activation="gelu_tanh", pool="gap", position_std=1.0)
    config.whiten = 4096
    config.dtype = "mixed_bfloat16"

    config.data.source = "cifar10"
    config.data.train_preprocess = "decode|random_crop(32, padding=4)|random_flip"
    config.data.eval_preprocess = "decode|resize(32, 32)"
    config.data.shuffle_buffer = 50_000
    config.data.update(dev_train="train[:90%]", dev_evaluation="train[90%:]")
    config.sweep = "optimizer.learning_rate=4e-3,8e-3,16e-3"

    config.batch_size = 512
    config.steps_per_execution = 20
    config.total = f"{EPOCHS[length]} epochs"
    config.evaluate = config.checkpoint = "25%"
    # Test-time flips, at the end: twice the time of a prediction.
    config.evals.flips = {"evaluator": "classification", "flips": True}
    config.loss.label_smoothing = 0.1
    config.cutmix = 1.0 if length == "5min" else None

    config.optimizer.update(name="muon", learning_rate=8e-3, momentum=0.95, beta_2=0.98, weight_decay=0.05)
    config.schedule.warmup = "5%"
    return config
