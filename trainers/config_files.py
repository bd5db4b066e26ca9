"""Finding configs: packaged ones by name, your own by path; and overriding their keys. Imports no engine."""

import ast
import importlib
import importlib.util
import inspect
import os
import pathlib
import re
import sys

from ml_collections import ConfigDict

_CONFIGS = pathlib.Path(__file__).resolve().parent.parent / "configs"
_PACKAGE = "keras_vit_packaged_configs"
# Sections that accept keys which the config does not have: the model's spec and the evaluators check them when they are created.
OPEN = ("model", "evals")


def _module(name, path, **kwargs):
    spec = importlib.util.spec_from_file_location(name, path, **kwargs)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _suggest():
    """keras_vit/io/suggest.py, loaded by its path, because importing keras_vit would import an engine."""
    here = pathlib.Path(__file__).resolve().parent.parent
    path = next(p for p in (here / "keras_vit" / "io" / "suggest.py", here / "io" / "suggest.py") if p.is_file())
    return sys.modules.get("keras_vit_suggest") or _module("keras_vit_suggest", path)


def did_you_mean(name, valid):
    """' Did you mean "..."?' with the valid name nearest to a mistyped one, or an empty string."""
    return _suggest().did_you_mean(name, valid)


def config_names():
    """The packaged configs' names."""
    return sorted(p.stem for p in _CONFIGS.glob("*.py") if p.stem != "__init__")


def packaged(name):
    """A module of the packaged configs, such as "digits_pretrain" or "lib.datasets"."""
    if _PACKAGE not in sys.modules:
        _module(_PACKAGE, _CONFIGS / "__init__.py", submodule_search_locations=[str(_CONFIGS)])
    return importlib.import_module(f"{_PACKAGE}.{name}")


def _first(error):
    """What an error says; the text of a KeyError would be in quotes, with its line ends escaped."""
    text = str(error.args[0] if error.args else error)
    return text.strip("'\"").replace("\\n", " ").replace("\\'", "'")


def _own(name):
    """The module of a config file of the user's own.

    Raises:
        ValueError: if it cannot be loaded, saying why.
    """
    try:
        return _module("keras_vit_own_config", name)
    except (SyntaxError, ImportError, NameError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(" ".join(f"{name}: {type(error).__name__}: {_first(error)}".split())) from None


def _call(module, name, argument):
    """The config that the module's get_config returns for `argument`, the text after the colon or ""."""
    if not hasattr(module, "get_config"):
        raise ValueError(f"{name}: it has no function get_config.")
    takes = bool(inspect.signature(module.get_config).parameters)
    if argument and not takes:
        raise ValueError(f'The config "{name}" takes no argument, got "{argument}".')
    try:
        return module.get_config(argument) if takes else module.get_config()
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = error if isinstance(error, ValueError) else f"{type(error).__name__}: {_first(error)}"
        raise ValueError(" ".join(f"{name}: {reason}".split())) from None


def load_config(text):
    """The ConfigDict of a packaged config's name or of a Python file's path, with the config's argument after a colon.

    "digits_pretrain", "augreg:medium1,S/32", "/my/own.py", "/my/own.py:argument".

    Raises:
        ValueError: if there is no such config, or it does not accept the argument.
    """
    name, argument = re.fullmatch(r"(.*?\.py|[^:]*)(?::(.*))?", text, re.DOTALL).groups(default="")
    if name.endswith(".py") or os.sep in name:
        if not os.path.isfile(name):
            raise ValueError(f'There is no config file "{name}".')
        if pathlib.Path(name).resolve().parent != _CONFIGS:
            return _call(_own(name), name, argument)
        name = pathlib.Path(name).stem
    if name not in config_names():
        valid, hint = ", ".join(config_names()), did_you_mean(name, config_names())
        raise ValueError(f'There is no config "{name}".{hint} Packaged: {valid}; or give a .py file.')
    return _call(packaged(name), name, argument)


def _split_override(arg):
    """("data.train", the text after "=" or None) of "--config.data.train=..."; None for any other argument."""
    flag, equals, text = arg.lstrip("-").partition("=")
    if not (arg.startswith("-") and flag.startswith("config.")):
        return None
    return flag.removeprefix("config."), text if equals else None


def _literal(text):
    """The value of a Python literal, or the text itself if it is not one, such as gap."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _check_key(key, config):
    """Refuses a key that the config does not have, naming the nearest one."""
    place = config
    for part in key.split("."):
        name = part.partition("[")[0]
        valid = list(place.keys()) if hasattr(place, "keys") else []
        if name not in valid:
            hint = did_you_mean(name, valid)
            raise ValueError(f'--config.{key}: the config has no "{name}" there.{hint} Valid: {", ".join(valid)}.')
        place = place[name] if place.get_ref(name).get() is not None else None


def _has(config, parts):
    for part in parts:
        if not hasattr(config, "keys") or part not in config:
            return False
        config = config[part]
    return True


def _set_new(config, parts, value):
    """Sets a key of an open section, creating ConfigDicts as needed."""
    *folders, last = parts
    for part in folders:
        if part not in config:
            config[part] = ConfigDict()
        config = config[part]
    config[last] = value


def apply_overrides(argv, config):
    """Checks the --config.KEY=VALUE arguments, and applies those that absl's flags cannot: None, and new keys of open sections.

    Returns:
        The remaining arguments, for absl.

    Raises:
        ValueError: for a key that the config does not have, naming the nearest one.
    """
    rest = []
    for arg in argv:
        override = _split_override(arg)
        if override is None:
            rest.append(arg)
            continue
        key, text = override
        parts = key.split(".")
        if parts[0] in OPEN and len(parts) > 1 and not _has(config, parts):
            if text is None:
                raise ValueError(f"--config.{key} has no value. Write --config.{key}=VALUE.")
            _set_new(config, parts, _literal(text))
            continue
        _check_key(key, config)
        if text == "None":
            _set_new(config, parts, None)
        else:
            rest.append(arg)
    return rest
