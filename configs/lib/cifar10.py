"""The small ViT and the data of the experiments on CIFAR-10 without labels, the same for all objectives, so that they
compare.
"""

from . import common

MEAN, STD = (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)
ENCODER = {
    "variant": "Ti/4",
    "image_size": 32,
    "depth": 6,
    "width": 128,
    "heads": 4,
    "mlp_dim": 256,
    "mlp_activation": "gelu_tanh",
    "pool": "gap",
}
TEST = "decode|resize(32, 32)"
# The share of labels that a fine-tuning learns from, as a split. The images are in random order: 1% are 500, 35 to 60
# of each class.
LABELS = {"all": "train", "10percent": "train[:10%]", "1percent": "train[:1%]"}


def base():
    """config.base() with the encoder, 8 x 8 tokens of 4 x 4 pixels, and CIFAR-10 in batches of 128."""
    config = common.base()
    config.model.update(ENCODER, mean=MEAN, std=STD)
    config.dtype = "mixed_bfloat16"
    config.data.update(source="cifar10", eval_preprocess=TEST, shuffle_buffer=50_000)
    config.data.train_preprocess = "decode|random_resized_crop(32, scale=(0.2, 1.0), method='bicubic')|random_flip"
    config.batch_size = 128
    config.optimizer.update(learning_rate=1e-3, weight_decay=0.05, beta_2=0.95, clip_norm=1.0)
    return config


def nearest_neighbours(config, every):
    """k-NN accuracy of the features while a model trains: the last 1,000 training images by the classes of the first
    5,000.
    """
    config.evals.knn = {
        "source": "cifar10",
        "train": "train[:5000]",
        "test": "train[98%:]",
        "preprocess": TEST,
        "every": every,
    }
