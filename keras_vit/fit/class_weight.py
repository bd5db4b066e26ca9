"""Turns the `class_weight` of fit into weights of examples, for arrays, datasets and generators, on every strategy.

Keras itself would take the argmax of labels with several classes, ignore unknown keys, and fail on class names, lists
and generators.
"""

import collections.abc
import dataclasses
import math
import numbers
import types
from typing import Any

import keras
import numpy as np

from keras_vit.fit.checks.compiled import in_order, output_names
from keras_vit.fit.checks.inputs import MappedPyDataset
from keras_vit.fit.checks.marked import assert_true, marked
from keras_vit.fit.losses import are_wrong, balanced_class_weights, message
from keras_vit.io.suggest import did_you_mean
from keras_vit.layers.arguments import is_integer

_SEVERAL = (
    "class_weight needs one class per image, and the labels have rows with several classes, shares or none. Weigh"
    " classes in the loss, which takes the mean factor of an example's labels:"
    " keras_vit.training.SigmoidCrossEntropy(class_weights=[...]), or SoftmaxCrossEntropy."
)


def _factors(given, classes, class_names):
    """One factor per class, from a dict or a sequence; ValueError for unknown classes and impossible factors."""
    if isinstance(given, collections.abc.Mapping):
        factors = _by_class(given, classes, class_names)
    elif isinstance(given, (str, bytes)) or np.ndim(given) != 1 or len(given) != classes:
        raise ValueError(
            f"class_weight should be a dict such as {{0: 1.0, 1: 2.5}}, {classes} numbers, one per class in their"
            f' order, or "balanced"; got {given!r}.'
        )
    else:
        factors = dict(enumerate(given))
    for name, factor in factors.items():
        if not isinstance(factor, numbers.Real) or not 0 <= factor < math.inf:
            raise ValueError(f"class_weight[{name!r}] should be a finite number of at least 0, got {factor!r}.")
    result = tuple(float(factors.get(i, 1.0)) for i in range(classes))
    if not any(result):
        raise ValueError("class_weight is 0 for every class: nothing would be learned.")
    return result


def _by_class(given, classes, class_names):
    """{class number: factor} of a dict with numbers or names as keys."""
    result = {}
    for key, factor in given.items():
        number = class_names.index(key) if key in class_names else key
        if isinstance(number, (float, np.floating)) and float(number).is_integer():
            number = int(number)  # a column of a table
        if not is_integer(number) or not 0 <= number < classes:
            names = f" or one of the names {', '.join(class_names[:20])}" if class_names else ""
            hint = did_you_mean(key, class_names) if isinstance(key, str) else ""
            raise ValueError(f"class_weight has the unknown class {key!r}.{hint} Expected 0 to {classes - 1}{names}.")
        if int(number) in result:
            raise ValueError(f"class_weight has class {number} twice, by its number and by its name.")
        result[int(number)] = factor
    return result


