"""Finds objects: trains on images with boxes (docs/detection.md).

    keras-vit finetune --config=detection --data=boxes:FOLDER --init=deit/tiny --workdir=runs/mine
    keras-vit finetune --config=detection:frcnn --data=boxes:FOLDER --init=deit/tiny --workdir=runs/frcnn
    keras-vit finetune --config=detection:yolos --data=boxes:FOLDER --init=deit/small --workdir=runs/yolos
    keras-vit finetune --config=detection:rf_detr --data=boxes:FOLDER --init=dinov2/s14 --image_size=392 \\
        --workdir=runs/rf_detr
    keras-vit finetune --config=detection:bccd --data_dir=../shared/data --init=deit/tiny \\
        --workdir=runs/bccd

FOLDER contains Pascal VOC, COCO, YOLO or LabelMe annotations, or a table; one line reports what was found. MODEL, for
--init, is a published name, a run or a file: a classifier (its head is left out) or a detector, with its head for
--config.head=keep.

After the colon: a head (dense, yolos, rf_detr, lw_detr, frcnn); `whole` (the default) to train all layers, or
`frozen`, the head alone; `own` (the default), a folder of yours, or `bccd`, blood cells at 384x512 pixels.

AdamW trains the lower layers more slowly and the new head faster. The run delivers the weights with the best AP on your
validation images: FOLDER's split val, or a fifth that is held out.
"""

from .lib import headed

HEADS = {
    "dense": {"width": 128},
    "yolos": {},
    "rf_detr": {},
    "lw_detr": {},
    "frcnn": {"scale": 2, "width": 128, "units": 256, "sides": (32, 64, 128, 256), "proposals": 100},
}
# Of whole and frozen backbones: the optimizer's options. The rate of the head is head_rate times as high.
RATES = {
    "whole": {"learning_rate": 5e-4, "head_rate": 2.0, "layer_decay": 0.75, "weight_decay": 0.05},
    "frozen": {"learning_rate": 2e-3, "head_rate": None, "layer_decay": None, "weight_decay": 0.01},
}
# Of data: height and width, batch, duration.
DATA = {"own": ((384, 384), 4, "30 epochs or 300 steps"), "bccd": ((384, 512), 4, "14 epochs")}
CHOICES = headed.choices(HEADS, RATES, DATA)


def get_config(argument=""):
    config, head, backbone, data = headed.base(argument, HEADS, RATES, DATA, "boxes")
    height, width = DATA[data][0]
    config.task, config.objective.loss = "detection", {}
    crop = f"resize({height}, {width})|random_scale(0.7, 1.5)|scene_crop({height}, {width})"
    config.data.train_preprocess = f"decode|{crop}|random_flip|photometric_distortion"
    config.evals.detection = {"every": config.evaluate}
    if head == "yolos" and backbone == "whole":  # every layer sees the new tokens
        config.optimizer.update(learning_rate=2e-4, head_rate=None, layer_decay=None)
    if head in ("rf_detr", "lw_detr") and backbone == "whole":  # the papers' rates: 1e-4 for what follows the encoder
        config.optimizer.update(learning_rate=1.5e-4, head_rate=2 / 3, layer_decay=0.8, weight_decay=1e-4)
        config.optimizer.clip_norm = 0.1
    return config
