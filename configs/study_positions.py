"""What position embeddings are worth (arXiv 2010.11929, appendix D.4, table 8): every kind, at the stem, at every block, or shared, on CIFAR-10.

    python -m trainers.pretrain --config=study_positions --sweep --runs=3 --data_dir=DIR --workdir=runs/positions

DIR holds the prepared dataset (`tfds build cifar10 --data_dir=DIR`). The points train on train[:90%] and are compared on train[90%:]; the
test split is not read. The table has eight cells; sincos1d, sincos2d, relative2d and rope2d stand beside them. docs/experiments/positions.md has what
came out. A CPU without bfloat16 instructions (avx512_bf16, amx_bf16) needs --config.dtype=float32.

The paper, B/16 on JFT, 5-shot ImageNet: none 61.4; 1-D at the stem 64.2, at every layer 64.0, shared 64.3; 2-D 64.0, 64.0, 64.0; relative 64.0.
"""

from .lib import study

POSITIONS = (
    "model.positions=none,learned,learned2d,relative,sincos1d,sincos2d,relative2d,rope2d",
    "model.positions=learned,learned2d;model.positions_at=every,shared",
)


def get_config():
    config = study.cifar10()
    config.sweep = "|".join(POSITIONS)
    return config