@dataclasses.dataclass(frozen=True)
class ClassWeight:
    """The weight of an example by its class.

    Attributes:
        factors: one per class; a class without one has 1.
        output: the output's name, in a dict of labels.
    """

    factors: tuple[float, ...]
    output: str

    @classmethod
    def of(cls, model: keras.Model, given: Any, y: Any = None, held_out: float = 0.0) -> "ClassWeight":
        """The ClassWeight for a model.

        Args:
            model: compiled, with one output of logits.
            given: {class number or name: factor}, one factor per class, or "balanced": N / (classes * count), as in
                scikit-learn, from the labels.
            y: the labels if they are arrays.
            held_out: share of the last labels that are for validation.

        Raises:
            ValueError: for anything else, or class weights in both fit and the loss.
        """
        if len(model.outputs) != 1 or len(model.output.shape) != 2 and not model.weighs_examples:
            raise ValueError(
                "class_weight needs a model with one output, logits (b, classes); this one has"
                f" {[tuple(output.shape) for output in model.outputs]}. Use sample_weight."
            )
        if getattr(model.loss, "class_weights", None) is not None:
            raise ValueError("The loss has class_weights already: leave them out, or class_weight.")
        classes = max(model.outputs[0].shape[-1], 2)  # one logit has the labels 0 and 1
        names = tuple(getattr(model, "class_names", None) or ())
        names = names if len(names) == classes else ()
        plain = cls((1.0,) * classes, output_names(model)[0])
        if isinstance(given, str) and given == "balanced":
            if y is None:
                raise ValueError(
                    'class_weight="balanced" needs all labels as an array, y. For other data pass N / (classes * count)'
                    " for each class."
                )
            labels = plain.numbers(y)
            labels = labels[: math.floor(len(labels) * (1.0 - held_out))]
            given = balanced_class_weights(np.bincount(labels, minlength=classes).tolist())
        return dataclasses.replace(plain, factors=_factors(given, classes, names))

    def numbers(self, y: Any) -> np.ndarray:
        """The class numbers (b,) of labels (b,), (b, 1) or one-hot rows (b, classes); ValueError for others."""
        labels = self._labels(y)
        rows = np.asarray(keras.ops.convert_to_numpy(labels) if keras.ops.is_tensor(labels) else labels)
        rows = rows.astype("float64").reshape(len(rows), -1)  # (b, 1 or classes)
        if rows.shape[-1] > 1:
            if not ((rows == 0) | (rows == 1)).all() or (rows.sum(axis=-1) != 1).any():
                raise ValueError(_SEVERAL)
            return rows.argmax(axis=-1)
        if are_wrong(rows, True, len(self.factors)).any():
            raise ValueError(message(f"{rows.min():g}", f"{rows.max():g}", True, len(self.factors)))
        return rows[:, 0].astype("int64")

    def weights(self, y: Any) -> np.ndarray:
        """The weights (b,) float32 of examples with these labels; ValueError as `numbers`."""
        return np.asarray(self.factors, "float32")[self.numbers(y)]

    def _tensors(self, y):
        """`weights` as TensorFlow operations, in a data pipeline."""
        import tensorflow as tf

        labels = self._labels(y)
        rows = tf.cast(tf.reshape(labels, (-1, math.prod(labels.shape[1:]))), "float32")  # (b, 1 or classes)
        if rows.shape[-1] > 1:
            right = tf.reduce_all((rows == 0) | (rows == 1)) & tf.reduce_all(tf.reduce_sum(rows, axis=-1) == 1)
            check, classes = assert_true(right, _SEVERAL), tf.argmax(rows, axis=-1)
        else:
            right, n = ~tf.reduce_any(are_wrong(rows, True, len(self.factors))), len(self.factors)
            check = assert_true(right, message("{}", "{}", True, n), tf.reduce_min(rows), tf.reduce_max(rows))
            classes = tf.cast(rows[:, 0], "int64")
        with tf.control_dependencies([check] if check is not None else []):
            return tf.gather(tf.constant(self.factors, "float32"), tf.identity(classes))

    def _labels(self, y):
        """The labels, of a valid shape."""
        [labels] = in_order(y, [self.output]) or [None]
        shape = None if labels is None else getattr(labels, "shape", np.shape(labels))
        shape = None if shape is None or getattr(shape, "rank", 0) is None else tuple(shape)
        if shape is None or len(shape) not in (1, 2) or len(shape) == 2 and shape[1] not in (1, len(self.factors)):
            raise ValueError(
                f"class_weight needs one class per image: labels (b,), or one-hot rows (b, {len(self.factors)}); got"
                f" {'none' if labels is None else f'the shape {shape}'}."
            )
        return labels

    def feed(self, x: Any, y: Any = None, weights: Any = None) -> tuple[Any, Any]:
        """(x, the weights of arrays): a dataset, generator or PyDataset yields the weights with its batches.

        Raises:
            ValueError: for invalid labels, or examples that have weights already.
        """
        if hasattr(x, "element_spec"):
            if not hasattr(x, "scan"):
                raise ValueError(
                    "class_weight cannot be added to a distributed dataset. Let it yield (x, y, weights), with the"
                    " weights of the examples."
                )
            return x.map(lambda *batch: self._weighed(batch, self._tensors)), None
        if isinstance(x, types.GeneratorType):
            return (self._marked(batch) for batch in x), None
        if isinstance(x, keras.utils.PyDataset):
            return MappedPyDataset(x, lambda i, batch: self._marked(batch)), None
        return x, self._weighed((x, y, weights), self.weights)[2]

    def _marked(self, batch):
        with marked():
            return self._weighed(batch, self.weights)

    def _weighed(self, batch, weigh):
        x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
        if weights is not None:
            raise ValueError(
                "class_weight and weights of examples cannot be combined. Multiply the latter by the class weights."
            )
        return x, y, weigh(y)
