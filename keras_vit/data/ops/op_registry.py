"""Preprocessing as text, "decode|resize(256)|central_crop(224)", and the registry of its ops.

`parse` turns text into a Preprocess, which maps an example, a dict, to an example with uint8 pixels (h, w, c). Training
and evaluation call it inside tf.data, export inside the SavedModel: the same text everywhere.

An op is a decorated factory; the text's brackets contain its parameters. The decorator names the keys that the op
changes and says whether it is random.

- An op on one key is a function of its value: `@op("image")` maps pixels (h, w, c) to pixels, `@op("label")` a label
  to a label.
- An op on several keys maps a dict of the keys present in the example to a dict of the same keys, and so moves image,
  mask and boxes together.
- An op that moves "mask" gets the example's "depth" and "segments", too, which move likewise.
- With `reads=("void",)` the dict also contains these keys if the example has them; the op does not return them.
- With `random=True` the function also takes a seed of (2,) integers, and must be a pure function of both.
- With `checks={"probability": PROBABILITY}` the registry checks parameters before the factory runs.

Values stay on the 0..255 scale. A custom op needs no change here:

    @op("image", "mask", "boxes", random=True)
    def my_flip():
        def apply(example, seed):
            ...
            return {"image": ..., "mask": ..., "boxes": ...}

        return apply
"""

import ast
import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import tensorflow as tf

from keras_vit.io.suggest import did_you_mean

# Ops that other libraries have and this one does not need.
_NOT_NEEDED = {
    "keep": "Leave it out: `select` chooses the values in a batch, by default (image, label).",
    "value_range": "Leave it out: pixels stay within 0..255, and the model normalises them.",
}


def as_uint8(image: tf.Tensor) -> tf.Tensor:
    """Rounds `image` to uint8; uint8 stays."""
    if image.dtype == tf.uint8:
        return image
    return tf.cast(tf.clip_by_value(tf.round(tf.cast(image, tf.float32)), 0.0, 255.0), tf.uint8)


@dataclasses.dataclass(frozen=True)
class Check:
    """The values that a parameter of an op may have, or several together.

    Attributes:
        expected: str. Describes them in errors.
        fits: callable. Whether a value fits; takes a tuple for several parameters.
        names: tuple of str. The valid names, of a parameter that is one.
    """

    expected: str
    fits: Callable[[Any], bool]
    names: tuple[str, ...] = ()


def is_integer(value: Any, least: float = -math.inf) -> bool:
    """Whether a parameter is an integer of at least `least`; True and 2.0 are not."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def integer(least: int) -> Check:
    """Returns the Check of integers of at least `least`."""
    return Check(f"an integer of at least {least}", lambda value: is_integer(value, least))


def one_of(names: Collection[str]) -> Check:
    """Returns the Check of these names."""
    return Check(f"one of {', '.join(names)}", lambda value: value in names, tuple(names))


PROBABILITY = Check("a number from 0 to 1", lambda value: 0 <= value <= 1)
INTERVAL = Check("0 < low <= high", lambda bounds: 0 < bounds[0] <= bounds[1])
AREAS = Check("0 < low <= high <= 1", lambda bounds: 0 < bounds[0] <= bounds[1] <= 1)


def _check_parameters(op, arguments):
    """Raises ValueError for parameters, {name: value}, that do not fit the op's checks."""
    for key, check in op.checks.items():
        values = {name: arguments[name] for name in key.split()}
        value = tuple(values.values()) if len(values) > 1 else values[key]
        try:
            fits = check.fits(value)
        except (TypeError, IndexError):
            fits = False
        if not fits:
            shown = " and ".join(f"{name}={value!r}" for name, value in values.items())
            hint = did_you_mean(str(value), check.names)
            raise ValueError(f"{op.name}: expected {check.expected}, got {shown}.{hint}")


