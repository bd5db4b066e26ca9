"""Config files: found by name or path, with overridden keys. Imports no engine."""

import collections
import importlib
import inspect
import os
import pathlib
import re
import sys

from ml_collections import ConfigDict, FieldReference

from .short_forms import FROM_TIMM
from .without_engine import did_you_mean, module_at, package_module

keys, suggest = package_module("runs.config_keys"), package_module("io.suggest")
CONFIGS = pathlib.Path(__file__).resolve().parent.parent / "configs"
_PACKAGE = "keras_vit_packaged_configs"
_PLACEHOLDERS = {  # meanings of a recipe's PATH
    "folder": ("PHOTOS", "a folder with one subfolder of images per class"),
    "images": ("PHOTOS", "a folder of images"),
    "masks": ("FOLDER", "a folder of images and masks"),
    "boxes": ("FOLDER", "a folder of images with annotations of boxes"),
    "csv": ("FILE.csv", "a table of images and labels"),
    "jsonl": ("FILE.jsonl", "a table of images and labels"),
    "tfrecord": ("FOLDER", "TFRecord files, as keras-vit prepare writes them"),
}


def config_names():
    """The packaged configs' names."""
    return sorted(p.stem for p in CONFIGS.glob("*.py") if p.stem != "__init__")


def packaged(name):
    """A module of the packaged configs, such as "digits_pretrain" or "lib.datasets"."""
    if _PACKAGE not in sys.modules:
        module_at(_PACKAGE, CONFIGS / "__init__.py", submodule_search_locations=[str(CONFIGS)])
    return importlib.import_module(f"{_PACKAGE}.{name}")


def _first(error):
    """An error's text; a KeyError's own has quotes and escaped line ends."""
    text = str(error.args[0] if error.args else error)
    return text.strip("'\"").replace("\\n", " ").replace("\\'", "'")


