"""Pre-trains with one of AugReg's strengths of augmentation (arXiv 2106.10270).

    keras-vit pretrain --config=augreg:medium1,S/16,imagenet --data_dir=DIR --strategy=tpu \\
        --config.dtype=mixed_bfloat16 \\
        --config.steps_per_execution=100 --workdir=gs://BUCKET/augreg_s16

After the colon, in any order: none, light1, light2, medium1, medium2, strong1 or strong2; a variant (B/16, B/32, L/16,
S/16, S/32, Ti/16, R+Ti/16, R26+S/32, R50+L/32); imagenet (DIR contains tensorflow-datasets' imagenet2012) or
imagenet21k (pass your own dataset as --config.data.source=SOURCE). The paper also regularises with
--config.model.dropout=0.1
--config.model.drop_path=0.1.

The paper's best results on ImageNet, from ImageNet-21k at 384 px (configs/augreg_finetune.py): B/16 85.49%, S/16
83.73%, Ti/16 78.22%. On TPUs v3. Not run here.
"""

from .lib import augreg, common
from .lib.choices import choose

CHOICES = {"strength": tuple(augreg.STRENGTHS), "variant": augreg.VARIANTS, "data": ("imagenet", "imagenet21k")}


def get_config(argument=""):
    strength, variant, data = choose(argument, CHOICES)
    config = common.base()
    config.model.update(variant=variant, mlp_activation="gelu_tanh", head_bias=-6.9 if data == "imagenet" else -10.0)
    config.loss.name = "sigmoid"
    if data == "imagenet":
        config.data.update(source="imagenet2012", train="train[:99%]", evaluation="validation")
    else:
        config.data.update(source="imagenet21k", train="train[51200:]", evaluation="train[:51200]")
        config.expected = (
            f"{augreg.IMAGENET_384[variant]}% on ImageNet at 384 px, the best of all strengths (arXiv 2106.10270)"
        )
    config.data.train_preprocess = augreg.crop(224, strength)
    config.data.shuffle_buffer = 250_000
    config.mixup = augreg.STRENGTHS[strength][1]
    config.batch_size = 4096
    config.total = "300 epochs"
    config.schedule.warmup = "10k steps"
    return config
