"""Which dimension of a ViT to make larger (arXiv 2010.11929, appendix D.2, figure 8): depth, width, the MLP or the number of patches, one at a
time, or all together, on CIFAR-10; accuracy against the operations of a forward pass.

    python -m trainers.pretrain --config=study_shape --sweep --data_dir=DIR --workdir=runs/shape

DIR holds the prepared dataset (`tfds build cifar10 --data_dir=DIR`). The points train on train[:90%], all for as many steps, and are compared on
train[90%:]; the test split is not read. The point in the middle, 4 blocks of width 64 with an MLP of 128 on patches of 4, belongs to every line and
is trained once. docs/experiments/shape.md has what came out. A CPU without bfloat16 instructions needs --config.dtype=float32.

The paper's figure has curves and no numbers: it starts from 8 layers, width 1024, MLP 2048 and patches of 32, and finds that depth gives most, up to
64 layers with less after 16, width least, smaller patches much without any parameters, and all together robust improvement.
"""

from .lib import study

SHAPES = (
    "model.depth=1,2,4,8",
    "model.width=32,64,128",
    "model.mlp_dim=32,128,512",
    "model.patch_size=8,4",
    "model.depth=2;model.width=32;model.mlp_dim=64;model.patch_size=8",
    "model.depth=4;model.width=64;model.mlp_dim=128;model.patch_size=4",
    "model.depth=6;model.width=96;model.mlp_dim=192;model.patch_size=4",
)


def get_config():
    config = study.cifar10()
    config.sweep = "|".join(SHAPES)
    return config
