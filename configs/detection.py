"""Finds objects: trains on images with boxes (docs/detection.md).

    python -m trainers.finetune --config=detection --data=boxes:FOLDER --init=deit/tiny --workdir=runs/mine
    python -m trainers.finetune --config=detection:frcnn --data=boxes:FOLDER --init=deit/tiny --workdir=runs/frcnn
    python -m trainers.finetune --config=detection:yolos --data=boxes:FOLDER --init=deit/small --workdir=runs/yolos
    python -m trainers.finetune --config=detection:rf_detr --data=boxes:FOLDER --init=dinov2/s14 --image_size=392 \\
        --workdir=runs/rf_detr
    python -m trainers.finetune --config=detection:bccd --data_dir=../shared/data --init=deit/tiny \\
        --workdir=runs/bccd

FOLDER holds Pascal VOC, COCO, YOLO or LabelMe annotations, or a table; one line says what was found. MODEL, for --init,
is a published name, a run or a file: a classifier, whose head is left out, or a detector, whose head stays with
--config.head=keep.

After the colon: a head (dense, yolos, rf_detr, lw_detr, frcnn); `whole` (the default) to train all layers, or
`frozen`, the head alone; `own` (the default), a folder of yours, or `bccd`, blood cells at 384x512 pixels.

AdamW trains the lower layers more slowly and the new head faster. The run delivers the weights with the best AP on your
validation images: FOLDER's split val, or a fifth that is held out.
"""

from .lib import common
from .lib.choices import choose

# Of each head: its options and those of its loss.
HEADS = {
    "dense": ({"width": 128}, {}),
    "yolos": ({}, {}),
    "rf_detr": ({}, {}),
    "lw_detr": ({}, {}),
    "frcnn": ({"scale": 2, "width": 128, "units": 256, "sides": (32, 64, 128, 256), "proposals": 100}, {}),
}
# Of whole and frozen backbones: the optimizer's options. The rate of the head is head_rate times as high.
RATES = {
    "whole": {"learning_rate": 5e-4, "head_rate": 2.0, "layer_decay": 0.75, "weight_decay": 0.05},
    "frozen": {"learning_rate": 2e-3, "head_rate": None, "layer_decay": None, "weight_decay": 0.01},
}
# Of data: height and width, batch, duration.
DATA = {"own": ((384, 384), 4, "30 epochs or 300 steps"), "bccd": ((384, 512), 4, "20 epochs")}
CHOICES = {"head": tuple(HEADS), "backbone": tuple(RATES), "data": tuple(DATA)}


def get_config(argument=""):
    head, backbone, data = choose(argument, CHOICES)
    (height, width), batch_size, total = DATA[data]
    config = common.base()
    config.task = "detection"
    config.objective.head = head
    config.objective.head_options, config.objective.loss = HEADS[head]
    with config.ignore_type():
        config.model.image_size = height if height == width else (height, width)

    config.data.source = "boxes:PATH"
    config.data.train = "train[:80%]"
    config.data.evaluation = "train[80%:]"
    if data == "bccd":
        config.data.update(source="boxes:bccd", train="train", evaluation="val")
        config.data.update(dev_train="train[:80%]", dev_evaluation="train[80%:]")
    crop = f"resize({height}, {width})|random_scale(0.7, 1.5)|scene_crop({height}, {width})"
    config.data.train_preprocess = f"decode|{crop}|random_flip|photometric_distortion"
    config.data.eval_preprocess = f"decode|resize({height}, {width})"

    config.batch_size = batch_size
    config.total = total
    config.evaluate = config.checkpoint = "10%" if data == "own" else "50%"
    config.evals.detection = {"every": config.evaluate}
    config.keep_best = data == "own"  # bccd is measured on its validation images: nothing is chosen by them

    config.optimizer.update(RATES[backbone])
    if head == "yolos" and backbone == "whole":  # every layer sees the new tokens
        config.optimizer.update(learning_rate=2e-4, head_rate=None, layer_decay=None)
    if head in ("rf_detr", "lw_detr") and backbone == "whole":  # the papers' rates: 1e-4 for what follows the encoder
        config.optimizer.update(learning_rate=1.5e-4, head_rate=2 / 3, layer_decay=0.8, weight_decay=1e-4)
        config.optimizer.clip_norm = 0.1
    config.schedule.warmup = "10%"
    config.linear_probe = backbone == "frozen"
    return config
