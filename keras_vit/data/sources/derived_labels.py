"""Class labels derived from features of a tensorflow-datasets example: "clevr?label=count(objects, 3, 10)".

    label=FEATURE                  another class label: label=label_azimuth
    label=group(FEATURE, n)        a label's k classes in n groups of neighbours: class c is in group floor(c * n / k)
    label=count(FEATURE, low, high)
                                   the number of objects; low is class 0, and a number outside low..high is an error
    label=least(FEATURE[COLUMN], edge, ...)
                                   the smallest value over the objects: class i exceeds i of the ascending edges; a
                                   value equal to an edge belongs to the class below
    ..., where=FEATURE, among=("Car", ...))
                                   counts only objects with one of these class labels; without any, the value is
                                   infinite, the last class

FEATURE is a name, or a path into nested features: objects.location. Arguments are literals and never evaluated. VTAB's
tasks on CLEVR, dSprites, KITTI and SmallNORB need these (arXiv 1910.04867, as in the authors' task_adaptation).
"""

import ast
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_vit.io.suggest import did_you_mean

_FORMS = 'label=FEATURE, "group(FEATURE, n)", "count(FEATURE, low, high)" or "least(FEATURE[COLUMN], edge, ...)"'


@dataclasses.dataclass(frozen=True)
class Label:
    """A class label.

    Attributes:
        class_names: tuple of str, in label order.
        compute: callable. Maps an example, a dict decoded by tensorflow-datasets, to its label, a scalar int64 tensor.
    """

    class_names: tuple[str, ...]
    compute: Callable[[dict[str, Any]], tf.Tensor]


