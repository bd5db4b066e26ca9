"""Run directories: resuming after kill -9, damaged checkpoints, metrics, atomic files."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from keras_vit.training import AdamW, SoftmaxCrossEntropy, state
from keras_vit.training.files import replacing, write_bytes
from keras_vit.training.loop import spans
from keras_vit.training.rundir import RunDirectory

ROOT = pathlib.Path(__file__).resolve().parents[2]
# A short run with dropout and every shipped augmentation on; argv: workdir, and after which step to kill.
SCRIPT = """
import os, signal, sys
from trainers import flags, pretrain, session
import keras
from keras_vit.training import files, rundir
config = flags.load_config("digits_pretrain")
config.model.update(depth=2, width=16, heads=2, mlp_dim=32, dropout=0.1, drop_path=0.1, attention_dropout=0.1)
config.data.train = "train[:200]"
config.data.evaluation = "test[:50]"
config.data.train_preprocess = "decode(1)|resize(10)|random_resized_crop(9, scale=(0.5, 1.0))|random_crop(8, padding=1)|random_flip|random_shift(1)|noise(10)"
config.update(total="30 steps", evaluate="8 steps", checkpoint="5 steps", jit_compile=False, batch_size=16)
config.optimizer.ema = 0.9
workdir, kind, at = sys.argv[1], sys.argv[2], int(sys.argv[3])
die = lambda: os.kill(os.getpid(), signal.SIGKILL)
if kind == "step":
    from keras_vit.training import callbacks
    original = callbacks.Checkpoints.on_train_batch_end
    def on_train_batch_end(self, batch, logs=None):
        original(self, batch, logs)
        if self.step == at:
            die()
    callbacks.Checkpoints.on_train_batch_end = on_train_batch_end
