"""Pre-trains a ViT without labels by masked patch prediction (appendix B.1.2 of arXiv 2010.11929).

    keras-vit pretrain --config=masked_patches --data_dir=DIR --workdir=runs/masked_patches

After the colon: cifar10, a small ViT on CPUs, or jft, the paper's recipe for B/16 (JFT is not public: pass your own
large dataset as --config.data.source=SOURCE). DIR contains tensorflow-datasets' data.
--config.objective.target=thumbnail or pixels are the paper's other two targets.

cifar10 trains with Muon, some twenty minutes on 2 quiet cores of an AMD EPYC (265 ms a step with AdamW). Results:
docs/experiments/few_labels.md. The paper's recipe: not run here.
"""

from .lib import cifar10, common
from .lib.choices import choose

CHOICES = {"data": ("cifar10", "jft")}


def get_config(argument=""):
    [data] = choose(argument, CHOICES)
    config = _cifar10() if data == "cifar10" else _jft()
    config.task = "masked_patches"
    config.objective.update(mask_ratio=0.5, target="mean_colour")
    config.evals.reconstructions = {"every": config.evaluate}
    return config


def _cifar10():
    config = cifar10.base()
    config.total = "4500 steps"
    config.evaluate = config.checkpoint = "500 steps"
    config.optimizer.update(name="muon", learning_rate=3e-3, momentum=0.95)
    config.schedule.warmup = "5%"
    cifar10.nearest_neighbours(config, "1500 steps")
    return config


def _jft():
    """1M steps, about 14 epochs, though the paper gains little after 100k."""
    config = common.base()
    config.model.update(variant="B/16", mlp_activation="gelu_tanh")
    config.data.update(source="jft300m", train="train[50000:]", evaluation="train[:50000]", shuffle_buffer=250_000)
    config.batch_size = 4096
    config.total = "1M steps"
    config.evaluate = config.checkpoint = "10k steps"
    config.optimizer.update(learning_rate=2e-4, clip_norm=None)
    config.schedule.warmup = "10k steps"
    config.expected = "79.9% on ImageNet after fine-tuning at 384 px (arXiv 2010.11929, appendix B.1.2)"
    return config
