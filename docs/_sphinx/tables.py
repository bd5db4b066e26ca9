"""The reference of commands, config keys, evaluators, preprocessing ops and formats, from their registries."""

import ast
import concurrent.futures
import dataclasses
import inspect
import io
import re
import subprocess
import sys
import tokenize

from api import signature
from docstrings import escaped, markdown
from layout import ROOT, table

from keras_vit import evaluation
from keras_vit.checkpoints.formats.recognise import FORMATS
from keras_vit.checkpoints.save import FORMATS as WRITTEN
from keras_vit.data.ops.op_registry import OPS
from keras_vit.evaluation.data import OnSource
from keras_vit.serving import single_file
from trainers.command import VERBS
from trainers.config_files import config_names, flat_values, packaged


def _help(verb):
    """The text of `keras-vit VERB --help`."""
    command = [sys.executable, "-m", "trainers", verb, "--help"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def _command(verb, text):
    lines = text.strip().splitlines()
    flags = [re.fullmatch(r"  --([\w.=]+): (.*)", line) for line in lines]
    about = "\n".join(line for line, flag in zip(lines, flags, strict=True) if not flag)
    listed = "\n".join(f"- `--{flag[1]}`: {escaped(flag[2])}" for flag in flags if flag)
    return f"## keras-vit {verb}\n\n{markdown(about)}\n\n{listed}"


def commands() -> str:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        texts = list(pool.map(_help, VERBS))
    parts = ["# Command line", "What `keras-vit VERB --help` prints, verb by verb."]
    return "\n\n".join([*parts, *map(_command, VERBS, texts)])


def _comments(source):
    """{line: comment} of Python source."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}


def _above(node, lines):
    """The numbers of the lines of comments above a statement, from 1."""
    first = node.lineno
    while lines[first - 2].lstrip().startswith("#"):
        first -= 1
    return range(first, node.lineno)


def key_comments() -> dict[str, str]:
    """{config key: its comments} of configs/lib/common.py, above its line or at the end."""
    source = (ROOT / "configs" / "lib" / "common.py").read_text()
    comments, lines, found = _comments(source), source.splitlines(), {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            key = ast.unparse(node.targets[0]).removeprefix("config.")
            inside = [line for line in range(node.lineno, node.end_lineno + 1) if line in comments]
            found[key] = " ".join(comments[line] for line in inside or _above(node, lines)) or found.get(key, "")
    return found


def config_keys() -> str:
    module, comments = packaged("lib.common"), key_comments()
    about = "Every config starts from these keys and values. Override one with `--config.KEY=VALUE`."
    rows = []
    for key, value in sorted(flat_values(module.base()).items()):
        meaning = f": {escaped(comments[key])}" if comments.get(key) else ""
        rows.append(f"- `{key}` = `{value}`{meaning}")
    return "\n\n".join(["# Config keys", about, markdown(inspect.getdoc(module)), "\n".join(rows)])


def configs() -> str:
    parts = ["# Packaged configs", "Pass one as `--config=NAME`; `keras-vit configs NAME` shows all its keys."]
    for name in config_names():
        parts += [f"## {name}", markdown(inspect.getdoc(packaged(name)))]
    return "\n\n".join(parts)


def evaluators() -> str:
    about = "Name them in `config.evals` or in `--evals=\"few_shot(source='cifar10')|knn\"`."
    parts = ["# Evaluators", about, "## Options that most evaluators have", markdown(inspect.getdoc(OnSource))]
    for name in evaluation.__all__:  # are imported on first use, and registered
        getattr(evaluation, name)
    for name, cls in sorted(evaluation.EVALUATORS.items()):
        given = ", ".join(
            field.name if field.default is dataclasses.MISSING else f"{field.name}={field.default!r}"
            for field in dataclasses.fields(cls)
        )
        parts += [f"## {name}", f"    {name}({given})", markdown(inspect.getdoc(cls) or "")]
        link = f"{{py:class}}`{cls.__name__} <keras_vit.evaluation.{cls.__name__}>`"
        parts.append(f"Class {link}; models are compared by `{cls.score}`.")
    return "\n\n".join(parts)


def ops() -> str:
    about = 'The words of preprocessing texts such as `"decode|resize(256)|central_crop(224)"`.'
    parts = ["# Preprocessing ops", about]
    for name, op in sorted(OPS.items()):
        shown = signature(op.factory).partition(" -> ")[0]
        keys = ", ".join(f"`{key}`" for key in op.keys)
        facts = f"Changes {keys}{'; random' if op.random else ''}."
        parts += [f"## {name}", f"    {name}{shown}", markdown(inspect.getdoc(op.factory) or ""), facts]
    return "\n\n".join(parts)


def formats() -> str:
    read = [
        [f"`{name}`", escaped(inspect.getdoc(row.module).partition("\n\n")[0].replace("\n", " "))]
        for name, row in FORMATS.items()
    ]
    files = [[f"`{name}`", f"`{row.suffix}`", row.engine] for name, row in single_file.FILES.items()]
    written = ", ".join(f"`{name}`" for name in WRITTEN)
    return "\n\n".join(
        [
            "# Formats",
            "## Checkpoints that load",
            "`keras_vit.load` recognises a file by its arrays' names. `.keras` files and run directories load, too.",
            table(["format", "contents"], read),
            "## Checkpoints that are written",
            f"`keras_vit.save(model, path, format)` and `keras-vit export --format`: {written}.",
            "## Exports",
            "`keras_vit.export(model, path, format)` writes a SavedModel (`tf_saved_model`) or a file:",
            table(["format", "file", "engine"], files),
        ]
    )


def pages() -> dict[str, str]:
    """{path below docs/: Markdown}."""
    made = {
        "commands": commands,
        "config_keys": config_keys,
        "configs": configs,
        "evaluators": evaluators,
        "ops": ops,
        "formats": formats,
    }
    return {f"reference/{name}.md": f"{make()}\n" for name, make in made.items()}