if kind == "write":
    def half(path, data):
        if f"step_{at:08d}" in str(path):
            with files.replacing(path) as temporary, open(temporary, "wb") as file:
                file.write(data[: len(data) // 2])
                file.flush()
                die()
        files.write_bytes(path, data)
    rundir.write_bytes = half
session.run(config, workdir, pretrain.build)
"""


def run(workdir, kind="none", at=0):
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", SCRIPT, str(workdir), kind, str(at)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_killed_runs_resume_and_end_bit_for_bit_equal(tmp_path):
    """Killed in mid-epoch at step 12 (checkpoints at 5, 10), and again while checkpoint 20 is half written."""
    whole = run(tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr[-2000:]
    assert run(tmp_path / "killed", "step", 12).returncode == -signal.SIGKILL
    assert run(tmp_path / "killed", "write", 20).returncode == -signal.SIGKILL
    left = sorted(p.name for p in (tmp_path / "killed" / "checkpoints").iterdir())
    assert left[-2:] == ["step_00000015.safetensors", "step_00000016.safetensors"] and left[0].startswith(".tmp-")
    assert not (tmp_path / "killed" / "model.keras").exists()
    assert run(tmp_path / "killed").returncode == 0
    arrays = [RunDirectory(tmp_path / name).checkpoints()[30].read_bytes() for name in ("whole", "killed")]
    assert arrays[0] == arrays[1]
    metrics = [[r["step"] for r in RunDirectory(tmp_path / name).metrics()] for name in ("whole", "killed")]
    assert metrics[0] == [8, 16, 24, 30] and metrics[1] == metrics[0]
    evaluations = [json.loads((tmp_path / name / "evaluation.json").read_text()) for name in ("whole", "killed")]
    assert evaluations[0] == evaluations[1]


def compiled(tiny):
    model = tiny(dropout=0.1)
    model.compile(AdamW(0.1, use_ema=True), SoftmaxCrossEntropy())
    model.optimizer.build(model.trainable_variables)
    return model


def test_state_holds_weights_seeds_optimizer_and_averages(tiny):
    arrays = state.collect(compiled(tiny))
    for part in ("head/kernel", "seed_generator_state", "iteration", "velocity", "average"):
        assert any(part in name for name in arrays), part
    assert not any("loss" in name for name in arrays)


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tiny, tmp_path, damage, caplog):
    import logging

    model, files = compiled(tiny), RunDirectory(tmp_path)
    files.save(model, 10, keep=2)
    expected = model.get_weights()
    model.set_weights([w + 1 for w in expected])
    files.save(model, 20, keep=2)
    path = files.checkpoints()[20]
    data = bytearray(path.read_bytes())
    data[-50] ^= 1
    path.write_bytes({"truncate": bytes(data[:-100]), "flip": bytes(data), "empty": b""}[damage])
    logging.getLogger("absl").propagate = True
    with caplog.at_level("WARNING"):
        assert files.resume(model) == 10
    assert "step_00000020.safetensors is damaged" in caplog.text
    for a, b in zip(model.get_weights(), expected):
        np.testing.assert_array_equal(a, b)


def test_another_configuration_in_the_same_directory_is_an_error(tiny, tmp_path):
    files = RunDirectory(tmp_path)
    files.save(compiled(tiny), 10, keep=1)
    other = tiny(depth=1, width=32)
    other.compile(AdamW(0.1, use_ema=True), SoftmaxCrossEntropy())
    other.optimizer.build(other.trainable_variables)
    with pytest.raises(ValueError, match="of another model or optimizer.*Use a new --workdir"):
        files.resume(other)


def test_only_the_newest_checkpoints_are_kept(tiny, tmp_path):
    model, files = compiled(tiny), RunDirectory(tmp_path)
    for step in (1, 2, 3):
        files.save(model, step, keep=2)
    assert list(files.checkpoints()) == [2, 3]


def test_metrics_of_repeated_steps_are_dropped_and_a_torn_line_is_skipped(tiny, tmp_path):
    files = RunDirectory(tmp_path)
    files.save(compiled(tiny), 10, keep=1)
    for step in (5, 10, 15):
        files.append_metrics({"step": step})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 2')
    files.resume(compiled(tiny))
    assert [r["step"] for r in files.metrics()] == [5, 10]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    write_bytes(tmp_path / "a", b"old")
    with pytest.raises(OSError, match="disk full"), replacing(tmp_path / "a") as temporary:
        with open(temporary, "wb") as file:
            file.write(b"half")
        raise OSError("disk full")
    assert [p.name for p in tmp_path.iterdir()] == ["a"] and (tmp_path / "a").read_bytes() == b"old"


def test_folders_are_replaced_whole(tmp_path):
    for content in ("old", "new"):
        with replacing(tmp_path / "folder") as temporary:
            os.mkdir(temporary)
            with open(os.path.join(temporary, content), "w") as file:
                file.write(content)
    assert os.listdir(tmp_path) == ["folder"] and os.listdir(tmp_path / "folder") == ["new"]


@pytest.mark.parametrize(
    ("start", "total", "every", "expected"),
    [
        (0, 30, 10, [(0, 30, 10)]),
        (0, 34, 10, [(0, 30, 10), (30, 34, 4)]),
        (12, 34, 10, [(12, 20, 8), (20, 30, 10), (30, 34, 4)]),
        (31, 34, 10, [(31, 34, 3)]),
        (0, 5, 10, [(0, 5, 5)]),
        (30, 30, 10, []),
    ],
)
def test_spans_cover_the_run_in_whole_epochs(start, total, every, expected):
    assert spans(start, total, every) == expected


@pytest.mark.slow
def test_a_run_killed_from_outside_at_any_time_resumes(tmp_path):
    """kill -9 by another process after three shares of the run's time, then to the end. Last run 2026-11-20: equal, in 42 s."""
    began = time.time()
    assert run(tmp_path / "whole").returncode == 0
    whole, kills = time.time() - began, 0
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    for share in (0.7, 0.8, 0.9):
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(tmp_path / "killed"), "none", "0"], cwd=ROOT, env=environment
        )
        time.sleep(share * whole)
        kills += process.poll() is None
        process.kill()
        process.wait()
    assert kills
    assert run(tmp_path / "killed").returncode == 0
    arrays = [RunDirectory(tmp_path / name).checkpoints()[30].read_bytes() for name in ("whole", "killed")]
    assert arrays[0] == arrays[1]
