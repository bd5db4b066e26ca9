"""Runs in processes of their own that get SIGKILL or SIGTERM: each continues, and ends with the weights of an
undisturbed run. One owns its directory while it runs.
"""

import contextlib
import itertools
import json
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys

import pytest
import safetensors.numpy
from interpreters import ROOT, Fork, wait_for

from keras_vit.io.lock import FILE
from keras_vit.runs.saving.rundir import RunDirectory

pytestmark = pytest.mark.release("data", "fit", "runs", "io", "optim", "trainers")

EVERY = 20  # steps from one checkpoint to the next
# The digits, with a small model, dropout, averages, mixup and every shipped augmentation.
AUGMENT = "random_resized_crop(9, scale=(0.5, 1.0))|random_crop(8, padding=1)|random_flip|random_shift(1)|noise(10)"
OVERRIDES = {
    **{"model.depth": 1, "model.width": 16, "model.heads": 2, "model.mlp_dim": 32},
    **{"model.dropout": 0.1, "model.drop_path": 0.1, "model.attention_dropout": 0.1},
    **{"data.train": "train[:200]", "data.evaluation": "test[:50]"},
    **{"data.train_preprocess": f"decode(1)|resize(10)|{AUGMENT}", "optimizer.ema": 0.9, "schedule.warmup": "2 steps"},
    **{"schedule.decay": "constant", "batch_size": 16, "jit_compile": False},
}
# For several workers, whose programs take longer to start.
FEWER = {"data.evaluation": "test[:20]", "evaluate": "60 steps", "data.train_preprocess": "decode(1)|random_flip"}

# No port is used twice; they are below the ports of outgoing connections.
_ports = itertools.count(random.SystemRandom().randrange(20_000, 32_000))


def free_port():
    """A port that is not in use, and that no process of these tests has had: what is left of a cluster must not join a
    new one.
    """
    for port in _ports:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return port


class Worker:
    """A process, with the files next to `workdir` in which it reports its progress and its errors."""

    def __init__(self, command, workdir, index, environment):
        self._progress = workdir.with_suffix(f".progress{index}")
        self._progress.unlink(missing_ok=True)
        environment = {"PROGRESS": str(self._progress), **environment}
        output = workdir.with_suffix(f".errors{index}")
        self.process = Fork("tests.runs.reporting_pretrain", *command, output=output, **environment)

    def reports(self):
        """The lines of its progress, as lists of words."""
        text = self._progress.read_text() if self._progress.exists() else ""
        return [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]

    def last(self, word):
        """The number that it reported last with a word, or None."""
        return next((int(line[1]) for line in reversed(self.reports()) if line[0] == word), None)

    def ended(self):
        return self.process.poll() is not None

    def end(self):
        """Its exit code and its errors, once it has ended."""
        return self.process.wait(), self.process.printed()


class Run:
    """One run of reporting_pretrain.py, by one process or by the workers of a new cluster; the first is the chief."""

    def __init__(self, workdir, total, workers=1, write_seconds=0.0, hold=None, every=EVERY):
        steps = {"total": total, "checkpoint": every, "evaluate": every + 4}
        overrides = {**OVERRIDES, **{name: f"{count} steps" for name, count in steps.items()}}
        overrides |= FEWER if workers > 1 else {}
        self.command = ["--config=digits_pretrain", f"--workdir={workdir}"]
        self.command += [f"--config.{key}={value}" for key, value in overrides.items()]
        self.command += ["--strategy=multiworker"] * (workers > 1)
        cluster = {"worker": [f"127.0.0.1:{free_port()}" for _ in range(workers)]}
        self.workers = []
        for i in range(workers):
            environment = {"WRITE_SECONDS": str(write_seconds), "HOLD": str(hold)}
            if workers > 1:
                environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": i}})
            self.workers.append(Worker(self.command, workdir, i, environment))

    def last(self, word):
        """The number that every worker reported last with a word, or None."""
        numbers = {worker.last(word) for worker in self.workers}
        assert len(numbers) == 1, (word, numbers)
        return numbers.pop()

    def _wait(self, done):
        try:
            wait_for(done, [worker.process for worker in self.workers])
        except AssertionError as error:
            raise AssertionError(f"{error}: {[errors[-3000:] for _, errors in self.kill()]}") from None

    def ends(self):
        """[(exit code, errors)], one per worker, once all have ended."""
        self._wait(lambda: all(worker.ended() for worker in self.workers))
        return [worker.end() for worker in self.workers]

    def reach(self, moment):
        """Waits for a moment of the chief."""

        def reached():
            if moment(self.workers[0]):
                return True
            assert not any(worker.ended() for worker in self.workers), "ended before its moment"
            return False

        self._wait(reached)

    def send(self, number, moment, to=0):
        """Sends a signal to a worker at a moment of the chief; returns what `ends` does."""
        self.reach(moment)
        self.workers[to].process.send_signal(number)
        return self.ends()

    def kill(self):
        """Ends what has not ended; returns what `ends` does."""
        for worker in self.workers:
            worker.process.send_signal(signal.SIGKILL)
        return [worker.end() for worker in self.workers]


