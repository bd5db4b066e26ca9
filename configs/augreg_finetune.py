"""Fine-tunes AugReg's published models (arXiv 2106.10270) at 384 or 224 px.

    keras-vit finetune --config=augreg_finetune:S/16,cifar100 --config.init=augreg/S_16-i21k --data_dir=DIR \\
        --sweep --runs=3 --workdir=runs/s16_cifar100

After the colon, in any order: a variant (B/16, B/32, L/16, S/16, S/32, Ti/16, R+Ti/16, R26+S/32, R50+L/32); imagenet,
cifar10, cifar100, pets or flowers; 384 or 224 (px). Steps and learning rates are those of configs/paper_finetune.py, as
in the authors' later code; dropout and augmentation are off, except crops and flips. DIR contains tensorflow-datasets'
data.

The paper's best results on ImageNet at 384 px: B/16 85.49%, S/16 83.73%, Ti/16 78.22%; the authors' code reports for
B/32 CIFAR-10 98.55%, CIFAR-100 91.35%, Pets 93.78%, Flowers 99.43%. On TPUs. Not run here.
"""

from .lib import augreg, paper
from .lib.choices import choose

CHOICES = {"variant": augreg.VARIANTS, "task": tuple(paper.TASKS), "size": ("384", "224")}


def get_config(argument=""):
    variant, task, size = choose(argument, CHOICES)
    config = paper.fine_tuning(task)
    crop, resize = (384, 448) if size == "384" else (224, 256)
    config.model.update(variant=variant, image_size=crop)
    window = f"resize({resize})|random_crop({crop})" if task.startswith("cifar") else f"random_resized_crop({crop})"
    config.data.train_preprocess = f"decode|{window}|random_flip"
    config.data.eval_preprocess = f"decode|resize({resize})|central_crop({crop})"
    if size == "384" and task == "imagenet":
        config.expected = f"{augreg.IMAGENET_384[variant]}% (arXiv 2106.10270, the best of its models)"
    elif size == "384" and variant == "B/32":
        config.expected = f"{augreg.B32_384[task]}% (the authors' transfer config)"
    return config
