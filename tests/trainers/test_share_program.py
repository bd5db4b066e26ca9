"""The share verb: a dry run writes or prints the card without a network, and what a run would fail at is said before
the model loads.
"""

import functools

import pytest
from hub_stand_in import serving
from small_models import every_weight

import keras_vit
from trainers import share


@pytest.fixture
def run(binary):
    """run(paths..., flag=value...): what the verb prints."""
    return functools.partial(binary, share, to="hf://anna/flowers", license="mit")


@pytest.fixture
def file(tmp_path):
    keras_vit.save(every_weight(), tmp_path / "model.keras")
    return str(tmp_path / "model.keras")


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """A hub that answers nothing."""
    pytest.importorskip("huggingface_hub")
    with serving(monkeypatch, tmp_path / "cache") as hub:
        hub.fails["/"] = 500
        yield hub


@pytest.mark.extended
def test_a_dry_run_prints_the_card_or_writes_the_folder_and_uploads_nothing(run, file, tmp_path, monkeypatch, offline):
    assert "# flowers\n" in run(file, dry_run=True)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # an earlier look is replaced
        assert "look/README.md is the card. Nothing was uploaded." in run(file, dry_run=True, output="~/look")
    assert (home / "look" / "model.keras").exists() and not (tmp_path / "~").exists() and not offline.seen


def test_it_prints_the_address_of_the_page(run, file, monkeypatch, tmp_path):
    pytest.importorskip("huggingface_hub")
    with serving(monkeypatch, tmp_path / "cache") as hub:
        assert run(file).splitlines()[-1] == f"{hub.address}/anna/flowers"
        assert len(hub.repositories["anna/flowers"].commits) == 2


def test_a_folder_of_other_files_is_not_replaced(run, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").touch()
    with pytest.raises(ValueError, match="contains other files, which would be lost: cat.png"):
        run("no/such/model.keras", dry_run=True, output=str(tmp_path / "photos"))


def test_it_takes_one_model(run):
    for arguments in ([], ["a.keras", "b.keras"]):
        with pytest.raises(ValueError, match=f"Give one model, such as a run directory, got {len(arguments)}"):
            run(*arguments)
