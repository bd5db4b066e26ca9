"""Refuses input that would silently teach the wrong thing: pixels on another scale, labels outside the classes, patches
outside the image.

Arrays are checked before anything runs, datasets and generators as they pass, on the host: no batch is read twice, and
the device does no extra work. Pixels are checked in the first batch, labels in every batch.
"""

import dataclasses
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from keras_vit.fit.checks.compiled import in_order, unweighted_metrics
from keras_vit.fit.checks.labels import LabelRules, label_rules
from keras_vit.fit.checks.marked import assert_true, filled_in, marked
from keras_vit.fit.checks.numbers import Numbers
from keras_vit.fit.checks.pixels import (
    Normalisation,
    assert_range,
    check_range,
    may_be_wrong,
    normalisations,
    scale_problems,
)
from keras_vit.fit.checks.targets import TargetRules
from keras_vit.fit.losses import ONE_BASED, are_no_shares, are_numbers, are_wrong, check_labels, message

_SAMPLE = 32  # images with checked pixels
# Models with a range that cannot be checked, and compiled metrics that ignore weights.
_WARNED: weakref.WeakSet = weakref.WeakSet()


def input_names(model: keras.Model) -> tuple[str, ...]:
    """The names of model.inputs in a dict of images."""
    if isinstance(model.input, dict):
        return tuple(sorted(model.input))  # as model.inputs lists them
    return tuple(tensor.name for tensor in model.inputs)


