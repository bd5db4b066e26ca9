"""Two processes in one work directory: the second is refused at once, reads are not, and a killed owner's lock does not
stay.
"""

import json
import pathlib
import signal

import pytest
from interpreters import Fork, wait_for

from keras_vit.io.lock import FILE

pytestmark = pytest.mark.processes

OPTIONS = {
    **{"model.depth": 1, "model.width": 16, "model.heads": 2, "model.mlp_dim": 16, "jit_compile": False},
    **{"data.train": "train[:64]", "data.evaluation": "test[:16]", "batch_size": 8},
    **{"evaluate": "4 steps", "checkpoint": "4 steps"},
}


def pretrain(workdir, steps, name):
    """A process that trains in a directory, and writes to a file of this name beside it."""
    options = [f"--config.{key}={value}" for key, value in {**OPTIONS, "total": f"{steps} steps"}.items()]
    arguments = ["--config=digits_pretrain", f"--workdir={workdir}", *options]
    return Fork("trainers.pretrain", *arguments, output=workdir.with_name(name))


def test_one_process_trains_and_others_are_told_and_may_read(tmp_path):
    """Then it gets kill -9, and the next one takes over at once and finishes."""
    workdir = tmp_path / "run"
    first = pretrain(workdir, 100_000, "first")
    try:
        checkpoint = pathlib.Path(workdir / "checkpoints" / "step_00000004.safetensors")
        wait_for(lambda: checkpoint.exists() or first.poll() is not None, [first])
        assert first.poll() is None, first.printed()[-3000:]
        assert json.loads((workdir / FILE).read_text())["pid"] == first.pid
        second = pretrain(workdir, 100_000, "second")
        assert second.wait() == 1 and "Traceback" not in second.printed()
        assert f"Error: {workdir} is in use: process {first.pid} on " in second.printed()
        assert f"stop it (kill {first.pid}), or use another" in second.printed()
        assert first.poll() is None
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    steps = max(int(path.stem[5:]) for path in (workdir / "checkpoints").glob("step_*"))
    third = pretrain(workdir, steps + 4, "third")
    assert third.wait() == 0, third.printed()[-3000:]
    assert f"starting at step {steps}" in third.printed() or "was replaced" in third.printed()
    assert (workdir / "model.keras").exists() and not (workdir / FILE).exists()
