"""Prints the shell completion of verbs, flags and config names.

    eval "$(keras-vit completion bash)"    # in ~/.bashrc
    eval "$(keras-vit completion zsh)"     # in ~/.zshrc, after compinit

The shell then runs keras-vit at each TAB, which imports no engine.
"""

import contextlib
import importlib
import io
import sys

from . import flags
from .command import VERBS, verb_module
from .config_files import config_names, flat_values, load_config, packaged

# `keras-vit completion words SHELL VERB FLAG...` prints the candidates, one per line; without any, shells complete file
# names. bash breaks its words at = and :, zsh does not.
_BASH = r"""_keras_vit() {
    local line="${COMP_LINE:0:COMP_POINT}" IFS=$'\n'
    COMPREPLY=($(keras-vit completion words bash "$line" 2>/dev/null))
}
complete -o default -o nospace -F _keras_vit keras-vit"""
_ZSH = r"""_keras_vit() {
    local -a found
    found=("${(@f)$(keras-vit completion words zsh "${(j: :)words[1,CURRENT]}" 2>/dev/null)}")
    if [[ -n "$found" ]]; then
        compadd -Q -S '' -a found
    else
        compset -P '*='
        _files
    fi
}
compdef _keras_vit keras-vit"""
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH}


def _list_flags(verb):
    """The flags of a verb: "--workdir=", "--dry_run"."""
    sys.argv = [verb, flags.LIST_FLAGS]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        importlib.import_module(f"{__package__}.{verb_module(verb)}").run()
    return printed.getvalue().split()


def _configs(text):
    """The packaged configs' names, or after a colon the words that a config accepts, with the text before them."""
    name, colon, words = text.partition(":")
    if not colon:
        return config_names()
    begin = text[: len(text) - len(words.rpartition(",")[2])]
    choices = getattr(packaged(name), "CHOICES", {}) if name in config_names() else {}
    return [begin + word for group in choices.values() for word in group]


def _keys(given):
    """The keys of the config that the words before name."""
    name = next((word.partition("=")[2] for word in given if word.startswith("--config=")), "")
    return [f"--config.{key}=" for key in flat_values(load_config(name))] if name else []


def candidates(given: list[str], word: str) -> list[str]:
    """Candidates for the unfinished `word` after the words `given`; a space marks a complete one."""
    if not given:
        return [f"{name} " for name in (*VERBS, "--help", "--version")]
    verb = given[0]
    if word.startswith("--config="):
        return [f"--config={text} " for text in _configs(word.removeprefix("--config="))]
    if word.startswith("--config."):
        return _keys(given)
    if not word.startswith("-"):
        return [f"{name} " for name in {"configs": config_names(), "completion": tuple(_SCRIPTS)}.get(verb, ())]
    return (
        [flag if flag.endswith("=") else f"{flag} " for flag in (*_list_flags(verb), "--help")] if verb in VERBS else []
    )


def words(shell: str, line: str) -> list[str]:
    """Candidates that continue a command line up to the cursor; bash breaks the last word at its last = or :."""
    _, *given, word = line.split(" ")
    begin = 1 + max(word.rfind("="), word.rfind(":")) if shell == "bash" else 0
    return [text[begin:] for text in candidates([text for text in given if text], word) if text.startswith(word)]


def main(arguments):
    if arguments[:1] == ["words"] and len(arguments) == 3:
        print("\n".join(words(*arguments[1:])))
        return
    shell = arguments[0] if len(arguments) == 1 else ""
    if shell not in _SCRIPTS:
        raise ValueError(f"completion takes one shell, {' or '.join(_SCRIPTS)}, got {' '.join(arguments) or 'none'}.")
    print(_SCRIPTS[shell])


def run():
    flags.launch(main, takes="SHELL")


if __name__ == "__main__":
    run()
