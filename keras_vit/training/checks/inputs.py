"""Refuses input that would silently teach the wrong thing: pixels on another scale than the model's, labels outside its classes.

Arrays are looked at before anything runs, datasets and generators as they pass, on the host: no batch is read twice, and the device has
nothing to do for it. The pixels of the first batch are checked, and the labels of every batch.
"""

import contextlib
import dataclasses
import re
import types
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_vit.layers import PixelNormalization
from keras_vit.training.checks.labels import ONE_BASED, are_numbers, are_wrong, check_labels, message
from keras_vit.training.losses import FromLogits

_LARGEST_NORMALISED = 3.0  # standard deviations
PIXEL_STD = 10.0  # a smaller standard deviation is not one of pixels 0..255
_LARGEST_BYTE = 4 * 255.0  # with room for what filters overshoot
_LOWEST_BYTE = -64.0
_SAMPLE = 32  # images whose pixels are looked at
# An error inside a data pipeline reaches fit as text within other text: ours stands between these.
_OPEN, _CLOSE = "<<<", ">>>"


def normalisation_of(model: keras.Model) -> tuple[np.ndarray, np.ndarray] | None:
    """(mean, std) of the normalisation that a model, or one nested in it, applies to its input first; None for any other model."""
    nodes = [node for level in getattr(model, "_nodes_by_depth", {}).values() for node in level]
    inputs = {id(tensor) for tensor in getattr(model, "inputs", None) or ()}
    for node in nodes:
        if any(id(tensor) in inputs for tensor in node.input_tensors):
            if isinstance(node.operation, PixelNormalization):
                return np.asarray(node.operation.mean), np.asarray(node.operation.std)
            if isinstance(node.operation, keras.Model):
                return normalisation_of(node.operation)
    return None


def _label_classes(model):
    """For each output, the number of classes that its labels name if its loss is one of this package's, else None."""
    losses, outputs = keras.tree.flatten(getattr(model, "loss", None)), model.outputs
    if len(losses) != len(outputs):
        return (None,) * len(outputs)
    return tuple(output.shape[-1] if isinstance(loss, FromLogits) else None for loss, output in zip(losses, outputs))


