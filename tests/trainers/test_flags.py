"""Configs by name and path, overrides, and what a user's mistakes and --help print."""

import pathlib
import re

import numpy as np
import pytest
from interpreters import ROOT, ran

from keras_vit.data import from_arrays
from keras_vit.models import families
from keras_vit.tasks import find_task
from trainers import config_files, flags, pretrain

BINARIES = sorted(
    path.stem
    for path in (ROOT / "trainers").glob("*.py")
    if "flags.launch(" in path.read_text() and path.stem != "flags"
)


@pytest.mark.processes
def test_help_answers_without_an_engine():
    assert {"pretrain", "finetune", "evaluate", "probe", "export", "prepare", "deduplicate", "demo"} <= set(BINARIES)
    for name, (printed, code) in zip(BINARIES, ran(*((f"trainers.{name}", "--help") for name in BINARIES))):
        assert code == 0 and "heavy: []" in printed, printed
        assert f"keras-vit {name.removesuffix('_')}" in printed and "--debug" in printed


@pytest.mark.processes
def test_a_users_mistake_ends_without_a_traceback_and_an_engine(tmp_path):
    mistakes = {
        ("--config=",): "Give --config=NAME, e.g. --config=digits_pretrain (recipes: augreg,",
        ("--config.optimizer.learning_rat=1",): 'no "learning_rat" there. Did you mean "learning_rate"',
        ("--config.batch_size=many",): "is not an integer",
        (): "--workdir=FOLDER is missing",
        (f"--workdir={tmp_path}", "nonsense"): 'Error: Unexpected argument "nonsense"',
    }
    found = ran(*(("trainers.pretrain", "--config=digits_pretrain", *given) for given in mistakes))
    for (printed, code), message in zip(found, mistakes.values()):
        assert code and message in printed and "Traceback" not in printed and "heavy: []" in printed, printed


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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("digit_finetune", 'no config "digit_finetune". Did you mean "digits_finetune"'),
        ("/none/own.py", "There is no config file"),
        (str(pathlib.Path(__file__).parents[2] / "setup.cfg"), 'setup.cfg" is not a Python file'),
    ],
)
def test_unknown_configs_are_refused_with_the_nearest_name(name, message):
    with pytest.raises(ValueError, match=message):
        config_files.load_config(name)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--config.optimiser.name=x", 'no "optimiser" there. Did you mean "optimizer"'),
        ("--config.batchsize=1", 'no "batchsize" there. Did you mean "batch_size"'),
        ("--config.drop_path=0.1", 'no "drop_path" there. Did you mean "model.drop_path"'),
        ("--config.batch_size.x=1", 'no "x" there'),
        ("--config.model.depth", "has no value. Write --config.model.depth=VALUE"),
    ],
)
def test_unknown_keys_are_refused_with_the_nearest_key(argument, message):
    with pytest.raises(ValueError, match=message):
        config_files.apply_overrides([argument], config_files.load_config("digits_finetune"))


def test_leaving_out_an_evaluator_that_is_not_there_names_those_that_are():
    config = config_files.load_config("digits_finetune")
    config.evals = {}
    with pytest.raises(
        ValueError, match=r'evals.knn=None: the config has no evaluator "knn" to leave out. It has none.$'
    ):
        config_files.apply_overrides(["--config.evals.knn=None"], config)
    config = config_files.load_config("mae")
    own = ", ".join(config.evals)
    with pytest.raises(ValueError, match=rf'no evaluator "kn" to leave out. Did you mean "knn"\? It has: {own}.$'):
        config_files.apply_overrides(["--config.evals.kn=None"], config)
    assert config_files.apply_overrides(["--config.evals.knn=None"], config) == [] and "knn" not in config.evals
    config.evals = {}
    with pytest.raises(
        ValueError, match="--config.evals is a section. Set its keys: --config.evals.KEY; it has none yet"
    ):
        config_files.apply_overrides(["--config.evals=None"], config)


def test_configs_load_by_name_and_by_path(tmp_path):
    for name in config_files.config_names():
        by_path = config_files.load_config(str(ROOT / "configs" / f"{name}.py"))
        assert config_files.load_config(name).to_dict() == by_path.to_dict()
    own = tmp_path / "own.py"
    own.write_text("from keras_vit.configs.lib import common\n\ndef get_config():\n    return common.base()\n")
    assert config_files.load_config(str(own)).batch_size == 512


def test_durations_are_numbers_or_text(tmp_path):
    own = tmp_path / "own.py"
    own.write_text(
        "from trainers.config_files import packaged\n\ndef get_config():\n    config = packaged('lib.common').base()\n "
        "   config.total = 6\n    config.schedule.warmup = 0\n    return config\n"
    )
    config = config_files.load_config(str(own))
    config.total = "2 epochs"
    assert config.schedule.warmup == 0


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
    given = ["pool=gap", "depth=3", "dropout=0.1", "mean=(1, 2, 3)", "qk_norm=True"]
    assert config_files.apply_overrides([f"--config.model.{text}" for text in given], config) == []
    assert [config.model[text.split("=")[0]] for text in given] == ["gap", 3, 0.1, (1, 2, 3), True]
    config_files.apply_overrides(
        ["--config.evals.few_shot.shots=1,5", "--config.evals.few_shot.every=10 epochs"], config
    )
    assert config.evals.few_shot.to_dict() == {"shots": (1, 5), "every": "10 epochs"}


def test_none_turns_an_option_off():
    config = config_files.load_config("digits_finetune")
    assert config.mixup and config.optimizer.clip_norm
    rest = config_files.apply_overrides(
        ["--config.mixup=None", "--config.optimizer.clip_norm=None", "--config.seed=3"], config
    )
    assert rest == ["--config.seed=3"] and config.mixup is None and config.optimizer.clip_norm is None


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
