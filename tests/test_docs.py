"""What docs/tpu.md, multi_worker.md, recipes.md and jobset.yaml name is there: flags, config keys, files; the manifest's TF_CONFIG is right."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
import tensorflow as tf
import yaml

from keras_vit.training.clusters import multi_worker_strategy
from trainers import flags

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [DOCS / "tpu.md", DOCS / "multi_worker.md", DOCS / "recipes.md"]
OTHERS = ("gcloud", "kubectl", "tensorboard", "pip", "python3", "python -m trainers.demo")  # whose flags are not ours


def text_of(path):
    """The page without other programs' commands, lines and inline code: they go on where a line ends in a backslash."""
    text = path.read_text().replace("\\\n", " ")
    programs = "|".join(OTHERS)
    text = re.sub(rf"`(?:{programs}) [^`]*`", "", text)
    text = re.sub(rf"^ +(?:gcloud .* ssh [^']*--command='|(?:{programs}) .*$)", "", text, flags=re.MULTILINE)
    return re.sub(r"`(--version|--spot)`", "", text)  # gcloud's, spoken of


@pytest.fixture(scope="module")
def ours():
    """The flags of the binary that trains."""
    command = [sys.executable, "-m", "trainers.pretrain", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=os.environ)
    return set(re.findall(r"^  --(\w+):", done.stdout, re.MULTILINE))


@pytest.mark.parametrize("path", [*PAGES, DOCS / "jobset.yaml"], ids=lambda path: path.name)
def test_every_flag_and_config_key_is_there(path, ours):
    text = text_of(path)
    used = re.findall(r"(?<![\w-])--([a-z][\w.-]*)", text)
    overrides = {f"--{name}" for name in used if name.startswith("config.")}
    assert overrides and "strategy" in used
    assert {name for name in used if not name.startswith("config.")} <= ours
    flags.check_overrides(sorted(overrides), flags.load_config("digits_pretrain"))  # raises for a key that is not
    names = set(re.findall(r"--config=(\w+)(?!\w*\.py)\b", text))
    assert names <= set(flags.config_names())


@pytest.mark.parametrize("path", [ROOT / "README.md", *PAGES], ids=lambda path: path.name)
def test_files_that_a_page_names_are_there(path):
    text = path.read_text()
    named = {ROOT / name for name in re.findall(r"\b((?:docs|tests|trainers|keras_vit)/[\w/]+\.\w+)", text)}
    named |= {path.parent / target for target in re.findall(r"\]\(([\w./]+)\)", text)}
    assert named and not [str(name) for name in named if not name.exists()]


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


@pytest.mark.parametrize("index", [0, 1, 3])
def test_the_jobsets_shell_makes_a_tf_config_that_is_accepted(jobset, tmp_path, monkeypatch, index):
    """Run with a program in the binary's place that prints what it is given."""
    replicated, job, container = job_of(jobset)
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    assert int(environment["WORKERS"]) == job["completions"] == job["parallelism"]
    program = re.search(r"^exec (\S+)", container["args"][0], re.MULTILINE).group(1)
    assert f"{program} = keras_vit.trainers." in (ROOT / "setup.cfg").read_text()
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
