"""A run that is stopped after its first checkpoint."""

import pytest

from keras_vit.runs import RunDirectory, run


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
