"""Runs that are killed, or told to leave, in processes of their own: each goes on, and ends with the weights of one left alone."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

from keras_vit.training.rundir import RunDirectory

ROOT = pathlib.Path(__file__).resolve().parents[2]
EVERY = 20  # steps from one checkpoint to the next
# The digits, shrunk, with dropout, averages, mixup and every shipped augmentation on.
AUGMENT = "random_resized_crop(9, scale=(0.5, 1.0))|random_crop(8, padding=1)|random_flip|random_shift(1)|noise(10)"
OVERRIDES = {
    **{"model.depth": 2, "model.width": 16, "model.heads": 2, "model.mlp_dim": 32},
    **{"model.dropout": 0.1, "model.drop_path": 0.1, "model.attention_dropout": 0.1},
    **{"data.train": "train[:200]", "data.evaluation": "test[:50]", "data.train_preprocess": f"decode(1)|resize(10)|{AUGMENT}"},
    **{"checkpoint": f"{EVERY} steps", "evaluate": "24 steps", "jit_compile": False, "batch_size": 16, "optimizer.ema": 0.9},
}


class Run:
    """A process of tests/training/watched_pretrain.py; `moment` are functions of it, true once it is where a test wants it."""

    def __init__(self, workdir, total, write_seconds=0.0, module="tests.training.watched_pretrain"):
        self._progress = workdir.with_suffix(".progress")
        self._progress.unlink(missing_ok=True)
        environment = {
            **os.environ,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PROGRESS": str(self._progress),
            "WRITE_SECONDS": str(write_seconds),
        }
        overrides = [f"--config.{key}={value}" for key, value in {**OVERRIDES, "total": f"{total} steps"}.items()]
        self._errors = open(workdir.with_suffix(".errors"), "w+")
        command = [sys.executable, "-m", module, "--config=digits_pretrain", f"--workdir={workdir}", *overrides]
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=self._errors)

    def told(self):
        """The lines of its progress, as lists of words."""
        text = self._progress.read_text() if self._progress.exists() else ""
        return [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]

    def last(self, word):
        """The number that it told last with a word, or None."""
        return next((int(line[1]) for line in reversed(self.told()) if line[0] == word), None)

    def end(self):
        """Its exit code and, as text, its errors."""
        code = self.process.wait(timeout=300)
        self._errors.seek(0)
        return code, self._errors.read()

    def send(self, number, moment):
        """Sends a signal at a moment; returns what `end` does."""
        began = time.time()
        while not moment(self):
            assert self.process.poll() is None and time.time() - began < 300, self.end()
            time.sleep(0.002)
        self.process.send_signal(number)
        return self.end()


def after(steps):
    return lambda run: (run.last("step") or 0) >= (run.last("start") or 0) + steps


def telling(*words):
    return lambda run: any(line[: len(words)] == list(words) for line in run.told())


def ended(run):
    """The run, once it has ended well."""
    code, errors = run.end()
    assert code == 0, errors[-3000:]
    return run


def assert_ends_alike(whole, killed, total):
    """Equal in all state, bit for bit, and in the final evaluation."""
    states = [RunDirectory(path).checkpoints()[total].read_bytes() for path in (whole, killed)]
    assert states[0] == states[1]
    evaluations = [json.loads((path / "evaluation.json").read_text()) for path in (whole, killed)]
    assert evaluations[0] == evaluations[1]
    assert not list(killed.rglob(".tmp-*"))


def test_a_run_that_is_killed_and_told_to_leave_ends_bit_for_bit_the_same(tmp_path):
    """kill -9 while a checkpoint is half written; SIGTERM in an evaluation, when averages are in the weights' place, and in the
    last evaluation."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    alone = Run(whole, 60)

    run = Run(killed, 60, write_seconds=0.5)
    assert run.send(signal.SIGKILL, telling("writing", "40"))[0] == -signal.SIGKILL
    assert list((killed / "checkpoints").glob(".tmp-*")) and list(RunDirectory(killed).checkpoints()) == [20]

    run = Run(killed, 60)
    code, errors = run.send(signal.SIGTERM, telling("evaluating"))
    assert code == 75 and run.last("start") == 20 and run.last("step") == 24
    assert "Step 24 is saved. Exit code 75: run the same command again." in errors and "Traceback" not in errors
    assert RunDirectory(killed).metrics() == []

    run = Run(killed, 60)
    code, errors = run.send(signal.SIGTERM, telling("finishing"))
    assert code == 75 and run.last("start") == 24 and "Traceback" not in errors

    assert ended(Run(killed, 60)).last("start") == 60
    ended(alone)
    assert_ends_alike(whole, killed, 60)
    assert [[r["step"] for r in RunDirectory(path).metrics()] for path in (whole, killed)] == [[24, 48, 60], [48, 60]]


def test_sigterm_before_training_exits_at_once_and_leaves_nothing(tmp_path):
    """While TensorFlow is imported."""
    run = Run(tmp_path / "run", 60, module="trainers.pretrain")
    began = time.time()
    code, errors = run.send(signal.SIGTERM, lambda run: time.time() - began > 2)
    assert code == 75 and "SIGTERM: exit code 75" in errors and "Traceback" not in errors
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_twenty_kills(tmp_path):
    """At random steps and while a checkpoint is written, kill -9 and SIGTERM.

    Last run 2026-11-20, in 267 s: 10 SIGTERM repeated no step, 10 kill -9 repeated 2 to 20; the end was equal, bit for bit.
    """
    rng, total = random.Random(0), 480
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    ended(Run(whole, total))
    start, repeated = 0, {signal.SIGKILL: [], signal.SIGTERM: []}
    for i in range(20):
        number = rng.choice([signal.SIGKILL, signal.SIGTERM])
        moment = telling("writing") if i % 4 == 3 else after(rng.randint(1, 40))
        run = Run(killed, total, write_seconds=0.3)
        code, errors = run.send(number, moment)
        assert run.last("start") == start
        assert code == (75 if number == signal.SIGTERM else -signal.SIGKILL), errors[-3000:]
        start = max(RunDirectory(killed).checkpoints(), default=0)
        repeated[number].append(run.last("step") - start)
        print(i, number.name, "at", run.told()[-1], "of", run.last("start"), "->", start, flush=True)
    assert ended(Run(killed, total)).last("start") == start
    assert_ends_alike(whole, killed, total)
    assert max(repeated[signal.SIGKILL]) <= EVERY and set(repeated[signal.SIGTERM]) == {0}, repeated
