"""Fine-tunes the Transformer that configs/igpt.py pre-trained as a classifier of CIFAR-10 at 16 px, on CPUs.

    keras-vit finetune --config=igpt_finetune --config.init=runs/igpt --data_dir=DIR \\
        --workdir=runs/igpt_classifier

After the colon: the share of the labels to train on, all, 10percent or 1percent. The features are the mean of all
pixels' tokens; --config.linear_probe=True trains only a head on them. For another block's features:
--evals="logistic(source='cifar10', block=3)" of keras-vit evaluate.
"""

from .lib import cifar10, common
from .lib.choices import choose

CHOICES = {"labels": tuple(cifar10.LABELS)}
STEPS = {"all": 3000, "10percent": 1000, "1percent": 400}


def get_config(argument=""):
    [labels] = choose(argument, CHOICES)
    config = common.base()
    config.model.update(image_size=16)
    config.dtype = "mixed_bfloat16"
    config.data.update(source="cifar10", train=cifar10.LABELS[labels], shuffle_buffer=50_000)
    config.data.train_preprocess = "decode|random_crop(32, padding=2)|random_flip|resize(16, 16, method='area')"
    config.data.eval_preprocess = "decode|resize(16, 16, method='area')"
    config.init = "runs/igpt"
    config.batch_size = 32
    config.total = f"{STEPS[labels]} steps"
    config.evaluate = config.checkpoint = "25%"
    config.optimizer.update(learning_rate=1e-3, weight_decay=0.05)
    return config
