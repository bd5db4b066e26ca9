"""How much data a model needs (arXiv 2010.11929, section 4.3, figure 4): subsets of JFT, with 5-shot ImageNet accuracy
during training.

    keras-vit pretrain --config=data_study:B/32,30M --config.data.source=SOURCE --data_dir=DIR \\
        --strategy=tpu \\
        --config.dtype=mixed_bfloat16 --config.steps_per_execution=100 --workdir=gs://BUCKET/data_study/b32_30m

After the colon, in any order: a row of JFT in configs/lib/paper.py; 9M, 30M, 90M or all examples. JFT is not public:
SOURCE is your own large dataset. DIR contains tensorflow-datasets' imagenet2012 for the few-shot evaluation; for
another one set --config.evals.few_shot.source.

The figure has curves and no numbers. Not run here.
"""

from .lib import paper
from .lib.choices import choose

CHOICES = {"variant": ("B/32", *(row for row in paper.JFT if row != "B/32")), "examples": ("9M", "30M", "90M", "all")}


def get_config(argument=""):
    row, examples = choose(argument, CHOICES)
    config = paper.pretraining(row, paper.JFT, decay="linear", weight_decay=0.1, dropout=0.0)
    stop = "" if examples == "all" else 50_000 + int(examples.removesuffix("M")) * 1_000_000
    config.data.update(source="jft300m", train=f"train[50000:{stop}]", evaluation="train[:50000]")
    config.evals.few_shot = {"source": "imagenet2012", "test": "validation", "shots": (5,), "every": "5%"}
    config.evals.few_shot.preprocess = "decode|resize(256)|central_crop(224)"
    config.checkpoint = config.evaluate = "1%"
    return config
