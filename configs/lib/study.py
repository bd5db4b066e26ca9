"""The base of the studies: small ViTs, with runs short enough for many of them on CPUs."""

from . import common

DATA = ("cifar10", "digits")
# The families of the paper's figure 5 for 32 px, as keys of a sweep: what every point of a family has.
FAMILIES = {
    "ViT": "model.heads=4",
    "convolutional stem": "model.variant=Ti/1;model.conv_stem=(32, 64, 128);model.heads=4",
    "ResNet": (
        "model.variant=R26x1;model.depth=None;model.width=None;model.heads=None;model.mlp_dim=None;model.mlp_activation=None"
    ),
}


def base(data):
    """The smaller sibling of a recipe, on cifar10 or digits; the points of its sweep are compared on a part of the
    training split.
    """
    config = {"cifar10": _cifar10, "digits": _digits}[data]()
    config.model.update(depth=4, width=64, heads=4, mlp_dim=128)
    config.sweep_final = False
    config.evaluate = config.checkpoint = "100%"
    config.optimizer.update(learning_rate=3e-3, beta_2=0.98, weight_decay=0.05)
    config.schedule.warmup = "5%"
    return config


def _cifar10():
    """As `cifar10_scratch`, for fewer steps."""
    config = common.base()
    config.model.update(
        variant="Ti/4", image_size=32, mlp_activation="gelu_tanh", mean=(125.3, 123.0, 113.9), std=(63.0, 62.1, 66.7)
    )
    config.dtype = "mixed_bfloat16"
    config.data.update(source="cifar10", dev_train="train[:90%]", dev_evaluation="train[90%:]", shuffle_buffer=50_000)
    config.data.train_preprocess = "decode|random_crop(32, padding=2)|random_flip"
    config.data.eval_preprocess = "decode|resize(32, 32)"
    config.batch_size = 128
    config.total = "400 steps"
    return config


def _digits():
    """As `digits_pretrain`, in patches of 2: a grid of 4 x 4. Half of the training split is held out, for 719 examples
    to compare on.
    """
    config = common.base()
    config.model.update(variant="Ti/2", image_size=8, channels=1)
    config.data.update(dev_train="train[:50%]", dev_evaluation="train[50%:]")
    config.data.train_preprocess = "decode(1)|random_shift(1)|noise(10)"
    config.data.eval_preprocess = "decode(1)|resize(8, 8)"
    config.batch_size = 64
    config.total = "600 steps"
    return config
