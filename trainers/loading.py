"""Arguments of keras_vit.load at the shell, --load.mean=127.5, and its messages in these terms. Imports no engine."""

import ast
import contextlib
import json
import logging
import os
import re
from collections.abc import Iterator
from typing import Any

HELP = (
    "Any argument of keras_vit.load, such as --load.mean=127.5 --load.std=127.5 for values that a file lacks, or"
    " --load.key=model_ema for one of several models in it; by default none."
)
_given: dict[str, Any] = {}
# The arguments by which load's messages advise.
_MODEL = "channels|epsilon|heads|image_size|mean|mlp_activation|norm_first|patch_size|pool|pre_logits|std"
_NAMES = {"--load.": f"{_MODEL}|class_names|classes|head|key|names|pre_logits_activation", "--config.model.": _MODEL}


def _value(text):
    """A flag's text as Python's number, tuple, True, None...; other text as it is."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def take(argv: list[str]) -> list[str]:
    """Takes --load.NAME=VALUE out of the arguments, for `load`; returns the rest.

    Raises:
        ValueError: for one without a value.
    """
    rest = []
    for arg in argv:
        flag, equals, text = arg.partition("=")
        name = flag.lstrip("-").removeprefix("load.")
        if not re.fullmatch(r"--?load\.\w+", flag):
            rest.append(arg)
        elif not equals:
            raise ValueError(f"{flag} has no value. Write {flag}=VALUE.")
        else:
            _given[name] = _value(text)
    return rest


def at_shell(text: str, prefix: str) -> str:
    """A message of keras_vit.load with flags for its arguments: "pass mean=0, std=255" is "pass --load.mean=0
    --load.std=255".

    Args:
        text: the message.
        prefix: of the flags, a key of _NAMES.
    """
    names = _NAMES[prefix]
    text = text.replace("keras_vit.list_models() lists all", "`keras-vit models` lists all")
    text = re.sub(r'Then call, (with .*:)\n  keras_vit\.load\(".*", (.*)\)', r"Then add, \1\n  \2", text)
    saved = "by `keras-vit export --model=FILE --output=model.keras`"
    text = text.replace('by keras_vit.save(model, "model.keras")', saved)
    text = re.sub(
        rf"\b(pass|Pass) ({names})\b(?!=)(?: and ({names})\b(?!=))?",
        lambda m: f"{m[1]} " + " ".join(f"{prefix}{name}=VALUE" for name in m.groups()[1:] if name),
        text,
    )
    text = re.sub(rf"(?<![\w.-])({names})=(?!\s)", rf"{prefix}\1=", text)
    flag = rf"{re.escape(prefix)}\w+="
    text = re.sub(rf"({flag})(\([^()]*\))", r'\1"\2"', text)
    # Flags are joined by spaces.
    return re.sub(rf"({flag}(?:\"[^\"]*\"|[^\s,]+))(?:,| and) (?={re.escape(prefix)})", r"\1 ", text)


@contextlib.contextmanager
def in_shell_words(prefix: str = "--load.") -> Iterator[None]:
    """A context in which warnings and errors of keras_vit.load name flags that begin with `prefix`."""

    def rewrite(record):
        if record.levelno >= logging.WARNING:
            record.msg, record.args = at_shell(record.getMessage(), prefix), ()
        return True

    logger = logging.getLogger("absl")
    logger.addFilter(rewrite)
    try:
        yield
    except (ValueError, OSError) as error:
        if len(error.args) == 1:
            error.args = (at_shell(str(error), prefix),)
        raise
    finally:
        logger.removeFilter(rewrite)


def refuse(why: str) -> None:
    """Raises ValueError, beginning with `why`, if there is any --load.NAME, which would be ignored."""
    if _given:
        raise ValueError(f"{why}, which --load.{next(iter(_given))} cannot change: leave it out.")


def _refuse_export(model):
    """Raises ValueError for a SavedModel of `export`, with the command that takes it."""
    folder = os.path.expanduser(model)
    has = [os.path.exists(os.path.join(folder, name)) for name in ("saved_model.pb", "model.keras")]
    if has != [True, False]:
        return
    try:
        with open(os.path.join(folder, "metadata.json"), encoding="utf-8") as file:
            about = json.load(file)
    except (OSError, ValueError):
        return  # not of `export`
    runs = ""
    if about.get("task") == "segmentation":
        runs = f" The export itself runs by `keras-vit segment {model} IMAGES --output=FOLDER`."
    elif about.get("task") is None and about.get("classes"):
        runs = f" The export itself runs by `keras-vit classify {model} IMAGES`."
    raise ValueError(
        f"{model} is an export, a SavedModel: give the model that it was made from, such as its run directory.{runs}"
    )


def load(model: str, **arguments: Any) -> Any:
    """keras_vit.load(model) with a command's own arguments that are not None, and those of --load.NAME.

    Raises:
        ValueError: as keras_vit.load, in the shell's words, for an argument that is given twice, or an export.
    """
    import keras_vit

    _refuse_export(model)
    arguments = {name: value for name, value in arguments.items() if value is not None}
    twice = sorted(arguments.keys() & _given.keys())
    if twice:
        raise ValueError(f"--{twice[0]} and --load.{twice[0]} set the same: give one of them.")
    with in_shell_words():
        return keras_vit.load(model, **arguments, **_given)