@dataclasses.dataclass(frozen=True)
class InputChecks:
    """What is checked of the input of fit, evaluate or predict.

    Attributes:
        mean, std: of the model's normalisation; None to leave the pixels unchecked.
        classes: for each output, in the order of keras.tree.flatten, the number of classes; None for labels that are not checked.
    """

    mean: np.ndarray | None = None
    std: np.ndarray | None = None
    classes: tuple[int | None, ...] = ()

    @classmethod
    def of(cls, model: keras.Model) -> "InputChecks":
        """The checks that suit a model: its own normalisation, unless model.check_pixels is False, and its compiled loss."""
        mean, std = (model.check_pixels and normalisation_of(model)) or (None, None)
        return cls(mean, std, _label_classes(model))

    def arrays(self, x: Any, y: Any = None, weights: Any = None, pixels: bool = True) -> None:
        """Checks a batch, or all the data, given as arrays.

        Args:
            x: images (b, h, w, c); anything else is not checked.
            y, weights: as in fit.
            pixels: whether to check the images.

        Raises:
            ValueError: for pixels on another scale, or wrong labels.
        """
        if pixels and self._has_pixels(x):
            images = np.asarray(x[:_SAMPLE])
            if images.size and images.dtype.kind in "fiu" and images.dtype.itemsize > 1:
                self._check_range(float(images.min()), float(images.max()), images.dtype.kind == "f")
        for labels, weight, classes in self._labels(y, weights):
            check_labels(keras.ops.convert_to_numpy(labels), classes, None if weight is None else np.asarray(weight))

    def dataset(self, dataset: Any) -> Any:
        """A tf.data dataset of batches that is checked as it is read."""
        import tensorflow as tf

        x, y, weights = keras.utils.unpack_x_y_sample_weight(dataset.element_spec)
        has_pixels = self._has_pixels(x) and x.dtype.size > 1 and (x.dtype.is_floating or x.dtype.is_integer)
        if not has_pixels and not list(self._labels(y, weights)):
            return dataset

        def check(first, batch):
            x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
            if has_pixels:
                tf.cond(first, lambda: self._assert_range(x[:_SAMPLE]), tf.no_op)
            for labels, weight, classes in self._labels(y, weights):
                self._assert_labels(labels, weight, classes)
            return False, batch

        return dataset.scan(True, check)

    def stream(self, batches: Iterator) -> Iterator:
        """The batches of a generator, each checked when it is taken."""
        for i, batch in enumerate(batches):
            x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
            with _marked():
                self.arrays(x, y, weights, pixels=i == 0)
            yield batch

    def any(self, x: Any, y: Any = None, weights: Any = None) -> Any:
        """What to read instead of `x`, which may be arrays, a dataset, a generator or a PyDataset; arrays are checked at once."""
        if hasattr(x, "element_spec"):
            return self.dataset(x) if hasattr(x, "scan") else x  # a distributed dataset cannot be looked into
        if isinstance(x, types.GeneratorType):
            return self.stream(x)
        if isinstance(x, keras.utils.PyDataset):
            return _CheckedPyDataset(x, self)
        self.arrays(x, y, weights)
        return x

    def _has_pixels(self, x):
        return self.mean is not None and len(getattr(x, "shape", ())) == 4

    def _labels(self, y, weights):
        """(labels, weights or None, classes) of each output whose labels are checked."""
        labels, shared = keras.tree.flatten(y), not keras.tree.is_nested(weights)
        if y is None or len(labels) != len(self.classes):
            return
        each = [weights] * len(labels) if shared else keras.tree.flatten(weights)
        each = each if len(each) == len(labels) else [None] * len(labels)
        for one, weight, classes in zip(labels, each, self.classes):
            if classes is not None and hasattr(one, "shape") and len(one.shape) in (1, 2):
                yield one, weight, classes

    def _problems(self, low, high, floating):
        """What may be wrong with pixels in [low, high], numbers or scalar tensors: (whether it is so, what to say, the mend) of each."""
        yield ~((low - low == 0) & (high - high == 0)), "hold values that are not finite", "Find out where they come from."
        if self.std.max() < PIXEL_STD:
            yield (
                high > float((self.mean + 10 * _LARGEST_NORMALISED * self.std).max()),
                "look like pixels 0..255",
                f"This model's mean {self.mean.tolist()} and std {self.std.tolist()} are for smaller values: divide the images by 255, or "
                "load the model with mean and std on the 0..255 scale.",
            )
            return
        ours = "This model expects pixels 0..255 and normalises them itself."
        if floating:
            yield (
                (low != high) & (low >= -_LARGEST_NORMALISED) & (high <= _LARGEST_NORMALISED),
                "look normalised",
                f"{ours} Multiply images in [0, 1] by 255, or undo the normalisation.",
            )
        yield high > _LARGEST_BYTE, "look like 16-bit images", f"{ours} Divide images in 0..65535 by 257."
        yield low < _LOWEST_BYTE, "have negative pixels", f"{ours} Add what was subtracted."

    def _check_range(self, low, high, floating):
        for wrong, what, mend in self._problems(np.float64(low), np.float64(high), floating):
            if wrong:
                raise ValueError(_range_message(what, mend, f"{low:.3g}", f"{high:.3g}"))

    def _assert_range(self, images):
        """_check_range as an operation of TensorFlow."""
        import tensorflow as tf

        floating, images = images.dtype.is_floating, tf.cast(images, "float32")
        low, high = tf.reduce_min(images), tf.reduce_max(images)
        checks = [
            tf.debugging.Assert(~wrong, [_filled_in(_range_message(what, mend, "{}", "{}"), low, high)])
            for wrong, what, mend in self._problems(low, high, floating)
        ]
        with tf.control_dependencies(checks):
            return tf.no_op()

    @staticmethod
    def _assert_labels(labels, weight, classes):
        """check_labels as an operation of TensorFlow."""
        import tensorflow as tf

        numbers = are_numbers(labels.shape, classes)
        labels = tf.cast(tf.reshape(labels, (tf.shape(labels)[0], -1)), "float32")  # (b, 1 or classes)
        if weight is not None and weight.shape.rank == 1:
            labels = tf.boolean_mask(labels, weight != 0)
        low, high = tf.reduce_min(labels), tf.reduce_max(labels)
        hint = tf.where((low >= 1) & (high == classes) & numbers, ONE_BASED, "")
        text = _filled_in(message("{}", "{}", numbers, classes, "{}"), low, high, hint)
        tf.debugging.Assert(~tf.reduce_any(are_wrong(labels, numbers, classes)), [text])


def _range_message(what, mend, low, high):
    """What to say of images on another scale; `low` and `high` are text."""
    escape = "If they are right, set model.check_pixels = False."
    return f"The images {what}: the values of the first batch are in [{low}, {high}]. {mend} {escape}"


def _filled_in(template, *values):
    """A marked message with tensors, numbers or text, in the places of {}."""
    import tensorflow as tf

    texts = [value if value.dtype == tf.string else tf.strings.as_string(value, shortest=True) for value in values]
    parts = [part for pair in zip(template.split("{}"), [*texts, _CLOSE]) for part in pair]
    return tf.strings.join([_OPEN, *parts])


class _CheckedPyDataset(keras.utils.PyDataset):
    """Another PyDataset, whose batches are checked when they are read."""

    def __init__(self, inner, checks):
        super().__init__(inner.workers, inner.use_multiprocessing, inner.max_queue_size)
        self.inner, self.checks = inner, checks

    @property
    def num_batches(self):
        return self.inner.num_batches

    def __getitem__(self, i):
        batch = self.inner[i]
        x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
        with _marked():
            self.checks.arrays(x, y, weights, pixels=i == 0)
        return batch

    def on_epoch_begin(self):
        self.inner.on_epoch_begin()

    def on_epoch_end(self):
        self.inner.on_epoch_end()


@contextlib.contextmanager
def _marked():
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{_OPEN}{error}{_CLOSE}") from None


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Turns what a check in a data pipeline raised, wrapped in an error of tf.data, into a ValueError with its message."""
    try:
        yield
    except Exception as error:
        found = re.search(re.escape(_OPEN) + "(.*?)" + re.escape(_CLOSE), str(error), re.DOTALL)
        if found is None:
            raise
        raise ValueError(found.group(1).replace('\\"', '"').replace("\\'", "'")) from None
