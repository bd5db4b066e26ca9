"""What the binaries share: flags, including --config, launching, and exit codes. Imports no engine.

The config is loaded before absl parses the flags, so that --config.key=value can override it.
"""

import contextlib
import os
import pathlib
import signal
import sys

from absl import app, flags
from ml_collections import ConfigDict, config_flags

from .config_files import apply_overrides, config_names, load_config

_OURS = set()  # names of the flags that --help shows
_RESTART = 75  # EX_TEMPFAIL of sysexits.h


def _take_config(argv):
    """Takes --config NAME out of `argv`; returns (its value or "", the rest)."""
    rest, name, values = argv[:1], "", iter(argv[1:])
    for arg in values:
        flag, equals, value = arg.partition("=")
        if flag in ("--config", "-config"):
            name = value if equals else next(values, "")
        else:
            rest.append(arg)
    return name, rest


def _show_help(main):
    """The binary's docstring and its flags; absl's own help would miss both under a console script."""
    print(main.__globals__["__doc__"])
    for name in sorted(_OURS):
        print(f"  --{name}: {flags.FLAGS[name].help}")


@contextlib.contextmanager
def _restartable():
    """A context in which SIGTERM ends the process at once with exit code 75: run it again. While it trains, training saves first."""

    def leave(number, frame):
        os.write(2, f"SIGTERM: exit code {_RESTART}, run the same command again.\n".encode())
        os._exit(_RESTART)  # files are replaced atomically, so there is nothing to clean up

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def launch(main, with_config=False):
    """Runs the binary `main`, which takes no arguments; `with_config` says whether --config has to name a config.

    Exit codes: 0 done; 1 an error; 75 (EX_TEMPFAIL) SIGTERM ended it, and the same command resumes.
    """
    wants_help = {"--help", "-h", "--helpshort"} & set(sys.argv[1:])
    if with_config:
        names = ", ".join(config_names())
        try:
            name, sys.argv = _take_config(sys.argv)
            if not name and not wants_help:
                raise ValueError(f"Give --config=NAME, e.g. --config=digits_pretrain (recipes: {names}), or a .py file.")
            loaded = load_config(name) if name else ConfigDict()
            sys.argv = apply_overrides(sys.argv, loaded)
        except ValueError as error:
            raise SystemExit(f"{pathlib.Path(sys.argv[0]).name}: {error}") from None
        help_text = f"A packaged name ({names}) or a Python file, with its argument after a colon; --config.key=value overrides."
        config_flags.DEFINE_config_dict("config", loaded, help_text)
        _OURS.add("config")
    if wants_help:
        return _show_help(main)
    # absl has no flags with an optional value.
    argv = ["--sweep=own" if arg in ("--sweep", "-sweep") else arg for arg in sys.argv]
    with _restartable():
        app.run(lambda rest: _report_errors(main, rest[1:]), argv=argv)


def _report_errors(main, rest):
    """Runs `main`. Mistakes, a full disk or a diverged run end with a message and exit code 1; --debug shows the traceback."""
    try:
        if rest:
            raise ValueError(f'Unexpected argument "{rest[0]}". Write --flag=value.')
        main()
    except (ValueError, OSError, ImportError, FloatingPointError) as error:
        if flags.FLAGS.debug:
            raise
        raise SystemExit(f"Error: {error}") from None


def string(name, default, help_text, required=False):
    """Defines a text flag."""
    flags.DEFINE_string(name, default, help_text, required=required)
    _OURS.add(name)


def integer(name, default, help_text):
    """Defines an integer flag."""
    flags.DEFINE_integer(name, default, help_text)
    _OURS.add(name)


def boolean(name, default, help_text):
    """Defines a yes or no flag."""
    flags.DEFINE_bool(name, default, help_text)
    _OURS.add(name)


def enum(name, default, valid, help_text):
    """Defines a flag that takes one of `valid`."""
    flags.DEFINE_enum(name, default, valid, help_text)
    _OURS.add(name)


def define_data_dir():
    string("data_dir", None, "The folder of tensorflow-datasets' prepared data; by default its own.")


def define_run():
    """The flags of binaries that train."""
    string("workdir", None, "The run's directory; a run that is already there resumes.")
    define_data_dir()
    string("sweep", None, 'Runs the config\'s own sweep, or a grid: --sweep="optimizer.learning_rate=1e-3,3e-3;mixup=0,0.2".')
    integer("runs", 1, "The number of runs, with seeds config.seed, config.seed + 1...; prints mean and standard deviation.")
    boolean("dry_run", False, "Only print what the run would do; needs no data.")
    integer("examples", None, "For --dry_run: the number of training examples, if the dataset is not a well-known one.")
    integer("classes", None, "For --dry_run: the number of classes, if the dataset is not a well-known one.")
    flags.register_multi_flags_validator(
        ["workdir", "dry_run"], lambda given: given["workdir"] or given["dry_run"], "Flag --workdir must have a value."
    )
    define_strategy()
    string(
        "data_service",
        None,
        "grpc://HOST:PORT of a tf.data service that prepares the training batches; by default they are prepared here.",
    )


def define_strategy():
    string("strategy", "one", "one device; mirrored, multiworker or tpu; on JAX (KERAS_BACKEND=jax) data or model.")
    string("tpu", None, "For --strategy=tpu: a TPU's name or address; by default this machine's, or TPU_NAME.")
    integer(
        "model_parallel",
        None,
        "For --strategy=model: the number of devices over which a matrix is split; by default all of this machine's.",
    )


boolean("debug", False, "Show the traceback of an error.")
FLAGS = flags.FLAGS
