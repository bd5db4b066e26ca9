"""The recipes of "An Image is Worth 16x16 Words" (arXiv 2010.11929): table 3 pre-trains, table 4 fine-tunes. One row
per line of a table.
"""

from . import common

WIDTHS = {"B": 768, "L": 1024, "H": 1280}

# Variant: (epochs, learning rate). "-7ep" is the shorter of two lengths.
JFT = {
    "B/16": (7, 8e-4),
    "B/32": (7, 8e-4),
    "L/16": (14, 4e-4),
    "L/16-7ep": (7, 4e-4),
    "L/32": (7, 6e-4),
    "H/14": (14, 3e-4),
    "R50x1": (7, 1e-3),
    "R50x2": (7, 1e-3),
    "R101x1": (7, 8e-4),
    "R152x1": (7, 6e-4),
    "R152x2": (7, 6e-4),
    "R50+B/16": (7, 8e-4),
    "R50+B/32": (7, 8e-4),
    "R50+L/16": (14, 4e-4),
    "R50+L/16-7ep": (7, 4e-4),
    "R50+L/32": (7, 2e-4),
}
IMAGENET21K = {
    "B/16": (90, 1e-3),
    "B/32": (90, 1e-3),
    "L/16": (90, 1e-3),
    "L/16-30ep": (30, 1e-3),
    "L/32": (90, 1e-3),
    "L/32-30ep": (30, 1e-3),
}
IMAGENET = {"B/16": (300, 3e-3), "B/32": (300, 3e-3), "L/16": (300, 3e-3), "L/32": (300, 3e-3)}


def pretraining(row, rows, decay, weight_decay, dropout):
    """Table 3: Adam, batches of 4096, 10k steps of warm-up, 224 px, and a head with a hidden layer (section 3.1)."""
    config = common.base()
    variant = config.model.variant = row.split("-")[0]
    if "/" in variant:  # the ResNets have neither
        config.model.update(
            dropout=dropout, mlp_activation="gelu_tanh", pre_logits=WIDTHS[variant.split("/")[0].split("+")[-1]]
        )
    epochs, rate = rows[row]
    config.batch_size = 4096
    config.total = f"{epochs} epochs"
    config.optimizer.update(name="adamw", learning_rate=rate, weight_decay=weight_decay, clip_norm=None)
    config.schedule.update(decay=decay, warmup="10k steps")
    config.data.shuffle_buffer = 250_000
    return config


# Table 4. "held out" is the share of the training split on which the learning rate is chosen; the final run trains on
# everything. The warm-ups are those of the published code.
_LARGE = {"steps": 10_000, "warmup": 500, "rates": "0.001,0.003,0.01,0.03", "held_out": 2}
_SMALL = {"steps": 500, "warmup": 100, "rates": "0.001,0.003,0.01,0.03", "held_out": 10}
_IMAGENET = {"steps": 20_000, "warmup": 500, "rates": "0.003,0.01,0.03,0.06", "held_out": 1, "test": "validation"}
TASKS = {
    "imagenet": {"source": "imagenet2012", **_IMAGENET},
    "cifar10": {"source": "cifar10", **_LARGE},
    "cifar100": {"source": "cifar100", **_LARGE},
    "pets": {"source": "oxford_iiit_pet", **_SMALL},
    "flowers": {"source": "oxford_flowers102", "train": "train+validation", **_SMALL},
}
# Table 5: pre-trained on ImageNet-21k, fine-tuned at 384 px.
TABLE_5 = {
    "imagenet": {"B/16": 83.97, "B/32": 81.28, "L/16": 85.15, "L/32": 80.99, "H/14": 85.13},
    "cifar10": {"B/16": 98.95, "B/32": 98.79, "L/16": 99.16, "L/32": 99.13, "H/14": 99.27},
    "cifar100": {"B/16": 91.67, "B/32": 91.97, "L/16": 93.44, "L/32": 93.04, "H/14": 93.82},
    "pets": {"B/16": 94.43, "B/32": 93.02, "L/16": 94.73, "L/32": 93.09, "H/14": 94.82},
    "flowers": {"B/16": 99.38, "B/32": 99.11, "L/16": 99.61, "L/32": 99.19, "H/14": 99.51},
}
# Table 2: L/16 pre-trained on ImageNet-21k, at 512 px.
TABLE_2 = {"imagenet": 85.30, "cifar10": 99.15, "cifar100": 93.25, "pets": 94.67, "flowers": 99.61}


def sizes(variant):
    """Pixels of {"384": ..., "high": ...}: 512 (H/14: 518) is high. Patches of 14 do not divide 384; the nearest they
    do is 378.
    """
    return {"384": 378, "high": 518} if variant.endswith("/14") else {"384": 384, "high": 512}


def hold_out(split, percent):
    """("train[:98%]", "train[98%:]") of ("train", 2); of "train+validation" as much of each."""
    at = 100 - percent
    return tuple("+".join(f"{part}[{piece}]" for part in split.split("+")) for piece in (f":{at}%", f"{at}%:"))


def fine_tuning(task):
    """Table 4: momentum, cosine, batches of 512, no weight decay, clipping at 1, a head of zeros; the grid is the
    config's own sweep.
    """
    row = TASKS[task]
    config = common.base()
    config.data.update(source=row["source"], train=row.get("train", "train"), evaluation=row.get("test", "test"))
    config.data.dev_train, config.data.dev_evaluation = hold_out(config.data.train, row["held_out"])
    config.data.shuffle_buffer = 50_000
    config.total = f"{row['steps']} steps"
    config.schedule.warmup = f"{row['warmup']} steps"
    config.evaluate = config.checkpoint = "10%"
    config.optimizer.update(name="momentum", learning_rate=0.01, weight_decay=0.0, clip_norm=1.0)
    config.model.dropout = 0.0  # whatever the pre-training had
    config.sweep = f"optimizer.learning_rate={row['rates']}"
    return config