def _own(name):
    """The module of a user's config file; ValueError says why it cannot be loaded."""
    try:
        return module_at("keras_vit_own_config", name)
    except (SyntaxError, ImportError, NameError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(" ".join(f"{name}: {type(error).__name__}: {_first(error)}".split())) from None


def _hint(module, argument):
    """A hint for the argument's first word that a packaged config does not know."""
    words = [word for group in getattr(module, "CHOICES", {}).values() for word in group]
    unknown = [word.strip() for word in argument.split(",") if word.strip() not in ("", *words)]
    return did_you_mean(unknown[0], words) if unknown else ""


def _call(module, name, argument):
    """The config from the module's get_config, given `argument`, the text after the colon or ""."""
    if not hasattr(module, "get_config"):
        raise ValueError(f"{name}: it has no function get_config.")
    takes = bool(inspect.signature(module.get_config).parameters)
    if argument and not takes:
        raise ValueError(f'The config "{name}" takes no argument, got "{argument}".')
    try:
        return module.get_config(argument) if takes else module.get_config()
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = error if isinstance(error, ValueError) else f"{type(error).__name__}: {_first(error)}"
        raise ValueError(" ".join(f"{name}: {reason}{_hint(module, argument)}".split())) from None


def load_config(text):
    """The ConfigDict of a packaged config or of a Python file, with an argument after a colon.

    "digits_pretrain", "augreg:medium1,S/32", "/my/own.py", "/my/own.py:argument".

    Raises:
        ValueError: if there is no such config, or it does not accept the argument.
    """
    name, argument = re.fullmatch(r"(.*?\.py|[^:]*)(?::(.*))?", text, re.DOTALL).groups(default="")
    if name.endswith(".py") or os.sep in name:
        if not os.path.isfile(name):
            raise ValueError(
                f'There is no config file "{name}".{did_you_mean(pathlib.Path(name).stem, config_names())}'
            )
        if not name.endswith(".py"):
            raise ValueError(
                f'"{name}" is not a Python file, and a config is one. A run whose directory has a config.json goes on'
                " with the command that started it, in the same --workdir."
            )
        if pathlib.Path(name).resolve().parent != CONFIGS:
            return _call(_own(name), name, argument)
        name = pathlib.Path(name).stem
    if name not in config_names():
        valid, hint = ", ".join(config_names()), did_you_mean(name, config_names())
        raise ValueError(f'There is no config "{name}".{hint} Packaged: {valid}; or give a .py file.')
    return _call(packaged(name), name, argument)


def _split_override(arg):
    """("data.train", text after "=" or None) of "--config.data.train=..."; None for any other argument."""
    flag, equals, text = arg.lstrip("-").partition("=")
    if not (arg.startswith("-") and flag.startswith("config.")):
        return None
    return flag.removeprefix("config."), text if equals else None


def flat_values(config, above=""):
    """{"optimizer.name": "adamw"...} of all keys of a config."""
    values = {}
    for name, value in config.items():
        values |= flat_values(value, f"{above}{name}.") if isinstance(value, ConfigDict) else {f"{above}{name}": value}
    return values


def _check_key(key, config):
    """Refuses sections, and unknown keys, naming the nearest one."""
    place = config
    for part in key.split("."):
        name = part.partition("[")[0]
        valid = list(place.keys()) if hasattr(place, "keys") else []
        if name not in valid:
            hint = suggest.did_you_mean_key(name, valid, config)
            if not hint and name in FROM_TIMM:
                hint = f' Did you mean "{FROM_TIMM[name]}"?'
            here = f" Valid: {', '.join(valid)}." if valid else ""
            raise ValueError(f'--config.{key}: the config has no "{name}" there.{hint}{here}')
        place = place[name]
    if isinstance(place, ConfigDict):
        off = f" To leave this evaluator out: --config.{key}=None." if keys.is_evaluator(key) else ""
        inside = ", ".join(f"--config.{key}.{name}" for name in place) or f"--config.{key}.KEY; it has none yet"
        raise ValueError(f"--config.{key} is a section. Set its keys: {inside}.{off}")


def _section(config, parts):
    """The section that a key is in, or an empty one."""
    for part in parts[:-1]:
        config = config.get(part) if isinstance(config, ConfigDict) else None
    return config if isinstance(config, ConfigDict) else ConfigDict()


def _may_be_none(section, parts):
    """Whether a key may be disabled: it is a placeholder or another reference, None, or in an open section."""
    stored = dict(section.items(preserve_field_references=True)).get(parts[-1])
    return parts[0] in keys.OPEN or stored is None or isinstance(stored, FieldReference)


def _is_size(key, text):
    """Whether a value is the size of images, one number or (height, width): a recipe's default is of either type.

    Raises:
        ValueError: for another value of this key.
    """
    if key != "model.image_size":
        return False
    size = keys.literal(text)
    sides = size if isinstance(size, tuple) and len(size) == 2 else (size,)
    if not all(type(side) is int and side > 0 for side in sides):
        raise ValueError(f'--config.{key}={text}: expected pixels, such as 224, or (height, width), as "(192, 256)".')
    return True


def _check_new_key(parts, config):
    """Refuses a key that belongs in another section, naming the right key, or an evaluator that is not a section."""
    key, name = ".".join(parts), parts[-1]
    closed = {section: config[section] for section in config if section not in keys.OPEN}
    valid = {path.rpartition(".")[2] for path in flat_values(ConfigDict(closed))}
    # A custom task may give its model any key.
    if parts[:-1] == ["model"] and keys.is_packaged_task(config.get("task", "")) and name in valid:
        raise ValueError(f'--config.{key}: a model has no "{name}".{suggest.did_you_mean_key(name, [], closed)}')
    if parts[0] == "evals" and len(parts) == 2:
        raise ValueError(f"--config.{key} is an evaluator, a section. Set its keys: --config.{key}.source=digits.")


def _check_evaluator(name, config):
    """Refuses to leave out an evaluator that the config lacks, naming those it has."""
    own = list(config.evals)
    if name not in own:
        has = f"It has: {', '.join(own)}" if own else "It has none"
        raise ValueError(
            f'--config.evals.{name}=None: the config has no evaluator "{name}" to leave'
            f" out.{suggest.did_you_mean(name, own)} {has}."
        )


def _sets(arg, key):
    """Whether an absl argument sets a key, one of its elements, or a key below it."""
    return re.match(rf"--?config\.{re.escape(key)}(?!\w)", arg) is not None


def apply_overrides(argv, config):
    """Checks --config.KEY=VALUE arguments, and applies those that absl cannot: None, and new keys of open sections.

    The last of several values of a key counts. None leaves out an evaluator: --config.evals.knn=None.

    Returns:
        The remaining arguments, for absl.

    Raises:
        ValueError: for an unknown key, naming the nearest one.
    """
    rest, arguments = [], collections.deque(argv)
    while arguments:
        arg = arguments.popleft()
        override = _split_override(arg)
        if override is None:
            rest.append(arg)
            continue
        key, text = override
        parts = key.split(".")
        if text == "None" and keys.is_evaluator(key):
            _check_evaluator(parts[1], config)
            keys.remove_key(config, parts)
            rest = [given for given in rest if not _sets(given, key)]
            continue
        section = _section(config, parts)
        new = parts[0] in keys.OPEN and len(parts) > 1 and parts[-1] not in section
        _check_new_key(parts, config) if new else _check_key(key, config)
        value_type = section.get_type(parts[-1]) if parts[-1] in section else object
        if text is None and value_type is bool:
            rest.append(arg)
            continue
        if text is None:
            if not arguments or arguments[0].startswith("--"):
                raise ValueError(f"--config.{key} has no value. Write --config.{key}=VALUE.")
            text = arguments.popleft()
        keys.check_not_off(f"--config.{key}", text, value_type)
        if text == "None" and not new and not _may_be_none(section, parts):
            raise ValueError(f"--config.{key}=None: this cannot be off. It is {flat_values(config)[key]!r}.")
        if new or text == "None" or _is_size(key, text):
            keys.set_key(config, parts, keys.literal(text))
            rest = [given for given in rest if not _sets(given, key)]  # the last one counts, and absl would override it
        else:
            rest.append(f"--config.{key}={text}")
    return rest


def check_source(values):
    """Refuses a recipe's placeholder source, such as "folder:PATH", saying what to give.

    Args:
        values: the flags. A plan with the numbers of examples and classes needs no source.
    """
    if values.dry_run and values.examples and values.classes:
        return
    kind, _, path = str(values.config.data.source).partition("?")[0].partition(":")
    if kind in _PLACEHOLDERS and path in ("", "PATH"):
        name, what = _PLACEHOLDERS[kind]
        raise ValueError(f"This config needs data of yours: --data={name}, {what}.")