def _path(node, text):
    """Parses a feature's path: objects.location -> ("objects", "location")."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        return (*_path(node.value, text), node.attr)
    raise ValueError(
        f'Cannot read "{ast.unparse(node)}" in "label={text}": expected a feature, such as objects.location.'
    )


def value_at(example: dict[str, Any], path: tuple[str, ...]) -> Any:
    """Returns the value at a path in nested dicts."""
    for name in path:
        example = example[name]
    return example


def feature_at(features: Any, path: tuple[str, ...]) -> Any:
    """Returns the feature at a path in tensorflow-datasets' features; passes through sequences of dicts.

    Raises:
        ValueError: if it does not exist, with the nearest name.
    """
    feature = features
    for depth, name in enumerate(path):
        inner = getattr(feature, "feature", feature)  # of a sequence
        try:
            valid = list(inner.keys())
        except AttributeError:
            valid = []
        if name not in valid:
            missing, near = ".".join(path[: depth + 1]), did_you_mean(name, valid)
            raise ValueError(f'Unknown feature "{missing}".{near} Valid: {", ".join(valid) or "none"}.')
        feature = inner[name]
    return feature


def _class_label(features, path):
    """Returns the names of a class label. Raises ValueError for other features."""
    feature = feature_at(features, path)
    inner = getattr(feature, "feature", feature)
    if not hasattr(inner, "num_classes"):
        valid = [name for name in features if hasattr(features[name], "num_classes")]
        raise ValueError(
            f'Expected the feature "{".".join(path)}" to be a ClassLabel, got {type(inner).__name__}. Valid:'
            f" {', '.join(valid) or 'none'}."
        )
    return tuple(inner.names)


def _integers(values, expected):
    if not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        raise ValueError(f"expected {expected}, got {', '.join(map(repr, values))}")


def _group(features, path, count):
    """Returns the Label of a class label's groups of neighbours."""
    names = _class_label(features, path)
    _integers([count], "the number of groups")
    if not 1 < count <= len(names):
        raise ValueError(
            f'expected 2 to {len(names)} groups of the {len(names)} classes of "{".".join(path)}", got {count}'
        )
    groups = [[name for i, name in enumerate(names) if i * count // len(names) == group] for group in range(count)]
    class_names = tuple(group[0] if len(group) == 1 else f"{group[0]}-{group[-1]}" for group in groups)
    return Label(class_names, lambda example: tf.cast(value_at(example, path), tf.int64) * count // len(names))


def _count(features, path, low, high):
    """Returns the Label of the number of objects, from `low` to `high`."""
    feature_at(features, path)
    _integers([low, high], "the lowest and the highest number")
    if not 0 <= low < high:
        raise ValueError(f"expected 0 <= low < high, got {low} and {high}")

    def compute(example):
        number = tf.shape(tf.nest.flatten(value_at(example, path))[0], tf.int64)[0]
        valid = tf.debugging.Assert(
            (number >= low) & (number <= high), [f"{'.'.join(path)}: expected {low} to {high} objects, got", number]
        )
        with tf.control_dependencies([valid]):
            return number - low

    return Label(tuple(str(n) for n in range(low, high + 1)), compute)


def _least(features, path, column, edges, where, among):
    """Returns the Label of a column's smallest value over the objects, binned by ascending edges."""
    feature_at(features, path)
    if not edges or not all(isinstance(edge, int | float) for edge in edges) or list(edges) != sorted(set(edges)):
        raise ValueError(f"expected edges in ascending order, got {', '.join(map(repr, edges)) or 'none'}")
    kinds = None
    if where is not None:
        valid = _class_label(features, where)
        wrong = [name for name in among if name not in valid]
        if wrong or not among:
            raise ValueError(
                f'expected among= to name classes of "{".".join(where)}", got {among!r}. Valid: {", ".join(valid)}'
            )
        kinds = [valid.index(name) for name in among]

    def compute(example):
        values = tf.cast(value_at(example, path), tf.float32)
        values = values if column is None else values[:, column]
        if kinds is not None:
            matches = tf.cast(value_at(example, where), tf.int64)[:, None] == tf.constant(kinds, tf.int64)
            values = tf.where(tf.reduce_any(matches, 1), values, math.inf)
        least = tf.reduce_min(values)  # infinity without values
        return tf.math.count_nonzero(tf.constant(edges, tf.float32) < least)

    between = (f"above {low:g} to {high:g}" for low, high in zip(edges, edges[1:]))
    last = f"above {edges[-1]:g}" + (" or none" if kinds else "")
    return Label((f"up to {edges[0]:g}", *between, last), compute)


def _label_of_call(node, features, text):
    """Returns the Label of a call's syntax tree."""
    word = node.func.id
    if word not in ("group", "count", "least"):
        raise ValueError(f'unknown function "{word}".{did_you_mean(word, ("group", "count", "least"))} Valid: {_FORMS}')
    if not node.args:
        raise ValueError(f"{word} needs a feature. Valid: {_FORMS}")
    first, column = node.args[0], None
    if word == "least" and isinstance(first, ast.Subscript):
        first, column = first.value, ast.literal_eval(first.slice)
        _integers([column], "a column, such as objects.location[2]")
    path, values = _path(first, text), [ast.literal_eval(value) for value in node.args[1:]]
    named = {keyword.arg: keyword.value for keyword in node.keywords}
    if word == "least":
        if named and set(named) != {"where", "among"}:
            raise ValueError("expected both where=FEATURE and among=(NAME, ...), or neither")
        where = _path(named["where"], text) if named else None
        return _least(features, path, column, tuple(values), where, ast.literal_eval(named["among"]) if named else ())
    expected = {"group": 1, "count": 2}[word]
    if named or len(values) != expected:
        raise ValueError(f"{word} takes a feature and {expected} number{'s' * (expected > 1)}. Valid: {_FORMS}")
    return (_group if word == "group" else _count)(features, path, *values)


def parse_label(text: str, features: Any) -> Label:
    """Parses the value of the option label=.

    Args:
        text: str. See the module's docstring.
        features: tensorflow-datasets' features of the dataset.

    Raises:
        ValueError: for malformed text and unknown features or classes.
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise ValueError(f'Cannot read "label={text}". Valid: {_FORMS}.') from None
    try:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return _label_of_call(node, features, text)
        path = _path(node, text)
        return Label(_class_label(features, path), lambda example: tf.cast(value_at(example, path), tf.int64))
    except ValueError as error:
        raise ValueError(f'"label={text}": {str(error).rstrip(".")}.') from None
