"""Configs by name and path, refused overrides, and help that does not import TensorFlow."""

import os
import pathlib
import subprocess
import sys

import pytest

from keras_vit.models.resnet import BIT_FIELDS
from keras_vit.models.spec import FIELDS
from trainers import flags

ROOT = pathlib.Path(__file__).resolve().parents[2]


def binary(*arguments, cwd=ROOT):
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=os.environ)


@pytest.mark.parametrize("name", ["pretrain", "finetune", "evaluate", "export", "benchmark", "demo"])
def test_help_answers_without_tensorflow(name):
    script = (
        f"import sys, runpy\nsys.argv = ['{name}', '--help']\n"
        f"runpy.run_module('trainers.{name}', run_name='__main__')\n"
        "heavy = {'tensorflow', 'keras', 'jax', 'tensorflow_datasets', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"python -m trainers.{name}" in done.stdout and "--debug" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config=digit_finetune"], 'no config "digit_finetune". Did you mean "digits_finetune"'),
        (["--config=/none/own.py"], "There is no config file"),
        (["--config.optimiser.name=x"], 'no "optimiser" there. Did you mean "optimizer"'),
        (["--config.optimizer.learning_rat=1"], 'no "learning_rat" there. Did you mean "learning_rate"'),
        (["--config", "cifar10_scratch", "--config.batchsize=1"], 'no "batchsize" there. Did you mean "batch_size"'),
        (["--config.batch_size=many"], "invalid literal for int"),
        ([], "Flag --workdir must have a value"),
    ],
)
def test_mistakes_are_refused_with_the_nearest_right_name(arguments, message):
    done = binary("trainers.pretrain", *arguments)
    assert done.returncode != 0 and message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_users_mistake_ends_without_a_traceback(tmp_path):
    done = binary("trainers.pretrain", f"--workdir={tmp_path}", "--config.data.source=folder:/none")
    assert done.returncode == 1 and 'Error: There is no folder "/none"' in done.stderr
    assert "Traceback" not in done.stderr


def test_configs_load_by_name_and_by_path(tmp_path):
    for name in flags.config_names():
        assert flags.load_config(name).to_dict() == flags.load_config(str(ROOT / "configs" / f"{name}.py")).to_dict()
    own = tmp_path / "own.py"
    own.write_text("from keras_vit.configs.lib import common\n\ndef get_config():\n    return common.base()\n")
    assert flags.load_config(str(own)).batch_size == 512


def test_every_spec_field_can_be_overridden_and_no_other():
    own = {"variant", "image_size", "channels", "remat"}
    assert set(flags.load_config("digits_pretrain").model.keys()) - own == set(FIELDS) | set(BIT_FIELDS)


def test_every_config_says_its_command():
    for name in flags.config_names():
        text = (ROOT / "configs" / f"{name}.py").read_text()
        assert f"--config={name}" in text.split('"""')[1]