@pytest.fixture
def launch():
    """Makes a Run; none outlives the test."""
    runs = []

    def make(*args, **kwargs):
        runs.append(Run(*args, **kwargs))
        return runs[-1]

    yield make
    for run in runs:
        run.kill()


def after(steps):
    return lambda chief: (chief.last("step") or 0) >= (chief.last("start") or 0) + steps


def reporting(*words):
    return lambda chief: any(line[: len(words)] == list(words) for line in chief.reports())


def ended(run):
    """The run, once it has ended with exit code 0."""
    for code, errors in run.ends():
        assert code == 0, errors[-3000:]
    return run


def same_state(whole, killed, step):
    """Whether two directories have checkpoints of a step with the same arrays, bit for bit."""
    ours, theirs = (
        safetensors.numpy.load(RunDirectory(path).checkpoints()[step].read_bytes()) for path in (whole, killed)
    )
    return ours.keys() == theirs.keys() and all(ours[name].tobytes() == theirs[name].tobytes() for name in ours)


def assert_ends_alike(whole, killed, total):
    """Equal in all state, bit for bit, in the final evaluation, and in every record but its speed."""
    states = [RunDirectory(path).checkpoints()[total].read_bytes() for path in (whole, killed)]
    assert states[0] == states[1]
    evaluations = [json.loads((path / "evaluation.json").read_text()) for path in (whole, killed)]
    assert evaluations[0] == evaluations[1]
    records = [RunDirectory(path).metrics() for path in (whole, killed)]
    for record in itertools.chain(*records):
        record.pop("images_per_second", None)
    assert records[0] == records[1]
    assert not list(killed.rglob(".tmp-*"))


