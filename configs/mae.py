"""Pre-trains a ViT without labels as a masked autoencoder (MAE, arXiv 2111.06377).

    keras-vit pretrain --config=mae --data_dir=DIR --workdir=runs/mae

After the colon: cifar10, a small ViT on CPUs; B/16, L/16 or H/14, the paper's recipe for ImageNet
(`--strategy=tpu --config.dtype=mixed_bfloat16 --config.steps_per_execution=100`). DIR contains tensorflow-datasets'
data. `mae_finetune` fine-tunes the result.

cifar10 trains with Muon: 144 ms a step on 2 quiet cores of an AMD EPYC, 22 minutes. Results, also with AdamW:
docs/experiments/few_labels.md. The paper's recipes: not run here.
"""

from .lib import cifar10, common
from .lib.choices import choose

CHOICES = {"model": ("cifar10", "B/16", "L/16", "H/14")}
IMAGENET = {"mean": (123.675, 116.28, 103.53), "std": (58.395, 57.12, 57.375)}
EXPECTED = {"B/16": "83.6%", "L/16": "85.9%", "H/14": "86.9%"}  # table 3 of the paper, of 1600 epochs


def get_config(argument=""):
    [model] = choose(argument, CHOICES)
    config = _cifar10() if model == "cifar10" else _imagenet(model)
    config.task = "masked_autoencoding"
    config.evals.reconstructions = {"every": config.evaluate}
    return config


def _cifar10():
    config = cifar10.base()
    config.objective.update(mask_ratio=0.75, decoder_depth=2, decoder_width=64, decoder_heads=4)
    config.total = "9000 steps"
    config.evaluate = config.checkpoint = "1000 steps"
    config.optimizer.update(name="muon", learning_rate=3e-3, momentum=0.95)
    config.schedule.warmup = "5%"
    cifar10.nearest_neighbours(config, "3000 steps")
    return config


def _imagenet(variant):
    """Table 8: batches of 4096, 1.5e-4 per 256 images, 40 epochs of warm-up; 1600 epochs are the paper's best."""
    config = common.base()
    config.model.update(variant=variant, image_size=224, **IMAGENET)
    config.data.update(source="imagenet2012", train="train", evaluation="validation", shuffle_buffer=250_000)
    config.data.train_preprocess = "decode|random_resized_crop(224, scale=(0.2, 1.0), method='bicubic')|random_flip"
    config.data.eval_preprocess = "decode|resize(256, method='bicubic')|central_crop(224)"
    config.batch_size = 4096
    config.total = "1600 epochs"
    config.evaluate = config.checkpoint = "20 epochs"
    config.optimizer.update(learning_rate=1.5e-4 * 4096 / 256, weight_decay=0.05, beta_2=0.95, clip_norm=None)
    config.schedule.warmup = "40 epochs"
    config.expected = f"{EXPECTED[variant]} on ImageNet at 224 px after mae_finetune (arXiv 2111.06377, table 3)"
    return config
