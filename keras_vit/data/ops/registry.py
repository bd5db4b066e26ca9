"""The registry of preprocessing ops. An op is one decorated factory, whose parameters are the ones written in the
text's brackets.

The decorator names the keys of an example that the op changes, and says whether the op is random.

- An op on one key is a function of that value: `@op("image")` maps pixels (h, w, c) to pixels, `@op("label")` a label
  to a label.
- An op on several keys is a function of a dict with those of its keys that the example has, and returns a dict of the
  same keys: so it moves the pixels, the mask and the boxes of an example together.
- With `random=True` the function takes a second argument, a seed of (2,) integers, and must be a pure function of both.

Values stay on the 0..255 scale. An op of your own needs no change here:

    @op("image", "mask", "boxes", random=True)
    def my_flip():
        def apply(example, seed):
            ...
            return {"image": ..., "mask": ..., "boxes": ...}

        return apply
"""

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Op:
    """A registered op.

    Attributes:
        name: how the text calls it.
        factory: parameters -> the function of an example's values.
        keys: what of an example it changes.
        random: whether its function takes a seed.
        refuses: keys that an example must not have, since the op would leave them behind.
    """

    name: str
    factory: Callable[..., Callable]
    keys: tuple[str, ...]
    random: bool = False
    refuses: tuple[str, ...] = ()

    def apply(self, function: Callable, example: dict[str, Any], *seed) -> dict[str, Any]:
        """The example as `function`, which the factory made, changes it.

        Raises:
            ValueError: if the example has a key that the op refuses, lacks the op's only key, or loses one of the op's
                keys.
        """
        refused = [key for key in self.refuses if key in example]
        if refused:
            raise ValueError(
                f"{self.name} moves pixels, and cannot move {' and '.join(refused)} with them. Leave it out, or leave "
                f"{' and '.join(refused)} out of the examples."
            )
        if len(self.keys) == 1:
            (key,) = self.keys
            if key not in example:
                raise ValueError(f'{self.name} changes "{key}", and the example has only: {", ".join(example)}.')
            return {**example, key: function(example[key], *seed)}
        given = {key: example[key] for key in self.keys if key in example}
        changed = function(dict(given), *seed)
        if set(changed) != set(given):
            raise ValueError(
                f"{self.name} was given {sorted(given)} and returned {sorted(changed)}: return each key that it is"
                " given."
            )
        return {**example, **changed}


OPS: dict[str, Op] = {}


def op(*keys: str, random: bool = False, refuses: tuple[str, ...] = ()) -> Callable:
    """A decorator that registers an op's factory under the function's name.

    Args:
        keys: what of an example the op changes: "image", "mask", "boxes", "label"...
        random: whether its function takes a seed.
        refuses: keys that an example must not have.

    Raises:
        ValueError: without keys, or if another op has the name.
    """
    if not keys or not all(isinstance(key, str) for key in keys):
        raise ValueError(
            'Name the keys that an op changes: @op("image"), or @op("image", "mask", "boxes", random=True).'
        )

    def register(factory):
        name = factory.__name__
        if name in OPS and OPS[name].factory.__module__ != factory.__module__:
            raise ValueError(
                f'There is an op "{name}" already, in {OPS[name].factory.__module__}. Choose another name.'
            )
        OPS[name] = Op(name, factory, keys, random, tuple(refuses))
        return factory

    return register
