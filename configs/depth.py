"""Gives every pixel a depth: trains on a folder of images and depth maps (docs/depth.md).

    keras-vit finetune --config=depth --data=depth:FOLDER --init=deit/tiny --workdir=runs/rooms
    keras-vit finetune --config=depth:linear,frozen --data="depth:FOLDER?scale=0.001" --init=dinov2/s14

FOLDER contains images/ and depth/ with files of the same names, or the layout of NYU, KITTI or DIODE; one line reports
what was found. Integers in a layout of your own need ?scale=, metres per unit.

After the colon: a head (dpt, linear); `whole` (the default) to train all layers, or `frozen`, the head alone.

--config.objective.max_depth=80 is for streets; the default, 10 metres, for rooms. AdamW trains the lower layers more
slowly, and a new linear head faster. The run delivers the weights with the least relative error on your validation
images: FOLDER's split val, or a fifth that is held out.
"""

from .lib import headed

HEADS = {"dpt": {"width": 64}, "linear": {}}
RATES = {
    "whole": {"learning_rate": 5e-4, "head_rate": 5.0, "layer_decay": 0.75, "weight_decay": 0.05},
    "frozen": {"learning_rate": 3e-3, "head_rate": None, "layer_decay": None, "weight_decay": 0.001},
}
DATA = {"own": ((240, 320), 4, "15 epochs or 300 steps")}
CHOICES = headed.choices(HEADS, RATES, DATA)


def get_config(argument=""):
    config, head, _, data = headed.base(argument, HEADS, RATES, DATA, "depth")
    height, width = DATA[data][0]
    config.task = "depth"
    config.objective.max_depth = 10.0
    if head == "dpt":  # without normalisation: larger steps drive its sigmoid to where it is flat
        config.optimizer.update(learning_rate=5e-4, head_rate=None)
    # A crop that is enlarged shows things nearer than they are: whole images keep metres true.
    config.data.train_preprocess = f"decode|resize({height}, {width})|random_flip|photometric_distortion"
    return config
