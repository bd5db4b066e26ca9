"""Flags shared by the binaries, including --config, launching, and exit codes. Imports no engine.

The config is loaded before absl parses the flags, so that --config.key=value can override it.
"""

import contextlib
import logging as python_logging
import os
import pathlib
import re
import signal
import sys
import warnings

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from . import QUIET, loading
from .config_files import apply_overrides, config_names, flat_values, load_config
from .short_forms import FROM_TIMM, SHORT_FORMS, as_overrides, is_local, take
from .without_engine import VERSION, did_you_mean, drop_output, package_module

in_lines = package_module("io.stderr").in_lines
nearest, pip_install = package_module("io.suggest").nearest, package_module("io.suggest").pip_install
LIST_FLAGS = "--list_flags"  # for completion: prints the names of the flags
_OURS = {}  # {flag shown by --help: whether it is required}
# Other commands' names for the same.
_SYNONYMS = {
    "data": ("source", "images", "train"),
    "source": ("data",),
    "images": ("data",),
    "init": ("model",),
    "model": ("init",),
    "output": ("workdir", "index"),
    "resume": ("workdir",),
    "workdir": ("output",),
}
_RESTART = 75  # EX_TEMPFAIL of sysexits.h


def _take_config(argv):
    """Takes --config NAME out of `argv`; returns (NAME or "", the rest)."""
    rest, name, values = argv[:1], "", iter(argv[1:])
    for arg in values:
        flag, equals, value = arg.partition("=")
        if flag in ("--config", "-config"):
            name = value if equals else next(values, "")
        else:
            rest.append(arg)
    return name, rest


def _names():
    """The names of all flags, short forms first."""
    return [row.name for row in SHORT_FORMS if "config" in _OURS] + sorted(_OURS)


def _default(name):
    """The end of a flag's help: that it is required, or a default that the text does not mention."""
    flag = flags.FLAGS[name]
    if _OURS[name]:
        return " (required)"
    if name == "config" or (flag.default is None and "default" in flag.help):
        return ""
    return f" (default: {flag.default})"


def _show_help(main, takes, loaded, loads):
    """The binary's docstring and flags; absl's own help misses both under a console script."""
    print(main.__globals__["__doc__"])
    if takes:
        print(f"Arguments: {takes}\n")
    for row in SHORT_FORMS if "config" in _OURS else ():
        print(f"  --{row.name}: {row.text}")
    for name in sorted(_OURS):
        print(f"  --{name}: {flags.FLAGS[name].help}{_default(name)}")
    if loads:
        print(f"  --load.NAME=VALUE: {loading.HELP}")
    if loaded:
        print("\nThe config's keys:\n")
        print("\n".join(f"  --config.{key}={value}" for key, value in flat_values(loaded).items()))


def _meant(name, valid, with_config):
    """The flags that an unknown one may mean: that of timm's name for the same, then those of names near it."""
    key = FROM_TIMM.get(name)
    flag = next((row.name for row in SHORT_FORMS if row.key == key), f"config.{key}")
    of_timm = [flag] if key and (with_config or flag in valid) else []
    return [f"--{other}" for other in (*of_timm, *nearest(name, valid))]


def _hint(name, argv):
    """The flag that an unknown one probably means, "" if there is none."""
    file = next((arg for arg in argv[1:] if arg.startswith("-") and arg.lstrip("-") == name), None)
    if file and os.path.exists(file):
        return f" The file of this name is ./{file}."
    name, with_config = name.replace("-", "_"), "config" in _OURS
    keys = flat_values(flags.FLAGS["config"].value) if with_config else {}
    same = [f"--config.{key}" for key in keys if key.rpartition(".")[2] == name]
    same += [f"--{other}" for other in _SYNONYMS.get(name, ()) if other in _names()]
    same += _meant(name, _names(), with_config)
    return f' Did you mean "{same[0]}"?' if same else ""


def _parse(argv):
    """The program's name and the arguments that are not flags.

    Raises:
        SystemExit: for flags that are unknown, missing, or without a valid value.
    """
    program = pathlib.Path(argv[0]).name
    try:
        return flags.FLAGS(argv)
    except flags.UnrecognizedFlagError as error:
        valid = ", ".join(f"--{name}" for name in _names())
        raise SystemExit(
            f"{program}: there is no flag --{error.flagname}.{_hint(error.flagname, argv)} Valid: {valid}. --help"
            " explains them."
        ) from None
    except flags.Error as error:
        # A validator's message follows the names of its flags.
        missing = [name for name, required in _OURS.items() if required and flags.FLAGS[name].value is None]
        if missing and "must have a value other than None" in str(error):
            raise SystemExit(
                f"{program}: {' and '.join(f'--{name}' for name in missing)} must be given. --help explains the flags."
            ) from None
        said = [line.rpartition(": ")[2] if line.startswith("flags ") else line for line in str(error).splitlines()]
        said = [
            re.sub(r"invalid literal for int\(\) with base 10: ('.*')", r"\1 is not an integer.", line) for line in said
        ]
        said = [line if line.endswith((".", "?", "!")) else f"{line}." for line in said]
        raise SystemExit(f"{program}: {' '.join(said)} --help explains the flags.") from None