@dataclasses.dataclass(frozen=True)
class Op:
    """A registered op.

    Attributes:
        name: str. Name in the text.
        factory: callable. Maps parameters to the function of an example's values.
        keys: tuple of str. Keys of an example that the op changes.
        random: bool. Whether the function takes a seed.
        refuses: tuple of str. Keys that an example must not have, since the op would not update them.
        reads: tuple of str. Further keys that the function gets but does not change; it then takes a dict.
        checks: dict. A Check by the name of a parameter, or of several, separated by spaces.
    """

    name: str
    factory: Callable[..., Callable]
    keys: tuple[str, ...]
    random: bool = False
    refuses: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    checks: Mapping[str, Check] = dataclasses.field(default_factory=dict, hash=False)

    def make(self, arguments: inspect.BoundArguments) -> Callable:
        """Returns the factory's function for these parameters, defaults included.

        Raises:
            ValueError: if a parameter does not fit its check.
        """
        _check_parameters(self, arguments.arguments)
        return self.factory(*arguments.args, **arguments.kwargs)

    def apply(self, function: Callable, example: dict[str, Any], *seed) -> dict[str, Any]:
        """Applies `function`, made by the factory, to an example.

        Raises:
            ValueError: if the example has a refused key or lacks the op's only key, or `function` loses a key.
        """
        refused = [key for key in self.refuses if key in example]
        if refused:
            raise ValueError(
                f"{self.name} moves pixels but cannot move {' and '.join(refused)}. Leave out the op, or leave "
                f"{' and '.join(refused)} out of the examples."
            )
        if len(self.keys) == 1 and not self.reads:
            (key,) = self.keys
            if key not in example:
                raise ValueError(f'{self.name} changes "{key}", but the example has only: {", ".join(example)}.')
            return {**example, key: function(example[key], *seed)}
        inputs = {key: example[key] for key in (*self.keys, *self.reads) if key in example}
        changed, expected = function(inputs, *seed), sorted(inputs.keys() & set(self.keys))
        if sorted(changed) != expected:
            raise ValueError(
                f"{self.name} got {expected} but returned {sorted(changed)}: return the keys that it changes."
            )
        return {**example, **changed}


OPS: dict[str, Op] = {}
AS_MASKS = ("depth", "segments")  # keys that move as "mask" does


def op(
    *keys: str,
    random: bool = False,
    refuses: tuple[str, ...] = (),
    reads: tuple[str, ...] = (),
    checks: Mapping[str, Check] | None = None,
) -> Callable:
    """Returns a decorator that registers an op's factory under the function's name.

    Args:
        keys: str. Keys of an example that the op changes: "image", "mask", "boxes", "label"...
        random: bool. Whether its function takes a seed.
        refuses: tuple of str. Keys that an example must not have.
        reads: tuple of str. Further keys, such as "void", that the op gets if present but does not change.
        checks: dict. The valid values by the name of a parameter, or of several, separated by spaces: "low high".

    Raises:
        ValueError: without keys, or if the name is taken.
    """
    if not keys or not all(isinstance(key, str) for key in keys):
        raise ValueError(
            f'Expected the keys that the op changes, like @op("image") or @op("image", "mask", "boxes"), got {keys}.'
        )

    def with_maps(names):
        return (*names, *AS_MASKS) if "mask" in names else tuple(names)

    def register(factory):
        name = factory.__name__
        if name in OPS and OPS[name].factory.__module__ != factory.__module__:
            raise ValueError(f'The op "{name}" exists already, in {OPS[name].factory.__module__}. Choose another name.')
        OPS[name] = Op(name, factory, with_maps(keys), random, with_maps(refuses), tuple(reads), checks or {})
        return factory

    return register


_FUSED: dict[tuple[str, ...], Callable] = {}


def fused(first: str, second: str) -> Callable:
    """Registers a factory, (first op's parameters, second's) -> f(example, seed), for the first two ops of a text."""

    def register(factory):
        _FUSED[first, second] = factory
        return factory

    return register


def _check_shapes(example):
    """Refuses examples without an image, and unsupported masks, depths and boxes."""
    if "image" not in example:
        raise ValueError(f'An example needs an "image", but this one has only: {", ".join(example)}.')
    if "mask" in example and example["mask"].dtype != tf.string:
        mask = example["mask"]
        if not mask.dtype.is_integer or not mask.shape.is_compatible_with((None, None, 1)):
            raise ValueError(f'Expected a "mask" of integers (h, w, 1), got {mask.dtype.name} {tuple(mask.shape)}.')
        image = example["image"]
        if image.dtype != tf.string and not image.shape[:2].is_compatible_with(mask.shape[:2]):
            raise ValueError(
                f"The mask has {tuple(mask.shape[:2])} pixels, but the image has {tuple(image.shape[:2])}: resize it."
            )
    if "depth" in example:
        depth = example["depth"]
        if depth.dtype != tf.float32 or not depth.shape.is_compatible_with((None, None, 1)):
            raise ValueError(f'Expected "depth" as float32 (h, w, 1), got {depth.dtype.name} {tuple(depth.shape)}.')
    if "segments" in example:
        segments = example["segments"]
        if segments.dtype != tf.int32 or not segments.shape.is_compatible_with((None, None, 2)):
            raise ValueError(
                f'Expected "segments" as int32 (h, w, 2), got {segments.dtype.name} {tuple(segments.shape)}.'
            )
    if "boxes" in example:
        boxes = example["boxes"]
        if boxes.dtype != tf.float32 or not boxes.shape.is_compatible_with((None, 4)):
            raise ValueError(
                'Expected "boxes" as float32 (m, 4): top, left, bottom, right, as fractions of the height and width;'
                f" got {boxes.dtype.name} {tuple(boxes.shape)}."
            )


