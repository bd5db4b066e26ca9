"""What the studies share: a small ViT on CIFAR-10, whose runs are short enough for many of them on CPUs."""

from . import common


def cifar10():
    """`cifar10_scratch` for 400 steps, about a minute; the points of the sweep are compared on a tenth of the training split."""
    config = common.base()
    config.model.update(variant="Ti/4", image_size=32, depth=4, width=64, heads=4, mlp_dim=128, gelu="tanh")
    config.model.update(mean=(125.3, 123.0, 113.9), std=(63.0, 62.1, 66.7))
    config.dtype = "mixed_bfloat16"

    config.data.update(source="cifar10", dev_train="train[:90%]", dev_evaluation="train[90%:]")
    config.data.train_preprocess = "decode|random_crop(32, padding=2)|random_flip"
    config.data.eval_preprocess = "decode|resize(32, 32)"
    config.data.shuffle_buffer = 50_000
    config.sweep_final = False

    config.batch_size = 128
    config.total = "400 steps"
    config.evaluate = config.checkpoint = "100%"

    config.optimizer.update(learning_rate=3e-3, beta_2=0.98, weight_decay=0.05)
    config.schedule.warmup = "5%"
    return config


# The families of the paper's figure 5 for 32 px, as keys of a sweep: what every point of a family has.
FAMILIES = {
    "ViT": "model.heads=4",
    "convolutional stem": "model.variant=Ti/1;model.conv_stem=(32, 64, 128);model.heads=4",
    "ResNet": "model.variant=R26x1;model.depth=None;model.width=None;model.heads=None;model.mlp_dim=None;model.gelu=None",
}
