"""Mistakes that are found before anything long is started, by flags alone or by a look at the file system."""

import os
import pathlib
import types

import pytest

from keras_vit.evaluation import parse_evaluators
from keras_vit.runs.evaluate import load_task, own_data
from trainers import config_files, deduplicate, evaluate, export, finetune, flags, prepare, pretrain, probe

DEFAULTS = {"dry_run": False, "examples": None, "classes": None, "output": None}


@pytest.fixture
def given(monkeypatch):
    """given(flag=value...): the flags."""
    return lambda **values: monkeypatch.setattr(flags, "FLAGS", types.SimpleNamespace(**{**DEFAULTS, **values}))


@pytest.mark.parametrize("binary", [finetune, pretrain])
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("folder:PATH", "--data=PHOTOS, a folder with one subfolder of images per class"),
        ("folder:", "--data=PHOTOS"),
        ("csv:PATH?label=x", "--data=FILE.csv"),
        ("tfrecord:PATH", "--data=FOLDER"),
    ],
)
def test_a_recipe_for_data_of_ones_own_says_what_to_give(given, binary, source, message):
    config = config_files.load_config("folder_finetune")
    config.data.source = source
    given(config=config)
    with pytest.raises(ValueError, match="^This config needs data of yours: ") as refused:
        binary.main()
    assert message in str(refused.value) and "\n" not in str(refused.value)
    given(config=config, dry_run=True)
    with pytest.raises(ValueError, match="This config needs data"):
        binary.main()


def test_a_plan_without_data_needs_none(given):
    given(config=config_files.load_config("folder_finetune"), dry_run=True, examples=100, classes=3)
    config_files.check_source(flags.FLAGS)


@pytest.mark.parametrize("binary", [evaluate, probe, export, prepare, deduplicate])
def test_an_output_that_cannot_be_written_is_refused_before_the_work(given, tmp_path, binary):
    (tmp_path / "file").touch()
    common = {"strategy": "one", "format": "tf_saved_model", "model": "none", "threshold": "0.9"}
    common |= dict.fromkeys(("tpu", "model_parallel", "quantization", "calibration"))
    given(output=str(tmp_path / "file" / "x"), **common)
    with pytest.raises(OSError, match=f'Cannot write to the folder ".*": "{tmp_path}/file" is a file'):
        binary.main()
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_of_names_is_not_a_folder(given, tmp_path):
    given(output=str(tmp_path), threshold="0.9")
    with pytest.raises(
        ValueError, match=f"--output={tmp_path} is a folder. Name a file in it, such as {tmp_path}/excluded.txt"
    ):
        deduplicate.main()


def test_a_broken_config_json_of_a_run_directory_is_named(tmp_path):
    pathlib.Path(tmp_path / "config.json").write_text('{"total": 3, ')
    with pytest.raises(ValueError, match=f"{tmp_path}/config.json is not valid JSON.*evaluate model.keras itself"):
        load_task(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "val"}, "--split=val is a split of --data, which is missing"),
        ({"data": "digits", "evals": "knn(source='cifar10')"}, "--data=digits would be ignored: knn reads cifar10"),
        (
            {"data": "folder:val", "evals": "real(labels='r')"},
            "real reads imagenet2012.id=file_name. Leave out .* source=None",
        ),
    ],
)
def test_evaluate_refuses_flags_that_no_evaluator_reads(options, message):
    values = dict.fromkeys(("data", "split", "preprocess")) | {
        "evals": "classification|knn(source='cifar10')",
        **options,
    }
    with pytest.raises(ValueError, match=message):
        evaluate._evaluators(types.SimpleNamespace(**values))


def test_the_preprocessing_of_evaluate_is_that_of_every_evaluator_without_its_own():
    evals = "classification|knn(source='digits')|few_shot(source='digits', shots=2, preprocess='decode(1)')"
    values = types.SimpleNamespace(data="digits", split="val", preprocess="decode", evals=evals)
    found = evaluate._evaluators(values)
    assert [evaluator.preprocess for evaluator in found.values()] == ["decode", "decode", "decode(1)"]
    assert found["few_shot"].shots == (2,) and found["few_shot"].score == "2"


def test_evaluate_takes_the_runs_own_data_and_asks_for_that_of_another_model(tmp_path):
    (tmp_path / "config.json").write_text(
        '{"total": "1 steps", "data": {"source": "digits", "train": "train", "evaluation": "test[:50%]"}}'
    )
    own = own_data(str(tmp_path))
    values = types.SimpleNamespace(data=None, evals=None, split=None, data_dir=None)
    source, *where = evaluate._open(values, own, "run")
    assert where == ["digits", "test[:50%]"] and source.size == 180
    assert own_data(str(tmp_path / "model.keras")) == own
    assert own_data(str(tmp_path / "model.safetensors")) is None
    with pytest.raises(ValueError, match="model.safetensors is not a run directory.*give --data"):
        evaluate._open(values, None, "model.safetensors")
    named = parse_evaluators("shifts|knn(source='digits')")
    assert evaluate._open(values, own, "run", named)[1:] == ("digits", "test[:50%]")  # for shifts
    with pytest.raises(ValueError, match="so its data, which shifts would read, are unknown: give --data"):
        evaluate._open(values, None, "model.safetensors", named)
    assert evaluate._open(values, None, "model.safetensors", {"knn": named["knn"]})[0] is None
