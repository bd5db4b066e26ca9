"""Fine-tunes on a task of VTAB-1k (arXiv 1910.04867) as the ViT paper does (arXiv 2010.11929, table 4): 2500 steps at
0.01, 384 px.

    keras-vit finetune --config=vtab_finetune:dtd,L/16 --config.init=imagenet21k/L_16 --data_dir=DIR \\
        --workdir=runs/vtab/dtd

After the colon, in any order: one of the nineteen tasks of configs/lib/vtab.py (caltech101, cifar100, dtd, flowers,
pets, sun397, svhn, camelyon, eurosat, resisc45, retinopathy, dmlab, clevr-count, clevr-distance, dsprites-location,
dsprites-orientation, kitti, smallnorb-azimuth, smallnorb-elevation), and B/16, B/32, L/16, L/32 or H/14. DIR contains
tensorflow-datasets' data. The run trains on all 1000 examples; to choose on the 200, train with
--config.data.train="train[:800]" and evaluate on --config.data.evaluation=SPLIT, the task's in the table.

The paper's mean over all nineteen tasks (table 2): 72.72% for L/16 from ImageNet-21k at 512 px; it gives no figures per
task at 384 px. Not run here.
"""

from .lib import paper, vtab
from .lib.choices import choose

CHOICES = {"task": tuple(vtab.TASKS), "variant": tuple(paper.TABLE_5["imagenet"])}


def get_config(argument=""):
    task, variant = choose(argument, CHOICES)
    group, source, held_out, test = vtab.TASKS[task]
    config = paper.fine_tuning("pets")
    pixels = paper.sizes(variant)["384"]
    config.model.update(variant=variant, image_size=pixels)
    config.data.update(
        source=source,
        train=f"train[:800]+{held_out}",
        evaluation=test,
        dev_train="train[:800]",
        dev_evaluation=held_out,
    )
    # Crops and flips only where they do not change the label, as in arXiv 1912.11370, which the paper follows.
    random = "" if group == "structured" else f"|random_crop({pixels})|random_flip"
    larger = pixels * 448 // 384 if random else pixels
    decode = "decode|multiply(255)" if task in vtab.ZERO_ONE else "decode"
    config.data.train_preprocess = f"{decode}|resize({larger}, {larger}){random}"
    config.data.eval_preprocess = f"{decode}|resize({pixels}, {pixels})"
    config.total, config.schedule.warmup = "2500 steps", "200 steps"
    config.sweep = None  # one setting for all tasks
    return config
