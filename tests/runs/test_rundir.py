"""Run directories: damaged checkpoints, metrics, atomic files. What ends a run is in test_faults.py."""

import pathlib
import shutil
import types

import keras
import numpy as np
import pytest

from keras_vit.checkpoints.save import save_model
from keras_vit.distribution import Strategy
from keras_vit.io import atomic
from keras_vit.runs.loop.train import fit_calls
from keras_vit.runs.saving import run_state
from keras_vit.runs.saving.rundir import RunDirectory
from keras_vit.training import AdamW, SoftmaxCrossEntropy


def compiled(tiny):
    model = tiny(dropout=0.1)
    model.compile(AdamW(0.1, use_ema=True), SoftmaxCrossEntropy())
    model.optimizer.build(model.trainable_variables)
    return model


def test_state_holds_weights_seeds_optimizer_and_averages(tiny):
    arrays = run_state.collect(compiled(tiny))
    for part in ("head/kernel", "seed_generator_state", "iteration", "velocity", "average"):
        assert any(part in name for name in arrays), part
    assert not any("loss" in name for name in arrays)


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tiny, tmp_path, damage, caplog):
    import logging

    model, rundir = compiled(tiny), RunDirectory(tmp_path)
    rundir.save(10, run_state.collect(model), keep=2)
    expected = model.get_weights()
    model.set_weights([w + 1 for w in expected])
    rundir.save(20, run_state.collect(model), keep=2)
    path = rundir.checkpoints()[20]
    data = bytearray(path.read_bytes())
    data[-50] ^= 1
    path.write_bytes({"truncate": bytes(data[:-100]), "flip": bytes(data), "empty": b""}[damage])
    logging.getLogger("absl").propagate = True
    with caplog.at_level("WARNING"):
        assert rundir.resume(model) == 10
    assert "step_00000020.safetensors is damaged" in caplog.text
    for a, b in zip(model.get_weights(), expected):
        np.testing.assert_array_equal(a, b)


def test_a_run_that_begins_is_not_finished(tmp_path):
    """A longer run that is killed would leave the measures of the shorter one beside its checkpoints."""
    (tmp_path / "finished.json").write_text("{}")
    for _ in range(2):
        RunDirectory(tmp_path).begin({"total": 8})
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    (tmp_path / "finished.json").write_text("{}")
    RunDirectory(tmp_path, Strategy(hosts=2, host=1)).begin({"total": 9})
    assert (tmp_path / "finished.json").exists()  # only the chief writes


def test_another_configuration_in_the_same_directory_is_an_error(tiny, tmp_path):
    rundir = RunDirectory(tmp_path)
    rundir.save(10, run_state.collect(compiled(tiny)), keep=1)
    other = tiny(depth=1, width=32)
    other.compile(AdamW(0.1, use_ema=True), SoftmaxCrossEntropy())
    other.optimizer.build(other.trainable_variables)
    with pytest.raises(ValueError, match="belongs to a different model or optimizer.*Use a new --workdir"):
        rundir.resume(other)


def test_a_damaged_checkpoint_is_not_kept_instead_of_an_intact_one(tiny, tmp_path):
    model, rundir = compiled(tiny), RunDirectory(tmp_path)
    for step in (10, 20):
        rundir.save(step, run_state.collect(model), keep=2)
    rundir.checkpoints()[20].write_bytes(b"")
    assert rundir.resume(model) == 10
    assert "step_00000010" in rundir.last_checkpoint()
    rundir.save(15, run_state.collect(model), keep=1)
    assert list(rundir.checkpoints()) == [15]


def test_metrics_of_repeated_steps_are_dropped_and_a_torn_line_is_skipped(tiny, tmp_path):
    rundir = RunDirectory(tmp_path)
    rundir.save(10, run_state.collect(compiled(tiny)), keep=1)
    for step in (5, 10, 15):
        rundir.append_metrics({"step": step})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 2')
    rundir.resume(compiled(tiny))
    assert [r["step"] for r in rundir.metrics()] == [5, 10]


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
def test_calls_of_fit_cover_the_run_in_whole_epochs(start, total, every, expected):
    assert fit_calls(start, total, every) == expected


def test_a_model_goes_to_a_bucket_whole(tiny, tmp_path, monkeypatch):
    """gs:// is a folder here."""
    monkeypatch.setattr(atomic.epath, "Path", lambda p: pathlib.Path(str(p).replace("gs://", f"{tmp_path}/")))
    (tmp_path / "bucket").mkdir()
    model = tiny()
    save_model(model, "gs://bucket/model.keras")
    again = keras.saving.load_model(tmp_path / "bucket" / "model.keras")
    np.testing.assert_array_equal(again.get_weights()[0], model.get_weights()[0])
    assert [p.name for p in (tmp_path / "bucket").iterdir()] == ["model.keras"]


def test_if_no_checkpoint_is_intact_nothing_is_lost_by_beginning_again(tiny, tmp_path):
    model, rundir = compiled(tiny), RunDirectory(tmp_path)
    rundir.save(10, run_state.collect(model), keep=2)
    rundir.append_metrics({"step": 10})
    rundir.checkpoints()[10].write_bytes(b"")
    with pytest.raises(
        ValueError, match="All checkpoints of .* are damaged: step_00000010.safetensors. Restore .* new --workdir"
    ):
        rundir.resume(model)
    assert rundir.metrics() == [{"step": 10}] and list(rundir.checkpoints()) == [10]


@pytest.mark.parametrize("line", [b'{"step": 7, "lo', b"7", b"\xff\xfe", b"\0\0\0", b'{"loss": 1}'])
def test_a_line_of_the_metrics_that_is_none_is_skipped(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 5}\n' + line)
    assert RunDirectory(tmp_path).metrics() == [{"step": 5}]


def test_reading_a_directory_leaves_alone_what_a_run_is_writing(tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for name in (".tmp-1-config.json", "checkpoints/.tmp-1-step"):
        (tmp_path / "run" / name).touch()
    before = sorted(tmp_path.rglob("*"))
    with RunDirectory(tmp_path / "other").owned(), RunDirectory(tmp_path / "run").owned():
        pass
    assert sorted(tmp_path.rglob("*")) == [path for path in before if "step" not in path.name]  # process 1 lives
    rundir = RunDirectory(tmp_path / "none")
    assert rundir.metrics() == [] and rundir.checkpoints() == {} and not (tmp_path / "none").exists()


def test_a_run_that_lost_its_directory_writes_no_more(tiny, tmp_path):
    rundir = RunDirectory(tmp_path)
    with rundir.owned():
        rundir._lock._taken_over_by = {"pid": 7, "host": "b"}
        with pytest.raises(ValueError, match="This process has lost .* process 7 on b"):
            rundir.save(10, run_state.collect(compiled(tiny)), keep=1)
    assert rundir.checkpoints() == {}


def test_too_little_space_for_the_checkpoints_is_said_before(tiny, tmp_path, monkeypatch, caplog):
    import logging

    logging.getLogger("absl").propagate = True
    model, rundir = compiled(tiny), RunDirectory(tmp_path)
    size = sum(array.nbytes for array in run_state.collect(model).values())
    assert run_state.size(model) == size
    for free in (3 * size, 3 * size - 1):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: types.SimpleNamespace(free=free))
        with caplog.at_level("WARNING"):
            rundir.check_space(model, keep=2)
    assert len(caplog.records) == 1 and "disk space are free, and the checkpoints need" in caplog.text
