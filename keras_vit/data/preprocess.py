"""Preprocessing as text: "decode|resize(256)|central_crop(224)".

`parse` turns text into a Preprocess, which maps one image, encoded bytes or an array (h, w, c), to an array (h, w, c) of uint8. Training
and evaluation call it inside tf.data, export inside the SavedModel: the same text everywhere.
"""

import ast
import dataclasses
import difflib
import inspect

import tensorflow as tf

from keras_vit.data import augment, checking, decode, erasing, geometry, jitter, labels  # noqa: F401, importing them registers their ops
from keras_vit.data.fused import decode_and_crop
from keras_vit.data.ops import LABELS, OPS, RANDOM

# Ops of other vocabularies that have nothing to do here.
_NOT_NEEDED = {
    "keep": "An example is (image, label) and nothing else: leave it out.",
    "value_range": "Pixels stay within 0..255, and the model normalises them: leave it out.",
}


@dataclasses.dataclass(frozen=True)
class Preprocess:
    """A parsed preprocessing.

    Attributes:
        text: what it was parsed from.
        steps: its (name, function) pairs. A random op's function takes (image, seed), a label op's (label), the others' (image).
    """

    text: str
    steps: tuple

    @property
    def random(self):
        return any(name in RANDOM for name, _ in self.steps)

    @property
    def labels(self):
        """The names of its label ops."""
        return tuple(name for name, _ in self.steps if name in LABELS)

    def label(self, label):
        """One label, an integer, to what the label ops make of it."""
        for name, function in self.steps:
            label = function(label) if name in LABELS else label
        return label

    def __call__(self, image, seed=None):
        """One image to uint8 pixels (h, w, c). `seed`, (2,) integers, is needed where `random`; each op gets a child of it."""
        for i, (name, function) in enumerate(self.steps):
            if name in RANDOM:
                image = function(image, tf.random.experimental.stateless_fold_in(seed, i))
            elif name not in LABELS:
                image = function(image)
        if image.dtype == tf.uint8:
            return image
        return tf.cast(tf.clip_by_value(tf.round(tf.cast(image, tf.float32)), 0.0, 255.0), tf.uint8)


def _call(expression, text):
    """'resize(256)' -> (name, args, kwargs), with literals only: nothing is evaluated."""
    try:
        node = ast.parse(expression, mode="eval").body
        if isinstance(node, ast.Name):
            return node.id, [], {}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            args = [ast.literal_eval(arg) for arg in node.args]
            return node.func.id, args, {k.arg: ast.literal_eval(k.value) for k in node.keywords}
    except (SyntaxError, ValueError):
        pass
    raise ValueError(f'Cannot read "{expression}" in the preprocessing "{text}". Write ops like "resize(256)", joined by "|".')


def parse(text):
    """Returns the Preprocess that `text` describes.

    Raises:
        ValueError: for an unknown op, naming the nearest, or arguments that the op does not take.
    """
    steps, parameters = [], []
    for expression in filter(None, (part.strip() for part in text.split("|"))):
        name, args, kwargs = _call(expression, text)
        if name not in OPS:
            close = difflib.get_close_matches(name, OPS, n=1)
            hint = _NOT_NEEDED.get(name) or (f'Did you mean "{close[0]}"?' if close else "")
            raise ValueError(f'Unknown preprocessing op "{name}". {hint} Valid: {", ".join(sorted(OPS))}.')
        try:
            bound = inspect.signature(OPS[name]).bind(*args, **kwargs)
        except TypeError as error:
            raise ValueError(f'"{expression}": {error}. It is {name}{inspect.signature(OPS[name])}.') from None
        bound.apply_defaults()
        steps.append((name, OPS[name](*bound.args, **bound.kwargs)))
        parameters.append(bound.arguments)
    if [name for name, _ in steps[:2]] == ["decode", "random_resized_crop"]:
        # In two steps still, so that every op keeps its number, from which its seed is made.
        steps[:2] = ("decode", lambda image: image), ("random_resized_crop", decode_and_crop(*parameters[:2]))
    return Preprocess(text, tuple(steps))
