"""Losses and accuracy over logits, for labels that are integers (b,) or rows (b, classes).

Rows carry mixup's proportions or several labels. Label smoothing and class weights apply to both.
"""

import keras
from keras import ops

from keras_vit.layers.registration import serializable


def label_rows(labels, classes, smoothing=0.0):
    """Labels (b,) or (b, classes) as float rows (b, classes); `smoothing` is the share that is spread over all classes."""
    rows = labels
    if len(labels.shape) == 1 or labels.shape[-1] == 1 and classes != 1:
        rows = ops.one_hot(ops.cast(ops.reshape(labels, (-1,)), "int32"), classes)
    rows = ops.cast(rows, "float32")
    return rows * (1.0 - smoothing) + smoothing / classes


class _FromLogits(keras.losses.Loss):
    """What both losses share; a subclass gives `per_example(rows, logits)`: (b, classes) twice -> (b,)."""

    def __init__(self, label_smoothing=0.0, class_weights=None, name="loss", **kwargs):
        super().__init__(name=name, **kwargs)
        if not 0.0 <= label_smoothing < 1.0:
            raise ValueError(f"label_smoothing must lie in [0, 1), got {label_smoothing}.")
        self.label_smoothing = label_smoothing
        self.class_weights = None if class_weights is None else tuple(float(w) for w in class_weights)

    def call(self, y_true, y_pred):
        logits = ops.cast(y_pred, "float32")
        classes = logits.shape[-1]
        if self.class_weights is not None and len(self.class_weights) != classes:
            raise ValueError(f"class_weights has {len(self.class_weights)} values for {classes} classes.")
        loss = self.per_example(label_rows(y_true, classes, self.label_smoothing), logits)
        if self.class_weights is not None:
            loss = loss * ops.matmul(label_rows(y_true, classes), ops.convert_to_tensor(self.class_weights, "float32"))
        return loss

    def get_config(self):
        own = {"label_smoothing": self.label_smoothing, "class_weights": self.class_weights}
        return {**super().get_config(), **own}


@serializable
class SoftmaxCrossEntropy(_FromLogits):
    """-sum(rows * log softmax(logits)): one class an image.

    Args:
        label_smoothing: the share of the label that is spread evenly over all classes.
        class_weights: a factor a class on its examples' loss; None for 1.
    """

    def per_example(self, rows, logits):
        return -ops.sum(rows * ops.log_softmax(logits, axis=-1), axis=-1)


@serializable
class SigmoidCrossEntropy(_FromLogits):
    """Binary cross-entropy of every class, summed over classes: AugReg's loss, and for several labels an image.

    Args: as SoftmaxCrossEntropy's.
    """

    def per_example(self, rows, logits):
        losses = rows * ops.log_sigmoid(logits) + (1.0 - rows) * ops.log_sigmoid(-logits)
        return -ops.sum(losses, axis=-1)


LOSSES = {"softmax": SoftmaxCrossEntropy, "sigmoid": SigmoidCrossEntropy}


@serializable
class Accuracy(keras.metrics.MeanMetricWrapper):
    """The share of images whose best class is the label's best class, or among the `k` best."""

    def __init__(self, k=1, name="accuracy", dtype=None):
        self.k = k
        super().__init__(self._hits, name=name, dtype=dtype)

    def _hits(self, y_true, y_pred):
        labels = y_true
        if len(y_true.shape) == 2 and y_true.shape[-1] != 1:
            labels = ops.argmax(y_true, axis=-1)
        labels = ops.cast(ops.reshape(labels, (-1,)), "int32")
        if self.k == 1:
            return ops.cast(ops.equal(ops.cast(ops.argmax(y_pred, axis=-1), "int32"), labels), "float32")
        return ops.cast(ops.in_top_k(labels, ops.cast(y_pred, "float32"), self.k), "float32")

    def get_config(self):
        return {"k": self.k, "name": self.name, "dtype": self.dtype}

    @classmethod
    def from_config(cls, config):
        return cls(**config)


def balanced_class_weights(counts):
    """Weights inversely proportional to the classes' counts, averaging 1 over examples: N / (classes * count)."""
    if not all(counts):
        raise ValueError(f"Balanced class weights need an example of every class; counts are {list(counts)}.")
    return tuple(sum(counts) / (len(counts) * count) for count in counts)
