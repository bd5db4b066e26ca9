"""Values of config keys, from the command line and sweeps. Imports nothing of ours: the command line has no engine."""

import ast
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

# Sections that accept new keys: the model's spec, the evaluators and the task check them when they are made.
OPEN = ("model", "evals", "objective")
# Words that would be read as text and disable nothing: None disables an option.
_OFF_WORDS = ("off", "no", "none", "null")
# Here "none" is a value, and None means the variant's default.
_NONE_IS_A_VALUE = "model.positions"


def is_packaged_task(name: str) -> bool:
    """Whether `config.task` is one of this package's, for a model with a spec; a custom task takes any key."""
    return ":" not in name


def is_evaluator(key: str) -> bool:
    """Whether a key is an evaluator's section, evals.NAME."""
    return key.startswith("evals.") and key.count(".") == 1


def literal(text: str) -> Any:
    """A Python literal, true or false in any case, or else the text itself, such as gap."""
    try:
        return ast.literal_eval(text.capitalize() if text.lower() in ("true", "false") else text)
    except (ValueError, SyntaxError):
        return text


def check_not_off(name: str, text: str, value_type: type) -> None:
    """Refuses words such as "off" that are meant to disable an option; suggests None, or none for model.positions.

    Args:
        name: the key, for the error.
        text: its value.
        value_type: type of its values, object for any; "false" is valid for bool.
    """
    if name.endswith(_NONE_IS_A_VALUE):
        if text == "None":
            raise ValueError(f"{name}=None means the variant's own, learned positions. For none, write {name}=none.")
        return
    words = _OFF_WORDS if value_type is object else (*_OFF_WORDS, "false")
    if value_type is not bool and text.lower() in words and text != "None":
        raise ValueError(f"{name}={text}: None turns an option off. Write {name}=None.")


def set_key(config: ConfigDict, parts: Sequence[str], value: Any) -> None:
    """Sets the key at the path `parts`, creating sections as needed; the config may be locked."""
    *folders, last = parts
    with config.unlocked(), config.ignore_type():
        for part in folders:
            if part not in config:
                config[part] = ConfigDict()
            config = config[part]
        config[last] = value


def remove_key(config: ConfigDict, parts: Sequence[str]) -> None:
    """Removes the key or section at the path `parts`; the config may be locked."""
    *folders, last = parts
    with config.unlocked():
        for part in folders:
            config = config[part]
        del config[last]
