"""Pre-trains a ViT on ImageNet-21k (arXiv 2010.11929, table 3).

    keras-vit pretrain --config=imagenet21k_pretrain:L/16 --config.data.source=SOURCE --strategy=tpu \\
        --config.dtype=mixed_bfloat16 --config.steps_per_execution=100 --workdir=gs://BUCKET/imagenet21k_l16

After the colon: B/16, B/32, L/16, L/32 (90 epochs), L/16-30ep or L/32-30ep. tensorflow-datasets has no ImageNet-21k:
SOURCE is the name of your own dataset, or folder:PATH. 1/400 of the data is held out for evaluation.

The paper's results, fine-tuned at 384 px: configs/paper_finetune.py. 230 TPUv3-core-days for L/16 (table 2). The paper
does not name the loss; here it is the softmax. Not run here.
"""

from .lib import paper
from .lib.choices import choose

CHOICES = {"variant": tuple(paper.IMAGENET21K)}


def get_config(argument=""):
    [row] = choose(argument, CHOICES)
    config = paper.pretraining(row, paper.IMAGENET21K, decay="linear", weight_decay=0.03, dropout=0.1)
    config.data.update(source="imagenet21k", train="train[36000:]", evaluation="train[:36000]")
    top1 = paper.TABLE_5["imagenet"][config.model.variant]
    config.expected = f"{top1}% on ImageNet, fine-tuned there at 384 px (arXiv 2010.11929, table 5)"
    return config