@dataclasses.dataclass(frozen=True)
class InputChecks:
    """Checks on the input of fit, evaluate or predict.

    Attributes:
        scales: {input: its normalisations; none for no check}.
        labels: {output: its LabelRules, or None for no check}.
        numbers: {input: the numbers allowed in it}.
        targets: the rules for y if it is not labels of images; None otherwise.
        unweighted: the compiled metrics if some ignore weights, and may count rows of weight 0; None for no warning.
    """

    scales: dict[str, tuple[Normalisation, ...]]
    labels: dict[str, LabelRules | None]
    numbers: dict[str, Numbers] = dataclasses.field(default_factory=dict)
    targets: TargetRules | None = None
    unweighted: keras.metrics.Metric | None = None

    @classmethod
    def of(cls, model: keras.Model, mixes: bool = False, measures: bool = False) -> "InputChecks":
        """The checks for a model: its normalisation, unless model.check_pixels is False, and its compiled loss.

        Args:
            model: the model.
            mixes: whether model.mixing makes rows of class numbers.
            measures: whether to check the compiled metrics, too.

        Raises:
            ValueError: for layers with another `value_range` than the model expects behind them.
        """
        targets = model.target_rules()
        labels = label_rules(model, mixes) if targets is None else {}
        unweighted = model._compile_metrics if measures and unweighted_metrics(model) else None
        return cls(_scales(model), labels, getattr(model, "numbers", {}), targets, unweighted)

    def arrays(self, x: Any, y: Any = None, weights: Any = None, pixels: bool = True) -> None:
        """Checks a batch, or all the data, given as arrays.

        Args:
            x: images (b, h, w, c) or crops (b, v, h, w, c), or a list or dict of the inputs; anything else is not
                checked.
            y, weights: as in fit.
            pixels: whether to check the images.

        Raises:
            ValueError: for pixels on another scale, wrong labels, or invalid patch numbers.
        """
        self._warn_of_ignored(weights, lambda weight: not np.all(keras.ops.convert_to_numpy(weight)))
        for name, values, expected in self._numbers(x):
            expected.check(name, keras.ops.convert_to_numpy(values))
        for images, scale in self._images(x) if pixels else ():
            check_range(np.asarray(images[:_SAMPLE]), scale)
        for labels, weight, rules in self._labels(y, weights):
            weight = None if weight is None else np.asarray(weight)
            labels = np.asarray(keras.ops.convert_to_numpy(labels) if keras.ops.is_tensor(labels) else labels)
            rules.check_form(labels.shape)
            if rules.in_range or rules.sums and _are_shares(labels, rules.classes):
                check_labels(labels, rules.classes, weight, rules.sums)
        if self.targets is not None and y is not None:
            self.targets.check(*(None if a is None else keras.ops.convert_to_numpy(a) for a in (y, weights)))

    def dataset(self, dataset: Any) -> Any:
        """A tf.data dataset of batches, checked as it is read."""
        import tensorflow as tf

        x, y, weights = keras.utils.unpack_x_y_sample_weight(dataset.element_spec)
        has_pixels = any(may_be_wrong(images.dtype, scale) for images, scale in self._images(x))
        labelled = list(self._labels(y, weights))
        for labels, _, rules in labelled:
            rules.check_form(labels.shape)
            if not (labels.dtype.is_floating or labels.dtype.is_integer or labels.dtype.is_bool):
                raise ValueError(f"The labels should be numbers, got {labels.dtype.name}. Number the classes from 0.")
        numbered = self._numbers(x)
        for name, values, expected in numbered:
            expected.check_shape(name, tuple(values.shape))
        targets = None if y is None else self.targets
        if targets is not None:
            targets.check_form(tuple(y.shape), y.dtype)
        if not has_pixels and not labelled and not numbered and targets is None:
            return dataset

        def check_pixels(x):
            found = [(images, scale) for images, scale in self._images(x) if may_be_wrong(images.dtype, scale)]
            return tf.group(*(check for images, scale in found for check in assert_range(images[:_SAMPLE], scale)))

        @tf.autograph.experimental.do_not_convert  # converting takes longer than tracing
        def check(first, batch):
            x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
            if has_pixels:
                tf.cond(first, lambda: check_pixels(x), tf.no_op)
            for labels, weight, rules in self._labels(y, weights):
                _assert_labels(labels, weight, rules)
            for name, values, expected in self._numbers(x):
                for wrong, text in expected.problems(name, values):
                    assert_true(~wrong, text)
            for wrong, text, low, high in targets.problems(y, weights) if targets else ():
                assert_true(~wrong, text, low, high)
            return False, batch

        return dataset.scan(True, check)

    def stream(self, batches: Iterator) -> Iterator:
        """A generator's batches, checked one by one."""
        for i, batch in enumerate(batches):
            yield self._batch(i, batch)

    def _batch(self, i, batch):
        """A batch, checked; pixels in the first."""
        x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
        with marked():
            self.arrays(x, y, weights, pixels=i == 0)
        return batch

    def any(self, x: Any, y: Any = None, weights: Any = None) -> Any:
        """`x` checked, or to be checked when read: arrays, a dataset, a generator or a PyDataset."""
        if hasattr(x, "element_spec"):
            self._warn_of_ignored(keras.utils.unpack_x_y_sample_weight(x.element_spec)[2])
            return self.dataset(x) if hasattr(x, "scan") else x  # distributed datasets are opaque
        if isinstance(x, types.GeneratorType):
            return self.stream(x)
        if isinstance(x, keras.utils.PyDataset):
            return MappedPyDataset(x, self._batch)
        self.arrays(x, y, weights)
        if self.targets is not None and y is not None:
            self.targets.check_all(keras.ops.convert_to_numpy(y))
        return x

    def _warn_of_ignored(self, weights, has_zeros=lambda spec: True):
        """Warns, once per compile, about weights of 0 that the metrics ignore."""
        if self.unweighted is None or self.unweighted in _WARNED:
            return
        if any(weight is not None and has_zeros(weight) for weight in keras.tree.flatten(weights)):
            _WARNED.add(self.unweighted)
            warnings.warn(
                "compile(metrics=...) ignores sample weights: examples of weight 0, such as the padding of"
                " evaluation_batches, count like any other. Write compile(weighted_metrics=[...]).",
                stacklevel=5,
            )

    def _images(self, x):
        """(images, normalisation) of each input with checked pixels, once for each of its normalisations."""
        for images, scales in zip(self._inputs(x) or (), self.scales.values()):
            if len(getattr(images, "shape", ())) in (4, 5):
                yield from ((images, scale) for scale in scales)

    def _inputs(self, x):
        """The inputs in order, without others that a dict holds; None for another number."""
        if isinstance(x, dict) and self.scales.keys() <= x.keys():
            return [x[name] for name in self.scales]
        return in_order(x, list(self.scales))

    def _numbers(self, x):
        """[(name, values, Numbers)] of each input of numbers."""
        found = self._inputs(x) if self.numbers else None
        given = dict(zip(self.scales, found or ()))
        return [
            (name, given[name], expected)
            for name, expected in self.numbers.items()
            if hasattr(given.get(name), "shape")
        ]

    def _labels(self, y, weights):
        """(labels, weights or None, LabelRules) of each output with checked labels."""
        names = list(self.labels)
        found = None if y is None else in_order(y, names)
        each = in_order(weights, names) if keras.tree.is_nested(weights) else [weights] * len(names)
        for labels, weight, expected in zip(found or (), each or [None] * len(names), self.labels.values()):
            if expected is not None and hasattr(labels, "shape") and len(labels.shape) in (1, 2):
                yield labels, weight, expected


