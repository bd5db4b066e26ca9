"""broken_examples.txt: complete at any moment, and over the processes of one run."""

import pytest

from keras_vit.data.errors import TooManyErrors
from keras_vit.distribution import strategy
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
