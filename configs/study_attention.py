"""Global attention, windows, axes, local attention and a small Swin on small images.

    keras-vit pretrain --config=study_attention:digits --sweep --runs=2 --workdir=runs/attention
    keras-vit pretrain --config=study_attention:cifar10 --sweep --runs=2 --data_dir=DIR --workdir=runs/attention_cifar10

DIR holds the prepared dataset. The models have about as many parameters, and attend on a grid of 8x8 patches: pixels of
the digits, 4x4 pixels of CIFAR-10. All points train for about the same time: the number of steps is the inverse of the
CPU time of a step, measured on one core of an AMD EPYC in float32. The points train on a part of the training split and
are compared on the rest of it. Results: docs/experiments/attention.md. For cifar10, a CPU without bfloat16 instructions
needs --config.dtype=float32.
"""

from .lib import study
from .lib.choices import choose

CHOICES = {"data": study.DATA}
_VIT = "model.positions=sincos2d"
# An axial block has two attentions and two MLPs.
POINTS = {
    "global": f"{_VIT};model.attention=global",
    "windows": f"{_VIT};model.attention=window(4, global=(3,))",
    "axial": f"{_VIT};model.attention=axial;model.depth=2",
    "local": f"{_VIT};model.attention=local(3)",
    "Swin": "model.variant=Swin-T;model.depths=(2, 2);model.width=40;model.heads=2;model.mlp_ratio=2;model.window=4;"
    "model.depth=None;model.mlp_dim=None;model.mlp_activation=None",
}
# CPU time of a training step as a multiple of global attention's.
COST = {"global": 1, "windows": 1.23, "axial": 1.32, "local": 1.95, "Swin": 0.49}
STEPS = {"digits": 240, "cifar10": 500}  # with global attention


def get_config(argument=""):
    [data] = choose(argument, CHOICES)
    config = study.base(data)
    config.batch_size = 64
    config.model.patch_size = 1 if data == "digits" else 4
    config.sweep = "|".join(f"{keys};total={round(STEPS[data] / COST[kind])} steps" for kind, keys in POINTS.items())
    config.picture.update(x="forward_flops", lines=tuple(POINTS))
    return config