@functools.lru_cache(64)
def _graph(text, ops, method):
    """Returns a method of the Preprocess of `text` as a function that is traced once per process for each signature.

    Args:
        ops: tuple of Op. Those of the text: a script may register others under the same names.
    """
    call = getattr(parse(text), method)
    return tf.function(lambda *arguments: call(*arguments), autograph=False)


@dataclasses.dataclass(frozen=True)
class Preprocess:
    """Parsed preprocessing: a function of an example.

    Attributes:
        text: str. The source text.
        steps: tuple of (op, function). The ops, each with the function made by its factory.
    """

    text: str
    steps: tuple[tuple[Op, Callable], ...]

    @property
    def random(self) -> bool:
        """Whether any op is random; if so, calls need a seed."""
        return any(op.random for op, _ in self.steps)

    @property
    def label_ops(self) -> tuple[str, ...]:
        """Names of the ops that change the label."""
        return tuple(op.name for op, _ in self.steps if "label" in op.keys)

    def graph(self, method: str = "__call__") -> Callable:
        """The call, or the method `image`, traced once per process for each signature: decoding takes a second."""
        return _graph(self.text, tuple(op for op, _ in self.steps), method)

    def _apply(self, example, seed, keys=None):
        if seed is None and self.random:
            raise ValueError(f'"{self.text}" has random ops: pass a seed of (2,) integers.')
        for number, (op, function) in enumerate(self.steps):
            if keys is None or keys & set(op.keys):
                child = [tf.random.experimental.stateless_fold_in(seed, number)] if op.random else []
                example = op.apply(function, example, *child)
        return {**example, "image": as_uint8(example["image"])}

    def __call__(self, example: dict[str, Any], seed=None) -> dict[str, Any]:
        """Preprocesses an example's image, mask, boxes and label; other values stay.

        Args:
            example: dict. "image", encoded bytes or pixels (h, w, c), and others; geometry.py defines "mask" and
                "boxes".
            seed: (2,) integers. Required if `random`; each op folds its place in the text into the seed.

        Raises:
            ValueError: if the example lacks a key or has a mask or boxes that an op cannot move, or random ops have no
                seed.
        """
        keys = ("image", "mask", *AS_MASKS, "boxes")
        tensors = {key: tf.convert_to_tensor(example[key]) for key in keys if key in example}
        example = {**example, **tensors}
        _check_shapes(example)
        return self._apply(example, seed)

    def image(self, image, seed=None) -> tf.Tensor:
        """Preprocesses a bare image, encoded bytes or pixels (h, w, c), to uint8 pixels; skips ops on labels."""
        return self._apply({"image": tf.convert_to_tensor(image)}, seed, {"image"})["image"]


def parse_call(expression: str) -> tuple[str, list, dict] | None:
    """'resize(256)' -> (name, args, kwargs); arguments are literals and never evaluated. None for other text."""
    try:
        node = ast.parse(expression, mode="eval").body
        if isinstance(node, ast.Name):
            return node.id, [], {}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            args = [ast.literal_eval(arg) for arg in node.args]
            return node.func.id, args, {k.arg: ast.literal_eval(k.value) for k in node.keywords}
    except (SyntaxError, ValueError):
        pass
    return None


def parse(text: str) -> Preprocess:
    """Parses preprocessing text: ops with literal arguments, joined by "|".

    Raises:
        ValueError: for an unknown op, with the nearest name, invalid arguments, or anything but text.
    """
    if not isinstance(text, str):
        unknown = " model.preprocessing is None for a model without one." if text is None else ""
        raise ValueError(
            f"The preprocessing should be text, got {text!r}.{unknown} Write it out, for a model of 224 px:"
            ' "decode|resize(256)|central_crop(224)".'
        )
    steps, parameters = [], []
    for expression in filter(None, (part.strip() for part in text.split("|"))):
        call = parse_call(expression)
        if call is None:
            raise ValueError(
                f'Cannot read "{expression}" in the preprocessing "{text}". Join ops such as "resize(256)" by "|".'
            )
        name, args, kwargs = call
        if name not in OPS:
            hint = f" {_NOT_NEEDED[name]}" if name in _NOT_NEEDED else did_you_mean(name, OPS)
            raise ValueError(f'Unknown preprocessing op "{name}".{hint} Valid: {", ".join(sorted(OPS))}.')
        factory = OPS[name].factory
        try:
            bound = inspect.signature(factory).bind(*args, **kwargs)
        except TypeError as error:
            raise ValueError(f'"{expression}": {error}. The op is {name}{inspect.signature(factory)}.') from None
        bound.apply_defaults()
        steps.append((OPS[name], OPS[name].make(bound)))
        parameters.append(bound.arguments)
    fuse = _FUSED.get(tuple(op.name for op, _ in steps[:2]))
    if fuse is not None:
        # Keeps two steps, since every op's seed depends on its place in the text.
        steps[:2] = (steps[0][0], lambda example: example), (steps[1][0], fuse(*parameters[:2]))
    return Preprocess(text, tuple(steps))
