"""Trains on images with texts (docs/text.md): texts for a frozen image encoder (LiT, arXiv 2111.07991), or both.

    keras-vit finetune --config=lit --data=csv:PAIRS.csv --init=augreg/B_16 --workdir=runs/lit \\
        --config.objective.tokenizer=tokenizer.json
    keras-vit finetune --config=lit:cifar10 --data_dir=../shared/data/tensorflow_datasets --init=deit/tiny \\
        --workdir=runs/lit_cifar10 --config.objective.tokenizer=tokenizer.json
    keras-vit pretrain --config=lit:trained --data=csv:PAIRS.csv --workdir=runs/pairs \\
        --config.objective.tokenizer=tokenizer.json

PAIRS.csv has columns image and text. After the colon, in any order: frozen (the default) or trained, for the image
encoder; sigmoid, the loss of SigLIP, or softmax, of CLIP; adamw or muon; own, a table of yours, or cifar10, whose class
names in templates are the texts, with a small text encoder.

A similar text encoder on CIFAR-10: docs/experiments/frozen_features.md. The others were not run here.
"""

from ml_collections import config_dict

from .lib import common
from .lib.choices import choose

CHOICES = {
    "image": ("frozen", "trained"),
    "loss": ("sigmoid", "softmax"),
    "optimizer": ("adamw", "muon"),
    "data": ("own", "cifar10"),
}


def get_config(argument=""):
    image, loss, optimizer, data = choose(argument, CHOICES)
    config = common.base()
    config.task, config.loss.name = "image_text", loss
    config.objective.update(frozen=image == "frozen", text="SigLIP-B")
    config.objective.tokenizer = config_dict.placeholder(str)
    config.data.update(source="csv:PATH", train="train[:90%]", evaluation="train[90%:]")
    config.data.train_preprocess = "decode|random_resized_crop(224, scale=(0.6, 1.0))|random_flip"
    config.total = "10 epochs"
    config.optimizer.update(learning_rate=1e-3, beta_2=0.95, weight_decay=1e-4)
    if optimizer == "muon":
        config.optimizer.update(name="muon", learning_rate=3e-3, momentum=0.95, weight_decay=1e-2)
    return _cifar10(config) if data == "cifar10" else config


def _cifar10(config):
    """Images enlarged to 96 pixels, texts of 16 tokens, and a text encoder of two blocks."""
    config.model.image_size = 96
    config.data.update(source="cifar10", train="train", evaluation="test", shuffle_buffer=50_000)
    config.data.eval_preprocess = "decode|resize(96, 96, method='bicubic')"
    config.data.train_preprocess = f"{config.data.eval_preprocess}|random_flip"
    config.objective.update(templates="clip7")
    config.objective.text_options = {"length": 16, "depth": 2, "width": 128, "heads": 2, "mlp_dim": 512}
    config.batch_size = 256
    config.total = "2 epochs"
    config.evals.zero_shot = {"templates": "clip7"}
    return config
