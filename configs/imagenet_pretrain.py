"""Pre-trains a ViT on ImageNet alone (arXiv 2010.11929, table 3): 300 epochs, which overfits, as the paper shows.

    keras-vit pretrain --config=imagenet_pretrain:B/16 --data_dir=DIR --strategy=tpu \\
        --config.dtype=mixed_bfloat16 \\
        --config.steps_per_execution=100 --workdir=gs://BUCKET/imagenet_b16

After the colon: B/16, B/32, L/16 or L/32. DIR contains tensorflow-datasets' imagenet2012.

The paper's results (table 5), fine-tuned on ImageNet at 384 px: B/16 77.91%, B/32 73.38%, L/16 76.53%, L/32 71.16%. On
TPUs v3; it gives no times for these. Not run here.
"""

from .lib import paper
from .lib.choices import choose

CHOICES = {"variant": tuple(paper.IMAGENET)}
_EXPECTED = {"B/16": 77.91, "B/32": 73.38, "L/16": 76.53, "L/32": 71.16}


def get_config(argument=""):
    [variant] = choose(argument, CHOICES)
    config = paper.pretraining(variant, paper.IMAGENET, decay="cosine", weight_decay=0.3, dropout=0.1)
    config.optimizer.clip_norm = 1.0  # on ImageNet only
    config.data.update(source="imagenet2012", evaluation="validation")
    config.expected = f"{_EXPECTED[variant]}% on ImageNet, fine-tuned there at 384 px (arXiv 2010.11929, table 5)"
    return config
