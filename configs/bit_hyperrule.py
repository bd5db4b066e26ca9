"""Fine-tunes by the BiT-HyperRule (arXiv 1912.11370, section 3.3): it chooses all settings from the number of examples
and their size.

    keras-vit finetune --config=bit_hyperrule:R50x1,cifar10 --config.init=bit/M-R50x1 --data_dir=DIR \\
        --workdir=runs/bit_cifar10

After the colon, in any order: R50x1, R50x3, R101x1, R101x3, R152x2 or R152x4; cifar10, cifar100, imagenet, pets or
flowers. DIR contains tensorflow-datasets' data. For your own data pass --config.data.source, with steps, warm-up, mixup
and sizes from `hyperrule`.

The paper reports, for R50x1 from ImageNet-21k: CIFAR-10 97.2%, CIFAR-100 86.5%, ImageNet 80.68%. Not run here.
"""

from .lib import common, datasets, paper
from .lib.choices import choose

_EXPECTED = {"cifar10": 97.2, "cifar100": 86.5, "imagenet": 80.68}
CHOICES = {
    "variant": ("R50x1", "R50x3", "R101x1", "R101x3", "R152x2", "R152x4"),
    "task": ("cifar10", "cifar100", "imagenet", "pets", "flowers"),
}


def hyperrule(examples, height, width):
    """The rule's settings for a dataset: {"steps", "warmup", "mixup", "resize", "crop"}.

    Args:
        examples: in the training split.
        height, width: of its images in pixels, typically.
    """
    steps = 500 if examples < 20_000 else 10_000 if examples < 500_000 else 20_000
    resize, crop = (160, 128) if height * width < 96 * 96 else (512, 480)
    return {
        "steps": steps,
        "warmup": min(steps // 5, 500),
        "mixup": 0.0 if examples < 20_000 else 0.1,
        "resize": resize,
        "crop": crop,
    }


def get_config(argument=""):
    variant, task = choose(argument, CHOICES)
    row = paper.TASKS[task]
    train, side = row.get("train", "train"), 32 if task.startswith("cifar") else 224
    rule = hyperrule(sum(datasets.DATASETS[row["source"]][1][split] for split in train.split("+")), side, side)
    config = common.base()
    config.model.update(variant=variant, image_size=rule["crop"])
    config.data.update(source=row["source"], train=train, evaluation=row.get("test", "test"), shuffle_buffer=50_000)
    config.data.train_preprocess = (
        f"decode|resize({rule['resize']}, {rule['resize']})|random_crop({rule['crop']})|random_flip"
    )
    config.data.eval_preprocess = f"decode|resize({rule['crop']}, {rule['crop']})"
    config.total, config.evaluate, config.checkpoint = f"{rule['steps']} steps", "10%", "10%"
    config.schedule.update(decay="staircase", warmup=f"{rule['warmup']} steps")
    config.mixup = rule["mixup"]
    config.optimizer.update(name="momentum", learning_rate=0.003, weight_decay=0.0, clip_norm=None)
    if variant == "R50x1" and task in _EXPECTED:
        config.expected = f"{_EXPECTED[task]}% from ImageNet-21k (arXiv 1912.11370)"
    return config
