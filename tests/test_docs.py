"""What README, CONTRIBUTING and docs/ name is there: commands with their flags, config keys, files, public names; the
manifest's TF_CONFIG.
"""

import ast
import collections
import functools
import importlib
import inspect
import os
import pathlib
import re
import subprocess
import typing

import pytest
import tensorflow as tf
import yaml
from page_blocks import blocks

import keras_vit
from keras_vit.distribution.clusters import multi_worker_strategy
from trainers import config_files, flags
from trainers.command import VERBS, verb_module
from trainers.short_forms import SHORT_FORMS

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted(DOCS.glob("*.md"))]
TEXTS = [ROOT / "CHANGELOG.md", *PAGES, *sorted(DOCS.glob("*/**/*.md"))]
CONFIGS = sorted((ROOT / "configs").glob("*.py"))
COMMAND = re.compile(
    r"(?:python -m (trainers|benchmarks)\.|keras-vit )(\w+)((?:[^\S\n]+(?:--[^\s`|)]+|\"[^\"]*\"|\\\n)+)*)"
)
DEFINED = re.compile(r"(?:flags\.)?(?:strings?|path|integer|number|boolean|enum)\(\s*\"(\w+)\"")


def functions_of(text):
    """{name: body} of the functions at the top of a module."""
    parts = re.split(r"^def (\w+)", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


def file_of(room, binary):
    """The file of a binary, or of one that is a package."""
    file = ROOT / room / f"{binary}.py"
    return file if file.exists() else ROOT / room / binary / "__main__.py"


@functools.cache
def flags_of(room, binary):
    """The flags that a binary defines, by its own text and trainers/shared_flags.py; "config" for one with a config."""
    text = file_of(room, binary).read_text()
    shared = functions_of((ROOT / "trainers" / "shared_flags.py").read_text())
    used, seen = set(re.findall(r"flags\.(define_\w+)\(", text)), set()
    while used - seen:
        name = (used - seen).pop()
        seen.add(name)
        used |= set(re.findall(r"\b(define_\w+)\(\)", shared[name]))
    found = set(DEFINED.findall(text)) | {flag for name in seen for flag in DEFINED.findall(shared[name])} | {"debug"}
    found |= {"config", *(row.name for row in SHORT_FORMS)} if "config=" in text else set()
    return found | {"help", "version"} | ({"load"} if "loads=True" in text else set())


def commands(path):
    """(room, binary, arguments) of every command of ours on a page or in a docstring."""
    for room, binary, arguments in COMMAND.findall(path.read_text()):
        binary = binary if room else verb_module(binary)
        if not room and (
            binary.removesuffix("_") not in VERBS or "flags" not in (ROOT / "trainers" / f"{binary}.py").read_text()
        ):
            continue  # VERB, a name on a Kubernetes page, or a command without flags
        own = re.sub(r"""--beam=("[^"]*"|\S+)""", "--beam", arguments)  # whose value is flags of Beam's
        yield room or "trainers", binary, re.findall(r"(?<![\w-])--(no)?([a-z][\w.]*)", own)


@pytest.mark.parametrize("path", [*PAGES, *CONFIGS], ids=lambda path: path.name)
def test_every_command_has_the_flags_and_config_keys_it_is_given(path):
    for room, binary, arguments in commands(path):
        assert file_of(room, binary).exists(), f"{room}.{binary}"
        for no, name in arguments:
            known = flags_of(room, binary)
            assert name.split(".")[0] in known or no + name in known, f"{room}.{binary} has no flag --{no}{name}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_config_key_and_name_is_there(path):
    text = path.read_text()
    # None leaves out an evaluator of another config.
    keys = set(re.findall(r"--config\.(?!evals\.\w+=None)([a-z][\w.]*\w)", text))
    config_files.apply_overrides(
        [f"--config.{key}=1" for key in sorted(keys)], config_files.load_config("digits_pretrain")
    )
    assert set(re.findall(r"--config=(\w+)(?![\w/]*\.py)\b", text)) <= {*config_files.config_names(), "NAME"}


@pytest.mark.parametrize("path", TEXTS[1:], ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_a_page_names_are_there(path):
    text = path.read_text()
    rooms = "docs|tests|trainers|benchmarks|configs|keras_vit"
    named = {
        ROOT / name for name in re.findall(rf"(?<![\w/.-])((?:{rooms})/[\w/.]*\w)", text) if "." in name.split("/")[-1]
    }
    named |= {path.parent / target for target in re.findall(r"\]\(([\w./-]+)\)", text)}
    assert not [str(name) for name in named if not name.exists()]


def anchors_of(text):
    """A page's own anchors (<a id>) and those that GitHub gives to its headings: lower case, no punctuation, spaces
    as hyphens; a repeated heading gets -1, -2 and so on.
    """
    outside_code = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    found, seen = set(re.findall(r'<a id="([^"]+)">', outside_code)), collections.Counter()
    for heading in re.findall(r"^#{1,6} +(.*?) *#*$", outside_code, re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def test_anchors_are_those_of_github():
    page = '# One\n## `a=b`, c: d\'s [text](x.md)\n## One\n```\n# no heading\n```\n<a id="own"></a>\n'
    assert anchors_of(page) == {"one", "ab-c-ds-text", "one-1", "own"}


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_to_a_heading_leads_to_one(path):
    for target, anchor in re.findall(r"\]\(([\w./-]*\.md)?#([^)]+)\)", path.read_text()):
        page = path.parent / target if target else path
        assert anchor in anchors_of(page.read_text()), f"{path.name} links to {target}#{anchor}, which is no heading"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_public_names_that_a_page_uses_are_there(path):
    """keras_vit.x.y, as code writes it."""
    for name in sorted(set(re.findall(r"\bkeras_vit((?:\.[A-Za-z_]\w*)+)", path.read_text()))):
        value, parts = keras_vit, name.lstrip(".").split(".")
        for i, part in enumerate(parts):
            if part in ("trainers", "configs"):  # of an installed package
                break
            if not hasattr(value, part):
                value = importlib.import_module(".".join(["keras_vit", *parts[: i + 1]]))
            else:
                value = getattr(value, part)


def resolved(node):
    """The object of a dotted name that begins with keras_vit; None for another expression."""
    name = ast.unparse(node)
    if not re.fullmatch(r"keras_vit(\.\w+)+", name) or ".trainers" in name or ".configs" in name:
        return None
    value, parts = keras_vit, name.split(".")
    for i, part in enumerate(parts[1:], 2):
        value = getattr(value, part) if hasattr(value, part) else importlib.import_module(".".join(parts[:i]))
    return value


def keywords_of(value):
    """The keyword arguments that a function or class takes; None if it takes any."""
    parameters = inspect.signature(value).parameters
    [more] = [p for p in parameters.values() if p.kind is p.VAR_KEYWORD] or [None]
    if more is None:
        return set(parameters)
    typed = typing.get_args(more.annotation)  # Unpack[a TypedDict]
    return {*parameters, *typed[0].__annotations__} if typed else None


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_python_blocks_call_what_is_there(path):
    """Syntax, and the names of arguments of our own functions; test_page_blocks.py runs the blocks."""
    for block in blocks(path):
        for call in (node for node in ast.walk(ast.parse(block.code)) if isinstance(node, ast.Call)):
            value = resolved(call.func)
            known = keywords_of(value) if value else None
            given = {word.arg for word in call.keywords if word.arg}
            assert known is None or given <= known, f"{ast.unparse(call)}: {given - known}"


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) <= 700


@pytest.fixture(scope="module")
def jobset():
    return yaml.safe_load((DOCS / "jobset.yaml").read_text())


def job_of(jobset):
    """The JobSet's one job and its one container."""
    [replicated] = jobset["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    [container] = job["template"]["spec"]["containers"]
    return replicated, job, container


def test_the_jobset_starts_again_together_and_not_alone(jobset):
    replicated, job, container = job_of(jobset)
    assert jobset["apiVersion"] == "jobset.x-k8s.io/v1alpha2" and jobset["kind"] == "JobSet"
    assert jobset["spec"]["network"]["enableDNSHostnames"] is True
    assert replicated["replicas"] == 1 and job["completionMode"] == "Indexed" and job["backoffLimit"] == 0
    assert job["template"]["spec"]["restartPolicy"] == "Never"  # Kubernetes takes a podFailurePolicy only so
    codes = [rule["onExitCodes"] for rule in job["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
    assert codes == [{"containerName": container["name"], "operator": "In", "values": [flags._RESTART]}]
    assert {rule["action"] for rule in job["podFailurePolicy"]["rules"]} == {"FailJob"}
    [rule] = jobset["spec"]["failurePolicy"]["rules"]
    assert rule["action"] == "RestartJobSetAndIgnoreMaxRestarts" and rule["onJobFailureReasons"] == ["PodFailurePolicy"]


@pytest.mark.processes
@pytest.mark.parametrize("index", [0, 1, 3])
def test_the_jobsets_shell_makes_a_tf_config_that_is_accepted(jobset, tmp_path, monkeypatch, index):
    """Run with a program in the binary's place that prints what it is given."""
    replicated, job, container = job_of(jobset)
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    assert int(environment["WORKERS"]) == job["completions"] == job["parallelism"]
    program = re.search(r"^exec (\S+)", container["args"][0], re.MULTILINE).group(1)
    assert f"{program} = keras_vit_command:main" in (ROOT / "setup.cfg").read_text()
    (tmp_path / program).write_text('#!/bin/sh\necho "$TF_CONFIG"\n')
    (tmp_path / program).chmod(0o755)
    environment |= {"JOB_COMPLETION_INDEX": str(index), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [*container["command"], *container["args"]]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)

    seen = []
    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", lambda: "made")
    monkeypatch.setattr("absl.logging.info", lambda *args: seen.append(args[-1]))
    monkeypatch.setenv("TF_CONFIG", done.stdout)
    level = tf.get_logger().level
    try:
        assert multi_worker_strategy() == ("made", job["completions"], index)
    finally:
        tf.get_logger().setLevel(level)
    name, port = jobset["metadata"]["name"], container["ports"][0]["containerPort"]
    hosts = [f"{name}-{replicated['name']}-0-{i}.{name}:{port}" for i in range(job["completions"])]
    assert seen == [", ".join(hosts)]


def test_the_page_of_the_command_has_every_verb():
    commands = (DOCS / "running.md").read_text().partition("## Commands")[2].partition("\n\n##")[0]
    table = commands.partition("\n| ")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \| ", table, re.MULTILINE) == list(VERBS)
