"""kaggle://: versions that load again, and what is said before anything is uploaded; against a local server that speaks
Kaggle's API.
"""

import numpy as np
import pytest
from kaggle_stand_in import serving
from small_models import every_weight, pixels

import keras_vit
from keras_vit.checkpoints.fetch import kaggle as fetch
from keras_vit.sharing import share
from keras_vit.sharing.share import find_place

ADDRESS, NAME = "kaggle://anna/flowers/keras/vit_tiny", "anna/flowers/keras/vit_tiny"


@pytest.fixture
def kaggle(monkeypatch, tmp_path):
    pytest.importorskip("kagglehub")
    with serving(monkeypatch, tmp_path) as kaggle:
        yield kaggle


@pytest.mark.extended
def test_a_saved_model_loads_again_and_a_further_one_is_a_version(kaggle):
    model = every_weight()
    keras_vit.save(model, ADDRESS, license="apache-2.0")
    [(licence, _, files)] = kaggle.variations[NAME]
    assert licence == "Apache 2.0" and kaggle.models == {"anna/flowers": True}
    assert {"README.md", "model.keras", "model.safetensors", "config.json"} <= set(files)
    assert f'keras_vit.load("{ADDRESS}")'.encode() in files["README.md"]
    np.testing.assert_array_equal(keras_vit.load(ADDRESS)(pixels(3)), model(pixels(3)))

    other = every_weight(depth=2)
    keras_vit.save(other, ADDRESS, license="apache-2.0")
    assert len(kaggle.variations[NAME]) == 2 and kaggle.variations[NAME][1][1] == "vit, shared by keras_vit"
    np.testing.assert_array_equal(keras_vit.load(ADDRESS)(pixels(3)), other(pixels(3)))
    np.testing.assert_array_equal(keras_vit.load(f"{ADDRESS}/1")(pixels(3)), model(pixels(3)))


def test_pictures_keep_their_folder(kaggle, tmp_path):
    (tmp_path / "shared" / "pictures").mkdir(parents=True)
    (tmp_path / "shared" / "pictures" / "loss.png").write_bytes(b"png")
    place, licence = find_place(ADDRESS, "mit")
    place.upload(tmp_path / "shared", licence, "mine", False)
    assert "pictures/loss.png" in kaggle.variations[NAME][0][2]


def test_an_upload_that_fails_makes_no_version(kaggle):
    kaggle.fails["StartBlobUpload"] = 500
    with pytest.raises(ConnectionError, match="The model there is unchanged"):
        keras_vit.save(every_weight(), ADDRESS, license="mit")
    assert not kaggle.variations


def test_a_token_is_missing_or_wrong(monkeypatch, tmp_path):
    pytest.importorskip("kagglehub")
    for token in (None, "expired"):
        with (
            serving(monkeypatch, tmp_path, token),
            pytest.raises(PermissionError, match="no token that Kaggle accepts.*KAGGLE_API_TOKEN"),
        ):
            share("no/such/model.keras", ADDRESS, "mit")


def test_without_a_network_the_dry_run_is_named(kaggle):
    kaggle.close()
    with pytest.raises(ConnectionError, match="--dry_run writes the folder without a network"):
        share("no/such/model.keras", ADDRESS, "mit")
    with pytest.raises(ConnectionError, match="by other means"):
        keras_vit.load(ADDRESS)


def test_a_missing_variation_is_named(kaggle):
    with pytest.raises(FileNotFoundError, match=NAME):
        keras_vit.load(ADDRESS)


def test_without_kagglehub_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "kagglehub", None)
    for call in (lambda: share("no/such/model.keras", ADDRESS, "mit"), lambda: keras_vit.load(ADDRESS)):
        with pytest.raises(ImportError, match="needs kagglehub: pip install kagglehub"):
            call()


@pytest.mark.parametrize(
    ("address", "license", "words"),
    [
        ("kaggle://anna/flowers", "mit", "expected kaggle://USER/MODEL/keras/VARIATION"),
        (f"{ADDRESS}/3", "mit", "Kaggle numbers versions itself"),
        ("kaggle://anna/flowers/pyTorch/tiny", "mit", "expected kaggle://USER/MODEL/keras/VARIATION"),
        (ADDRESS, "openrail", 'Unknown licence "openrail".*Valid: apache-2.0'),
    ],
)
def test_addresses_and_licences_that_kaggle_does_not_know_are_refused(address, license, words):
    with pytest.raises(ValueError, match=words):
        find_place(address, license)


def test_addresses_to_load():
    assert fetch.split(ADDRESS) == (NAME, None) and fetch.split(f"{ADDRESS}/12") == (NAME, "12")
    for other in ("kaggle://anna/flowers", "kaggle://a/../c/d", "kaggle://a/b/c/d/e"):
        with pytest.raises(ValueError, match="expected kaggle://USER/MODEL/keras/VARIATION"):
            fetch.split(other)
