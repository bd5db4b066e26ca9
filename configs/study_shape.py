"""Scales the dimensions of a ViT (arXiv 2010.11929, appendix D.2, figure 8): depth, width, the MLP or the number of
patches, one at a time, or all together; accuracy against the FLOPs of a forward pass.

    keras-vit pretrain --config=study_shape:digits --sweep --runs=3 --workdir=runs/shape
    keras-vit pretrain --config=study_shape:cifar10 --sweep --runs=3 --data_dir=DIR \\
        --workdir=runs/shape_cifar10

DIR contains the prepared dataset (`tfds build cifar10 --data_dir=DIR`). The points train on a part of the training
split, all for the same number of steps, and are compared on the rest of it; the test split is not used. The point
shared by all lines, 4 blocks of width 64 with an MLP of 128, is trained once. Results: docs/experiments/shape.md. For
cifar10, a CPU without bfloat16 instructions needs --config.dtype=float32.

The paper's figure has curves and no numbers: from 8 layers, width 1024, MLP 2048 and patches of 32, depth gains most,
up to 64 layers but less after 16, width least; smaller patches gain much without more parameters, and scaling all
together gains robustly.
"""

from .lib import study
from .lib.choices import choose

CHOICES = {"data": study.DATA}
# From few patches to many; the one in the middle is the shared point's.
PATCHES = {"cifar10": (8, 4, 2), "digits": (4, 2, 1)}
TOGETHER = ((2, 32, 64, 0), (4, 64, 128, 1), (6, 96, 192, 1))  # depth, width, MLP, place in PATCHES


def get_config(argument=""):
    [data] = choose(argument, CHOICES)
    config, patches = study.base(data), PATCHES[data]
    config.model.patch_size = patches[1]  # so that the point of all lines is the same config
    parts = ["model.depth=1,2,4,8", "model.width=32,64,128", "model.mlp_dim=32,128,512"]
    parts.append(f"model.patch_size={','.join(map(str, patches))}")
    for depth, width, mlp_dim, i in TOGETHER:
        parts.append(f"model.depth={depth};model.width={width};model.mlp_dim={mlp_dim};model.patch_size={patches[i]}")
    config.sweep = "|".join(parts)
    config.picture.update(
        x="forward_flops", lines=("depth", "width", "MLP", "patches", *("all together",) * len(TOGETHER))
    )
    return config
