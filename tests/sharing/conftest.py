"""A finished run of the digits, for the tests of cards: it must not be written to."""

import os
import pathlib

import filelock
import pytest
from small_models import eager

from keras_vit.runs import run
from trainers import config_files


@pytest.fixture(scope="session")
def finished():
    """The directory of a run of six steps, with an evaluator beside its own evaluation: one for all test workers."""
    folder = pathlib.Path(os.environ["TMPDIR"]) / "digits"
    config = config_files.load_config("digits_pretrain")
    config.update(total="6 steps", evaluate="3 steps", checkpoint="6 steps", batch_size=16, jit_compile=False)
    config.model.update(depth=1, width=32, heads=2, mlp_dim=32)
    config.data.update(train="train[:64]", evaluation="test[:48]")
    config.evals.knn = {"source": "digits", "train": "train[:64]", "test": "test[:32]", "k": 4, "every": None}
    with filelock.FileLock(f"{folder}.lock"), eager():  # tracing is most of what so few steps take
        if not (folder / "report.html").exists():
            run(config, folder)
    return folder
