"""Fine-tunes on a folder of images, PATH/CLASS/IMAGE (JPEG, PNG, BMP, GIF, WebP, TIFF..., and HEIC with the extra
[heic]).

    python -m trainers.finetune --data=PATH --init=MODEL --workdir=runs/mine

MODEL is a published name such as deit/tiny, a run directory or a checkpoint file. For random weights, which learn
little from few images, give --config.model.variant=Ti/16 instead of --init. One line says what was found in the folder
and what was ignored (docs/data.md). The recipe is the paper's for fine-tuning (arXiv 2010.11929, table 4): momentum,
cosine, no weight decay, clip 1.
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
    config.total = "500 steps"
    config.evaluate = "50 steps"
    config.checkpoint = "50 steps"

    config.optimizer.name = "momentum"
    config.optimizer.learning_rate = 0.003
    config.optimizer.weight_decay = 0.0
    return config