def _warn_of_hidden(model, layer):
    """Warns, once for a model, that its pixels cannot be checked because of a layer."""
    if model in _WARNED:
        return
    _WARNED.add(model)
    warnings.warn(
        f'The range of the pixels cannot be checked: the effect of the layer "{layer}" on them, before "{model.name}"'
        " normalises, is unknown. Make sure that they arrive there as the model expects: 0..255, unless it has another"
        " mean and std. model.check_pixels = False turns this warning off.",
        stacklevel=4,
    )


def _check_declared(scales):
    """Refuses layers made for a `value_range` that is not the one expected behind them."""
    for scale in (scale for each in scales.values() for scale in each):
        for layer, low, high in scale.path.declared:
            if any(wrong for wrong, *_ in scale_problems(scale, np.float64(low), np.float64(high), True)):
                raise ValueError(
                    f'The layer "{layer}" clips pixels to its range (value_range), which is [{low:.3g}, {high:.3g}]'
                    f" where the model normalises them, and it expects {scale.there} there. Set value_range"
                    " to the range of the images that the layer gets. If it is right, set model.check_pixels = False."
                )


def _scales(model):
    """{input: its normalisations} of a model, unless model.check_pixels is False."""
    found, hidden = normalisations(model) if getattr(model, "check_pixels", True) else ({}, None)
    if hidden is not None:
        _warn_of_hidden(model, hidden)
    scales = {name: tuple(found.get(i, ())) for i, name in enumerate(input_names(model))}
    _check_declared(scales)
    return scales


def check_images(model: keras.Model, images: Any) -> None:
    """Refuses images (b, h, w, c), or a list or dict of a model's inputs, on another scale: ValueError."""
    InputChecks(_scales(model), {}).arrays(images)


def _are_shares(labels, classes):
    """Whether labels are rows of numbers from 0 to 1."""
    rows = labels.ndim == 2 and labels.shape[-1] == classes > 1 and labels.dtype.kind in "biuf"
    return rows and not are_wrong(labels, False, classes).any()


def _assert_labels(labels, weight, rules):
    """The check of labels by LabelRules as TensorFlow operations."""
    import tensorflow as tf

    classes, numbers = rules.classes, are_numbers(labels.shape, rules.classes)
    rows = not numbers and len(labels.shape) == 2 and labels.shape[-1] == classes
    labels = tf.cast(tf.reshape(labels, (tf.shape(labels)[0], -1)), "float32")  # (b, 1 or classes)
    if weight is not None and weight.shape.rank == 1:
        labels = tf.boolean_mask(labels, weight != 0)
    low, high = tf.reduce_min(labels), tf.reduce_max(labels)
    hint = tf.where((low >= 1) & (high == classes) & numbers, ONE_BASED, "")
    text = filled_in(message("{}", "{}", numbers, classes, "{}"), low, high, hint)
    wrong = tf.reduce_any(are_wrong(labels, numbers, classes))
    if rules.in_range:
        tf.debugging.Assert(~wrong, [text])
    if rules.sums and rows:
        several = tf.reduce_any(are_no_shares(tf.reduce_sum(labels, axis=-1)))
        assert_true(wrong | ~several, rules.sums)  # rows of other numbers than shares are another loss's


class MappedPyDataset(keras.utils.PyDataset):
    """A PyDataset that yields `function(index, batch)` for each batch of another."""

    def __init__(self, inner: keras.utils.PyDataset, function: Callable[[int, Any], Any]):
        super().__init__(inner.workers, inner.use_multiprocessing, inner.max_queue_size)
        self.inner, self.function = inner, function

    @property
    def num_batches(self):
        return self.inner.num_batches

    def __getitem__(self, i):
        return self.function(i, self.inner[i])

    def on_epoch_begin(self):
        self.inner.on_epoch_begin()

    def on_epoch_end(self):
        self.inner.on_epoch_end()
