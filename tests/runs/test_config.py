"""What a config cannot mean is refused before anything is opened, and a run directory's config.json is looked at with
care.
"""

import json
import logging
import types

import pytest

import keras_vit
from keras_vit.data import from_arrays
from keras_vit.distribution import Strategy
from keras_vit.layers.normalization import batch_normalizations
from keras_vit.runs import RunDirectory, prepare, training_run
from keras_vit.runs.config import check_config, check_keys, check_same_run, odd_sizes, resolve
from keras_vit.tasks import Classification, find_task
from trainers import config_files

BASE = config_files.packaged("lib.common").base


@pytest.fixture
def config():
    return config_files.load_config("digits_pretrain")


def test_durations_that_depend_on_the_data_name_their_key(config):
    config.total = "10%"
    with pytest.raises(ValueError, match='--config.total: The length of the whole run cannot be "10%" of itself'):
        resolve(config, 100)
    config.update(total="10 steps")
    config.schedule.update(warmup="8 steps", cooldown="3 steps")
    with pytest.raises(ValueError, match="schedule.warmup is 8 steps, cooldown 3, --config.total 10"):
        resolve(config, 100)


def test_small_parts_of_a_short_run_are_a_step(config):
    config.update(total=6, evaluate="1%", checkpoint="5%")
    resolved = resolve(config, 100)
    assert (resolved["evaluate"], resolved["checkpoint"], resolved["schedule"]["warmup"]) == (1, 1, 0)


def test_what_is_allowed_and_odd_is_said_in_a_line(config):
    config.update(total="6 steps", evaluate="10 steps", batch_size=64)
    said = list(odd_sizes(config, resolve(config, 50), 50))
    assert said == [
        '--config.evaluate="10 steps" is longer than the run of 6 steps: it is evaluated at its end only.',
        "--batch_size=64 is more than the 50 training examples: every batch repeats some of them. --batch_size=50 or"
        " less repeats none.",
    ]
    config.update(evaluate="6 steps", batch_size=50)
    assert list(odd_sizes(config, resolve(config, 50), 50)) == []
    config.optimizer.ema = 0.999
    (said,) = odd_sizes(config, resolve(config, 50), 50)
    assert "ema=0.999 is slow for 6 steps" in said and "99% those of the first step" in said
    config.total = "6000 steps"
    assert list(odd_sizes(config, resolve(config, 50), 50)) == []


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("learning_rate", "Did you mean config.optimizer.learning_rate"),
        ("optimizer.warmup", "schedule.warmup"),
        ("mixupp", "config.mixup"),
    ],
)
def test_a_key_that_nothing_reads_is_refused(config, key, hint):
    *sections, last = key.split(".")
    (config[sections[0]] if sections else config)[last] = 0.1
    with pytest.raises(ValueError, match=f"Unknown config key config.{key}.*{hint}"):
        check_keys(config, BASE())
    config.task = "mine.py:Task"  # may read keys of its own
    check_keys(config, BASE())


@pytest.mark.parametrize("name", config_files.config_names())
def test_shipped_configs_have_no_such_keys_and_make_sense(name):
    config = config_files.load_config(name)
    check_keys(config, BASE())
    check_config(config)


@pytest.fixture
def started(tmp_path, config):
    """started(**changes): the RunDirectory of a run whose config.json has these changes, and the config that it resumes
    with.
    """

    def make(**changes):
        resolved = {
            **resolve(config, 100),
            "model_spec": {"variant": {"depth": 4, "dropout": 0.0}},
            "versions": {"keras_vit": "0.3.0"},
        }
        (tmp_path / "checkpoints").mkdir(exist_ok=True)
        (tmp_path / "checkpoints" / "step_00000001.safetensors").touch()
        (tmp_path / "config.json").write_text(json.dumps({**resolved, **changes}))
        return RunDirectory(tmp_path), resolved

    return make


@pytest.mark.parametrize("content", ["", '{"seed": ', "[]"])
def test_a_broken_config_json_is_named(started, tmp_path, content):
    rundir, resolved = started()
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=f"{tmp_path}/config.json .*Restore it from a backup, or remove it to resume"):
        check_same_run(rundir, resolved)


def test_options_of_an_older_version_are_named(started, caplog):
    logging.getLogger("absl").propagate = True
    with caplog.at_level("WARNING"):
        check_same_run(*started(layout={"strategy": "one"}, few_shot={"every": 1}, sharpness=0.5))
    assert "are unknown to this version and ignored: sharpness." in caplog.text


def test_all_options_of_a_task_are_written(config):
    config.task, config.objective = "masked_patches", {"mask_ratio": 0.25}
    task, source = find_task(config.task)(config), types.SimpleNamespace(size=8)
    prepared = prepare.Prepared(config, task, {}, source, source, {})
    written = training_run._describe(prepared, types.SimpleNamespace(get_config=dict), Strategy())["objective"]
    assert written == {"mask_ratio": 0.25, "target": "mean_colour"}


def spec_of(part, spec):
    """A run's description of its model, of which `part` learns, or the whole."""
    return {part: {"config": spec}} if part else spec


def dropout(rate):
    return {"variant": {"depth": 4, "dropout": rate}}