def test_a_run_that_gets_sigkill_and_sigterm_ends_bit_for_bit_the_same(tmp_path, launch):
    """kill -9 while a checkpoint is half written and a second process is refused, which leaves no lock; SIGTERM in an
    evaluation, when the averages are in place of the weights, and in the last evaluation.
    """
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    alone = launch(whole, 30, every=10)

    first = launch(killed, 30, every=10, hold=20)
    first.reach(reporting("writing", "20"))
    owner = first.workers[0].process.pid
    assert json.loads((killed / FILE).read_text())["pid"] == owner
    second = Fork("trainers.pretrain", *first.command, output=tmp_path / "second")
    assert second.wait() == 1 and "Traceback" not in second.printed()
    assert f"Error: {killed} is in use: process {owner} on " in second.printed()
    assert f"stop it (kill {owner}), or use another" in second.printed()
    [(code, _)] = first.kill()
    assert code == -signal.SIGKILL
    assert list((killed / "checkpoints").glob(".tmp-*")) and list(RunDirectory(killed).checkpoints()) == [10]

    run = launch(killed, 30, every=10)
    [(code, errors)] = run.send(signal.SIGTERM, reporting("evaluating"))
    assert code == 75 and run.last("start") == 10 and run.last("step") == 14
    assert (
        "Step 14 is saved. Exit code 75: run the same command again to continue." in errors
        and "Traceback" not in errors
    )
    assert RunDirectory(killed).metrics() == []

    run = launch(killed, 30, every=10)
    [(code, errors)] = run.send(signal.SIGTERM, reporting("finishing"))
    assert code == 75 and run.last("start") == 14 and "Traceback" not in errors

    assert ended(launch(killed, 30, every=10)).last("start") == 30
    ended(alone)
    assert_ends_alike(whole, killed, 30)
    assert [record["step"] for record in RunDirectory(whole).metrics()] == [14, 28, 30]
    assert (killed / "model.keras").exists() and not (killed / FILE).exists()


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGTERM, 75, "SIGTERM: exit code 75"), (signal.SIGINT, -signal.SIGINT, "Ctrl-C: run the same command")],
)
def test_a_signal_before_training_ends_the_process_at_once_and_leaves_nothing(tmp_path, number, code, said):
    """While TensorFlow is imported: in a process that is not a fork."""
    command = [sys.executable, "-m", "trainers.pretrain", "--config=digits_pretrain", f"--workdir={tmp_path / 'run'}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        maps = pathlib.Path(f"/proc/{process.pid}/maps")
        wait_for(lambda: "libtensorflow" in maps.read_text(), [process])
        process.send_signal(number)
        errors, _ = process.communicate()
    assert process.returncode == code and said in errors and "Traceback" not in errors
    assert not (tmp_path / "run").exists()


def test_two_workers_of_which_one_gets_sigkill_or_sigterm_are_bit_for_bit_the_same(tmp_path, launch):
    """Sent to the second: the first leaves with it, and only the first ever writes."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    runs = [launch(killed, 40, workers=2)]
    (code, errors), (victim, _) = runs[0].send(signal.SIGKILL, after(30), to=1)
    assert (code, victim) == (75, -signal.SIGKILL), errors[-3000:]
    assert re.search(r"Another worker is lost \(.+\)\. The last good checkpoint is .+ \(step 20\)\. Start all", errors)
    assert "Traceback" not in errors and list(RunDirectory(killed).checkpoints()) == [20]

    runs.append(launch(killed, 40, workers=2))
    ends = runs[1].send(signal.SIGTERM, after(5), to=1)
    saved = max(RunDirectory(killed).checkpoints())
    assert runs[1].last("start") == 20 and runs[1].last("step") == saved < 40
    for code, errors in ends:
        assert code == 75 and f"Step {saved} is saved. Exit code 75" in errors and "Traceback" not in errors

    runs.append(ended(launch(whole, saved, workers=2)))
    assert same_state(whole, killed, saved)
    chiefs = {str(run.workers[0].process.pid) for run in runs}
    assert {path.name.split(".")[-3] for path in tmp_path.rglob("events.out.*")} <= chiefs
    for run in runs:
        wrote = [any(line[0] == "changes" for line in worker.reports()) for worker in run.workers]
        assert wrote == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_twenty_kills(tmp_path, launch, workers):
    """At random steps and while a checkpoint is written, kill -9 and SIGTERM; of two workers to one, the chief or the
    other.

    Last run 2026-11-20, in 267 s: 10 SIGTERM repeated no step, 10 kill -9 repeated 2 to 20; the end was equal, bit for
    bit. With two workers, in 464 s: 10 SIGTERM repeated no step, 10 kill -9 repeated 0 to 20; the end was equal, bit
    for bit.
    """
    rng, whom, total = random.Random(0), random.Random(2), 480
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    ended(launch(whole, total, workers))
    start, repeated = 0, {signal.SIGKILL: [], signal.SIGTERM: []}
    for i in range(20):
        number = rng.choice([signal.SIGKILL, signal.SIGTERM])
        moment = reporting("writing") if i % 4 == 3 else after(rng.randint(1, 40))
        run, to = launch(killed, total, workers, write_seconds=0.3), whom.randrange(workers)
        ends = run.send(number, moment, to)
        assert run.last("start") == start
        for worker, (code, errors) in enumerate(ends):
            assert code == (-number if (number, worker) == (signal.SIGKILL, to) else 75), (worker, to, errors[-3000:])
        start = max(RunDirectory(killed).checkpoints(), default=0)
        steps = [worker.last("step") for worker in run.workers]
        repeated[number] += [step - start for step in steps]
        print(i, number.name, "to", to, "at", steps, "of", run.last("start"), "->", start, flush=True)
    assert ended(launch(killed, total, workers)).last("start") == start
    assert_ends_alike(whole, killed, total)
    assert max(repeated[signal.SIGKILL]) <= EVERY and set(repeated[signal.SIGTERM]) == {0}, repeated
