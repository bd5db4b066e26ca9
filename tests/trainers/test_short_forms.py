"""Short forms of config keys: what they stand for, and what they refuse."""

import inspect
import sys

import pytest
from interpreters import ROOT

from keras_vit.data.ops.op_registry import OPS
from trainers import flags, short_forms


def given(monkeypatch, *argv, for_own_data="folder_finetune"):
    """The config of a command line, and the arguments that absl applies to it."""
    monkeypatch.setattr(sys, "argv", ["keras-vit finetune", *argv])
    return flags._take_overrides(False, for_own_data), sys.argv[1:]


def test_short_forms_are_keys_and_files_have_a_config_of_their_own(monkeypatch, tmp_path):
    (tmp_path / "cat").mkdir()
    monkeypatch.chdir(tmp_path.parent)
    argv = (
        f"--data={tmp_path.name} --init deit/tiny --epochs=2.5 -batch_size=8 --learning_rate=0.01 --workdir=w".split()
    )
    config, rest = given(monkeypatch, *argv)
    assert config.task == "classification" and config.data.train_preprocess.startswith("decode|random_resized_crop")
    keys = f"data.source={tmp_path.name} init=deit/tiny total=2.5.epochs batch_size=8 optimizer.learning_rate=0.01"
    assert rest == ["--workdir=w", *(f"--config.{key.replace('.epochs', ' epochs')}" for key in keys.split())]
    assert given(monkeypatch, "--config=digits_pretrain", "--epochs=3")[1] == ["--config.total=3 epochs"]


def test_the_preprocessing_follows_the_size(monkeypatch):
    config, rest = given(monkeypatch, "--config=cifar10_finetune", "--image_size=192")
    assert config.model.image_size == 192
    assert rest == [
        "--config.data.train_preprocess=decode|random_crop(64, padding=4)|random_flip|resize(192, 192,"
        " method='bicubic')",
        "--config.data.eval_preprocess=decode|resize(192, 192, method='bicubic')",
    ]
    own = "--config.data.train_preprocess=decode|resize(96, 96)"
    assert given(monkeypatch, "--config=augreg_finetune", own, "--image_size=96")[1][0] == own
    assert short_forms.resized("decode|resize(256)|central_crop(224)", 224, 32) == "decode|resize(37)|central_crop(32)"


@pytest.mark.parametrize(
    "name", [name for name, op in OPS.items() if "height" in inspect.signature(op.factory).parameters]
)
def test_every_op_with_a_size_follows(name):
    assert short_forms.resized(f"{name}(32)|x", 32, 64) == f"{name}(64)|x"
    assert short_forms.resized(f"{name}(32, width=48)", 32, 64) == f"{name}(64, width=96)"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            "--config=digits_pretrain --epochs=5 --config.total=100",
            "--epochs and --config.total set the same: give one",
        ),
        ("--config=digits_pretrain --epochs=five", "--epochs=five: expected a number"),
        ("--config=digits_pretrain --data --epochs=5", "--data has no value"),
        (
            "--config=digits_pretrain --image_size=16",
            '--image_size=16: no op in "decode.*" sets the size of the images',
        ),
        ("--config=folder_finetune --image_size=224,112", "--image_size=224,112: expected pixels, of square images"),
        ("--init=deit/tiny", "Give --data=PHOTOS, a folder with one subfolder of images per class, or --config=NAME"),
        ("--data=cifar10", "--data=cifar10: there is no such folder or file.* give --config=NAME"),
        ("--dta=photos --init=deit/tiny", 'there is no flag --dta. Did you mean "--data"'),
        ("--lr=1e-3 --init=deit/tiny", 'there is no flag --lr. Did you mean "--learning_rate"'),
        ("--drop-path=0.1", 'there is no flag --drop-path. Did you mean "--config.model.drop_path"'),
    ],
)
def test_what_short_forms_refuse(argv, message, monkeypatch):
    with pytest.raises(SystemExit, match=f"^keras-vit finetune: {message}"):
        given(monkeypatch, *argv.split())


def test_timms_flags_are_those_of_the_page():
    page = (ROOT / "docs/migrating.md").read_text()
    for theirs, key in short_forms.FROM_TIMM.items():
        assert f"-{theirs.replace('_', '-')}" in page and key.rpartition(".")[2] in page


def test_a_hint_is_near_enough_to_be_useful():
    assert flags._meant("amp", ["examples"], with_config=True) == ["--config.dtype"]
    assert flags._meant("amp", ["examples"], with_config=False) == []
    assert flags._meant("lr", ["runs"], with_config=False) == []
    assert flags._meant("workdr", ["workdir", "runs"], with_config=True) == ["--workdir"]
