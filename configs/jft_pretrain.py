"""Pre-trains a ViT, a hybrid or a ResNet on JFT-300M or another very large dataset (arXiv 2010.11929, table 3).

    keras-vit pretrain --config=jft_pretrain:H/14 --config.data.source=SOURCE --strategy=tpu \\
        --config.dtype=mixed_bfloat16 \\
        --config.steps_per_execution=100 --workdir=gs://BUCKET/jft_h14

After the colon: a row of JFT in configs/lib/paper.py, such as B/16, L/16, L/16-7ep, R50+B/16 or R50x1. JFT is not
public: SOURCE is the name of your own dataset that tensorflow-datasets can read.

The paper's results (table 2), fine-tuned on ImageNet: H/14 88.55% at 518 px, L/16 87.76% at 512 px; 2500 and 680
TPUv3-core-days. The paper does not name the loss; here it is the softmax. Not run here.
"""

from .lib import paper
from .lib.choices import choose

CHOICES = {"variant": tuple(paper.JFT)}
_EXPECTED = {
    "H/14": "88.55% on ImageNet, fine-tuned there at 518 px",
    "L/16": "87.76% on ImageNet, fine-tuned there at 512 px",
}


def get_config(argument=""):
    [row] = choose(argument, CHOICES)
    config = paper.pretraining(row, paper.JFT, decay="linear", weight_decay=0.1, dropout=0.0)
    config.data.update(source="jft300m", train="train[50000:]", evaluation="train[:50000]")
    config.expected = f"{_EXPECTED[row]} (arXiv 2010.11929, table 2)" if row in _EXPECTED else ""
    config.checkpoint = config.evaluate = "1%"
    return config
