"""Pre-trains a Transformer to predict each pixel's colour from those before it (iGPT: Chen et al., ICML 2020), on
CIFAR-10 at 16 px, on CPUs.

    keras-vit pretrain --config=igpt --data_dir=DIR --workdir=runs/igpt

DIR contains the prepared dataset (`tfds build cifar10 --data_dir=DIR`). Then a classifier from its weights:

    keras-vit finetune --config=igpt_finetune --config.init=runs/igpt --data_dir=DIR \\
        --workdir=runs/igpt_classifier

292 ms a step on 2 quiet cores of an AMD EPYC: twenty minutes. Then the cross-entropy on 5,000 held-out images is 2.82
nats (4.07 bits) per pixel. k-NN measures the mean of block 3. Results of fine-tuning: docs/experiments/few_labels.md.

`--config=igpt:S` (M, L) is the paper's pre-training on ImageNet at 32 px: 512 colours, batch 128, a million steps, Adam
with b2=0.95, no weight decay and no dropout. The paper tries learning rates from 0.01 downwards. Not run here.
"""

from .lib import common
from .lib.choices import choose

CHOICES = {"size": ("cifar10", "S", "M", "L")}


def _cifar10(config):
    config.model.update(
        variant="Ti/1", image_size=16, depth=6, width=128, heads=4, mlp_dim=256, mlp_activation="gelu_tanh", palette=512
    )
    config.dtype = "mixed_bfloat16"
    config.data.source = "cifar10"
    config.data.train = "train[:90%]"
    config.data.evaluation = "train[90%:]"
    config.data.train_preprocess = "decode|random_flip|resize(16, 16, method='area')"  # padding would be drawn, too
    config.data.eval_preprocess = "decode|resize(16, 16, method='area')"
    config.data.shuffle_buffer = 50_000
    config.batch_size = 32
    config.total = "4000 steps"
    config.evaluate = "1000 steps"
    config.checkpoint = "1000 steps"
    config.optimizer.learning_rate = 3e-3
    options = {"source": "cifar10", "train": "train[:20%]", "test": "train[90%:]", "block": 3}
    config.evals.knn = {"every": "2000 steps", **options}


def _paper(config, size):
    config.model.update(variant=f"iGPT-{size}", image_size=32, palette=512)
    config.data.source = "imagenet2012"
    config.data.evaluation = "validation"
    config.data.train_preprocess = "decode|random_resized_crop(224)|random_flip|resize(32, 32, method='area')"
    config.data.eval_preprocess = "decode|resize(256)|central_crop(224)|resize(32, 32, method='area')"
    config.dtype = "mixed_bfloat16"
    config.model.remat = True
    config.batch_size = 128
    config.total = "1M steps"
    config.evaluate = "10k steps"
    config.checkpoint = "10k steps"
    config.optimizer.learning_rate = {"S": 3e-3, "M": 1e-3, "L": 1e-3}[size]
    config.schedule.warmup = "1 epochs"


def get_config(argument=""):
    [size] = choose(argument, CHOICES)
    config = common.base()
    config.task = "autoregressive"
    if size == "cifar10":
        _cifar10(config)
    else:
        _paper(config, size)
    config.optimizer.beta_2 = 0.95
    config.optimizer.weight_decay = 0.0
    config.evals.samples = {"every": config.evaluate}
    return config
