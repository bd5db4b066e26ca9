"""Pre-trains a ViT without labels by self-distillation (DINO, arXiv 2104.14294).

    keras-vit pretrain --config=dino --data_dir=DIR --workdir=runs/dino

After the colon: cifar10, a small ViT on CPUs, or S/16, the paper's recipe for ImageNet
(`--strategy=tpu --config.dtype=mixed_bfloat16 --config.steps_per_execution=100`), not run here. DIR contains
tensorflow-datasets' data. The result is a ViT without a head; fine-tune it with `--config.init`.

On CIFAR-10 a step takes 640 ms on 2 quiet cores of an AMD EPYC: twenty minutes. Results:
docs/experiments/few_labels.md.
"""

from .lib import cifar10, common
from .lib.choices import choose

CHOICES = {"model": ("cifar10", "S/16")}
IMAGENET = {"mean": (123.675, 116.28, 103.53), "std": (58.395, 57.12, 57.375)}


def get_config(argument=""):
    [model] = choose(argument, CHOICES)
    config = _cifar10() if model == "cifar10" else _imagenet()
    config.task = "dino"
    return config


def _cifar10():
    """Crops of 32 and 16 pixels; fewer outputs, a smaller head, and a quicker teacher, for few steps."""
    config = cifar10.base()
    config.model.update(drop_path=0.1)
    config.data.update(train_preprocess="decode", evaluation="test[:1000]")
    colour = "random_flip|color_jitter(0.4, 0.4, 0.2, 0.1, probability=0.8)|random_grayscale(0.2)"
    config.objective.update(outputs=2048, hidden=512, bottleneck=128, local_size=16, local_crops=4, momentum=0.99)
    config.objective.update(temperature=0.04, first_temperature=0.04, temperature_warmup="0 steps", frozen="1 epochs")
    for name in ("first_crop", "second_crop"):
        config.objective[name] = f"random_resized_crop({{size}}, scale=(0.4, 1))|{colour}"
    config.objective.local_crop = f"random_resized_crop({{size}}, scale=(0.1, 0.4))|{colour}"
    config.total = "1900 steps"
    config.evaluate = config.checkpoint = "380 steps"
    config.schedule.warmup = "10%"
    config.optimizer.update(learning_rate=1e-3, beta_2=0.999, weight_decay=0.04, weight_decay_final=0.4, clip_norm=3.0)
    cifar10.nearest_neighbours(config, "760 steps")
    return config


def _imagenet():
    """The authors' command for ViT-S/16, with two crops of 224 and eight of 96 pixels."""
    config = common.base()
    config.model.update(variant="S/16", image_size=224, epsilon=1e-6, drop_path=0.1, **IMAGENET)
    config.data.update(source="imagenet2012", train="train", evaluation="validation", shuffle_buffer=250_000)
    config.data.train_preprocess = "decode"
    config.objective.update(scale=True, temperature_warmup="30 epochs")
    config.batch_size = 1024
    config.total = "800 epochs"
    config.evaluate = config.checkpoint = "10 epochs"
    config.schedule.warmup = "10 epochs"
    config.optimizer.update(learning_rate=5e-4 * 1024 / 256, weight_decay=0.04, weight_decay_final=0.4, clip_norm=3.0)
    config.expected = "74.5% k-NN, 77.0% linear on ImageNet (arXiv 2104.14294, table 2)"
    return config
