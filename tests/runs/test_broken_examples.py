"""broken_examples.txt: complete at any moment, and over the processes of one run."""

import logging

import pytest

from keras_vit.data.errors import TooManyErrors
from keras_vit.distribution import Strategy, strategy
from keras_vit.runs.broken_examples import counted
from keras_vit.runs.saving.rundir import RunDirectory


@pytest.fixture
def rundir(tmp_path):
    return RunDirectory(tmp_path, strategy("one"))


def listed(rundir):
    path = rundir.path / "broken_examples.txt"
    return path.read_text().splitlines() if path.exists() else None


def test_a_killed_run_has_its_list_and_a_resumed_one_goes_on_with_it(rundir):
    context = counted(100, rundir, 0)
    errors = context.__enter__()
    errors.add("a.jpg", lambda: "empty")
    assert listed(rundir) == ["a.jpg\tempty"]  # the process may be killed now
    with counted(100, rundir, 10) as errors:
        errors.add("b.jpg", lambda: "truncated")
        errors.add("a.jpg", lambda: "found again")
    assert errors.names == {"a.jpg": "empty", "b.jpg": "truncated"}
    assert listed(rundir) == ["a.jpg\tempty", "b.jpg\ttruncated"]


def test_the_limit_is_that_of_the_whole_run(rundir):
    with counted(1, rundir, 0) as errors:
        errors.add("a.jpg", lambda: "empty")
    with pytest.raises(TooManyErrors), counted(1, rundir, 10) as errors:
        errors.add("b.jpg", lambda: "empty")


def test_a_run_from_the_start_has_no_list_of_an_older_one(rundir):
    with counted(1, rundir, 0) as errors:
        errors.add("a.jpg", lambda: "empty")
    with counted(1, rundir, 0):
        assert listed(rundir) is None


def test_every_worker_has_a_list_and_a_resumed_run_counts_them_all(tmp_path):
    workers = [RunDirectory(tmp_path, Strategy(hosts=2, host=host)) for host in range(2)]
    (tmp_path / "broken_examples_7.txt").write_text("of.jpg\tan older run\n")
    with counted(2, workers[0], 0) as first, counted(2, workers[1], 0) as second:
        first.add("a.jpg", lambda: "empty")
        second.add("b.jpg", lambda: "truncated")
        assert (tmp_path / "broken_examples_1.txt").read_text() == "b.jpg\ttruncated\n"  # at once
    assert listed(workers[0]) == ["a.jpg\tempty", "b.jpg\ttruncated"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken_examples.txt", "broken_examples_1.txt"]
    with pytest.raises(TooManyErrors), counted(2, workers[1], 10) as errors:
        assert errors.names.keys() == {"a.jpg", "b.jpg"}
        errors.add("c.jpg", lambda: "empty")


def test_a_list_that_cannot_be_read_is_a_warning(rundir, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("absl"), "propagate", True)
    (rundir.path / "broken_examples.txt").mkdir()
    with counted(1, rundir, 10) as errors:
        assert errors.names == {}
    assert "could not use before are not counted" in caplog.text
