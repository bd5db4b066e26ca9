"""One command for all binaries: `keras-vit VERB ...`, or `python -m trainers VERB ...`. Imports no engine."""

import ast
import importlib
import pathlib
import re
import sys

from .without_engine import VERSION, did_you_mean, drop_output

# In the order of the work. Each is a module beside this one (`verb_module`); its docstring's first line is its summary.
VERBS = (
    "pretrain",
    "finetune",
    "plan",
    "evaluate",
    "probe",
    "vtab",
    "classify",
    "segment",
    "detect",
    "predict",
    "search",
    "label",
    "inspect",
    "export",
    "share",
    "serve",
    "prepare",
    "deduplicate",
    "demo",
    "configs",
    "models",
    "completion",
)
_ELSEWHERE = {
    "train": "pretrain",
    "fit": "finetune",
    "eval": "evaluate",
    "test": "evaluate",
    "infer": "predict",
    "embed": "predict",
    "upload": "share",
    "publish": "share",
}


def verb_module(verb: str) -> str:
    """A verb's module: inspect_ for "inspect", lest scripts run from trainers/ import it as Python's own."""
    return f"{verb}_" if verb in sys.stdlib_module_names else verb


def first_line(path: pathlib.Path) -> str:
    """The first line of a Python file's docstring, without running it."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def _help(program):
    """The text of `keras-vit --help`."""
    folder = pathlib.Path(__file__).resolve().parent
    summaries = {verb: re.split("[:,.]", first_line(folder / f"{verb_module(verb)}.py"))[0] for verb in VERBS}
    lines = [f"Usage: {program} VERB --flag=value ...", "", "Verbs:"]
    lines += [f"  {verb:12} {summary}" for verb, summary in summaries.items()]
    lines += [
        "",
        f"{program} VERB --help    what a verb does, and its flags with their defaults",
        f"{program} --version      the version",
        "",
        "For example, photographs in one folder per class:",
        "",
        f"    {program} finetune --data=PHOTOS --init=deit/tiny --epochs=5 --workdir=runs/photos",
    ]
    return "\n".join(lines)


def _program():
    """The words that the user typed before the verb."""
    path = pathlib.Path(sys.argv[0])
    return f"python -m {path.parent.name}" if path.name == "__main__.py" else path.stem


def run_verb(program: str, verb: str, arguments: list[str]) -> None:
    """Runs a verb with its arguments; `program` is what the user typed for it.

    Raises:
        SystemExit: for an unknown verb, suggesting the nearest.
    """
    if verb.startswith("-"):
        raise SystemExit(
            f"{program}: the verb comes first, and {verb} after it: {program} VERB {verb}. --help lists the verbs."
        )
    if verb not in VERBS:
        hint = f' Did you mean "{_ELSEWHERE[verb]}"?' if verb in _ELSEWHERE else did_you_mean(verb, VERBS)
        raise SystemExit(f'{program}: there is no verb "{verb}".{hint} Valid: {", ".join(VERBS)}.')
    sys.argv = [f"{program} {verb}", *arguments]
    importlib.import_module(f"{__package__}.{verb_module(verb)}").run()


def _answer():
    """Carries out the command line."""
    program = _program()
    if not sys.argv[1:] or sys.argv[1] in ("--help", "-h", "help"):
        print(_help(program), flush=True)
    elif sys.argv[1] == "--version":
        print(f"keras_vit {VERSION}")
    else:
        run_verb(program, sys.argv[1], sys.argv[2:])


def main() -> None:
    try:
        _answer()
    except BrokenPipeError:
        drop_output()
    except KeyboardInterrupt:  # before a verb has begun
        sys.exit(130)
