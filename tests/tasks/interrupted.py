"""Runs up to their last step, one that is stopped after its first checkpoint, and one that goes on from there."""

import shutil

import pytest

from keras_vit.runs import RunDirectory, run, training_run


class Stop(Exception):
    """In the place of a kill."""


def stopped(config, folder):
    """Runs a config in a folder until its first checkpoint is written, after 3 of 6 steps."""
    save = RunDirectory.save

    def save_and_die(self, step, *arguments):
        save(self, step, *arguments)
        raise Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunDirectory, "save", save_and_die)
        with pytest.raises(Stop):
            run(config, folder)
    assert list(RunDirectory(folder).checkpoints()) == [3]


def ended(config, folder):
    """The model of a run in a folder at its last step, without the evaluation and the report after it."""
    with pytest.MonkeyPatch.context() as patch:
        measures = lambda task: {task.score.name: 0.0, "loss": 0.0, "examples": 1}  # noqa: E731
        patch.setattr(training_run, "finish", lambda prepared, model, *_: (model, measures(prepared.task)))
        return run(config, folder)[0]


def ended_and_resumed(config, folder):
    """The models of a run in folder/whole at its last step, and of one in folder/resumed that goes on from the first's
    checkpoint.

    The second begins with the files that a kill would have left when that checkpoint, after 3 of 6 steps, was written.
    """
    save, left = RunDirectory.save, folder / "resumed"

    def save_and_copy(self, step, *arguments):
        save(self, step, *arguments)
        if not left.exists():
            shutil.copytree(folder / "whole" / "checkpoints", left / "checkpoints")
            shutil.copy(folder / "whole" / "config.json", left)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunDirectory, "save", save_and_copy)
        whole = ended(config, folder / "whole")
    assert list(RunDirectory(left).checkpoints()) == [3]
    return whole, ended(config, left)
