"""Preprocessing as text: "decode|resize(256)|central_crop(224)".

`parse` turns text into a Preprocess, which maps one image, encoded bytes or an array (h, w, c), to an array (h, w, c) of uint8. Training
and evaluation call it inside tf.data, export inside the SavedModel: the same text everywhere.
"""

import ast
import dataclasses
import difflib
import inspect

import tensorflow as tf

from keras_vit.data.ops import OPS, RANDOM


@dataclasses.dataclass(frozen=True)
class Preprocess:
    """A parsed preprocessing.

    Attributes:
        text: what it was parsed from.
        steps: its (name, function) pairs. A random op's function takes (image, seed), the others' (image).
    """

    text: str
    steps: tuple

    @property
    def random(self):
        return any(name in RANDOM for name, _ in self.steps)

    def __call__(self, image, seed=None):
        """One image to uint8 pixels (h, w, c). `seed`, (2,) integers, is needed where `random`; each op gets a child of it."""
        for i, (name, function) in enumerate(self.steps):
            if name in RANDOM:
                image = function(image, tf.random.experimental.stateless_fold_in(seed, i))
            else:
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
    steps = []
    for expression in filter(None, (part.strip() for part in text.split("|"))):
        name, args, kwargs = _call(expression, text)
        if name not in OPS:
            close = difflib.get_close_matches(name, OPS, n=1)
            hint = f' Did you mean "{close[0]}"?' if close else ""
            raise ValueError(f'Unknown preprocessing op "{name}".{hint} Valid: {", ".join(sorted(OPS))}.')
        try:
            inspect.signature(OPS[name]).bind(*args, **kwargs)
        except TypeError as error:
            raise ValueError(f'"{expression}": {error}. It is {name}{inspect.signature(OPS[name])}.') from None
        steps.append((name, OPS[name](*args, **kwargs)))
    return Preprocess(text, tuple(steps))
