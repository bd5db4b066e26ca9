"""Gives every pixel a class: trains on a folder of images and masks (docs/segmentation.md).

    keras-vit finetune --config=segmentation --data=FOLDER --init=deit/tiny --workdir=runs/mine
    keras-vit finetune --config=segmentation:dpt --data=FOLDER --init=deit/small --workdir=runs/dpt
    keras-vit finetune --config=segmentation:camvid --data_dir=../shared/data --init=deit/tiny \\
        --workdir=runs/camvid

FOLDER contains images/ and masks/, or train/ and trainannot/, or another usual layout; one line reports what was found.
MODEL, for --init, is a published name, a run or a file: a classifier (its head is left out) or a segmentation model,
with its head for --config.head=keep.

After the colon: a head (setr_mla, setr_pup, setr_naive, dpt, upernet, linear, eomt); `whole` (the default) to train all
layers, or `frozen`, the head alone; `own` (the default), a folder of yours, or `camvid`, CamVid's street scenes at
384x512 pixels.

AdamW trains the lower layers more slowly and the new head faster. The run delivers the weights with the best mIoU on
your validation images: FOLDER's split val, or a fifth that is held out.
"""

from .lib import headed

HEADS = {
    "setr_mla": {"width": 96},
    "setr_pup": {"width": 96, "stages": 3},
    "setr_naive": {"width": 96},
    "dpt": {"width": 64},
    "upernet": {"width": 96},
    "linear": {},
    "eomt": {},
}
AUXILIARY = {"linear": 0.0, "eomt": 1.0}  # weight of the auxiliary heads' losses, 0.4 for the others
# Of whole and frozen backbones: the optimizer's options. The rate of the head is head_rate times as high.
RATES = {
    "whole": {"learning_rate": 5e-4, "head_rate": 5.0, "layer_decay": 0.75, "weight_decay": 0.05},
    "frozen": {"learning_rate": 3e-3, "head_rate": None, "layer_decay": None, "weight_decay": 0.001},
}
# Of data: height and width, batch, duration. The number of updates matters more than the batch.
DATA = {"own": ((384, 384), 4, "15 epochs or 300 steps"), "camvid": ((384, 512), 4, "11 epochs")}
CHOICES = headed.choices(HEADS, RATES, DATA)


def get_config(argument=""):
    config, head, backbone, data = headed.base(argument, HEADS, RATES, DATA, "masks")
    height, width = DATA[data][0]
    config.task = "segmentation"
    config.objective.auxiliary = AUXILIARY.get(head, 0.4)
    crop = f"random_resized_crop({height}, {width}, scale=(0.25, 1.0))"
    if data == "camvid":
        crop = f"resize({height}, {width})|random_scale(0.9, 1.5)|scene_crop({height}, {width})"
    config.data.train_preprocess = f"decode|{crop}|random_flip|photometric_distortion"

    # Rare classes count in the mIoU as much as frequent ones; the plain cross-entropy does not learn them.
    config.loss.class_weights = "log"
    config.objective.dice = 1.0
    if data == "camvid" and backbone == "whole":
        config.optimizer.update(learning_rate=2e-3, head_rate=2.0)
    if head == "eomt":  # the paper's losses and rates
        config.loss.class_weights, config.objective.dice = None, 0.0
        if backbone == "whole":
            config.optimizer.update(learning_rate=1e-4, head_rate=None, layer_decay=0.8)
    return config
