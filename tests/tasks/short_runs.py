"""Runs of four steps on the digits: whole with a report, stopped after the first checkpoint, and resumed from it."""

import contextlib
import json
import shutil
import types

import pytest
from small_models import eager

from keras_vit.distribution import Strategy
from keras_vit.runs import RunDirectory, run, training_run
from trainers import config_files

SMALL = {"depth": 1, "width": 16, "heads": 2, "mlp_dim": 16}


def small(task="classification", name="digits_pretrain", **options):
    """A config, by default that of the digits, for a tiny model: evaluations and checkpoints at 2 and 4. No mixup and
    smoothing, which not every task takes.
    """
    config = config_files.load_config(name)
    config.update(total="4 steps", evaluate="2 steps", checkpoint="2 steps", batch_size=16, jit_compile=False)
    config.update(task=task, mixup=None)
    config.loss.label_smoothing = 0.0
    config.model.update(SMALL)
    config.data.update(train="train[:64]", evaluation="test[:32]")
    config.update_from_flattened_dict(options)
    return config


def ended(config, folder, strategy=None):
    """The model of a run in a folder at its last step, without the evaluation and the report after it."""
    with pytest.MonkeyPatch.context() as patch:

        def measures(task):
            return {task.score.name: 0.0, "loss": 0.0, "examples": 1}

        patch.setattr(training_run, "finish", lambda prepared, model, *_: (model, measures(prepared.task)))
        return run(config, folder, strategy=strategy or Strategy())[0]


def last_checkpoint(folder):
    """The last checkpoint of a run, as bytes."""
    checkpoints = RunDirectory(folder).checkpoints()
    return checkpoints[max(checkpoints)].read_bytes()


def whole(config, folder):
    """A run in folder/whole. Returns a namespace of its config, folder, model, measures, records, page (the report),
    evaluation (the JSON file) and state (the last checkpoint, as bytes).
    """
    place = folder / "whole"
    with eager():
        model, measures = run(config, place)
    return types.SimpleNamespace(
        config=config,
        folder=place,
        model=model,
        measures=measures,
        records=RunDirectory(place).metrics(),
        page=(place / "report.html").read_text(),
        evaluation=json.loads((place / "evaluation.json").read_text()),
        state=last_checkpoint(place),
    )


@contextlib.contextmanager
def copied_at_its_first_checkpoint(run, copy):
    """A context in which the folder of a run is copied with the files that a kill would have left then."""
    save = RunDirectory.save

    def save_and_copy(self, step, *arguments):
        save(self, step, *arguments)
        if not copy.exists():
            shutil.copytree(run / "checkpoints", copy / "checkpoints")
            shutil.copy(run / "config.json", copy)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunDirectory, "save", save_and_copy)
        yield


def whole_and_resumed(config, folder):
    """`whole`, and a run in folder/resumed from the other's first checkpoint; its last one is `resumed`."""
    resumed = folder / "resumed"
    with copied_at_its_first_checkpoint(folder / "whole", resumed):
        done = whole(config, folder)
    assert len(RunDirectory(resumed).checkpoints()) == 1
    with eager():
        ended(config, resumed)
    done.resumed = last_checkpoint(resumed)
    return done
