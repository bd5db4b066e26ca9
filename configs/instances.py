"""Finds objects with their masks: trains on images with outlines (docs/instances.md).

    keras-vit finetune --config=instances --data=instances:FOLDER --init=deit/tiny --workdir=runs/mine
    keras-vit finetune --config=instances:rf_detr --data=instances:FOLDER --init=dinov2/s14 --image_size=392 \\
        --workdir=runs/rf_detr
    keras-vit finetune --config=instances:panoptic --data=instances:FOLDER --init=deit/small --workdir=runs/scenes

FOLDER contains COCO, YOLO or LabelMe annotations with outlines, or another form that docs/data.md lists; one line
reports what was found. MODEL, for --init, is a published name, a run or a file: a classifier (its head is left out) or
a model of instances, with its head for --config.head=keep.

After the colon: a head (eomt, rf_detr); `whole` (the default) to train all layers, or `frozen`, the head alone;
`objects` (the default), each object by itself, or `panoptic`, every pixel in one segment of things or stuff.

AdamW trains the lower layers more slowly. The run delivers the weights with the best mask AP, or PQ, on your
validation images: FOLDER's split val, or a fifth that is held out.
"""

from .lib import headed
from .lib.choices import choose

HEADS = {"eomt": {}, "rf_detr": {}}
# Of whole and frozen backbones: the optimizer's options.
RATES = {
    "whole": {"learning_rate": 5e-4, "head_rate": None, "layer_decay": 0.85, "weight_decay": 0.05},
    "frozen": {"learning_rate": 1e-3, "head_rate": None, "layer_decay": None, "weight_decay": 0.01},
}
DATA = {"own": ((384, 384), 8, "50 epochs or 1000 steps")}  # height and width, batch, duration
SCENES = ("objects", "panoptic")
CHOICES = {**headed.choices(HEADS, RATES, DATA), "scenes": SCENES}


def get_config(argument=""):
    *_, scenes = choose(argument, CHOICES)
    others = ",".join(word for word in argument.split(",") if word.strip() not in SCENES)
    config, head, backbone, data = headed.base(others, HEADS, RATES, DATA, "instances")
    height, width = DATA[data][0]
    config.task, config.objective.loss = "panoptic" if scenes == "panoptic" else "instances", {}
    crop = f"resize({height}, {width})|random_scale(0.7, 1.5)|scene_crop({height}, {width})"
    config.data.train_preprocess = f"decode|{crop}|random_flip|photometric_distortion"
    config.evals[config.task] = {"every": config.evaluate}
    config.optimizer.clip_norm = 1.0
    if head == "rf_detr" and backbone == "whole":  # the paper's rates: 1e-4 for what follows the encoder
        config.optimizer.update(learning_rate=1.5e-4, head_rate=2 / 3, layer_decay=0.8, weight_decay=1e-4)
        config.optimizer.clip_norm = 0.1
    return config
