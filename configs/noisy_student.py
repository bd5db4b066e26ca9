"""Trains a noised student on images labelled by a teacher and on those with known labels (noisy student, arXiv
1911.04252).

PHOTOS has a folder per class, MORE is a folder of unlabelled images:

    keras-vit finetune --data=PHOTOS --init=deit/tiny --workdir=runs/teacher
    keras-vit label --model=runs/teacher --data=images:MORE --labelled=folder:PHOTOS --train='train[:80%]' \\
        --test='train[80%:]' --output=labelled
    keras-vit finetune --config=noisy_student --data=labelled/table.jsonl --init=deit/small \\
        --workdir=runs/student

Then again, with --model=runs/student, another --output and another --workdir: the student is the next teacher. Without
--config.init (`keras-vit pretrain --config.model.variant=S/16`) the student starts from random weights, like the
paper's, which labels 300 million images.

Not run here. From the paper: a student as large as the teacher or larger, RandAugment of two ops at magnitude 27, a
dropout of .5 before the head, and drop path rising to .2, while the teacher labels without noise; images with a
confidence of .3 or more. Here the label is the most probable class; the paper uses probabilities, with about the same
result. Its batches contain labelled and other images in a fixed ratio (1:14 to 1:28 for the largest); here the ratio is
the table's, set by `--per_class` of keras-vit label. Here dropout applies to every dense layer, for which .5 is too
much: .1. Preprocessing and model size are those of `folder_finetune`; momentum and a zero head are the paper's.
"""

from . import folder_finetune


def get_config():
    config = folder_finetune.get_config()
    config.model.update(dropout=0.1, drop_path=0.2)
    config.data.update(source="jsonl:PATH", train="train", evaluation="test")
    config.data.train_preprocess = "decode|random_resized_crop(224, scale=(0.3, 1.0))|random_flip|rand_augment(2, 27)"
    config.batch_size = 64
    config.total = "20 epochs"
    config.update(head="reset", keep_best=False, early_stopping=None)
    config.optimizer.update(name="momentum", learning_rate=0.003, weight_decay=0.0, layer_decay=None)
    config.expected = "88.4% on ImageNet with 300M unlabelled images (arXiv 1911.04252, EfficientNet-L2)"
    return config
