"""Modules of keras_vit for the binaries, loaded by path, because importing keras_vit imports an engine."""

import importlib.util
import os
import pathlib
import sys
from types import ModuleType

_HERE = pathlib.Path(__file__).resolve().parent.parent
# keras_vit is beside trainers/ in a checkout, and around it where it is installed.
_PACKAGE = _HERE / "keras_vit" if (_HERE / "keras_vit").is_dir() else _HERE


def module_at(name: str, path: pathlib.Path | str, **kwargs) -> ModuleType:
    """The module in the file `path`, executed and registered in sys.modules as `name`."""
    spec = importlib.util.spec_from_file_location(name, path, **kwargs)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def package_module(place: str) -> ModuleType:
    """A module of keras_vit that imports none of its others, such as "io.suggest"."""
    name = f"keras_vit_light_{place}"
    return sys.modules.get(name) or module_at(name, _PACKAGE.joinpath(*place.split(".")).with_suffix(".py"))


def drop_output() -> None:
    """Discards pending output after a BrokenPipeError: its reader, such as head, has ended."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


did_you_mean = package_module("io.suggest").did_you_mean
VERSION = package_module("version").__version__
