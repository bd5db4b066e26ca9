"""What the binaries share: --config by path or packaged name, --workdir, --data_dir. Imports no TensorFlow.

--config is resolved before absl parses, so that --config.key=value can refer to it.
"""

import contextlib
import difflib
import importlib
import importlib.util
import inspect
import os
import pathlib
import re
import signal
import sys

from absl import app, flags, logging
from ml_collections import config_flags

_CONFIGS = pathlib.Path(__file__).resolve().parent.parent / "configs"
_PACKAGE = "keras_vit_packaged_configs"
_OURS = set()  # names of the flags that --help shows
_RESTART = 75  # EX_TEMPFAIL of sysexits.h


def config_names():
    """The packaged configs' names."""
    return sorted(p.stem for p in _CONFIGS.glob("*.py") if p.stem != "__init__")


def _nearest(name, valid):
    close = difflib.get_close_matches(name, valid, n=1)
    return f' Did you mean "{close[0]}"?' if close else ""


def _module(name, path, **kwargs):
    spec = importlib.util.spec_from_file_location(name, path, **kwargs)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def packaged(name):
    """A module of the packaged configs, such as "digits_pretrain" or "lib.datasets"."""
    if _PACKAGE not in sys.modules:
        _module(_PACKAGE, _CONFIGS / "__init__.py", submodule_search_locations=[str(_CONFIGS)])
    return importlib.import_module(f"{_PACKAGE}.{name}")


def _call(module, name, argument):
    """What the config module's get_config gives for the text behind the colon; "" for none."""
    takes = bool(inspect.signature(module.get_config).parameters)
    if argument and not takes:
        raise ValueError(f'The config "{name}" takes no argument, got "{argument}".')
    try:
        return module.get_config(argument) if takes else module.get_config()
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def load_config(text):
    """The ConfigDict of a packaged config's name or of a Python file's path, with what the config takes behind a colon.

    "digits_pretrain", "augreg:medium1,S/32", "/my/own.py", "/my/own.py:argument".

    Raises:
        ValueError: if there is no such config, or it does not take the argument.
    """
    name, argument = re.fullmatch(r"(.*?\.py|[^:]*)(?::(.*))?", text, re.DOTALL).groups(default="")
    if name.endswith(".py") or os.sep in name:
        if not os.path.isfile(name):
            raise ValueError(f'There is no config file "{name}".')
        if pathlib.Path(name).resolve().parent != _CONFIGS:
            return _call(_module("keras_vit_own_config", name), name, argument)
        name = pathlib.Path(name).stem
    if name not in config_names():
        valid = ", ".join(config_names())
        raise ValueError(f'There is no config "{name}".{_nearest(name, config_names())} Packaged: {valid}; or give a .py file.')
    return _call(packaged(name), name, argument)


def _take_config(argv, default):
    """Takes --config NAME out of `argv`; returns (its value or `default`, the rest)."""
    rest, name, values = argv[:1], default, iter(argv[1:])
    for arg in values:
        flag, equals, value = arg.partition("=")
        if flag in ("--config", "-config"):
            name = value if equals else next(values, "")
        else:
            rest.append(arg)
    return name, rest


def check_overrides(argv, config):
    """Refuses --config.key for a key that is not there, naming the nearest right one."""
    for arg in argv:
        flag = arg.lstrip("-").partition("=")[0]
        if not (arg.startswith("-") and flag.startswith("config.")):
            continue
        place = config
        for part in flag.split(".")[1:]:
            key = part.partition("[")[0]
            valid = list(place.keys()) if hasattr(place, "keys") else []
            if key not in valid:
                raise ValueError(f'--{flag}: the config has no "{key}" there.{_nearest(key, valid)} Valid: {", ".join(valid)}.')
            place = place[key] if place.get_ref(key).get() is not None else None


def _show_help(main):
    """The binary's docstring and its flags; absl's own help would miss both under a console script."""
    print(main.__globals__["__doc__"])
    for name in sorted(_OURS):
        print(f"  --{name}: {flags.FLAGS[name].help}")


@contextlib.contextmanager
def _restartable():
    """SIGTERM inside ends the process at once with exit code 75: start me again. While it trains, training saves first."""

    def leave(number, frame):
        os.write(2, f"SIGTERM: exit code {_RESTART}, run the same command again.\n".encode())
        os._exit(_RESTART)  # files are put in place whole, so there is nothing to tidy up

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def launch(main, config=None):
    """Runs the binary `main`, which takes no arguments; `config` is the default config's name, None for a binary without one.

    Exit codes: 0 done; 1 an error; 75 (EX_TEMPFAIL) it was told to leave by SIGTERM, and the same command goes on.
    """
    if config is not None:
        try:
            name, sys.argv = _take_config(sys.argv, config)
            loaded = load_config(name)
            check_overrides(sys.argv, loaded)
        except ValueError as error:
            raise SystemExit(f"{pathlib.Path(sys.argv[0]).name}: {error}") from None
        names = ", ".join(config_names())
        help_text = (
            f"A packaged name ({names}) or a Python file, with what it takes behind a colon; --config.key=value overrides."
        )
        config_flags.DEFINE_config_dict("config", loaded, help_text)
        _OURS.add("config")
    if {"--help", "-h", "--helpshort"} & set(sys.argv[1:]):
        return _show_help(main)
    # absl has no flag with and without a value.
    argv = ["--sweep=own" if arg in ("--sweep", "-sweep") else arg for arg in sys.argv]
    with _restartable():
        app.run(lambda rest: _report_errors(main, rest[1:]), argv=argv)


@contextlib.contextmanager
def quiet(level=logging.WARNING):
    """Only warnings and errors are logged inside: TensorFlow tells much while it writes a SavedModel."""
    before = logging.get_verbosity()
    logging.set_verbosity(level)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _report_errors(main, rest):
    """A user's mistake, a full disk or a diverged run ends in its message and exit code 1, without a traceback; --debug shows it."""
    try:
        if rest:
            raise ValueError(f'"{rest[0]}" belongs to no flag. Write --flag=value.')
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
    string("data_dir", None, "Where tensorflow-datasets' prepared data is; none for its own place.")


def define_run():
    """The flags of binaries that train."""
    string("workdir", None, "The run's directory; a run that is there already resumes.")
    define_data_dir()
    string("sweep", None, 'Runs the config\'s own sweep, or a grid: --sweep="optimizer.learning_rate=1e-3,3e-3;mixup=0,0.2".')
    integer("runs", 1, "How often, with seeds config.seed, config.seed + 1...; ends in mean and standard deviation.")
    boolean("dry_run", False, "Only prints what the run would do; needs no data.")
    integer("examples", None, "For --dry_run: examples of the training split, where the dataset is not a well-known one.")
    integer("classes", None, "For --dry_run: as --examples.")
    flags.register_multi_flags_validator(
        ["workdir", "dry_run"], lambda given: given["workdir"] or given["dry_run"], "Flag --workdir must have a value."
    )
    string("strategy", "one", "one device; mirrored, multiworker or tpu; on JAX (KERAS_BACKEND=jax) data or model.")
    string("tpu", None, "For --strategy=tpu: a TPU's name or address; none for this machine's, or TPU_NAME.")
    integer(
        "model_parallel", None, "For --strategy=model: over how many devices a matrix is split; none for all of this machine's."
    )
    string("data_service", None, "grpc://HOST:PORT of a tf.data service that prepares the training batches; none to do it here.")


boolean("debug", False, "Show the traceback of an error.")
FLAGS = flags.FLAGS
