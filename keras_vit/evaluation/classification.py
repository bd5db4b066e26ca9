"""The evaluation of classifiers: accuracy, loss, and how each class does."""

import dataclasses
from collections.abc import Callable

import keras
from keras import ops

from keras_vit.data import image_and_label, open_source
from keras_vit.evaluation.loss_and_metrics import check_head, check_preprocessing, evaluate_metrics
from keras_vit.evaluation.preprocessing import default_preprocessing
from keras_vit.evaluation.registry import Evaluation, Evaluator, Setting, register
from keras_vit.training import Accuracy, SoftmaxCrossEntropy

MOST_CLASSES = 1000  # with more, no confusion matrix is counted: it grows with their square


class ClassCounts(keras.metrics.Metric):
    """For each true class, counts the examples and the correct predictions, or with `confusion` the predictions of every class.

    The result is the mean of the classes' recalls (balanced accuracy), over the classes that have examples.
    """

    def __init__(self, classes, confusion=True, name="mean_recall", dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.classes, self.confusion = classes, confusion
        shape = (classes, classes) if confusion else (classes, 2)
        self.counts = self.add_variable(shape=shape, initializer="zeros", name="counts")

    def update_state(self, y_true, y_pred, sample_weight=None):
        labels, best = ops.cast(ops.reshape(y_true, (-1,)), "int32"), ops.argmax(y_pred, axis=-1)
        rows = ops.one_hot(labels, self.classes)  # (b, c)
        if sample_weight is not None:
            rows = rows * ops.cast(sample_weight > 0, rows.dtype)[:, None]
        if self.confusion:
            columns = ops.one_hot(best, self.classes)  # (b, c)
        else:
            right = ops.cast(ops.equal(ops.cast(best, "int32"), labels), rows.dtype)
            columns = ops.stack([ops.ones_like(right), right], axis=-1)  # (b, 2)
        self.counts.assign_add(ops.cast(ops.matmul(ops.transpose(rows), columns), self.counts.dtype))

    def _examples_and_right(self, counts):
        """(examples of each class, correct predictions of each class), each (c,), from the counts."""
        return (ops.sum(counts, axis=1), ops.diagonal(counts)) if self.confusion else (counts[:, 0], counts[:, 1])

    def result(self):
        examples, right = self._examples_and_right(ops.convert_to_tensor(self.counts))
        recalls = ops.divide_no_nan(right, examples)
        return ops.divide_no_nan(ops.sum(recalls), ops.sum(ops.cast(examples > 0, recalls.dtype)))

    def details(self) -> dict[str, list]:
        """ "per_class", each class's recall (None without examples), and "confusion", rows true, columns predicted."""
        counts = ops.convert_to_numpy(self.counts)
        examples, right = (ops.convert_to_numpy(part) for part in self._examples_and_right(counts))
        per_class = [float(r / n) if n else None for r, n in zip(right, examples)]
        return {"per_class": per_class, **({"confusion": counts.astype("int64").tolist()} if self.confusion else {})}


def check_class_count(classes, source):
    """Raises a ValueError unless the data has as many classes as the model."""
    if len(source.class_names) != classes:
        raise ValueError(
            f"The model has {classes} classes, the data {len(source.class_names)}. If some have no examples here, list all of "
            "them, in the model's order: one per line in labels.txt beside the table, or csv:PATH?classes=FILE."
        )


@register("classification")
@dataclasses.dataclass(frozen=True)
class Classification(Evaluator):
    """Top-1 and top-5 accuracy, softmax cross-entropy in nats, mean recall, recall of each class, and confusion.

    Attributes:
        source: a data source, as in config.data.source; None for the run's own.
        split: the split of that source.
        preprocess: preprocessing text; None for that of the run, or else the model's own.
    """

    source: str | None = None
    split: str = "test"
    preprocess: str | None = None

    def prepare(self, setting: Setting) -> Callable[[], Evaluation]:
        source, preprocess = setting.source, setting.preprocess
        if self.source is not None:
            setting = dataclasses.replace(setting, select=image_and_label)
            source, preprocess = open_source(self.source, self.split, setting.data_dir), None
        if source is None:
            raise ValueError('The evaluator "classification" needs data: give its source.')
        preprocess = self.preprocess or preprocess or default_preprocessing(setting.model)
        model = setting.model
        classes = model.output_shape[-1]
        check_class_count(classes, source)
        check_preprocessing(preprocess, source, model, setting.select)

        def evaluate():
            check_head(model)
            with setting.strategy.scope():
                counts = ClassCounts(classes, classes <= MOST_CLASSES)
                metrics = [Accuracy(name="top1"), *([Accuracy(k=5, name="top5")] if classes > 5 else []), counts]
                loss = SoftmaxCrossEntropy()
            measures = evaluate_metrics(setting, source, preprocess, loss, metrics)
            n = measures["examples"]
            shares = {
                name: round(measures[name] * n) / n for name in ("top1", "top5") if name in measures
            }  # undoes float32 rounding
            return Evaluation({**measures, **shares}, counts.details())

        return evaluate
