"""What keys of a config take, on the command line and in a sweep. Imports no other module of ours: the command line
loads it without an engine.
"""

import ast
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

# Sections that accept keys which the config does not have: the model's spec, the evaluators and the task check them
# when they are made.
OPEN = ("model", "evals", "objective")
# Words that would be text, and not switch anything off: what is off is None.
_OFF_WORDS = ("off", "no", "none", "null")
# Where "none" is a value, and None would stand for the variant's own.
_NONE_IS_A_VALUE = "model.positions"


def is_packaged_task(name: str) -> bool:
    """Whether `config.task` is one of this package's, whose model has the fields of a spec; a user's own may have any
    key.
    """
    return ":" not in name


def is_evaluator(key: str) -> bool:
    """Whether a key is the section of an evaluator: evals.NAME."""
    return key.startswith("evals.") and key.count(".") == 1


def literal(text: str) -> Any:
    """The value of a Python literal, of true or false in any case, or the text itself if it is none of these, such as
    gap.
    """
    try:
        return ast.literal_eval(text.capitalize() if text.lower() in ("true", "false") else text)
    except (ValueError, SyntaxError):
        return text


def check_not_off(name: str, text: str, value_type: type) -> None:
    """Refuses words that are meant to switch an option off, such as "off".

    Args:
        name: of the key, for the error.
        text: its value.
        value_type: the type of its values, object for any; bool has words of its own.

    Raises:
        ValueError: naming None, or for model.positions naming none.
    """
    if name.endswith(_NONE_IS_A_VALUE):
        if text == "None":
            raise ValueError(
                f"{name}=None would be the variant's own, learned positions. A model without any has {name}=none."
            )
        return
    words = _OFF_WORDS if value_type is object else (*_OFF_WORDS, "false")
    if value_type is not bool and text.lower() in words and text != "None":
        raise ValueError(f"{name}={text}: an option that is off is None. Write {name}=None.")


def set_key(config: ConfigDict, parts: Sequence[str], value: Any) -> None:
    """Sets the value of the key whose path is `parts`, creating sections and keys as needed; the config may be
    locked.
    """
    *folders, last = parts
    with config.unlocked(), config.ignore_type():
        for part in folders:
            if part not in config:
                config[part] = ConfigDict()
            config = config[part]
        config[last] = value


def remove_key(config: ConfigDict, parts: Sequence[str]) -> None:
    """Removes the key or section whose path is `parts`; the config may be locked."""
    *folders, last = parts
    with config.unlocked():
        for part in folders:
            config = config[part]
        del config[last]
