"""Fine-tunes on a folder of images, PATH/CLASS/IMAGE (JPEG, PNG, BMP, GIF, WebP, TIFF..., and HEIC with the extra
[heic]).

    keras-vit finetune --config=folder_finetune --data=PATH --init=MODEL --workdir=runs/mine

MODEL is a published name such as deit/tiny, a run directory or a checkpoint file. For random weights, which learn
little from few images, pass --config.model.variant=Ti/16 instead of --init. One line reports what was found in the
folder and what was ignored (docs/data.md).

A fifth of the images is held out. The head is first trained as a linear probe, which needs few images; then all layers
are fine-tuned with AdamW, the lower ones more slowly (linear probing, then fine-tuning: arXiv 2202.10054). The run
delivers the weights that were best on the held-out part, which may be the probe's, and ends early if 60% of it bring no
improvement. Accuracy and time: docs/experiments/two_minutes.md.
"""

from .lib import common


def get_config():
    config = common.base()
    config.model.image_size = 224

    config.data.source = "folder:PATH"
    config.data.train = "train[:80%]"
    config.data.evaluation = "train[80%:]"
    config.data.train_preprocess = "decode|random_resized_crop(224, scale=(0.3, 1.0))|random_flip"
    config.data.eval_preprocess = "decode|resize(256)|central_crop(224)"

    config.batch_size = 16
    config.total = "3 epochs or 64 steps"
    config.evaluate = config.checkpoint = "20%"
    config.early_stopping = "60%"
    config.keep_best = True
    config.head = "probe"

    config.optimizer.learning_rate = 1e-4
    config.optimizer.weight_decay = 0.05
    config.optimizer.layer_decay = 0.75
    return config
