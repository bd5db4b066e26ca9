"""Configs by name and path, overrides, and what a user's mistakes and --help print."""

import re

import numpy as np
import pytest
from interpreters import ROOT

from keras_vit.data import from_arrays
from keras_vit.models import families
from keras_vit.tasks import find_task
from trainers import config_files, flags, pretrain

BINARIES = sorted(
    path.stem
    for path in (ROOT / "trainers").glob("*.py")
    if "flags.launch(" in path.read_text() and path.stem != "flags"
)


def test_a_run_that_cannot_begin_says_why(binary, tmp_path):
    for key, value, message in (
        ("data.source", "folder:/none", 'There is no folder "/none"'),
        ("init", "some/run", "pretrain starts from random weights"),
        ("model.dept", 3, 'Unknown argument "dept" of a ViT. Did you mean "depth"'),
        ("evals.few_sot", {"source": "digits"}, 'Unknown evaluator "few_sot". Did you mean "few_shot"'),
    ):
        config = config_files.load_config("digits_pretrain")
        config.update_from_flattened_dict({key: value})
        with pytest.raises((ValueError, OSError), match=message):
            binary(pretrain, config=config, workdir=str(tmp_path / "run"))


def test_configs_load_by_name_and_by_path(tmp_path):
    for name in config_files.config_names():
        by_path = config_files.load_config(str(ROOT / "configs" / f"{name}.py"))
        assert config_files.load_config(name).to_dict() == by_path.to_dict()
    own = tmp_path / "own.py"
    own.write_text("from keras_vit.configs.lib import common\n\ndef get_config():\n    return common.base()\n")
    assert config_files.load_config(str(own)).batch_size == 512


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("config.batch_size = 'many'", "own.py: TypeError: .*batch_size"),
        ("config.optimiser.name = 'x'", 'own.py: AttributeError: .*Did you mean "optimizer"'),
        ("config['none'][0]", "own.py: KeyError: none"),
        ("raise ValueError('No.')", "own.py: No."),
        ("return return", "own.py: SyntaxError: invalid syntax"),
    ],
)
def test_mistakes_in_a_config_of_ones_own_name_the_file(line, reason, tmp_path):
    own = tmp_path / "own.py"
    own.write_text(
        "from trainers.config_files import packaged\n\ndef get_config():\n"
        f"    config = packaged('lib.common').base()\n    {line}\n    return config\n"
    )
    with pytest.raises(ValueError, match=reason):
        config_files.load_config(str(own))


def test_the_models_fields_are_the_specs_own():
    """Any field is taken, whether the config sets it or not, and any other is refused when the model is built."""
    config, fields = config_files.load_config("folder_finetune"), families.fields()
    assert config_files.apply_overrides([f"--config.model.{field}=(1, 2)" for field in fields], config) == []
    assert all(config.model[field] == (1, 2) for field in fields)
    config = config_files.load_config("digits_pretrain")
    config_files.apply_overrides(["--config.model.dept=3"], config)
    with pytest.raises(ValueError, match='Unknown argument "dept" of a ViT. Did you mean "depth"'):
        find_task(config.task)(config).build(from_arrays(np.zeros((1, 8, 8, 1), "uint8"), [0]))


def test_new_keys_have_the_values_that_they_look_like():
    config = config_files.load_config("folder_finetune")
    given = ["pool=gap", "depth=3", "dropout=0.1", "mean=(1, 2, 3)", "qk_norm=True", "patch_norm=false"]
    assert config_files.apply_overrides([f"--config.model.{text}" for text in given], config) == []
    assert [config.model[text.split("=")[0]] for text in given] == ["gap", 3, 0.1, (1, 2, 3), True, False]
    config_files.apply_overrides(
        ["--config.evals.few_shot.shots=1,5", "--config.evals.few_shot.every=10 epochs"], config
    )
    assert config.evals.few_shot.to_dict() == {"shots": (1, 5), "every": "10 epochs"}


@pytest.mark.parametrize(
    ("given", "rest", "value"),
    [
        (["mixup=0.2", "mixup=None"], [], None),
        (["mixup", "0.2", "seed=3", "mixup=0.3", "mixup=None"], ["--config.seed=3"], None),
        (["mixup=None", "mixup=0.2"], ["--config.mixup=0.2"], None),  # which absl sets afterwards
        (["freeze[0]=a", "freeze=None"], [], None),
    ],
)
def test_of_several_values_of_a_key_the_last_one_counts(given, rest, value):
    config = config_files.load_config("digits_finetune")
    config.freeze = ("b",)
    argv = [text if text == "0.2" else f"--config.{text}" for text in given]
    assert config_files.apply_overrides(argv, config) == rest
    assert config[given[0].partition("=")[0].partition("[")[0]] == value


def test_every_config_says_its_command():
    for name in config_files.config_names():
        text = (ROOT / "configs" / f"{name}.py").read_text()
        assert f"--config={name}" in text.split('"""')[1]


def test_a_path_may_begin_with_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/anna")
    assert [flags._Path().parse(text) for text in ("~/out", "a/~b", "gs://b/~")] == [
        "/home/anna/out",
        "a/~b",
        "gs://b/~",
    ]
    for program in BINARIES:
        text = (ROOT / "trainers" / f"{program}.py").read_text()
        assert not re.search(r'flags\.string\(\s*"(output|workdir|data_dir)"', text), program
