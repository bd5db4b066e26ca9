"""A Transformer on CIFAR-10's 32 px in patches of 2, as in Cordonnier et al., before the ViT (arXiv 1911.03584, section
4).

    keras-vit pretrain --config=cifar10_patch2 --data_dir=DIR --workdir=runs/cifar10_patch2

DIR contains the prepared dataset (`tfds build cifar10 --data_dir=DIR`). Their model: 6 layers, width 400, 9 heads, SGD
at 0.1 with a cosine, weight decay 1e-4, 300 epochs of batches of 100, 5% warm-up. This config uses the ViT's blocks and
its position embeddings, learned and added once, instead of theirs, relative and learned in each layer; and 10 heads,
which divide the width.

The paper reports 91.8% with learned relative positions, and 93.8% for a ResNet18. 256 tokens and 12M parameters need a
GPU. Not run here.
"""

from .lib import common


def get_config():
    config = common.base()
    config.model.update(variant="Ti/2", image_size=32, depth=6, width=400, heads=10, mlp_dim=1600, pool="gap")
    config.data.source = "cifar10"
    config.data.train_preprocess = "decode|random_crop(32, padding=4)|random_flip"
    config.data.eval_preprocess = "decode|resize(32, 32)"
    config.data.shuffle_buffer = 50_000
    config.batch_size = 100
    config.total = "300 epochs"
    config.checkpoint = config.evaluate = "5 epochs"
    config.optimizer.update(name="momentum", learning_rate=0.1, weight_decay=1e-4)
    config.schedule.warmup = "5%"
    config.expected = "91.8% with relative positions (arXiv 1911.03584, table 1)"
    return config
