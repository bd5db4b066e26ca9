"""What `from_preset` loads with: keras_vit.checkpoints registers its `load` here, since models do not import what loads
them.
"""

import os
from collections.abc import Callable
from typing import Any, TypeVar

_LOADERS: list[Callable] = []
_Loader = TypeVar("_Loader", bound=Callable)


def register_loader(load: _Loader) -> _Loader:
    """Makes `load` the function behind `from_preset`. A decorator."""
    _LOADERS[:] = [load]
    return load


def load_preset(kind: type, preset: str | os.PathLike, arguments: dict[str, Any]) -> Any:
    """The model that `load(preset, **arguments)` returns, which must be a `kind`.

    Raises:
        ValueError: if it is a model of another class.
    """
    model = _LOADERS[0](preset, **arguments)
    if not isinstance(model, kind):
        raise ValueError(
            f'"{preset}" holds a {type(model).__name__}, not a {kind.__name__}: use'
            f" keras_vit.{type(model).__name__}.from_preset, or keras_vit.load, which takes both."
        )
    return model
