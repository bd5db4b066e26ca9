"""Two processes in one work directory: the second is refused at once, reads are not, and a killed owner's lock does not
stay.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from interpreters import ROOT, wait_for

from keras_vit.io.lock import FILE

pytestmark = pytest.mark.processes

SMALL = ["depth=1", "width=16", "heads=2", "mlp_dim=16"]
OPTIONS = [f"--config.model.{text}" for text in SMALL] + [
    "--config.data.train=train[:64]",
    "--config.data.evaluation=test[:16]",
    "--config.batch_size=8",
    "--config.jit_compile=False",
    "--config.evaluate=4 steps",
    "--config.checkpoint=4 steps",
]


def command(binary, *arguments):
    return [sys.executable, "-m", f"trainers.{binary}", *arguments]


def pretrain(workdir, steps):
    return command(
        "pretrain", "--config=digits_pretrain", f"--workdir={workdir}", f"--config.total={steps} steps", *OPTIONS
    )


def ended(arguments, code=0):
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr[-3000:]
    return done.stdout + done.stderr


def test_one_process_trains_and_others_are_told_and_may_read(tmp_path):
    """Then it gets kill -9, and the next one takes over at once and finishes."""
    workdir = tmp_path / "run"
    errors = open(tmp_path / "errors", "w+")
    first = subprocess.Popen(pretrain(workdir, 100_000), cwd=ROOT, stdout=errors, stderr=errors, env=os.environ)
    try:
        checkpoint = pathlib.Path(workdir / "checkpoints" / "step_00000004.safetensors")
        wait_for(lambda: checkpoint.exists() or first.poll() is not None, [first])
        assert first.poll() is None, (tmp_path / "errors").read_text()[-3000:]
        assert json.loads((workdir / FILE).read_text())["pid"] == first.pid
        said = ended(pretrain(workdir, 100_000), code=1)
        assert (
            f"Error: {workdir} is in use: process {first.pid} on " in said
            and f"stop it (kill {first.pid}), or use another" in said
        )
        assert first.poll() is None
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
        errors.close()
    steps = max(int(path.stem[5:]) for path in (workdir / "checkpoints").glob("step_*"))
    said = ended(pretrain(workdir, steps + 4))
    assert f"starting at step {steps}" in said or "was replaced" in said
    assert (workdir / "model.keras").exists() and not (workdir / FILE).exists()
