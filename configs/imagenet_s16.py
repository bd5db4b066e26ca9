"""The plain ViT-S/16 of "Better plain ViT baselines for ImageNet-1k" (arXiv 2205.01580): fixed sin-cos positions,
average pooling.

    keras-vit pretrain --config=imagenet_s16:90ep --data_dir=DIR --strategy=tpu \\
        --config.dtype=mixed_bfloat16 \\
        --config.steps_per_execution=100 --workdir=gs://BUCKET/s16

After the colon: 90ep, 150ep or 300ep. DIR contains tensorflow-datasets' imagenet2012.

The paper's results on a TPUv3-8: 76.5% after 90 epochs in 6 to 7 hours; 80% after 300 in less than a day. Not run here.
"""

from .lib import common
from .lib.choices import choose

_EXPECTED = {"90ep": "76.5%", "150ep": "78.5%", "300ep": "80.0%"}
CHOICES = {"length": tuple(_EXPECTED)}


def get_config(argument=""):
    [length] = choose(argument, CHOICES)
    config = common.base()
    config.model.update(variant="S/16", positions="sincos2d", pool="gap", mlp_activation="gelu_tanh")
    config.data.update(source="imagenet2012", train="train[:99%]", evaluation="validation", shuffle_buffer=250_000)
    config.data.train_preprocess = "decode|random_resized_crop(224)|random_flip|rand_augment(2, 10)"
    config.mixup = 0.2
    config.batch_size = 1024
    config.total = f"{length.removesuffix('ep')} epochs"
    config.schedule.warmup = "10k steps"
    # 0.1: the paper's 1e-4 over its learning rate.
    config.optimizer.update(learning_rate=1e-3, weight_decay=0.1, clip_norm=1.0)
    config.expected = f"{_EXPECTED[length]} on ImageNet at 224 px (arXiv 2205.01580)"
    return config