PHOTOS = {"data": {"source": "folder:photos", "train": "train[:80%]", "evaluation": "train[80%:]"}}
FILES = {"training": "0000aaaa", "evaluation": "0000bbbb"}
MASKED = {"mask_ratio": 0.25, "target": "mean_colour"}
ANIMALS = {"class_names": ["ant", "bee", "cat"]}
NEWER = {"keras_vit": "99.1.0"}
# {what: (of the run's config.json, of the config that it resumes with, the refusal)}
CHANGES = {
    "a field": ({"model_spec": dropout(0.1)}, {}, "another config: model.dropout was 0.1, is 0.0. Use a new"),
    **{
        f"a field of the {part}": (
            {"model_spec": spec_of(part, dropout(0.2)) | {"teacher": {"config": {"variant": {"depth": 1}}}}},
            {"model_spec": spec_of(part, dropout(0.0)) | {"teacher": {"config": {"variant": {"depth": 2}}}}},
            "another config: model.dropout was 0.2, is 0.0. Use a new",
        )
        for part in ("student", "encoder")
    },
    "a task's option": (
        {"objective": MASKED},
        {"objective": {**MASKED, "mask_ratio": 0.5}},
        "another config: objective.mask_ratio was 0.25, is 0.5. Use a new",
    ),
    "an option that was None": (
        {"objective": {"alpha": 0.0}},
        {"objective": {"alpha": None}},
        "objective.alpha was 0.0, is None",
    ),
    **{
        f"classes of {part}": (
            {"model_spec": spec_of(part, ANIMALS)},
            {"model_spec": spec_of(part, {"class_names": ["ant", "cat", "wasp"]})},
            "a run on other data: class 1 was 'bee', is 'cat'. Use the data it began with",
        )
        for part in (None, "student", "encoder")
    },
    "examples": (
        {"training_examples": 800},
        {"training_examples": 1801},
        "other data: there were 800 training examples, and are 1,801. Use the data",
    ),
    "files": (
        {**PHOTOS, "files": FILES},
        {**PHOTOS, "files": {**FILES, "evaluation": "0000cccc"}},
        "other data: the evaluation images have other names or another order",
    ),
    "files of version 0.4, which split folders in another order": (
        PHOTOS,
        {**PHOTOS, "files": FILES},
        r"version of keras_vit \(0.3.0\) that split folders .* use a new --workdir",
    ),
    "a newer version's option": (
        {"sharpness": 0.5, "flatness": None, "versions": NEWER},
        {},
        f"config.json was written by keras_vit 99.1.0, and this is {keras_vit.__version__}.*options sharpness. ",
    ),
}
SAME = {
    "nothing": ({}, {}),
    "a newer version's option that is off": ({"flatness": None, "versions": NEWER}, {}),
    "an older version's options of a task": ({"objective": {"mask_ratio": 0.25}}, {"objective": MASKED}),
    "micro-batches": ({"micro_batches": 2}, {}),
    "files": ({**PHOTOS, "files": FILES}, {**PHOTOS, "files": FILES}),
    "what an earlier version did not write": ({}, {"training_examples": 800, "files": FILES}),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_run_does_not_resume_with_what_changed(started, what):
    was, now, message = CHANGES[what]
    rundir, resolved = started(**was)
    with pytest.raises(ValueError, match=message):
        check_same_run(rundir, {**resolved, **now})


@pytest.mark.parametrize("what", SAME)
def test_a_run_resumes_with_what_is_the_same(started, what):
    was, now = SAME[what]
    rundir, resolved = started(**was)
    check_same_run(rundir, {**resolved, **now})


def test_micro_batches_may_not_change_with_batch_normalisation(started):
    rundir, resolved = started(micro_batches=2)
    with pytest.raises(ValueError, match="micro_batches was 2, is 1, and the model's batch normalisation"):
        check_same_run(rundir, resolved, batch_statistics=True)
    size = {"image_size": 16, "depth": 1, "width": 16, "heads": 2, "mlp_dim": 16}
    for stem in ((), (8, 8)):
        assert bool(batch_normalizations(keras_vit.ViT("Ti/4", conv_stem=stem, **size))) == bool(stem)


def test_an_option_that_no_optimizer_of_the_two_reads_may_change(started):
    """A run that was begun with one resumes, though a new one is refused."""
    rundir, resolved = started()
    before = {**resolved, "optimizer": {**resolved["optimizer"], "momentum": 0.5}}
    (rundir.path / "config.json").write_text(json.dumps(before))
    check_same_run(rundir, resolved)
    with pytest.raises(ValueError, match="optimizer.momentum was 0.5, is 0.9"):
        check_same_run(rundir, {**resolved, "optimizer": {**resolved["optimizer"], "name": "momentum"}})


@pytest.mark.extended
def test_a_head_that_stays_has_the_classes_in_the_datas_order(config, tmp_path, caplog):
    import numpy as np

    logging.getLogger("absl").propagate = True
    size = {"depth": 1, "width": 16, "heads": 2, "mlp_dim": 16}
    keras_vit.save(
        keras_vit.ViT("Ti/4", image_size=8, channels=1, classes=3, class_names=("a", "b", "c"), **size),
        tmp_path / "m.keras",
    )
    config.update(init=str(tmp_path / "m.keras"), head="keep")
    config.model = {"variant": None, "image_size": 8, "channels": 1, "remat": False}
    config.data.eval_preprocess = "decode(1)"
    images = np.zeros((3, 8, 8, 1), "uint8")
    with pytest.raises(ValueError, match=r"m.keras orders the classes differently.*--config.head=reset"):
        Classification(config).load(from_arrays(images, [0, 1, 2], class_names=("b", "a", "c")))
    with caplog.at_level("WARNING"):
        Classification(config).load(from_arrays(images, [0, 1, 2], class_names=("a", "b", "d")))
    assert "although its class names differ from the data's" in caplog.text
