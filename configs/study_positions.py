"""Compares position embeddings (arXiv 2010.11929, appendix D.4, table 8): every kind, at the stem, at every block, or
shared.

    keras-vit pretrain --config=study_positions:digits --sweep --runs=3 --workdir=runs/positions
    keras-vit pretrain --config=study_positions:cifar10 --sweep --runs=3 --data_dir=DIR \\
        --workdir=runs/positions_cifar10

DIR contains the prepared dataset (`tfds build cifar10 --data_dir=DIR`). The points train on a part of the training
split and are compared on the rest of it; the test split is not used. The paper's table has eight cells; sincos1d,
sincos2d, relative2d and rope2d are added to them. Results: docs/experiments/positions.md. For cifar10, a CPU without
bfloat16 instructions (avx512_bf16, amx_bf16) needs --config.dtype=float32.

The paper, B/16 on JFT, 5-shot ImageNet: none 61.4; 1-D at the stem 64.2, at every layer 64.0, shared 64.3; 2-D 64.0,
64.0, 64.0; relative 64.0.
"""

from .lib import study
from .lib.choices import choose

CHOICES = {"data": study.DATA}
POSITIONS = (
    "model.positions=none,learned,learned2d,relative,sincos1d,sincos2d,relative2d,rope2d",
    "model.positions=learned,learned2d;model.positions_at=every,shared",
)


def get_config(argument=""):
    [data] = choose(argument, CHOICES)
    config = study.base(data)
    config.sweep = "|".join(POSITIONS)
    return config
