"""Labels of a classifier: class numbers (b,) or (b, 1), or rows (b, classes) with the share of each class.

Rows hold the proportions of mixup, or several labels per image. A model with one class has one number from 0 to 1 per
image.
"""

import contextlib

import keras
import numpy as np
from keras import ops


def are_numbers(shape, classes: int) -> bool:
    """Whether labels of this shape are class numbers, rather than rows."""
    return classes > 1 and (len(shape) == 1 or shape[-1] == 1)


def label_rows(labels, classes: int, smoothing: float = 0.0):
    """Labels (b,) or (b, classes) as float32 rows (b, classes); `smoothing` is the share that is spread evenly over all
    classes.

    A class number that no class has becomes a row of NaN, so that no loss can be computed from it without notice.

    Raises:
        ValueError: for rows of another width.
    """
    if are_numbers(labels.shape, classes):
        numbers = ops.reshape(labels, (-1,))
        known = ops.logical_and(numbers >= 0, numbers < classes)  # (b,)
        rows = ops.one_hot(ops.cast(numbers, "int32"), classes)
        rows = ops.where(known[:, None], ops.cast(rows, "float32"), float("nan"))
    else:
        rows = ops.cast(ops.reshape(labels, (-1, 1)) if classes == 1 else labels, "float32")
        if rows.shape[-1] != classes:
            raise ValueError(
                f"Expected labels (b,), or rows (b, {classes}) for {classes} classes; got the shape"
                f" {tuple(labels.shape)}."
            )
    return rows * (1.0 - smoothing) + smoothing / classes


def are_wrong(labels, numbers: bool, classes: int):
    """Which labels cannot be: numbers other than 0, 1... classes - 1, shares outside 0 to 1.

    Args:
        labels: floating-point, of any shape; of NumPy or TensorFlow.
        numbers: whether they are class numbers.
        classes: how many classes there are.

    Returns:
        Booleans of the same shape.
    """
    if numbers:
        return ~((labels >= 0) & (labels < classes) & (labels % 1 == 0))
    return ~((labels >= 0) & (labels <= 1))


def are_no_shares(sums):
    """Which rows, by their sums, do not share out one example among the classes, as a softmax needs; of NumPy or
    TensorFlow.
    """
    return abs(sums - 1.0) > _ROUNDING


def message(low, high, numbers: bool, classes: int, hint: str = "") -> str:
    """What to say of wrong labels between `low` and `high`, numbers or text."""
    expected = f"whole numbers from 0 to {classes - 1}, for {classes} classes" if numbers else "numbers from 0 to 1"
    return f"The labels should be {expected}, and are from {low} to {high}.{hint}"


ONE_BASED = " They seem to count from 1: subtract 1."
NO_SHARES = (
    "Under SoftmaxCrossEntropy, the labels of an example should sum to 1: shares of one label. Some rows do not sum to"
    " 1. For several labels per image, or none, use keras_vit.training.SigmoidCrossEntropy()."
)
_ROUNDING = 0.02  # of labels in bfloat16


def check_labels(labels, classes: int, weights=None, shares: bool = False) -> None:
    """Refuses labels that would be learned as nothing, or as another class.

    Args:
        labels: an array (b,), (b, 1) or (b, classes).
        classes: how many classes there are.
        shares: whether rows have to sum to 1.
        weights: of the examples, (b,); those of weight 0 may have any label. None for 1 each.

    Raises:
        ValueError: naming the range of the labels.
    """
    labels, numbers = np.asarray(labels), are_numbers(labels.shape, classes)
    if labels.dtype == object:  # whole numbers in a list with others, a column of a table
        with contextlib.suppress(TypeError, ValueError):
            labels = labels.astype("float64")
    if labels.dtype.kind not in "biuf" and labels.dtype.name != "bfloat16":
        raise ValueError(
            f"The labels should be numbers, got {labels.dtype} such as {labels.flat[0]!r}. Number the classes from 0."
        )
    labels = labels.astype("float64").reshape(len(labels), -1)
    if weights is not None and np.shape(weights) in ((len(labels),), (len(labels), 1)):
        labels = labels[np.reshape(weights, (-1,)) != 0]
    if labels.size and are_wrong(labels, numbers, classes).any():
        low, high = labels.min(), labels.max()
        hint = ONE_BASED if numbers and low >= 1 and high == classes else ""
        raise ValueError(message(f"{low:g}", f"{high:g}", numbers, classes, hint))
    if shares and labels.size and labels.shape[-1] == classes > 1 and are_no_shares(labels.sum(axis=-1)).any():
        raise ValueError(NO_SHARES)


def concrete(tensor) -> np.ndarray | None:
    """The values of a tensor as an array; None while a function is traced, when it has none."""
    if isinstance(tensor, keras.KerasTensor):
        return None
    try:
        return np.asarray(tensor)
    except (TypeError, NotImplementedError):  # JAX' and TensorFlow's errors for symbolic tensors
        return None
