"""Fine-tunes the Transformer that configs/igpt.py pre-trained as a classifier of CIFAR-10 at 16 px, on CPUs.

    python -m trainers.finetune --config=igpt_finetune --config.init=runs/igpt --data_dir=DIR --workdir=runs/igpt_classifier

The features are the mean of all pixels' tokens. --config.data.train="train[:1%]" learns from 450 images; --config.linear_probe=True from the features
as they are. Another block's: --evals="logistic(source='cifar10', block=3)" of trainers.evaluate.
"""

from .lib import common


def get_config():
    config = common.base()
    config.model.update(image_size=16)
    config.dtype = "mixed_bfloat16"
    config.data.source = "cifar10"
    config.data.train = "train[:90%]"
    config.data.evaluation = "train[90%:]"
    config.data.train_preprocess = "decode|random_crop(32, padding=2)|random_flip|resize(16, 16, method='area')"
    config.data.eval_preprocess = "decode|resize(16, 16, method='area')"
    config.data.shuffle_buffer = 50_000
    config.init = "runs/igpt"
    config.batch_size = 32
    config.total = "4000 steps"
    config.evaluate = "1000 steps"
    config.checkpoint = "1000 steps"
    config.optimizer.learning_rate = 1e-3
    config.optimizer.weight_decay = 0.05
    return config
