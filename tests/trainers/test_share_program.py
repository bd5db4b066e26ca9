"""The share verb: a dry run writes or prints the card without a network, and what a run would fail at is said before
the model loads.
"""

import types

import pytest
from hub_stand_in import serving
from small_models import every_weight

import keras_vit
from trainers import flags, share

DEFAULTS = {
    "to": "hf://anna/flowers",
    "license": "mit",
    "run": None,
    "private": False,
    "images": False,
    "untrained": False,
}


@pytest.fixture
def given(monkeypatch):
    """given(flag=value...): the flags."""
    values = {**DEFAULTS, "dry_run": False, "output": None}
    return lambda **others: monkeypatch.setattr(flags, "FLAGS", types.SimpleNamespace(**{**values, **others}))


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


def test_a_dry_run_prints_the_card_or_writes_the_folder_and_uploads_nothing(given, file, tmp_path, capsys, offline):
    given(dry_run=True)
    share.main([file])
    assert "# flowers\n" in capsys.readouterr().out
    given(dry_run=True, output=str(tmp_path / "look"))
    share.main([file])
    assert f"{tmp_path}/look/README.md is the card. Nothing was uploaded." in capsys.readouterr().out
    assert (tmp_path / "look" / "model.keras").exists() and not offline.seen
    share.main([file])  # an earlier look is replaced


def test_a_dry_run_writes_into_the_home_folder(given, file, tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    given(dry_run=True, output="~/look")
    share.main([file])
    assert (home / "look" / "README.md").exists() and not (tmp_path / "~").exists()


def test_it_prints_the_address_of_the_page(given, file, monkeypatch, tmp_path, capsys):
    pytest.importorskip("huggingface_hub")
    with serving(monkeypatch, tmp_path / "cache") as hub:
        given()
        share.main([file])
        assert capsys.readouterr().out.splitlines()[-1] == f"{hub.address}/anna/flowers"
        assert len(hub.repositories["anna/flowers"].commits) == 2


def test_a_folder_of_other_files_is_not_replaced(given, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").touch()
    given(dry_run=True, output=str(tmp_path / "photos"))
    with pytest.raises(ValueError, match="holds other files, which would be lost: cat.png"):
        share.main(["no/such/model.keras"])


@pytest.mark.parametrize("arguments", [[], ["a.keras", "b.keras"]])
def test_it_takes_one_model(given, arguments):
    given()
    with pytest.raises(ValueError, match=f"Give one model, such as a run directory, got {len(arguments)}"):
        share.main(arguments)
