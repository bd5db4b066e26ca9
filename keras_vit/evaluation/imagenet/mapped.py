"""ImageNet models on data sets with some of its 1000 classes: ImageNet-V2, -A, -R, -Sketch, ObjectNet."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from keras import ops

from keras_vit.data.sources.selection import read_labels
from keras_vit.evaluation.data import open_data
from keras_vit.evaluation.imagenet.class_map import CLASSES, class_map
from keras_vit.evaluation.loss_and_metrics import check_head, check_preprocessing, metrics_runner
from keras_vit.evaluation.registry import Evaluation, Evaluator, Setting, register
from keras_vit.fit.losses import Accuracy, SoftmaxCrossEntropy
from keras_vit.fit.model import Model
from keras_vit.io.suggest import check_known


@dataclasses.dataclass(frozen=True)
class Row:
    """A data set: number of classes in common with ImageNet, and width of the images' frame in pixels."""

    classes: int
    border: int = 0


DATASETS = {
    "imagenet_v2": Row(1000),  # arXiv 1902.10811
    "imagenet_a": Row(200),  # arXiv 1907.07174
    "imagenet_r": Row(200),  # arXiv 2006.16241
    "imagenet_sketch": Row(1000),  # arXiv 1905.13549
    "objectnet": Row(113, border=2),  # NeurIPS 2019, objectnet.dev; its images have a red frame
}


def _without_border(preprocess, border):
    """The preprocessing text with a crop of the frame after decoding."""
    first, bar, rest = preprocess.partition("|")
    return f"{first}|crop_border({border}){bar}{rest}" if border else preprocess


def restricted(model: Any, groups: list[tuple[int, ...]]) -> Model:
    """A model with logits (b, groups): the largest logit in each group of the model's classes."""
    widest = max(map(len, groups))
    index = np.array([[*group, *[group[0]] * (widest - len(group))] for group in groups])  # (groups, widest)
    chosen = ops.take(model.output, index.reshape(-1), axis=-1)
    logits = ops.max(ops.reshape(chosen, (-1, *index.shape)), axis=-1)
    reduced = Model(model.input, logits)
    reduced.jit_compile = model.jit_compile
    return reduced


@register("mapped")
@dataclasses.dataclass(frozen=True)
class Mapped(Evaluator):
    """Accuracy among the classes that the data shares with ImageNet; other examples are not counted.

    Attributes:
        source: data source; its classes are synsets, numbers from 0 to 999, the model's names, or keys of `mapping`.
            None for the run's.
        split: split of that source, "train" by default.
        dataset: a name in DATASETS, to check its number of classes and crop its frame; None for other data.
        mapping: path of a JSON table {class of the data: ImageNet's class number, synset, or a list of these}, or of
            ObjectNet's folder mappings.
        preprocess: preprocessing text, used unchanged; None for the run's, or else the model's.
    """

    source: str | None = None
    split: str | None = None
    dataset: str | None = None
    mapping: str | None = None
    preprocess: str | None = None

    def __post_init__(self):
        if self.dataset is not None:
            check_known(self.dataset, "mapped: dataset", DATASETS)
        if self.dataset == "objectnet" and not self.mapping:
            raise ValueError("mapped: ObjectNet needs mapping=PATH, the path of its folder mappings.")

    def _groups(self, model, source, data_dir):
        """(group or -1 of each class of the data, groups of the model's classes)."""
        found = class_map(source.class_names, getattr(model, "class_names", None), self.mapping, data_dir)
        used = [i for i, numbers in enumerate(found) if numbers]
        expected = DATASETS[self.dataset].classes if self.dataset else None
        if expected and len(used) > expected:  # tensorflow-datasets lists all of ImageNet's classes
            used = sorted(set(used) & set(np.unique(read_labels(source)).tolist()))
        if expected and len(used) != expected:
            raise ValueError(
                f"{self.dataset} shares {expected} classes with ImageNet, but {source.name} {len(used)}: use the whole"
                " data set, or leave out dataset= to measure among the classes present."
            )
        if len(used) < 2:
            raise ValueError(
                f"{source.name} shares {len(used)} of its classes {source.class_names[:3]}... with ImageNet, expected 2"
                " or more."
            )
        group_of = np.full(len(found), -1)
        group_of[used] = np.arange(len(used))
        return group_of, [found[i] for i in used]

    def prepare(self, setting: Setting) -> Callable[[], Evaluation]:
        setting, source, preprocess = open_data(self, setting, "train")
        model = setting.model
        if model.output_shape[-1] != CLASSES:
            raise ValueError(
                f"mapped needs a model of ImageNet's {CLASSES} classes, got one with {model.output_shape[-1]}."
            )
        if self.preprocess is None and self.dataset:
            preprocess = _without_border(preprocess, DATASETS[self.dataset].border)
        group_of, groups = self._groups(model, source, setting.data_dir)
        check_preprocessing(preprocess, source, model)

        def select(example):
            group = tf.gather(tf.constant(group_of, tf.int64), example["label"])
            return example["image"], tf.maximum(group, 0), tf.cast(group >= 0, tf.float32)

        with setting.strategy.scope():
            reduced = restricted(model, groups)

        def evaluate():
            check_head(model)
            with setting.strategy.scope():
                metrics = [Accuracy(name="top1"), *([Accuracy(k=5, name="top5")] if len(groups) > 5 else [])]
                loss = SoftmaxCrossEntropy()
            measure = metrics_runner(dataclasses.replace(setting, model=reduced, select=select), loss, metrics)
            about = {"classes": len(groups), "source": source.name, "preprocess": preprocess}
            return Evaluation(measure(source, preprocess), about)

        return evaluate