def end_by_ctrl_c():
    """Ends the process by SIGINT itself: a shell gives 130, and ends a loop or script around the command, too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.raise_signal(signal.SIGINT)
    os._exit(130)  # where signals end no process


@contextlib.contextmanager
def _restartable(resumes):
    """A context in which SIGTERM and Ctrl-C end the process at once with a line and no traceback; training saves first.

    Files are replaced atomically, so there is nothing to clean up. SIGTERM's exit code 75 asks to be started again.
    After Ctrl-C nothing should: a person wants an end.
    """

    def leave(number, frame):
        if number == signal.SIGINT:
            os.write(2, f"Ctrl-C: run the same command again to {'continue' if resumes else 'start over'}.\n".encode())
            end_by_ctrl_c()
        os.write(2, f"SIGTERM: exit code {_RESTART}, run the same command again.\n".encode())
        os._exit(_RESTART)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _without_config(data, argv, for_own_data):
    """The error for a missing --config: a mistyped flag or path, if that is why."""
    given = (arg.partition("=")[0].lstrip("-") for arg in argv[1:] if re.match(r"--?[a-z][\w-]*(=|$)", arg))
    valid = [*dict.fromkeys([row.name for row in SHORT_FORMS] + _names())]
    known = {*valid, "config", *(f"no{name}" for name in _OURS)}
    unknown = next((name for name in given if name not in known and name not in flags.FLAGS), None)
    if unknown:
        meant = _meant(unknown.replace("-", "_"), valid, with_config=True)
        hint = f' Did you mean "{meant[0]}"?' if meant else ""
        return f"there is no flag --{unknown}.{hint} --help lists the flags."
    names = f"--config=NAME, e.g. --config=digits_pretrain (recipes: {', '.join(config_names())}), or a .py file"
    if not for_own_data:
        return f"Give {names}."
    if data is None:
        return f"Give --data=PHOTOS, a folder with one subfolder of images per class, or {names}."
    folder = os.path.dirname(os.path.expanduser(data)) or "."
    near = did_you_mean(os.path.basename(data), sorted(os.listdir(folder)) if os.path.isdir(folder) else [])
    return f"--data={data}: there is no such folder or file.{near} For a dataset of tensorflow-datasets give {names}."


def _take_overrides(wants_help, for_own_data):
    """The ConfigDict of --config in sys.argv, with overrides that absl cannot apply; takes both out of sys.argv.

    Args:
        wants_help: bool. Whether --config may be missing.
        for_own_data: name of the config for a --data of files, or None.

    Raises:
        SystemExit: if there is no such config or key.
    """
    try:
        name, sys.argv = _take_config(sys.argv)
        short, sys.argv = ({}, sys.argv) if wants_help else take(sys.argv)
        if not name and for_own_data and is_local(short.get("data", ""), sys.argv):
            name = for_own_data
        if not name and not wants_help:
            raise ValueError(_without_config(short.get("data"), sys.argv, for_own_data))
        if not name:  # for help, which needs no overrides
            sys.argv = sys.argv[:1]
            return ConfigDict()
        loaded = load_config(name)
        sys.argv = apply_overrides([*sys.argv, *as_overrides(short, loaded, sys.argv)], loaded)
    except ValueError as error:
        raise SystemExit(f"{pathlib.Path(sys.argv[0]).name}: {error}") from None
    return loaded


def launch(main, with_config=False, takes=None, resumes=False, for_own_data=None, loads=False):
    """Runs the binary `main`, or shows its help, version or flag names.

    Args:
        main: function without arguments, or with `takes` of the list of arguments that are not flags.
        with_config: bool. Whether --config is required.
        takes: str or None. Describes arguments that are not flags, for help; None to refuse them.
        resumes: bool. Whether the same command continues what an interrupted one began, as with a config.
        loads: bool. Whether it loads models by `loading.load`, with --load.NAME=VALUE.
        for_own_data: the config's name where --config is missing and --data names files; None to require --config.

    Exit codes: 0 done; 1 an error; 75 (EX_TEMPFAIL) SIGTERM ended it, and the same command resumes; 130 Ctrl-C.
    """
    asked = set(sys.argv[1:])
    wants_help, wants_names = bool({"--help", "-h", "--helpshort"} & asked), LIST_FLAGS in asked
    if "--version" in asked:
        return print(f"keras_vit {VERSION}")
    loaded = None
    if with_config:
        loaded = _take_overrides(wants_help or wants_names, for_own_data)
        help_text = (
            f"A packaged name ({', '.join(config_names())}) or a Python file, with its argument after a colon; "
            "--config.key=value overrides."
            + (f" By default {for_own_data}, for a --data of files." if for_own_data else "")
        )
        config_flags.DEFINE_config_dict("config", loaded, help_text)
        _OURS["config"] = not for_own_data
    if loads:
        try:
            sys.argv = loading.take(sys.argv)
        except ValueError as error:
            raise SystemExit(f"{pathlib.Path(sys.argv[0]).name}: {error}") from None
    if wants_names:
        booleans = {name for name in _OURS if flags.FLAGS[name].boolean}
        return print("\n".join(f"--{name}" if name in booleans else f"--{name}=" for name in _names()))
    if wants_help:
        return _show_help(main, takes, loaded, loads)
    # absl has no flags with an optional value.
    argv = ["--sweep=own" if arg in ("--sweep", "-sweep") else arg for arg in sys.argv]
    with _restartable(resumes or with_config), in_lines(QUIET):
        app.run(lambda rest: _report_errors(main, rest[1:], takes), argv=argv, flags_parser=_parse)


def _plain_logs():
    """Logs "11-25 22:50:08 Warning: ...", without threads and lines of code; warnings of Python likewise."""

    class Formatter(python_logging.Formatter):
        def format(self, record):
            level = "" if record.levelno <= python_logging.INFO else f"{record.levelname.capitalize()}: "
            return f"{self.formatTime(record, '%m-%d %H:%M:%S')} {level}{record.getMessage()}"

    logging.get_absl_handler().setFormatter(Formatter())
    warnings.formatwarning = lambda message, *_, **__: f"Warning: {message}\n"


def _in_words(error):
    """An error's message; a missing TensorFlow's says how to install it."""
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "tensorflow":
        return f"This needs TensorFlow, on the JAX backend too, and it is not installed: {pip_install('cpu')}."
    return error


def _report_errors(main, rest, takes):
    """Runs `main`; user errors, full disks and divergence exit with a message and code 1, or a traceback (--debug)."""
    _plain_logs()
    try:
        if rest and not takes:
            raise ValueError(f'Unexpected argument "{rest[0]}". Write --flag=value.')
        main(rest) if takes else main()
    except BrokenPipeError:
        drop_output()
    except KeyboardInterrupt:  # of training, which has saved its state
        sys.stdout.flush()
        end_by_ctrl_c()
    except (ValueError, OSError, ImportError, FloatingPointError) as error:
        if flags.FLAGS.debug:
            raise
        raise SystemExit(f"Error: {_in_words(error)}") from None


def string(name, default, help_text, required=False):
    """Defines a text flag."""
    flags.DEFINE_string(name, default, help_text, required=required)
    _OURS[name] = required


class _Path(flags.ArgumentParser):
    """A path with "~" expanded, which bash leaves as it is in --output=~/out."""

    syntactic_help = "a path"

    def parse(self, argument):
        return os.path.expanduser(argument)


def path(name, default, help_text, required=False):
    """Defines a flag for a path, which may begin with "~"."""
    flags.DEFINE(_Path(), name, default, help_text, serializer=flags.ArgumentSerializer(), required=required)
    _OURS[name] = required


def strings(name, help_text):
    """Defines a repeatable text flag: a list, empty by default."""
    flags.DEFINE_multi_string(name, [], help_text)
    _OURS[name] = False


def integer(name, default, help_text, lowest=None, highest=None):
    """Defines an integer flag, from `lowest` to `highest`."""
    flags.DEFINE_integer(name, default, help_text, lower_bound=lowest, upper_bound=highest)
    _OURS[name] = False


def number(name, default, help_text, lowest=None, highest=None):
    """Defines a flag for a number, from `lowest` to `highest`."""
    flags.DEFINE_float(name, default, help_text, lower_bound=lowest, upper_bound=highest)
    _OURS[name] = False


def boolean(name, default, help_text):
    """Defines a yes-or-no flag."""
    flags.DEFINE_bool(name, default, help_text)
    _OURS[name] = False


def enum(name, default, valid, help_text):
    """Defines a flag with the choices `valid`."""
    flags.DEFINE_enum(name, default, valid, help_text)
    _OURS[name] = False


def only_with(name, other, holds, words):
    """Refuses the flag `name` unless holds(value of the flag `other`); `words` describe when it is not ignored."""
    default = flags.FLAGS[name].default
    flags.register_multi_flags_validator(
        [name, other],
        lambda given: given[name] == default or holds(given[other]),
        f"--{name} is for {words}, and would be ignored.",
    )


boolean("debug", False, "Show the traceback of an error.")
FLAGS = flags.FLAGS
